"""Which sequences are found in files, folders and patterns, how they are named, what is refused."""

from __future__ import annotations

import glob
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ullayers.video.files.finding as finding
from tests.video.samples import level, read, readers, text_file, write_images, write_video
from ullayers.video.clips import VideoError, natural_key
from ullayers.video.files.finding import _expand
from ullayers.video.files.opening import open_video
from ullayers.video.sources import find_sources, read_all


def test_natural_order(tmp_path: Path) -> None:
    names = ["img10", "img9b", "img9a10", "img9a9", "2", "10", "img01", "img1", "a"]
    ordered = ["2", "10", "a", "img01", "img1", "img9a9", "img9a10", "img9b", "img10"]
    assert sorted(names, key=natural_key) == ordered
    assert level(read(write_images(tmp_path / "a", 12))) == list(range(12))


def test_folders(tmp_path: Path) -> None:
    for name in ("run10", "run2"):
        write_images(tmp_path / "many" / name, 2)
    (tmp_path / "many/.hidden").mkdir()
    (tmp_path / "many/README").write_text("text")
    found = find_sources([str(tmp_path / "many")])
    assert [(source.name, source.kind) for source in found] == [
        ("run2", "images"),
        ("run10", "images"),
    ]
    (tmp_path / "videos").mkdir()
    for name in ("b10.mp4", "b2.mp4"):
        write_video(tmp_path / "videos" / name, 2)
    (tmp_path / "videos/labels.csv").write_text("a,b\n1,2\n")
    (tmp_path / "videos/._b2.mp4").write_text("what macOS leaves behind")
    found = find_sources([str(tmp_path / "videos"), str(tmp_path / "many")])
    assert [source.name for source in found] == ["b2", "b10", "run2", "run10"]


def test_patterns(tmp_path: Path) -> None:
    write_images(tmp_path / "a", 4)
    write_images(tmp_path / "b", 4)
    Image.new("RGB", (4, 4)).save(tmp_path / "a" / "thumb.jpg")
    write_video(tmp_path / "c.mp4", 2)
    [source] = find_sources([f"{tmp_path}/a/img*.png"])
    assert (source.name, source.kind) == ("a", "images")
    assert len(read_all(source).index) == 4
    found = find_sources([f"{tmp_path}/*/img*.png"])
    assert [source.name for source in found] == ["a", "b"]
    found = find_sources([f"{tmp_path}/[bc]*"])
    assert sorted(source.name for source in found) == ["b", "c"]
    assert len(find_sources([f"{tmp_path}/**"])) == 3


def test_names_are_unique_and_safe(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write_video(tmp_path / folder / "clip.mp4", 1)
    write_video(tmp_path / "x" / "CLIP.avi", 1, "mjpeg", pix_fmt="yuvj420p")
    write_video(tmp_path / "x" / '-a, "b"; c\'d.mp4', 1)
    found = find_sources([str(tmp_path / "x"), str(tmp_path / "y"), str(tmp_path / "x/clip.mp4")])
    assert len(found) == 4
    names = {os.path.basename(source.path): source.name for source in found}
    assert names['-a, "b"; c\'d.mp4'] == "a_b_c_d"
    assert sorted(source.name for source in found) == ["a_b_c_d", "x_CLIP", "x_clip-2", "y_clip"]


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "useless").mkdir()
    text_file(tmp_path / "useless/notes.txt")
    text_file(tmp_path / "text.mp4")
    (tmp_path / "zero.mp4").touch()
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    (tmp_path / "mixed").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "mixed/one.png")
    write_video(tmp_path / "mixed/a.mp4", 1)
    expected = {
        "nowhere": "nowhere: does not exist",
        "nowhere.mp4": "nowhere.mp4: does not exist",
        "empty": "empty: is an empty folder",
        "useless": "useless: contains no images or videos",
        "*.mov": "nothing matches this pattern",
        "useless/*": "matches no images or videos",
        "text.mp4": "text.mp4: cannot be read as a video",
        "useless/notes.txt": "notes.txt: is text or a single image",
        "zero.mp4": "zero.mp4: cannot be read (empty",
        "one.png": "one.png: is text or a single image, not a video; for images give their folder",
        "mixed": f"such as '{tmp_path / 'mixed' / '*.mp4'}'",
    }
    for name, message in expected.items():
        with pytest.raises(VideoError) as caught:
            find_sources([str(tmp_path / name)])
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(VideoError, match="at least one"):
        find_sources([])


def test_a_video_that_cannot_be_opened_is_not_passed_over(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 1)
    text_file(tmp_path / "b.mp4")
    with pytest.raises(VideoError, match=r"b\.mp4"):
        find_sources([str(tmp_path)])


def test_recursive_patterns_do_not_follow_links_to_folders(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    write_images(loop / "b" / "c", 2)
    for name in ("a10.mp4", "a2.mp4", "b/x.mp4", ".hidden.mp4"):
        write_video(loop / name, 1)
    for number in range(12):  # each link multiplies the paths that a walk along links would visit
        (loop / f"self{number}").symlink_to(".")
    (loop / "up").symlink_to("..")
    (loop / "linked.mp4").symlink_to("b/other")
    write_video(tmp_path / "outside.mp4", 1)
    os.rename(write_video(loop / "b/y.mp4", 1), loop / "b/other")

    def found(pattern: str) -> list[str]:
        return [os.path.relpath(one.path, loop) for one in find_sources([f"{tmp_path}/{pattern}"])]

    assert found("loop/**/*.mp4") == ["a2.mp4", "a10.mp4", "linked.mp4", "b/x.mp4"]
    assert found("l*/**/**/*.mp4") == ["a2.mp4", "a10.mp4", "linked.mp4", "b/x.mp4"]
    assert found("loop/**/c/*.png") == ["b/c/*.png"]
    assert "outside.mp4" not in " ".join(found("loop/**"))
    assert found("loop/up/*.mp4") == ["up/outside.mp4"]  # a link that the pattern names


@pytest.mark.parametrize("pattern", ["**", "**/", "**/*", "**/*.txt", "a/**", "*/**/d/*", "a/**/b"])
def test_recursive_patterns_match_what_glob_matches(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1.txt", "a/2.txt", "a/b/d/[3].txt", "a/[x]/4.txt", ".e/5.txt", "a/.f/6.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for place in (pattern, f"{tmp_path}/{pattern}"):
        assert _expand(place) == set(glob.glob(place, recursive=True)) - {""}


RESULTS = {
    "run": {"config.json": '{"inputs": [], "learn": {}, "reading": {}}'},
    "damaged run": {"config.json": "{", "metrics.jsonl": ""},
    "tracks": {"tracks.csv": "sequence,frame,time,x,y,confidence\n"},
    "codes": {"codes.csv": "sequence,frame,time,code0\n"},
    "interrupted": {"codes.partial.sqlite": "SQLite format 3\0"},
    "summary": {"summary.json": "{}"},
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results_inside_an_input_folder_are_not_inputs(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "in"
    out = place / "app"
    write_images(out / "masks" / "a", 2)
    write_video(place / "a.mp4", 1)
    write_video(out / "overlay.mp4", 1)
    for name, text in RESULTS[kind].items():
        (out / name).write_text(text)
    for path in (place, f"{place}/*", f"{place}/**/*.mp4", f"{place}/**", f"{tmp_path}/*/**/*"):
        assert [source.name for source in find_sources([str(path)])] == ["a"]
    for path in (out, f"{out}/*.mp4", out / "overlay.mp4"):  # given by name
        assert [source.name for source in find_sources([str(path)])] == ["overlay"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tracks.csv", "frame,x,y\n"),
        ("codes.csv", ""),
        ("labels.csv", "sequence,frame,time,x\n"),
        ("config.json", '{"camera": 1}'),
        ("config.json", "[]"),
        ("summary.json", "{}"),
    ],
)
def test_folders_with_other_tables_are_inputs(name: str, text: str, tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 1)
    (tmp_path / "more").mkdir()
    write_video(tmp_path / "more" / "b.mp4", 1)
    (tmp_path / "more" / name).write_text(text)
    for path in (str(tmp_path), f"{tmp_path}/**/*.mp4"):
        assert [source.name for source in find_sources([path])] == ["a", "b"]


def test_ctrl_c_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyAV loses exceptions of signal handlers while a file cannot be opened."""
    for number in range(400):
        (tmp_path / f"{number}.bin").write_bytes(np.random.default_rng(number).bytes(999))
    opened: list[str] = []

    def interrupting(path: str) -> object:
        opened.append(path)
        if len(opened) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return open_video(path)

    monkeypatch.setattr(finding, "open_video", interrupting)
    with pytest.raises(KeyboardInterrupt):
        find_sources([str(tmp_path)])
    assert len(opened) < 400
    assert not readers()


@pytest.mark.parametrize(("name", "limit"), [("MAX_TRIED", 5), ("MAX_SECONDS", 0.0)])
def test_many_files_that_are_no_videos(
    name: str, limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        text_file(tmp_path / f"{number}.csv")
    write_video(tmp_path / "z.mp4", 2)
    assert len(find_sources([str(tmp_path)])) == 1
    monkeypatch.setattr(finding, name, limit)
    with pytest.raises(VideoError, match="too many files here are not named like videos; choose"):
        find_sources([str(tmp_path)])
    assert len(find_sources([str(tmp_path / "*.mp4")])) == 1
