"""Results of a part of the video refer to the whole video."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ullayers.run.reports as run_report
from tests.exports import with_metrics
from tests.films import Floats, ball, column, write_film, write_pictures
from tests.pages import chart_named, labels
from tests.pages import read as read_page
from ullayers.errors import RunError
from ullayers.learning.config import Config
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import Plan, load_plan, plan_run
from ullayers.run.reports import report_run
from ullayers.run.write import ExportOptions, export
from ullayers.video.region import MaskRegion, Rectangle, Region
from ullayers.video.sources import Source, VideoError, find_sources, read_all

HEIGHT, WIDTH = 48, 64
ARENA = Rectangle(0, 0, 50, HEIGHT)  # what moves at the right is not in it


def mask() -> MaskRegion:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return MaskRegion.from_array(np.hypot(x - 28, y - 24) < 22)


def two_things(count: int = 60) -> tuple[np.ndarray, Floats]:
    """A ball at the left, and something larger that moves up and down at the right."""
    frames, places = ball(count, HEIGHT, WIDTH)
    near = places * (0.75, 1)
    frames[:] = ball(1, HEIGHT, WIDTH, seed=1)[0]
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    for t, frame in enumerate(frames):
        frame[np.hypot(x - near[t, 0] * WIDTH, y - near[t, 1] * HEIGHT) < 4.5] = 250, 30, 30
        top = int(15 + 12 * np.sin(t / 3))
        frame[top : top + 20, 53:63] = 20, 250, 20
    return frames, near


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_film(tmp_path_factory.mktemp("film") / "two.mp4", two_things()[0])


def learned(film: str, folder: Path, roi: Region | None) -> tuple[Plan, list[Source]]:
    config = Config(steps=5, trial_steps=3, restarts=1)
    run, sources = plan_run([film], folder, config, size=48, start=0.4, end=2.0, roi=roi)
    for _ in learn_run(run, sources):
        pass
    return run, sources


@pytest.mark.usefixtures("full_reports")
@pytest.mark.parametrize("roi", [ARENA, mask()], ids=["rectangle", "mask"])
def test_what_moves_outside_is_ignored(film: str, tmp_path: Path, roi: Region) -> None:
    run, sources = learned(film, tmp_path / "run", roi)
    options = ExportOptions(overlay=100, masks=True, samples=True)
    done = export(run, sources, run.folder, options)
    table = run.folder / "tracks.csv"
    rows = column(table, "frame", "time", "x", "y", "x_px", "y_px")
    assert rows[:, 0].tolist() == list(range(10, 50))
    np.testing.assert_allclose(rows[:, 1], rows[:, 0] / 25, atol=1e-6)
    truth = two_things()[1][10:50]
    inside = roi.fit(HEIGHT, WIDTH).whole() > 0
    x, y = (truth * (WIDTH, HEIGHT)).astype(int).T
    seen = inside[y, x]
    assert np.median(np.hypot(*(rows[seen, 2:4] - truth[seen]).T)) < 0.03
    np.testing.assert_allclose(rows[:, 4:], rows[:, 2:4] * (WIDTH, HEIGHT), atol=0.01)
    pictures = sorted((run.folder / "masks" / "two").iterdir())
    assert [picture.name for picture in pictures] == [f"{n:06d}.png" for n in range(10, 50)]
    for picture, is_inside in zip(pictures[::10], seen[::10], strict=True):
        drawn = np.asarray(Image.open(picture))
        assert drawn.shape == (HEIGHT, WIDTH)
        assert drawn[:, 52:].max() == 0
        if is_inside:  # elsewhere, an edge of the object may still be in the region
            assert drawn[inside].max() > 240
    check_overlay(run.folder / "overlay.mp4", inside)
    report_run(run, sources, done)
    page = read_page(run.folder / "report.html")
    assert "from 0.4 s to 2 s" in page.said
    assert str(roi) in page.said
    assert {"pixels per second", "time (s)"} <= labels(chart_named(page, "speed over time"))
    for text in ("64 x 48", "distance (px)", "95th percentile (px/s)"):
        assert text in page.said


def check_overlay(path: Path, inside: np.ndarray) -> None:
    """The whole frame is shown, with a white line along the edge of the region."""
    frames = read_all(find_sources([str(path)])[0]).frames
    assert len(frames) == 40
    height, width = frames.shape[2:]
    right = frames[:, :, :, int(width * 55 / WIDTH) : int(width * 60 / WIDTH)].float()
    assert right[:, 1].max() > 200, "what is outside is shown"
    large = np.asarray(Image.fromarray(inside).resize((width, height), Image.Resampling.NEAREST))
    row = height // 2
    edge = int(np.flatnonzero(large[row])[-1])
    around = frames[0, :, row, edge - 2 : edge + 3].float().mean(0)
    assert around.max() > 170


def test_a_run_keeps_its_part(film: str, tmp_path: Path) -> None:
    for roi in (ARENA, mask(), None):
        folder = tmp_path / str(roi)
        run, _ = learned(film, folder, roi)
        loaded = load_plan(folder)
        assert loaded.reading == run.reading
        assert (loaded.reading.start, loaded.reading.end, loaded.reading.roi) == (0.4, 2.0, roi)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ([1, 2, 3], "roi: expected"),
        ([0, 0, 4, 4], "expected X,Y,W,H"),
        ([0, 0, -9, 9], "expected X,Y,W,H"),
        ("arena.png", "expected a PNG as a data URL"),
        ("data:image/png;base64,???", "is damaged"),
        ("data:image/png;base64,aGVsbG8=", "its mask is not a PNG"),
        (True, "roi: expected"),
    ],
)
def test_damaged_regions_are_refused(
    film: str, run: Plan, tmp_path: Path, entry: object, words: str
) -> None:
    content = json.loads((run.folder / "config.json").read_text())
    content["reading"]["roi"] = entry
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=words) as caught:
        load_plan(tmp_path)
    assert "config.json is damaged" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"start": -1.0}, "expected 0 <= start < end"),
        ({"start": 3.0, "end": 2.0}, "expected 0 <= start < end"),
        ({"start": "1:30"}, "start: expected float"),
    ],
)
def test_damaged_ranges_are_refused(
    run: Plan, tmp_path: Path, entries: dict[str, object], words: str
) -> None:
    content = json.loads((run.folder / "config.json").read_text())
    content["reading"] |= entries
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=words):
        load_plan(tmp_path)


def test_codes_of_a_part(codes: Plan, film: str, tmp_path: Path) -> None:
    """The overlay shows the whole frames of the range, with the outline of the region."""
    part = replace(codes, reading=replace(codes.reading, start=0.4, end=2.0, roi=ARENA))
    part = replace(part, folder=with_metrics(codes, tmp_path))
    sources = find_sources([film])
    done = export(part, sources, tmp_path, ExportOptions(overlay=100))
    assert done.answers[0].index.tolist() == list(range(10, 50))
    frames = read_all(find_sources([str(tmp_path / "overlay.mp4")])[0]).frames
    assert len(frames) == 40
    whole = export(codes, sources, tmp_path / "whole", ExportOptions())
    assert not np.allclose(whole.answers[0].values[10:50], done.answers[0].values, atol=1e-3)
    report_run(part, sources, done)
    page = read_page(tmp_path / "report.html")
    assert "64 x 48" in page.said
    assert "distance (px)" not in page.said


def test_a_partial_table_of_another_part_is_not_continued(
    run: Plan, film: str, tmp_path: Path
) -> None:
    sources = find_sources([film])
    broken = [*sources, Source("gone", str(tmp_path / "gone.mp4"), "video")]
    first = replace(run, reading=replace(run.reading, end=2.0, roi=mask()))
    with pytest.raises(VideoError):
        export(first, broken, tmp_path / "out", ExportOptions())
    other = Rectangle(0, 0, 90, 90)
    for reading in (run.reading, replace(first.reading, roi=other)):
        part = replace(run, reading=reading)
        with pytest.raises(RunError, match="--start, --end, --roi or --objects"):
            export(part, sources, tmp_path / "out", ExportOptions(resume=True))
    done = export(first, sources, tmp_path / "out", ExportOptions(resume=True))
    assert len(done.answers[0].index) == 50


def test_samples_that_are_read_again_are_of_the_range(film: str, tmp_path: Path) -> None:
    """As after an export that was resumed: nothing was kept in memory."""
    [source] = find_sources([write_pictures(tmp_path / "in", two_things()[0])])
    run, _ = learned(film, tmp_path / "run", None)
    done = export(run, [source], tmp_path / "out", ExportOptions())
    found = run_report._read_samples(source, done.answers[0], {}, 4, 7)
    assert [round(25 * sample.seconds) for sample in found] == [17, 24, 31, 38]
    whole = torch.from_numpy(two_things()[0])
    for sample in found:
        number = round(25 * sample.seconds)
        small = np.asarray(Image.fromarray(sample.picture).resize((WIDTH, HEIGHT)))
        assert np.abs(small.astype(int) - whole[number].numpy()).mean() < 8
