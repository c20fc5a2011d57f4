"""What is written down: every frame once, whole or under another name, in step with the video."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.films import (
    ball,
    column,
    files_in,
    read_table,
    still,
    write_ball,
    write_film,
    write_pictures,
    write_timed,
    write_truncated,
)
from ullayers.learn.apply import answers
from ullayers.learn.checkpoint import RunError
from ullayers.learn.config import Config
from ullayers.learn.footage import PIECE, LongMean
from ullayers.learn.results import TRACK, Answer
from ullayers.learn.run_training import learn_run
from ullayers.learn.runs import Run, plan_run
from ullayers.output.export import Exported, Wanted, _Table, export
from ullayers.output.summary import report_run
from ullayers.video.reader import Source, VideoError, find_sources, read_all


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


def of_kind(run: Run, kind: LongMean) -> Run:
    return replace(run, result=replace(run.outcome, kind=kind))


def sources_in(folder: Path, *counts: int) -> list[Source]:
    folder.mkdir(exist_ok=True)
    for number, count in enumerate(counts):
        write_ball(folder / f"film{number}.mp4", count, seed=number)
    return find_sources([str(folder)])


def test_tables_have_every_frame_once_with_its_time(either: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 70, 5)
    seen: list[int] = []
    done = export(either, sources, tmp_path / "out", Wanted(), seen.append)
    name = "tracks.csv" if either.config.task == "locate" else "codes.csv"
    assert files_in(tmp_path / "out") == {name}
    assert done.files == [tmp_path / "out" / name]
    rows = read_table(tmp_path / "out" / name)
    wanted = ["x", "y", "confidence"] if either.config.task == "locate" else ["y0", "y1"]
    assert list(rows[0]) == ["sequence", "frame", "time", *wanted]
    frames = [("film0", n) for n in range(70)] + [("film1", n) for n in range(5)]
    assert [(row["sequence"], int(row["frame"])) for row in rows] == frames
    assert [float(row["time"]) for row in rows] == [n / 25 for _, n in frames]
    assert seen[-1] == 75
    values = column(tmp_path / "out" / name, *wanted)
    assert np.allclose(values, np.concatenate([a.values for a in done.answers]), atol=1e-6)
    if either.config.task == "locate":
        assert ((values >= 0) & (values <= 1)).all()


@pytest.mark.parametrize("kind", ["clip", "stream"])
def test_the_ball_is_found(run: Run, tmp_path: Path, kind: LongMean) -> None:
    frames, places = ball(60)
    [source] = find_sources([write_film(tmp_path / "a.mp4", frames)])
    found = np.concatenate([part.values for part in answers(of_kind(run, kind), source)])
    assert np.median(np.abs(found[:, :2] - places)) < 0.03
    assert np.median(found[:, 2]) > 0.5


def test_times_are_those_in_the_file(either: Run, tmp_path: Path) -> None:
    when = [0, 40, 50, 400, 410, 1000, 3000, 3001, 3500, 4000]
    sources = find_sources([write_timed(tmp_path / "a.mp4", ball(10)[0], when)])
    export(either, sources, tmp_path, Wanted())
    [table] = tmp_path.glob("*s.csv")
    assert np.allclose(column(table, "time")[:, 0], np.array(when) / 1000, atol=1e-3)


def test_every_nth_frame_and_at_most_so_many(either: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 40, 40)
    export(either, sources, tmp_path, Wanted(stride=7, max_frames=3, overlay=10**9))
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
        export(of_kind(run, kind), sources, folder, Wanted(overlay=9, masks=True))
        rows = column(folder / "tracks.csv", "x", "y", "confidence")
        assert len(rows) == count
        assert np.isfinite(rows).all()
        assert (rows[:, 2] < 0.3).all()


def test_names_are_safe_in_tables_and_folders(run: Run, tmp_path: Path) -> None:
    names = ["a, b", 'say "hi"', "Ünï cödé 日本", "semi;colon", "line\nbreak", "a_ b"]
    for number, name in enumerate(names):
        write_ball(tmp_path / f"{name}.mp4", 3, seed=number)
    sources = find_sources([str(tmp_path)])
    export(run, sources, tmp_path / "out", Wanted(masks=True))
    rows = read_table(tmp_path / "out" / "tracks.csv")
    assert len(rows) == 18
    assert {row["sequence"] for row in rows} == {source.name for source in sources}
    assert len({row["sequence"] for row in rows}) == len(names)
    masks = {path.name for path in (tmp_path / "out" / "masks").iterdir()}
    assert masks == {source.name for source in sources}


def test_masks_have_the_size_of_the_frames_and_show_the_object(run: Run, tmp_path: Path) -> None:
    frames, places = ball(30, 50, 90)
    sources = find_sources([write_pictures(tmp_path / "in", frames)])
    done = export(run, sources, tmp_path, Wanted(masks=True, stride=3))
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
    export(either, sources, tmp_path, Wanted(overlay=10**9))
    clip = read_all(find_sources([str(tmp_path / "overlay.mp4")])[0])
    assert len(clip.index) == 106
    height, width = clip.frames.shape[2:]
    wide = 64 if either.config.task == "locate" else 64 + 48  # with a panel beside it
    assert width / height == pytest.approx(wide / 48, abs=0.02)


def test_a_short_video_is_shared_among_the_sources(either: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 30, 30)
    export(either, sources, tmp_path, Wanted(overlay=10))
    assert len(read_all(find_sources([str(tmp_path / "overlay.mp4")])[0]).index) == 10


def broken_middle(folder: Path) -> list[Source]:
    sources_in(folder, 12, 12, 12)
    write_truncated(folder / "film1.mp4")
    return find_sources([str(folder)])


def test_a_broken_source_ends_it_and_finished_sequences_stay(either: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    for overlay in (None, 100):
        with pytest.raises(VideoError, match=r"film1.mp4: broken after frame"):
            export(either, sources, out, Wanted(overlay=overlay))
        name = "tracks" if either.config.task == "locate" else "codes"
        assert files_in(out) == {f"{name}.partial.csv", f"{name}.partial.json"}
        kept = {row["sequence"] for row in read_table(out / f"{name}.partial.csv")}
        assert kept == {"film0"}


@pytest.mark.parametrize("kind", ["clip", "stream"])
def test_skipping_keeps_what_can_be_read(run: Run, tmp_path: Path, kind: LongMean) -> None:
    sources = broken_middle(tmp_path / "in")
    wanted = Wanted(skip_bad=True, overlay=10**9)
    done = export(of_kind(run, kind), sources, tmp_path / "out", wanted)
    assert list(done.bad) == ["film1"]
    rows = [row["sequence"] for row in read_table(tmp_path / "out" / "tracks.csv")]
    assert (rows.count("film0"), rows.count("film2")) == (12, 12)
    assert 3 < rows.count("film1") < 40
    assert files_in(tmp_path / "out") == {"tracks.csv", "overlay.mp4"}
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
    done = export(either, sources, tmp_path / "out", Wanted(skip_bad=True, overlay=50))
    assert len(done.answers[0].index) == 5
    assert len(read_all(find_sources([str(tmp_path / "out" / "overlay.mp4")])[0]).index) == 5
    report_run(replace(either, folder=_with_metrics(either, tmp_path)), sources, done)
    assert "cannot be read as an image" in done.bad["in"]
    assert (tmp_path / "report.html").exists()


def test_if_nothing_can_be_read_there_is_no_table(run: Run, tmp_path: Path) -> None:
    folder = Path(write_pictures(tmp_path / "in", ball(3)[0]))
    sources = find_sources([str(folder)])
    for picture in folder.iterdir():
        picture.write_bytes(b"no picture")
    with pytest.raises(VideoError, match=r"img0.png"):
        export(run, sources, tmp_path / "out", Wanted(skip_bad=True))
    assert files_in(tmp_path / "out") == set()


def test_resuming_does_the_rest_and_gives_the_same_table(either: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(VideoError):
        export(either, sources, out, Wanted())
    [partial] = out.glob("*.partial.csv")
    with open(partial, "a") as file:  # killed while it wrote the next sequence
        file.write("film1,0,0.000000,0.5,0.5,0.5\nfilm1,1,0.04")
    write_ball(tmp_path / "in" / "film1.mp4", 12, seed=1)
    seen: list[int] = []
    export(either, sources, out, Wanted(resume=True), seen.append)
    assert seen[-1] == 24, "the first one is not done again"
    whole = export(either, sources, tmp_path / "whole", Wanted()).files[0]
    assert (out / whole.name).read_bytes() == whole.read_bytes()
    assert files_in(out) == {whole.name}


def test_what_is_resumed_is_whole(either: Run, tmp_path: Path) -> None:
    """Rows, masks, and what the video and the report show of the sequences that were finished."""
    sources, out, locate = broken_middle(tmp_path / "in"), tmp_path / "out", either.config.task
    wanted = Wanted(overlay=15, masks=locate == "locate")
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
        export(run, sources, out, Wanted())
    write_ball(tmp_path / "in" / "film1.mp4", 12, seed=1)
    export(run, sources, out, Wanted(resume=True, masks=True))
    assert len(files_in(out / "masks")) == len(read_table(out / "tracks.csv")) == 36


def test_masks_of_another_time_do_not_stay(run: Run, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 9, 5), tmp_path / "out"
    mine, stray = (
        out / "masks" / "film0" / "mine.png",
        out / "masks" / "film1" / f".{32 * '0'}.part",
    )
    export(run, sources, out, Wanted(masks=True))
    mine.write_bytes(b"mine")
    stray.write_bytes(b"half")
    export(run, sources[:1], out, Wanted(masks=True, max_frames=4))
    names = {f"film0/{number:06d}.png" for number in range(4)}
    assert files_in(out / "masks") == {*names, "film0/mine.png"}
    mine.unlink()
    (out / "masks" / "film0" / stray.name).write_bytes(b"half")
    with pytest.raises(VideoError):
        export(run, broken_middle(tmp_path / "in")[1:2], out, Wanted(masks=True))
    assert files_in(out) == {"tracks.csv"}, "nothing was finished"


def test_resuming_past_a_source_that_stays_broken(run: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in")[:2], tmp_path / "out"
    (tmp_path / "in" / "film1.mp4").write_bytes(b"nothing")
    with pytest.raises(VideoError):
        export(run, sources, out, Wanted())
    done = export(run, sources, out, Wanted(resume=True, skip_bad=True))
    assert list(done.bad) == ["film1"]
    assert {row["sequence"] for row in read_table(out / "tracks.csv")} == {"film0"}


def test_resuming_where_nothing_was_begun(run: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 5)
    export(run, sources, tmp_path / "out", Wanted(resume=True))
    assert len(read_table(tmp_path / "out" / "tracks.csv")) == 5


def test_resuming_something_else_is_refused(run: Run, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(VideoError):
        export(run, sources, out, Wanted())
    for other in (Wanted(resume=True, stride=2), Wanted(resume=True, max_frames=3)):
        with pytest.raises(RunError, match="began with another run"):
            export(run, sources, out, other)
    with pytest.raises(RunError, match="began with another run"):
        export(replace(run, folder=tmp_path), sources, out, Wanted(resume=True))
    note = out / "tracks.partial.json"
    content = json.loads(note.read_text())
    for damage in ("{", "[]", "{}", json.dumps({**content, "bytes": 10**9})):
        note.write_text(damage)
        with pytest.raises(RunError, match="damaged; start again with --force"):
            export(run, sources, out, Wanted(resume=True))


def test_an_unfinished_run_leaves_no_trace(run: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 3)
    with pytest.raises(RunError, match="has not been learned to its end; go on with --resume"):
        export(replace(run, net=None), sources, tmp_path / "out", Wanted())
    assert not (tmp_path / "out").exists()


def test_old_results_stay_until_new_ones_are_whole(run: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 5)
    export(run, sources, tmp_path / "out", Wanted())
    before = (tmp_path / "out" / "tracks.csv").read_bytes()
    with pytest.raises(VideoError):
        export(run, broken_middle(tmp_path / "in"), tmp_path / "out", Wanted())
    assert (tmp_path / "out" / "tracks.csv").read_bytes() == before


def test_pictures_of_changing_size_can_be_shown(run: Run, tmp_path: Path) -> None:
    folder = Path(write_pictures(tmp_path / "in", ball(4)[0]))
    Image.fromarray(ball(1, 24, 20)[0][0]).save(folder / "img9.png")
    sources = find_sources([str(folder)])
    with pytest.raises(VideoError, match="make them the same size, or give a size"):
        export(run, sources, tmp_path / "out", Wanted(overlay=9))
    mixed = replace(run, reading=replace(run.reading, mixed=True))
    done: Exported = export(mixed, sources, tmp_path / "out", Wanted(overlay=9))
    assert len(done.answers[0].index) == 5
    assert len(read_all(find_sources([str(tmp_path / "out" / "overlay.mp4")])[0]).index) == 5


def test_rows_of_another_file_of_the_same_name_are_not_taken(tmp_path: Path) -> None:
    first, other = (Source("c", str(tmp_path / place / "c.mp4"), "video") for place in "xy")
    answer = Answer("c", np.arange(2), np.zeros(2), TRACK, np.zeros((2, 3)))
    table = _Table(tmp_path / "tracks.csv", [], False)
    table.__enter__().write(answer, first)
    table.__exit__(KeyboardInterrupt, None, None)
    again = _Table(tmp_path / "tracks.csv", [], True)
    assert again.has(first)
    with pytest.raises(RunError, match="use the same inputs"):
        again.has(other)
