"""What is written down: every frame once, whole or under another name, in step with the video."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ullayers.output.run_report as run_report
from tests.films import (
    ball,
    column,
    contents,
    files_in,
    read_table,
    still,
    write_ball,
    write_film,
    write_pictures,
    write_timed,
    write_truncated,
)
from tests.pages import read as read_page
from ullayers.learn.apply import answers
from ullayers.learn.checkpoint import RunError
from ullayers.learn.config import Config
from ullayers.learn.footage import PIECE
from ullayers.learn.results import TRACK, Answer
from ullayers.learn.runs import Run, learn_run, plan_run
from ullayers.output.export import Exported, ExportOptions, export
from ullayers.output.run_report import report_run
from ullayers.output.summary import summary_lines
from ullayers.output.tables import PartialTable
from ullayers.video.reader import Clip, Reading, Source, VideoError, find_sources, read_all


def learned(folder: Path, task: Any) -> Run:
    config = Config(task=task, steps=3, trial_steps=2, restarts=1, batch=2, clip=12)
    run, sources = plan_run([write_ball(folder / "ball.mp4")], folder / "run", config, size=24)
    for _ in learn_run(run, sources):
        pass
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return learned(tmp_path_factory.mktemp("locate"), "locate")


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return learned(tmp_path_factory.mktemp("orient"), "orient")


@pytest.fixture(params=["locate", "orient"])
def either(request: pytest.FixtureRequest, run: Run, codes: Run) -> Run:
    return run if request.param == "locate" else codes


def of_kind(run: Run, kind: str) -> Run:
    return replace(run, result={**run.result, "kind": kind})


def sources_in(folder: Path, *counts: int) -> list[Source]:
    folder.mkdir(exist_ok=True)
    for number, count in enumerate(counts):
        write_ball(folder / f"film{number}.mp4", count, seed=number)
    return find_sources([str(folder)])


def test_tables_have_every_frame_once_with_its_time(either: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 70, 5)
    seen: list[int] = []
    done = export(either, sources, tmp_path / "out", ExportOptions(), seen.append)
    name = "tracks.csv" if either.config.task == "locate" else "codes.csv"
    assert files_in(tmp_path / "out") == {name, "summary.json"}
    assert done.files == [tmp_path / "out" / name, tmp_path / "out" / "summary.json"]
    rows = read_table(tmp_path / "out" / name)
    wanted = ["x", "y", "confidence"] if either.config.task == "locate" else ["y0", "y1"]
    pixels = ["x_px", "y_px"] if either.config.task == "locate" else []
    assert list(rows[0]) == ["sequence", "frame", "time", *wanted, *pixels]
    frames = [("film0", n) for n in range(70)] + [("film1", n) for n in range(5)]
    assert [(row["sequence"], int(row["frame"])) for row in rows] == frames
    assert [float(row["time"]) for row in rows] == [n / 25 for _, n in frames]
    assert seen[-1] == 75
    values = column(tmp_path / "out" / name, *wanted)
    assert np.allclose(values, np.concatenate([a.values for a in done.answers]), atol=1e-6)
    if either.config.task == "locate":
        assert ((values >= 0) & (values <= 1)).all()
        in_pixels = column(tmp_path / "out" / name, "x_px", "y_px")
        assert np.allclose(in_pixels, values[:, :2] * (64, 48), atol=0.006)


@pytest.mark.parametrize("kind", ["clip", "stream"])
def test_the_ball_is_found(run: Run, tmp_path: Path, kind: str) -> None:
    frames, places = ball(60)
    [source] = find_sources([write_film(tmp_path / "a.mp4", frames)])
    found = np.concatenate([part.values for part in answers(of_kind(run, kind), source)])
    assert np.median(np.abs(found[:, :2] - places)) < 0.03
    assert np.median(found[:, 2]) > 0.5


def test_times_are_those_in_the_file(either: Run, tmp_path: Path) -> None:
    when = [0, 40, 50, 400, 410, 1000, 3000, 3001, 3500, 4000]
    sources = find_sources([write_timed(tmp_path / "a.mp4", ball(10)[0], when)])
    export(either, sources, tmp_path, ExportOptions())
    [table] = tmp_path.glob("*s.csv")
    assert np.allclose(column(table, "time")[:, 0], np.array(when) / 1000, atol=1e-3)


def test_every_nth_frame_and_at_most_so_many(either: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 40, 40)
    export(either, sources, tmp_path, ExportOptions(stride=7, max_frames=3, overlay=10**9))
    [table] = tmp_path.glob("*s.csv")
    assert column(table, "frame", "time").tolist() == [[0, 0], [7, 0.28], [14, 0.56]] * 2
    assert len(read_all(find_sources([str(tmp_path / "overlay.mp4")])[0]).index) == 6


@pytest.mark.parametrize("stride", [1, 3])
def test_what_lies_beyond_the_last_frame_is_not_looked_at(
    run: Run, tmp_path: Path, stride: int
) -> None:
    """Not for the backdrop either: the rest of the video may be of another scene."""
    frames = np.concatenate([ball(40)[0], 255 - ball(400)[0]])
    whole, first = (
        find_sources([write_pictures(tmp_path / name, part, "bmp")])[0]
        for name, part in (("whole", frames), ("first", frames[:40]))
    )
    slow = replace(of_kind(run, "stream"), reading=replace(run.reading, stride=5))
    most = -(-40 // stride)
    a, b = (
        np.concatenate([a.values for a in answers(slow, source, stride=stride, max_frames=most)])
        for source in (whole, first)
    )
    assert np.array_equal(a, b)


def test_long_videos_are_found_in_as_in_short_pieces(run: Run, tmp_path: Path) -> None:
    frames, places = ball(PIECE + 40, 24, 32)
    [source] = find_sources([write_pictures(tmp_path / "a", frames, "bmp")])
    parts = list(answers(run, source))
    assert np.concatenate([part.index for part in parts]).tolist() == list(range(PIECE + 40))
    found = np.concatenate([part.values for part in parts])
    assert np.median(np.abs(found[:, :2] - places)) < 0.03


@pytest.mark.parametrize("count", [1, 2])
def test_a_moment_has_a_row_but_no_confidence(run: Run, tmp_path: Path, count: int) -> None:
    for kind in ("clip", "stream"):
        folder = tmp_path / kind
        folder.mkdir()
        sources = find_sources([write_film(folder / "a.mp4", still(count))])
        export(of_kind(run, kind), sources, folder, ExportOptions(overlay=9, masks=True))
        rows = column(folder / "tracks.csv", "x", "y", "confidence")
        assert len(rows) == count
        assert np.isfinite(rows).all()
        assert (rows[:, 2] < 0.3).all()


def test_names_are_safe_in_tables_and_folders(run: Run, tmp_path: Path) -> None:
    names = ["a, b", 'say "hi"', "Ünï cödé 日本", "semi;colon", "line\nbreak", "a_ b"]
    for number, name in enumerate(names):
        write_ball(tmp_path / f"{name}.mp4", 3, seed=number)
    sources = find_sources([str(tmp_path)])
    export(run, sources, tmp_path / "out", ExportOptions(masks=True))
    rows = read_table(tmp_path / "out" / "tracks.csv")
    assert len(rows) == 18
    assert {row["sequence"] for row in rows} == {source.name for source in sources}
    assert len({row["sequence"] for row in rows}) == len(names)
    masks = {path.name for path in (tmp_path / "out" / "masks").iterdir()}
    assert masks == {source.name for source in sources}


def test_masks_have_the_size_of_the_frames_and_show_the_object(run: Run, tmp_path: Path) -> None:
    frames, places = ball(30, 50, 90)
    sources = find_sources([write_pictures(tmp_path / "in", frames)])
    done = export(run, sources, tmp_path, ExportOptions(masks=True, stride=3))
    files = sorted((tmp_path / "masks" / "in").iterdir())
    assert [file.name for file in files] == [f"{n:06d}.png" for n in range(0, 30, 3)]
    assert tmp_path / "masks" in done.files
    for number, file in zip(range(0, 30, 3), files, strict=True):
        mask = np.asarray(Image.open(file))
        assert mask.shape == (50, 90)
        assert mask.dtype == np.uint8
        x, y = (places[number] * (90, 50)).astype(int)
        assert mask[y, x] > 128
        assert mask.mean() < 64


def test_a_video_of_all_frames_has_all_of_them(either: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 100, 6)
    export(either, sources, tmp_path, ExportOptions(overlay=10**9))
    clip = read_all(find_sources([str(tmp_path / "overlay.mp4")])[0])
    assert len(clip.index) == 106
    height, width = clip.frames.shape[2:]
    wide = 64 if either.config.task == "locate" else 64 + 48  # with a panel beside it
    assert width / height == pytest.approx(wide / 48, abs=0.02)


def test_a_short_video_is_shared_among_the_sources(either: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 30, 30)
    export(either, sources, tmp_path, ExportOptions(overlay=10))
    assert len(read_all(find_sources([str(tmp_path / "overlay.mp4")])[0]).index) == 10


def broken_middle(folder: Path) -> list[Source]:
    sources_in(folder, 12, 12, 12)
    write_truncated(folder / "film1.mp4")
    return find_sources([str(folder)])


def test_a_broken_source_ends_it_and_finished_sequences_stay(either: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    for overlay in (None, 100):
        with pytest.raises(VideoError, match=r"film1.mp4: broken after frame"):
            export(either, sources, out, ExportOptions(overlay=overlay))
        name = "tracks" if either.config.task == "locate" else "codes"
        assert files_in(out) == {f"{name}.partial.csv", f"{name}.partial.json"}
        kept = {row["sequence"] for row in read_table(out / f"{name}.partial.csv")}
        assert kept == {"film0"}


@pytest.mark.parametrize("kind", ["clip", "stream"])
def test_skipping_keeps_what_can_be_read(run: Run, tmp_path: Path, kind: str) -> None:
    sources = broken_middle(tmp_path / "in")
    wanted = ExportOptions(skip_bad=True, overlay=10**9)
    done = export(of_kind(run, kind), sources, tmp_path / "out", wanted)
    assert list(done.bad) == ["film1"]
    rows = [row["sequence"] for row in read_table(tmp_path / "out" / "tracks.csv")]
    assert (rows.count("film0"), rows.count("film2")) == (12, 12)
    assert 3 < rows.count("film1") < 40
    assert files_in(tmp_path / "out") == {"tracks.csv", "summary.json", "overlay.mp4"}
    report_run(replace(run, folder=_with_metrics(run, tmp_path)), sources, done)
    assert (tmp_path / "report.html").exists()


def _with_metrics(run: Run, folder: Path) -> Path:
    (folder / "metrics.jsonl").write_bytes((run.folder / "metrics.jsonl").read_bytes())
    return folder


def test_a_report_of_nothing_but_broken_sources(either: Run, tmp_path: Path) -> None:
    """Few frames can be read, fewer than a report would show."""
    folder = Path(write_pictures(tmp_path / "in", ball(5)[0]))
    (folder / "img5.png").write_bytes(b"no picture")
    sources = find_sources([str(folder)])
    done = export(either, sources, tmp_path / "out", ExportOptions(skip_bad=True, overlay=50))
    assert len(done.answers[0].index) == 5
    assert len(read_all(find_sources([str(tmp_path / "out" / "overlay.mp4")])[0]).index) == 5
    report_run(replace(either, folder=_with_metrics(either, tmp_path)), sources, done)
    assert "cannot be read as a picture" in done.bad["in"]
    assert (tmp_path / "report.html").exists()


def test_if_nothing_can_be_read_there_is_no_table(run: Run, tmp_path: Path) -> None:
    folder = Path(write_pictures(tmp_path / "in", ball(3)[0]))
    sources = find_sources([str(folder)])
    for picture in folder.iterdir():
        picture.write_bytes(b"no picture")
    with pytest.raises(VideoError, match=r"img0.png"):
        export(run, sources, tmp_path / "out", ExportOptions(skip_bad=True))
    assert files_in(tmp_path / "out") == set()


def test_resuming_does_the_rest_and_gives_the_same_table(either: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(VideoError):
        export(either, sources, out, ExportOptions())
    [partial] = out.glob("*.partial.csv")
    with open(partial, "a") as file:  # killed while it wrote the next sequence
        file.write("film1,0,0.000000,0.5,0.5,0.5\nfilm1,1,0.04")
    write_ball(tmp_path / "in" / "film1.mp4", 12, seed=1)
    seen: list[int] = []
    export(either, sources, out, ExportOptions(resume=True), seen.append)
    assert seen[-1] == 24, "the first one is not done again"
    whole = export(either, sources, tmp_path / "whole", ExportOptions()).files[0]
    assert (out / whole.name).read_bytes() == whole.read_bytes()
    assert files_in(out) == {whole.name, "summary.json"}


def test_what_is_resumed_is_whole(either: Run, tmp_path: Path) -> None:
    """Rows, masks, and what the video and the report show of the sequences that were finished."""
    sources, out, locate = broken_middle(tmp_path / "in"), tmp_path / "out", either.config.task
    wanted = ExportOptions(overlay=15, masks=locate == "locate")
    with pytest.raises(VideoError):
        export(either, sources, out, wanted)
    write_ball(tmp_path / "in" / "film1.mp4", 12, seed=1)
    done = export(either, sources, out, replace(wanted, resume=True))
    whole = export(either, sources, tmp_path / "whole", wanted)
    assert [len(found.index) for found in done.answers] == [12, 12, 12]
    for found, expected in zip(done.answers, whole.answers, strict=True):
        assert np.allclose(found.values, expected.values, atol=1e-6)
        assert np.array_equal(found.index, expected.index)
    assert files_in(out) == files_in(tmp_path / "whole")
    films = [str(place / "overlay.mp4") for place in (out, tmp_path / "whole")]
    shown = [read_all(source).frames.float() for source in find_sources(films)]
    assert len(shown[0]) == 15
    assert float((shown[0] - shown[1]).abs().mean()) < 0.1
    report_run(replace(either, folder=_with_metrics(either, tmp_path)), sources, done)


def test_masks_that_were_not_asked_for_before(run: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(VideoError):
        export(run, sources, out, ExportOptions())
    write_ball(tmp_path / "in" / "film1.mp4", 12, seed=1)
    export(run, sources, out, ExportOptions(resume=True, masks=True))
    assert len(files_in(out / "masks")) == len(read_table(out / "tracks.csv")) == 36


def test_masks_of_another_time_do_not_stay(run: Run, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 9, 5), tmp_path / "out"
    mine, stray = (
        out / "masks" / "film0" / "mine.png",
        out / "masks" / "film1" / f".{32 * '0'}.part",
    )
    export(run, sources, out, ExportOptions(masks=True))
    mine.write_bytes(b"mine")
    stray.write_bytes(b"half")
    export(run, sources[:1], out, ExportOptions(masks=True, max_frames=4))
    names = {f"film0/{number:06d}.png" for number in range(4)}
    assert files_in(out / "masks") == {*names, "film0/mine.png"}
    mine.unlink()
    (out / "masks" / "film0" / stray.name).write_bytes(b"half")
    with pytest.raises(VideoError):
        export(run, broken_middle(tmp_path / "in")[1:2], out, ExportOptions(masks=True))
    assert files_in(out) == {"tracks.csv", "summary.json"}, "nothing was finished"


def test_resuming_past_a_source_that_stays_broken(run: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in")[:2], tmp_path / "out"
    (tmp_path / "in" / "film1.mp4").write_bytes(b"nothing")
    with pytest.raises(VideoError):
        export(run, sources, out, ExportOptions())
    done = export(run, sources, out, ExportOptions(resume=True, skip_bad=True))
    assert list(done.bad) == ["film1"]
    assert {row["sequence"] for row in read_table(out / "tracks.csv")} == {"film0"}


def test_resuming_where_nothing_was_begun(run: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 5)
    export(run, sources, tmp_path / "out", ExportOptions(resume=True))
    assert len(read_table(tmp_path / "out" / "tracks.csv")) == 5


def test_resuming_something_else_is_refused(run: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(VideoError):
        export(run, sources, out, ExportOptions())
    for other in (ExportOptions(resume=True, stride=2), ExportOptions(resume=True, max_frames=3)):
        with pytest.raises(RunError, match="was started with another run"):
            export(run, sources, out, other)
    with pytest.raises(RunError, match="was started with another run"):
        export(replace(run, folder=tmp_path), sources, out, ExportOptions(resume=True))
    note = out / "tracks.partial.json"
    content = json.loads(note.read_text())
    more = {**content["places"], "film9": "film9.mp4"}
    for damage in (
        "{",
        "[]",
        "{}",
        "[" * 200_000,
        json.dumps({**content, "bytes": 10**9}),
        json.dumps({**content, "bytes": -1}),
        json.dumps({**content, "places": more}),
    ):
        note.write_text(damage)
        with pytest.raises(RunError, match="damaged; start again with --force"):
            export(run, sources, out, ExportOptions(resume=True))


def test_an_unfinished_run_leaves_no_trace(run: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 3)
    with pytest.raises(RunError, match="training has not finished; continue it with --resume"):
        export(replace(run, net=None), sources, tmp_path / "out", ExportOptions())
    assert not (tmp_path / "out").exists()


def test_old_results_stay_until_new_ones_are_whole(run: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 5)
    export(run, sources, tmp_path / "out", ExportOptions())
    before = (tmp_path / "out" / "tracks.csv").read_bytes()
    with pytest.raises(VideoError):
        export(run, broken_middle(tmp_path / "in"), tmp_path / "out", ExportOptions())
    assert (tmp_path / "out" / "tracks.csv").read_bytes() == before


def test_pictures_of_changing_size_can_be_shown(run: Run, tmp_path: Path) -> None:
    folder = Path(write_pictures(tmp_path / "in", ball(4)[0]))
    Image.fromarray(ball(1, 24, 20)[0][0]).save(folder / "img9.png")
    sources = find_sources([str(folder)])
    with pytest.raises(VideoError, match="make them alike, or give a size"):
        export(run, sources, tmp_path / "out", ExportOptions(overlay=9))
    mixed = replace(run, reading=replace(run.reading, mixed=True))
    done: Exported = export(mixed, sources, tmp_path / "out", ExportOptions(overlay=9))
    assert len(done.answers[0].index) == 5
    assert len(read_all(find_sources([str(tmp_path / "out" / "overlay.mp4")])[0]).index) == 5


def test_rows_of_another_file_of_the_same_name_are_not_taken(tmp_path: Path) -> None:
    first, other = (Source("c", str(tmp_path / place / "c.mp4"), "video") for place in "xy")
    answer = Answer("c", np.arange(2), np.zeros(2), TRACK, np.zeros((2, 3)))
    table = PartialTable(tmp_path / "tracks.csv", [], False)
    table.__enter__().write(answer, first)
    table.__exit__(KeyboardInterrupt, None, None)
    again = PartialTable(tmp_path / "tracks.csv", [], True)
    assert again.has(first)
    with pytest.raises(RunError, match="use the same inputs"):
        again.has(other)


def test_tables_begun_without_pixels_are_finished_as_they_began(run: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(VideoError):
        export(run, sources, out, ExportOptions())
    partial, note = out / "tracks.partial.csv", out / "tracks.partial.json"
    rows = [line.rsplit(",", 2)[0] + "\n" for line in partial.read_text().splitlines()]
    partial.write_text("".join(rows))
    content = json.loads(note.read_text())
    note.write_text(json.dumps({**content, "bytes": partial.stat().st_size}))
    write_ball(tmp_path / "in" / "film1.mp4", 12, seed=1)
    done = export(run, sources, out, ExportOptions(resume=True))
    assert [answer.columns for answer in done.answers] == [TRACK] * 3
    table = read_table(out / "tracks.csv")
    assert list(table[0]) == ["sequence", "frame", "time", *TRACK]
    assert len(table) == 36


def outside(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with a file that an export must not touch, and the folder to export to."""
    place, out = tmp_path / "outside", tmp_path / "out"
    (place / "film0").mkdir(parents=True)
    out.mkdir()
    for name in ("000000.png", "film0/000000.png", f"film0/.{32 * '0'}.part"):
        (place / name).write_bytes(b"not ours")
    return place, out


@pytest.mark.parametrize("link", ["masks", "masks/film0", "masks/other"])
@pytest.mark.parametrize("masks", [True, False])
def test_links_in_masks_are_not_followed(run: Run, tmp_path: Path, link: str, masks: bool) -> None:
    place, out = outside(tmp_path)
    (out / link).parent.mkdir(exist_ok=True)
    (out / link).symlink_to(place if link == "masks" else place / "film0")
    before = contents(place)
    sources = sources_in(tmp_path / "in", 3)
    with pytest.raises(RunError, match=r"masks.*: is a symbolic link.*; remove it"):
        export(run, sources, out, ExportOptions(masks=masks))
    assert contents(place) == before
    assert (out / link).is_symlink()


@pytest.mark.parametrize("name", ["tracks.partial.csv", "tracks.partial.json"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_partial_table_that_is_a_link_is_not_followed(
    run: Run, tmp_path: Path, name: str, resume: bool
) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(VideoError):
        export(run, sources, out, ExportOptions())
    target = tmp_path / "target"
    (out / name).rename(target)
    with open(target, "a") as file:
        file.write(" ")
    (out / name).symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(RunError, match=rf"{name}: is a symbolic link"):
        export(run, sources, out, ExportOptions(resume=resume))
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["tracks.csv", "summary.json", "overlay.mp4"])
def test_a_result_that_is_a_link_is_replaced(run: Run, tmp_path: Path, name: str) -> None:
    place, out = outside(tmp_path)
    (out / name).symlink_to(place / "000000.png")
    export(run, sources_in(tmp_path / "in", 3), out, ExportOptions(overlay=3))
    assert (place / "000000.png").read_bytes() == b"not ours"
    assert not (out / name).is_symlink()


def test_summary(either: Run, tmp_path: Path) -> None:
    done = export(either, sources_in(tmp_path / "in", 30, 5), tmp_path / "out", ExportOptions())
    locate = either.config.task == "locate"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["task"] == either.config.task
    assert summary["frames"] == 35
    size = {"width": 64, "height": 48, "fps": 25.0}
    sequences = [{"name": "film0", "frames": 30, **size}, {"name": "film1", "frames": 5, **size}]
    assert summary["sequences"] == sequences
    confidence = np.concatenate([answer.values[:, -1] for answer in done.answers])
    assert summary["found"] == (np.mean(confidence >= 0.5) if locate else None)
    assert summary["trusted"] == (not summary["reasons"])
    [line] = summary_lines(either, done)
    assert line.startswith("35 frames of 2 sequences")
    assert f"; learned from 40 frames, evaluation J {either.result['objective']:.2f}" in line
    assert ("confidence of at least 0.5 in" in line) == locate


def test_a_summary_says_why_results_are_not_trusted(run: Run, tmp_path: Path) -> None:
    sources = find_sources([write_film(tmp_path / "a.mp4", still(9))])
    rising = replace(run, result={**run.result, "start": -2.0, "objective": -1.0})
    export(rising, sources, tmp_path, ExportOptions())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["found"] == 0
    assert summary["trusted"] is False
    assert summary["reasons"] == [
        "J rose during training, from -2.00 to -1.00.",
        "The confidence is below 0.5 in 100.0% of the frames.",
    ]


@contextmanager
def counted_frames() -> Iterator[list[int]]:
    """Count the frames that every reader hands on, a number for each pass over a source."""
    counts: list[int] = []
    clips = Source.clips

    def counting(*arguments: Any, **named: Any) -> Generator[Clip, None, None]:
        counts.append(0)
        number = len(counts) - 1
        with closing(clips(*arguments, **named)) as read:
            for clip in read:
                counts[number] += len(clip.index)
                yield clip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Source, "clips", counting)
        patch.setattr(run_report, "frames_at", unexpected)
        yield counts


def unexpected(*_: Any, **__: Any) -> None:
    raise AssertionError("frames are read again")


def test_table_overlay_masks_and_samples_take_one_pass(either: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 40)
    locate = either.config.task == "locate"
    options = ExportOptions(overlay=30, samples=True, masks=locate)
    with counted_frames() as counts:
        done = export(of_kind(either, "clip"), sources, tmp_path / "out", options)
        assert counts == ([40] if locate else [40, 30])
        report_run(replace(either, folder=_with_metrics(either, tmp_path)), sources, done)
    assert len(counts) == (2 if locate else 3), "the responses of the layers to one frame"
    images = read_page(tmp_path / "report.html").images
    assert len(images) > 8


def test_frames_kept_for_the_report_are_those_of_the_video(run: Run, tmp_path: Path) -> None:
    """Of files and of pictures, at the size and with the stride that they are shown with."""
    frames = ball(70)[0]
    for name in (write_film(tmp_path / "a.mp4", frames), write_pictures(tmp_path / "b", frames)):
        sources = find_sources([name])
        options = ExportOptions(samples=True, stride=2)
        done = export(run, sources, tmp_path / "out", options)
        kept = done.frames_to_show[sources[0].name]
        assert sorted(kept) == list(range(0, 35, 4))
        whole = read_all(sources[0], Reading(size=(336, 448), stride=2)).frames
        assert all(torch.equal(frame, whole[row]) for row, frame in kept.items())


def test_a_long_video_is_drawn_in_step(run: Run, tmp_path: Path) -> None:
    """Pieces are answered long after their first frames were read."""
    count = PIECE + 90
    frames = np.repeat(np.arange(count, dtype=np.uint8)[:, None, None, None] // 2, 48, 1)
    frames = np.repeat(np.repeat(frames, 64, 2), 3, 3)
    sources = find_sources([write_pictures(tmp_path / "in", frames, "bmp")])
    export(run, sources, tmp_path / "out", ExportOptions(overlay=count))
    shown = read_all(find_sources([str(tmp_path / "out" / "overlay.mp4")])[0]).frames
    levels = shown[:, :, :20, :20].float().mean((1, 2, 3)).numpy()
    assert np.abs(levels - np.arange(count) // 2).max() < 3


def test_damaged_metrics_do_not_stop_the_report(run: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 5)
    done = export(run, sources, tmp_path / "out", ExportOptions())
    lines = [{"step": 1}, {"trial": run.result["trial"], "step": 9, "rank": "x", "features": 2}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report_run(replace(run, folder=tmp_path), sources, done)
    assert "No effective rank was recorded" in read_page(tmp_path / "report.html").said
