"""Codes that lie around a circle."""

from __future__ import annotations

import numpy as np
import pytest

from ullayers.tracks.measures import is_ring, ring_angles
from ullayers.tracks.table import TRACK, Answer


def circle(degrees: np.ndarray, noise: float = 0.0) -> np.ndarray:
    random = np.random.default_rng(0)
    points = np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], 1)
    return points + noise * random.normal(size=points.shape)


def answer(values: np.ndarray, columns: tuple[str, ...] = ("y0", "y1")) -> Answer:
    index = np.arange(len(values))
    return Answer("a", index, index / 25, columns, values)


@pytest.mark.parametrize("centre", [(0.0, 0.0), (5.0, -3.0)])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_angles_of_a_ring(centre: tuple[float, float], noise: float) -> None:
    degrees = np.arange(0, 720, 5.0)
    found = ring_angles(circle(degrees, noise) + centre)
    assert found is not None
    away = (found - degrees + 180) % 360 - 180
    assert np.abs(away).max() < 5 + 300 * noise


@pytest.mark.parametrize(
    "codes",
    [
        pytest.param(circle(np.linspace(0, 250, 100)), id="an arc"),
        pytest.param(np.random.default_rng(0).normal(size=(200, 2)), id="a cloud"),
        pytest.param(np.c_[np.linspace(-1, 1, 100), np.linspace(-1, 1, 100)], id="a line"),
        pytest.param(circle(np.arange(0, 360, 45.0)), id="few frames"),
        pytest.param(np.zeros((50, 2)), id="a point"),
        pytest.param(np.full((50, 2), np.nan), id="nothing"),
    ],
)
def test_codes_that_do_not_form_a_ring(codes: np.ndarray) -> None:
    assert ring_angles(codes) is None


def test_most_frames_decide() -> None:
    ring, line = answer(circle(np.arange(0, 360, 4.0))), answer(circle(np.linspace(0, 90, 40)))
    assert is_ring([ring, line]) is True
    assert is_ring([line, ring, line, line]) is False
    assert is_ring([answer(np.zeros((20, 3)), TRACK)]) is None
    assert is_ring([answer(np.zeros((20, 1)), ("y0",))]) is None
    assert is_ring([]) is None
