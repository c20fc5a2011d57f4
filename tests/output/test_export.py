"""Exports: every frame once, complete or under a temporary name, in step with the video."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tests.exports import broken_middle, of_kind, sources_in, with_metrics
from tests.films import (
    BALL,
    ball,
    column,
    files_in,
    read_table,
    still,
    write_ball,
    write_film,
    write_pictures,
    write_timed,
)
from ullayers.errors import RunError
from ullayers.learning.footage import PIECE, LongMean
from ullayers.report.overlay import Overlay
from ullayers.run import apply
from ullayers.run.apply import answers
from ullayers.run.fleet import apply_in_worker
from ullayers.run.plan import Plan
from ullayers.run.reports import report_run
from ullayers.run.summary import Exported
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.store import finished_sequences
from ullayers.tracks.table import CROP, PIXELS, SHAPE, Answer
from ullayers.video.parallel import Helper, can_help
from ullayers.video.sources import VideoError, find_sources, read_all


def test_tables_have_every_frame_once_with_its_time(either: Plan, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 70, 5)
    seen: list[int] = []
    done = export(either, sources, tmp_path / "out", ExportOptions(), seen.append)
    name = "tracks.csv" if either.config.task == "locate" else "codes.csv"
    names = [name, *["outlines.sqlite"] * (name == "tracks.csv"), "summary.json"]
    assert files_in(tmp_path / "out") == set(names)
    assert done.files == [tmp_path / "out" / name for name in names]
    rows = read_table(tmp_path / "out" / name)
    wanted = ["x", "y", "confidence"] if either.config.task == "locate" else ["y0", "y1"]
    more = [*PIXELS, *SHAPE] if either.config.task == "locate" else list(CROP)  # the ball is small
    number = ["object"] if either.config.task == "locate" else []
    assert list(rows[0]) == ["sequence", "frame", *number, "time", *wanted, *more]
    frames = [("film0", n) for n in range(70)] + [("film1", n) for n in range(5)]
    assert [(row["sequence"], int(row["frame"])) for row in rows] == frames
    assert [float(row["time"]) for row in rows] == [n / 25 for _, n in frames]
    assert seen[-1] == 75
    values = column(tmp_path / "out" / name, *wanted)
    assert np.allclose(values, np.concatenate([a.values for a in done.answers]), atol=1e-6)
    if either.config.task == "locate":
        assert ((values >= 0) & (values <= 1)).all()
        in_pixels = column(tmp_path / "out" / name, "x_px", "y_px")
        assert np.allclose(in_pixels, values[:, :2] * BALL[::-1], atol=0.006)


@pytest.mark.parametrize("kind", ["clip", "stream"])
def test_the_ball_is_found(run: Plan, tmp_path: Path, kind: LongMean) -> None:
    frames, places = ball(60)
    [source] = find_sources([write_film(tmp_path / "a.mp4", frames)])
    found = np.concatenate([part.values for part in answers(of_kind(run, kind), source)])
    assert np.median(np.abs(found[:, :2] - places)) < 0.03
    assert np.median(found[:, 2]) > 0.5


def test_times_are_those_in_the_file(either: Plan, tmp_path: Path) -> None:
    when = [0, 40, 50, 400, 410, 1000, 3000, 3001, 3500, 4000]
    sources = find_sources([write_timed(tmp_path / "a.mp4", ball(10)[0], when)])
    export(either, sources, tmp_path, ExportOptions())
    [table] = tmp_path.glob("*s.csv")
    assert np.allclose(column(table, "time")[:, 0], np.array(when) / 1000, atol=1e-3)


def test_every_nth_frame_and_at_most_so_many(either: Plan, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 40, 40)
    export(either, sources, tmp_path, ExportOptions(stride=7, max_frames=3, overlay=10**9))
    [table] = tmp_path.glob("*s.csv")
    assert column(table, "frame", "time").tolist() == [[0, 0], [7, 0.28], [14, 0.56]] * 2
    assert len(read_all(find_sources([str(tmp_path / "overlay.mp4")])[0]).index) == 6


@pytest.mark.parametrize("stride", [1, 3])
def test_what_lies_beyond_the_last_frame_is_not_looked_at(
    run: Plan, tmp_path: Path, stride: int
) -> None:
    """Not for the backdrop either: the rest of the video may be of another scene."""
    frames = np.concatenate([ball(40, 24, 32)[0], 255 - ball(400, 24, 32)[0]])
    whole, first = (
        find_sources([write_pictures(tmp_path / name, part, "bmp")])[0]
        for name, part in (("whole", frames), ("first", frames[:40]))
    )
    slow = replace(of_kind(run, "stream"), reading=replace(run.reading, stride=5), natural=False)
    most = -(-40 // stride)
    a, b = (
        np.concatenate([a.values for a in answers(slow, source, stride=stride, max_frames=most)])
        for source in (whole, first)
    )
    assert np.array_equal(a, b)


def test_long_videos_are_found_in_as_in_short_pieces(run: Plan, tmp_path: Path) -> None:
    frames, places = ball(PIECE + 40, 24, 32)
    [source] = find_sources([write_pictures(tmp_path / "a", frames, "bmp")])
    parts = list(answers(run, source))
    assert np.concatenate([part.index for part in parts]).tolist() == list(range(PIECE + 40))
    found = np.concatenate([part.values for part in parts])
    assert np.median(np.abs(found[:, :2] - places)) < 0.03


@pytest.mark.parametrize("count", [1, 2])
def test_a_moment_has_a_row_but_no_confidence(run: Plan, tmp_path: Path, count: int) -> None:
    for kind in ("clip", "stream"):
        folder = tmp_path / kind
        folder.mkdir()
        sources = find_sources([write_film(folder / "a.mp4", still(count))])
        export(of_kind(run, kind), sources, folder, ExportOptions(overlay=9, masks=True))
        rows = column(folder / "tracks.csv", "x", "y", "confidence")
        assert len(rows) == count
        assert np.isfinite(rows).all()
        assert (rows[:, 2] < 0.3).all()


def test_names_are_safe_in_tables_and_folders(run: Plan, tmp_path: Path) -> None:
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


def test_masks_have_the_size_of_the_frames_and_show_the_object(run: Plan, tmp_path: Path) -> None:
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


def test_a_video_of_all_frames_has_all_of_them(either: Plan, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 60, 6)
    export(either, sources, tmp_path, ExportOptions(overlay=10**9))
    clip = read_all(find_sources([str(tmp_path / "overlay.mp4")])[0])
    assert len(clip.index) == 66
    height, width = clip.frames.shape[2:]
    tall, wide = BALL
    if either.config.task == "orient":
        wide += tall  # with a panel beside it
    assert width / height == pytest.approx(wide / tall, abs=0.02)


def test_a_short_video_is_shared_among_the_sources(either: Plan, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 30, 30)
    export(either, sources, tmp_path, ExportOptions(overlay=10))
    assert len(read_all(find_sources([str(tmp_path / "overlay.mp4")])[0]).index) == 10


def test_a_broken_source_ends_it_and_finished_sequences_stay(either: Plan, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    for overlay in (None, 100):
        with pytest.raises(VideoError, match=r"film1.mp4: broken after frame"):
            export(either, sources, out, ExportOptions(overlay=overlay))
        name = "tracks" if either.config.task == "locate" else "codes"
        outlines = {"outlines.partial.sqlite"} if name == "tracks" else set()
        assert files_in(out) == {f"{name}.partial.sqlite"} | outlines
        assert finished_sequences(out) == {"film0"}


@pytest.mark.parametrize("kind", ["clip", "stream"])
def test_skipping_keeps_what_can_be_read(run: Plan, tmp_path: Path, kind: LongMean) -> None:
    sources = broken_middle(tmp_path / "in")
    wanted = ExportOptions(skip_bad=True, overlay=10**9)
    done = export(of_kind(run, kind), sources, tmp_path / "out", wanted)
    assert list(done.bad) == ["film1"]
    rows = [row["sequence"] for row in read_table(tmp_path / "out" / "tracks.csv")]
    assert (rows.count("film0"), rows.count("film2")) == (12, 12)
    assert 3 < rows.count("film1") < 40
    written = {"tracks.csv", "outlines.sqlite", "summary.json", "overlay.mp4"}
    assert files_in(tmp_path / "out") == written
    report_run(replace(run, folder=with_metrics(run, tmp_path)), sources, done)
    assert (tmp_path / "report.html").exists()


def test_a_report_of_nothing_but_broken_sources(either: Plan, tmp_path: Path) -> None:
    """Few frames can be read, fewer than a report would show."""
    folder = Path(write_pictures(tmp_path / "in", ball(5)[0]))
    (folder / "img5.png").write_bytes(b"no picture")
    sources = find_sources([str(folder)])
    done = export(either, sources, tmp_path / "out", ExportOptions(skip_bad=True, overlay=50))
    assert len(done.answers[0].index) == 5
    assert len(read_all(find_sources([str(tmp_path / "out" / "overlay.mp4")])[0]).index) == 5
    report_run(replace(either, folder=with_metrics(either, tmp_path)), sources, done)
    assert "cannot be read as an image" in done.bad["in"]
    assert (tmp_path / "report.html").exists()


def test_if_nothing_can_be_read_there_is_no_table(run: Plan, tmp_path: Path) -> None:
    folder = Path(write_pictures(tmp_path / "in", ball(3)[0]))
    sources = find_sources([str(folder)])
    for picture in folder.iterdir():
        picture.write_bytes(b"no picture")
    with pytest.raises(VideoError, match=r"img0.png"):
        export(run, sources, tmp_path / "out", ExportOptions(skip_bad=True))
    assert files_in(tmp_path / "out") == set()


def test_masks_of_another_time_do_not_stay(run: Plan, tmp_path: Path) -> None:
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
    written = {"tracks.csv", "outlines.sqlite", "summary.json"}
    assert files_in(out) == written, "nothing was finished"


def test_an_unfinished_run_leaves_no_trace(run: Plan, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 3)
    with pytest.raises(RunError, match="training has not finished; continue it with --resume"):
        export(replace(run, net=None), sources, tmp_path / "out", ExportOptions())
    assert not (tmp_path / "out").exists()


def test_old_results_stay_until_new_ones_are_whole(run: Plan, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 5)
    export(run, sources, tmp_path / "out", ExportOptions())
    before = (tmp_path / "out" / "tracks.csv").read_bytes()
    with pytest.raises(VideoError):
        export(run, broken_middle(tmp_path / "in"), tmp_path / "out", ExportOptions())
    assert (tmp_path / "out" / "tracks.csv").read_bytes() == before


def test_pictures_of_changing_size_can_be_shown(run: Plan, tmp_path: Path) -> None:
    folder = Path(write_pictures(tmp_path / "in", ball(4)[0]))
    Image.fromarray(ball(1, 24, 20)[0][0]).save(folder / "img9.png")
    sources = find_sources([str(folder)])
    with pytest.raises(VideoError, match="make them the same size, or give a size"):
        export(run, sources, tmp_path / "out", ExportOptions(overlay=9))
    mixed = replace(run, reading=replace(run.reading, mixed=True))
    done: Exported = export(mixed, sources, tmp_path / "out", ExportOptions(overlay=9))
    assert len(done.answers[0].index) == 5
    assert len(read_all(find_sources([str(tmp_path / "out" / "overlay.mp4")])[0]).index) == 5


def test_a_long_video_is_drawn_in_step(
    run: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are answered long after their first frames were read."""
    count = PIECE + 90
    levels = (np.arange(count) // 2).astype(np.uint8)
    frames = np.broadcast_to(levels[:, None, None, None], (count, 24, 32, 3))
    sources = find_sources([write_pictures(tmp_path / "in", frames, "bmp")])
    drawn: list[tuple[int, float]] = []

    def record(_: Overlay, frames: Tensor, answer: Answer) -> NDArray[np.uint8]:
        drawn.extend(zip(answer.index.tolist(), frames[:, 0, 0, 0].tolist(), strict=True))
        return np.zeros((0, 24, 32, 3), np.uint8)

    monkeypatch.setattr(Overlay, "draw", record)
    with pytest.raises(VideoError, match="no frame was written"):
        export(run, sources, tmp_path / "out", ExportOptions(overlay=count))
    assert drawn == list(enumerate(levels.tolist()))


@pytest.mark.skipif(not can_help(), reason="one core, or no shared memory on this system")
def test_a_second_process_does_not_change_results(
    run: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = write_ball(tmp_path / "film.mp4", 300)
    started = []
    starting = Helper.__init__

    def start(self: Helper, worker: object) -> None:
        started.append(self)
        starting(self, worker)

    monkeypatch.setattr(Helper, "__init__", start)
    for name, frames in (("one", 301), ("two", 300)):
        monkeypatch.setattr(apply, "HELP_FRAMES", frames)
        options = ExportOptions(objects=None, masks=True)
        export(run, find_sources([film]), tmp_path / name, options)
        assert len(started) == (name == "two")
    assert started[0]._process.poll() is not None
    files = [each.relative_to(tmp_path / "one") for each in (tmp_path / "one").rglob("*.*")]
    assert len(files) > 300
    for each in files:
        assert (tmp_path / "one" / each).read_bytes() == (tmp_path / "two" / each).read_bytes()


@pytest.mark.skipif(not can_help(), reason="one core, or no shared memory on this system")
def test_a_worker_of_a_fleet_uses_one_process(
    run: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workers use the other cores."""
    monkeypatch.setattr(apply, "HELP_FRAMES", 160)
    monkeypatch.setattr(Helper, "__init__", lambda *_: pytest.fail("started a second process"))
    [source] = find_sources([write_ball(tmp_path / "film.mp4", 160)])
    note = apply_in_worker(run, source, ExportOptions(), tmp_path)
    assert note.frames == 160
