"""The report of odd contents: little, much, nothing that is sure, pictures of any kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ullayers.report.charts as charts
from tests.pages import (
    SECTIONS,
    blob,
    chart_named,
    codes,
    full,
    labels,
    lines,
    make,
    read,
    records,
    samples,
    track,
)
from ullayers.report.page import Contents, Sample, write_report
from ullayers.report.pictures import fit_width
from ullayers.tracks.table import TRACK, Answer

pytestmark = pytest.mark.usefixtures("full_reports")


def test_codes(tmp_path: Path) -> None:
    shown = [replace(sample, mask=None, values=np.array([-1.0, 0.5])) for sample in samples(3)]
    page = make(tmp_path, Contents("a", answers=[codes()], samples=shown))
    assert {"y0", "y1"} <= labels(chart_named(page, "over time"))
    assert {"y0", "y1", "time (s)"} <= labels(chart_named(page, "all frames"))
    assert "(\N{MINUS SIGN}1.00, 0.50)" in page.said


def test_one_number(tmp_path: Path) -> None:
    page = make(tmp_path, Contents("a", answers=[codes(300, 1)]))
    assert {"y0", "frames"} <= labels(chart_named(page, "all frames"))
    assert "How many frames" in page.said


@pytest.mark.parametrize("d", [8, 12])
def test_many_numbers(tmp_path: Path, d: int) -> None:
    shown = [replace(sample, mask=None, values=np.zeros(d)) for sample in samples(1)]
    page = make(tmp_path, Contents("a", answers=[codes(300, d)], samples=shown))
    assert f"the first two of {d} numbers" in page.said
    assert ("The first 8 of its 12" in page.said) == (d == 12)
    assert {f"y{i}" for i in range(8)} <= labels(chart_named(page, "over time"))


def test_one_frame_and_one_record(tmp_path: Path) -> None:
    for number, answer in enumerate((track(1), codes(1), codes(1, 1), track(1, confidence=0.0))):
        trained = records(1, 1) if number == 0 else []
        page = make(tmp_path, Contents("a", answers=[answer], records=trained))
        chart = chart_named(page, "over time")
        assert len(list(chart.iter("use"))) > 0, "a mark where there is no line"


def test_no_finite_objective(tmp_path: Path) -> None:
    for value in (None, float("nan"), float("inf")):
        rows = [record | {"objective": value} for record in records()]
        page = make(tmp_path, Contents("a", records=rows))
        assert "No finite J" in page.said
        assert chart_named(page, "effective rank")
    rows = [record | {"objective": None, "rank": None} for record in records()]
    assert "No effective rank" in make(tmp_path, Contents("a", records=rows)).said


def test_some_finite_objectives(tmp_path: Path) -> None:
    rows = records(2)
    rows[0] |= {"objective": None}
    rows[5] |= {"objective": float("nan")}
    for row in rows[40:]:
        row["objective"] = float("nan")
    page = make(tmp_path, Contents("a", records=rows, winner=0))
    assert len(lines(chart_named(page, "J"), charts.KEPT)) == 1
    assert not lines(chart_named(page, "J"), "currentColor")


def test_two_kinds_of_objective_are_told_apart(tmp_path: Path) -> None:
    rows = records(2) + [record | {"kind": "stream"} for record in records(2)]
    page = make(tmp_path, Contents("a", records=rows, winner=0))
    assert {"kept: trial 0, clip", "kept: trial 0, stream"} <= labels(chart_named(page, "J"))
    assert "dashed ones" in page.said


@pytest.mark.parametrize(("count", "shown"), [(2, 2), (3, 3), (6, 6), (200, 6)])
def test_many_sequences(tmp_path: Path, count: int, shown: int) -> None:
    page = make(tmp_path, Contents("a", answers=[track(40, f"s{i}") for i in range(count)]))
    drawn = [chart for chart in page.charts if chart.get("aria-label") == "over time"]
    assert len(drawn) == shown * (1 + shown % 2)
    assert ("194 more sequences are left out" in page.said) == (count == 200)


def test_chunks_of_a_sequence_are_one(tmp_path: Path) -> None:
    whole = make(tmp_path, Contents("a", answers=[track(60)])).text
    answer = track(60)
    parts = [
        Answer("a", answer.index[cut], answer.seconds[cut], TRACK, answer.values[cut])
        for cut in (slice(0, 20), slice(20, 20), slice(20, 60))
    ]
    assert make(tmp_path, Contents("a", answers=parts)).text == whole


def test_nothing_is_sure_or_finite(tmp_path: Path) -> None:
    page = make(tmp_path, Contents("a", answers=[track(300, confidence=0.0)]))
    assert chart_named(page, "all frames")
    lost = track(50)
    lost.values[:] = np.nan
    page = make(tmp_path, Contents("a", answers=[lost]))
    assert "scatter" not in page.ids
    lost.values[20:] = track(50).values[20:]
    assert "scatter" in make(tmp_path, Contents("a", answers=[lost])).ids


def test_almost_nothing(tmp_path: Path) -> None:
    page = make(tmp_path, Contents("Empty"))
    assert "Empty" in page.said
    assert not page.charts
    assert not page.images
    assert not SECTIONS & set(page.ids)


def test_grey_pictures_of_any_size(tmp_path: Path) -> None:
    for picture in (
        blob(1)[0][:, :, 0],
        blob(1)[0][:, :, :1],
        blob(1, 700, 900)[0],
        blob(1, 9, 9)[0],
    ):
        sample = Sample("a", 0.0, picture, None, np.array([0.5, 0.5, 1.0]))
        maps = full().maps
        page = make(tmp_path, Contents("a", samples=[sample], maps=maps, maps_picture=picture))
        assert max(image.width for image in page.images) <= 1000


def test_kernels_of_all_shapes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shapes = [(8, 4, 5, 5), (4, 8, 5, 5), (1, 8, 1, 1), (16, 1, 7, 7), (64, 64, 3, 3), (1, 1, 3, 3)]
    kernels = {str(shape): random.standard_normal(shape) for shape in shapes}
    page = make(tmp_path, Contents("a", kernels=kernels))
    assert len(page.images) == len(shapes)
    assert "8 outputs across, 4 inputs down" in page.said
    assert "8 inputs across, 4 outputs down" in page.said
    assert "16 of 64 outputs across, 16 of 64 inputs down" in page.said
    assert "1 output, 8 inputs" in page.said
    flat = Contents("a", kernels={"zero": np.zeros((2, 2, 3, 3)), "none": np.zeros((0, 2, 3, 3))})
    write_report(tmp_path / "report.html", flat)
    assert len(read(tmp_path / "report.html").images) == 1


def test_kernel_colours_are_symmetric(tmp_path: Path) -> None:
    kernels = np.zeros((1, 3, 1, 1))
    kernels[0, :, 0, 0] = -0.5, 0, 2
    page = make(tmp_path, Contents("a", kernels={"conv1": kernels}))
    [image] = page.images
    low, zero, high = (np.asarray(image)[1, x, :3].astype(int) for x in (1, 7, 13))
    assert np.ptp(zero) < 5, "zero is grey"
    assert low[2] > low[0]
    assert high[0] > high[2] + 80
    assert "+2" in page.said
    assert np.asarray(image)[0, 4, 3] == 0, "clear between"


def test_maps_without_kernels_and_too_many_layers(tmp_path: Path) -> None:
    maps = {f"layer{i}": np.random.default_rng(i).random((20, 12, 16)) for i in range(11)}
    page = make(tmp_path, Contents("a", maps=maps))
    assert len(page.images) == 6
    assert "16 of 20 channels" in page.said
    assert "5 more layers are left out" in page.said


def test_the_largest_report_is_small(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    noise = random.integers(0, 255, (720, 1280, 3), np.uint8)
    contents = Contents(
        "large",
        {},
        records(60, 100),
        3,
        [codes(10000, 8, f"s{i}") for i in range(3)],
        [Sample("s0", 0.0, noise, None, np.zeros(8))] * 20,
        {f"c{i}": random.standard_normal((64, 64, 7, 7)) for i in range(7)},
        {f"c{i}": random.standard_normal((64, 180, 320)) for i in range(7)},
        noise,
    )
    make(tmp_path, contents)


def test_thinning_keeps_peaks() -> None:
    values = np.zeros(100_000)
    values[[777, 54_321]] = 1, -1
    rows = charts.thinned(values, 500)
    assert len(rows) <= 1000
    assert {777, 54_321} <= set(rows.tolist())


@pytest.mark.parametrize("shape", [(4000, 2), (2, 4000), (3, 3), (1, 1)])
def test_pictures_of_any_shape_stay_small(shape: tuple[int, int]) -> None:
    height, width, _ = fit_width(np.zeros(shape, np.uint8)).shape
    assert 1 <= width <= 480
    assert 1 <= height <= 4 * 480
