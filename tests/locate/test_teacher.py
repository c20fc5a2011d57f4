"""Evidence that teaches: right with an intruder, with rare objects and with weak contrast."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ullayers.locate.teacher import OBJECT, UNKNOWN, Taught, teach, working_size

Pixels = NDArray[np.uint8]


def film(frames: int = 60, seed: int = 0) -> Pixels:
    """Return noisy frames of a textured scene, and the noiseless scene."""
    rng = np.random.default_rng(seed)
    scene = cv2.GaussianBlur(rng.integers(60, 180, (96, 128, 3), np.uint8), (0, 0), 2)
    noise = rng.normal(0, 2, (frames, *scene.shape))
    return np.clip(scene + noise, 0, 255).astype(np.uint8)


def paint(
    frames: Pixels, t: int, x: int, y: int, colour: tuple[int, int, int], side: int = 8
) -> None:
    frames[t, y : y + side, x : x + side] = colour


def shown(taught: Taught, t: int, x: int, y: int, side: int = 8) -> float:
    """Return the share of a square that is labelled as an object."""
    return float((taught.labels[t, y : y + side, x : x + side] == OBJECT).mean())


def test_an_intruder_in_a_few_frames_does_not_set_the_threshold() -> None:
    frames = film()
    for t in range(60):
        paint(frames, t, 2 * t, 40, (210, 210, 210))
    frames[20:24, :, 60:] = 0  # a head, of far more contrast
    taught = teach(frames)
    assert (
        np.mean([shown(taught, t, 2 * t, 40) > 0.6 for t in range(60) if t not in range(20, 24)])
        > 0.9
    )
    assert not taught.trusted[20:24].any()
    assert 30 < taught.area < 150


def test_an_object_that_is_there_in_a_few_frames_is_taught() -> None:
    frames = film()
    for t in range(10, 22):
        paint(frames, t, 8 * (t - 10), 40, (240, 30, 30), side=12)
    taught = teach(frames)
    assert all(shown(taught, t, 8 * (t - 10), 40, 12) > 0.6 for t in range(10, 22))
    assert (taught.labels[30:] == OBJECT).mean() < 0.001


def test_an_object_that_rests_for_most_of_the_time_is_not_part_of_the_scene() -> None:
    frames = film()
    rng = np.random.default_rng(1)
    for t in range(60):  # it rests in 60 % of the frames, and moves a little meanwhile
        x, y = rng.integers((59, 39), (62, 42)) if t >= 24 else (2 * t, 40)
        level = int(rng.integers(-12, 13))
        paint(frames, t, x, y, (220 + level, 40, 40), side=12)
    taught = teach(frames)
    assert np.mean([shown(taught, t, 62, 42, 8) > 0.6 for t in range(24, 60)]) > 0.9
    assert shown(taught, 5, 62, 42, 8) < 0.2


def test_nothing_stands_out_in_noise() -> None:
    taught = teach(film())
    assert (taught.labels == OBJECT).mean() < 1e-3


def test_a_small_contrast_is_unknown_rather_than_background() -> None:
    frames = film()
    for t in range(60):
        paint(frames, t, 2 * t, 20, (250, 20, 20), side=12)
        frames[t, 70:78, 2 * t : 2 * t + 8] += 20
    taught = teach(frames)
    assert (taught.labels[30, 70:78, 60:68] == UNKNOWN).any()


@pytest.mark.parametrize(
    ("area", "expected"), [(1e6, (72, 96)), (1.0, (480, 640)), (576.0, (144, 192))]
)
def test_the_working_size_follows_the_object_within_limits(
    area: float, expected: tuple[int, int]
) -> None:
    assert working_size(480, 640, area, wanted=144.0) == expected
