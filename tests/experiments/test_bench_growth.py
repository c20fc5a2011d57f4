"""`python -m experiments.bench growth`: exponents, peak memory and charts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import experiments.bench.growth as chart
import experiments.bench.growth as growth
from experiments.bench.growth import CURVES, RESET, Curve, MemoryMeter, grid, peak_increase
from experiments.bench.timing import Row
from tests.command import UlCommand
from ullayers.exact.markov import closed_form


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 3.0])
def test_a_power_law_is_recovered_beside_what_does_not_grow(power: float) -> None:
    sizes = [2**i for i in range(11)]
    values = [max(5.0 * 32**power, 5.0 * size**power) for size in sizes]  # flat in the lower half
    assert growth.exponent(sizes, values) == pytest.approx(power)


def test_what_is_unknown_has_no_exponent() -> None:
    assert growth.exponent([1, 10, 100], [None, None, None]) is None
    assert growth.exponent([1, 10, 100], [1.0, 0, 5.0]) is None
    assert growth.upper_half([7, 8, 9]) == [8, 9]


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_every_step_can_be_taken_twice(curve: Curve) -> None:
    step = curve.make(curve.sizes[0])
    step()
    step()
    assert list(curve.sizes) == sorted(curve.sizes)


def test_the_grid_is_one_connected_chain() -> None:
    assert closed_form(grid(49), 1).embedding.shape == (49, 1)


@pytest.mark.skipif(not RESET.exists(), reason="the system does not tell")
def test_the_peak_is_seen_after_it_is_gone() -> None:
    def step() -> None:
        held = np.ones(2**22)  # 32 MB
        del held

    assert 0.95 < peak_increase(step) / 2**25 < 1.2


@pytest.mark.skipif(not RESET.exists(), reason="the system does not tell")
def test_memory_is_measured_in_another_process() -> None:
    with MemoryMeter(threads=1) as meter:
        peak = meter.peak("states", 1024)
    assert peak is not None
    assert peak > 8 * 1024  # at least a vector
    assert meter.process is not None
    assert meter.process.returncode == 0


def test_the_command_measures_draws_and_writes(
    tmp_path: Path, bench: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = chart.draw  # of one curve, as a panel takes a second

    def draw_first(found: dict[str, list[Row]], folder: Path) -> list[Path]:
        assert found.keys() == CURVES.keys()
        return draw(dict(list(found.items())[:1]), folder)

    def peak(meter: MemoryMeter, curve: str, size: int) -> int:
        return peak_increase(CURVES[curve].make(size))

    monkeypatch.setattr(chart, "draw", draw_first)
    if RESET.exists():  # in this process, as another one takes seconds to start
        monkeypatch.setattr(MemoryMeter, "__enter__", lambda meter: meter)
        monkeypatch.setattr(MemoryMeter, "peak", peak)
    file, plots = tmp_path / "rows.json", tmp_path / "a" / "plots"
    code, out, errors = bench("growth", "--quick", "--json", file, "--plots", plots)
    assert (code, errors) == (0, "")
    rows = json.loads(file.read_text())["rows"]
    assert {row["part"] for row in rows} == {"growth"}
    sizes = [row for row in rows if row["kind"] == "size"]
    fits = [row for row in rows if row["kind"] == "exponents"]
    assert {row["curve"] for row in sizes} == {row["curve"] for row in fits} == set(CURVES)
    assert all(row["seconds"] > 0 for row in sizes)
    assert all(isinstance(row["time"], float) for row in fits)
    assert out.count("fitted from") == len(CURVES)
    pages = ["growth-memory.png", "growth-time.png"] if RESET.exists() else ["growth-time.png"]
    assert sorted(path.name for path in plots.iterdir()) == pages
    with Image.open(plots / "growth-time.png") as page:
        assert page.width > 800


def test_without_memory_there_is_one_page(tmp_path: Path) -> None:
    sizes = [
        {"kind": "size", "curve": "states", "axis": "n", "size": s, "seconds": s, "bytes": None}
        for s in (1, 10)
    ]
    fit = {"kind": "exponents", "from": 1, "time": 1.0, "memory": None, "title": "a", "axis": "n"}
    assert chart.draw({"states": [*sizes, fit]}, tmp_path) == [tmp_path / "growth-time.png"]
    assert "memory unknown" in growth.line(fit)
