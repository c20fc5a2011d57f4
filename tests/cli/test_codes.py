"""`ul learn --task orient` reports a code that does not represent the frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.plain_reports as plain_reports
import ullayers.report.charts as training_charts
from tests.command import UlCommand
from tests.films import Pixels, column, turning, write_pictures

SIDE = 24
QUICK = "--restarts", "1", "--steps", "75", "--no-follow"


def white_noise(count: int) -> Pixels:
    random = np.random.default_rng(0)
    return random.integers(0, 255, (count, SIDE, SIDE, 3), dtype=np.uint8)


def symmetric_disc(count: int) -> Pixels:
    """A disc that looks the same at every angle, with noise of the camera."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    picture = np.where(np.hypot(x, y)[..., None] < SIDE / 3, [200, 120, 60], [40, 40, 40])
    noise = np.random.default_rng(0).normal(0, 4, (count, SIDE, SIDE, 3))
    return (picture + noise).clip(0, 255).astype(np.uint8)


def learn(frames: Pixels, place: Path, here: UlCommand, *options: str) -> tuple[Any, str]:
    """Return the summary and what was printed to stderr."""
    pictures = write_pictures(place / "film", frames)
    code, _, errors = here("learn", pictures, "--task", "orient", "--out", place / "run", *options)
    assert code == 0, errors
    return json.loads((place / "run" / "summary.json").read_text()), errors


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        pytest.param(white_noise(120), "not their content", id="noise"),
        pytest.param(symmetric_disc(120), "not their content", id="disc"),
        pytest.param(turning(5, SIDE)[0], "only 5 frames", id="five frames"),
    ],
)
def test_a_code_of_nothing_is_not_trusted(
    frames: Pixels, reason: str, tmp_path: Path, here: UlCommand
) -> None:
    summary, errors = learn(frames, tmp_path, here, *QUICK)
    assert not summary["trusted"]
    assert reason in summary["reasons"][0]
    assert "the code is unreliable" in errors
    assert not summary["ring"]
    report = (tmp_path / "run" / "report.html").read_text()
    assert reason in report


def test_a_turning_thing_is_trusted_and_closes_to_a_ring(
    tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "held_out_chart"
    monkeypatch.setattr(training_charts, name, plain_reports.REAL[training_charts, name])
    frames, angle = turning(200, SIDE)
    summary, errors = learn(frames, tmp_path, here, "--restarts", "1", "--steps", "50")
    assert (summary["trusted"], summary["reasons"]) == (True, [])
    assert "warning" not in errors
    assert summary["ring"]
    assert summary["held_out_objective"] < -3, "slow on frames that it has not learned from"
    assert abs(summary["held_out_objective"] - summary["objective"]) < 1, "nothing is memorised"
    code = column(tmp_path / "run" / "codes.csv", "y0", "y1")
    turns = np.unwrap(np.arctan2(*code.T))
    assert abs(np.corrcoef(turns, angle)[0, 1]) > 0.99
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert sum(record["held_out"] is not None for record in records) >= 50 // 25
    report = (tmp_path / "run" / "report.html").read_text()
    assert "closed ring" in report
    assert "J on held-out frames" in report
