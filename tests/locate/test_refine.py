"""Cells of an object by motion, colour and shape."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ullayers.locate.moving.segment import refine

COUNT, ROWS, COLUMNS = 12, 24, 40
OBJECT, GROUND = (90.0, 160.0, 120.0), (150.0, 120.0, 130.0)


def window() -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A square that moves to the right over a plain ground."""
    colours = np.full((COUNT, ROWS, COLUMNS, 3), GROUND, np.float32)
    truth = np.zeros((COUNT, ROWS, COLUMNS), bool)
    for t in range(COUNT):
        truth[t, 8:16, 2 * t + 4 : 2 * t + 12] = True
    colours[truth] = OBJECT
    noise = np.random.default_rng(0).normal(0, 3, colours.shape)
    return (colours + noise).astype(np.float32), truth


def moved(
    seen: NDArray[np.bool_], truth: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Strength and chance of cells; the evidence is weak where motion is wrong."""
    noise = np.random.default_rng(1).random(seen.shape)
    strength = np.select([seen & truth, seen | truth], [5.0, 2.5], 1.0) + 2 * noise
    return strength.astype(np.float32), seen.astype(np.float32)


def parts_that_rest(seen: NDArray[np.bool_]) -> None:
    seen[::3, 12:] = False


def ground_beside_it(seen: NDArray[np.bool_]) -> None:
    seen[5, 14:20, 20:30] = True


def missing_frames(seen: NDArray[np.bool_]) -> None:
    seen[4:6] = False


@pytest.mark.parametrize("mistake", [parts_that_rest, ground_beside_it, missing_frames])
def test_mistakes_of_motion_are_corrected(mistake: Callable[[NDArray[np.bool_]], None]) -> None:
    colours, truth = window()
    seen = truth.copy()
    mistake(seen)
    found = refine(colours, *moved(seen, truth)) > 0.5
    assert (found ^ truth).sum() < 0.7 * (seen ^ truth).sum()


@pytest.mark.parametrize("frames", [1, 2])
def test_few_frames_and_equal_colours(frames: int) -> None:
    colours, truth = window()
    same = np.full_like(colours, 128)[:frames]
    found = refine(same, *moved(truth[:frames], truth[:frames]))
    assert np.isfinite(found).all()
    assert ((found > 0.5) == truth[:frames]).mean() > 0.95
