"""What is behind the objects of a moving camera, and evidence of motion against it."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ullayers.locate.moving.evidence import (
    difference_from_mosaic,
    difference_from_neighbours,
    motion_evidence,
    neighbours,
)

HEIGHT, WIDTH, STEP = 48, 80, 5


def wall(width: int) -> NDArray[np.uint8]:
    noise = np.random.default_rng(0).integers(0, 255, (HEIGHT, width, 3), np.uint8)
    return np.asarray(cv2.GaussianBlur(noise, (0, 0), 2), np.uint8)


def pan(count: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """A camera that pans to the right, and its path."""
    scene = wall(WIDTH + STEP * count)
    frames = np.stack([scene[:, STEP * t : STEP * t + WIDTH] for t in range(count)])
    path = np.stack([np.eye(3)] * count)
    path[:, 0, 2] = STEP * (np.arange(count) - count // 2)
    return frames, path


@pytest.mark.parametrize("count", [2, 5, 12, 100])
def test_neighbours_are_other_frames_of_the_window(count: int) -> None:
    for t in (0, count // 2, count - 1):
        found = neighbours(t, count)
        assert 1 <= len(found) <= 10
        assert t not in found
        assert all(0 <= k < count for k in found)
        # At the ends of the window they span as many frames, so that objects move as far.
        assert max([*found, t]) - min([*found, t]) >= min(18, count - 2)


@pytest.mark.parametrize("difference", [difference_from_mosaic, difference_from_neighbours])
def test_a_camera_that_goes_far_leaves_unknown_pixels_but_no_difference(difference) -> None:  # type: ignore[no-untyped-def]
    frames, path = pan(70)  # more than four widths of a frame
    found = difference(frames, path)
    assert np.nanmax(found) < 3
    assert np.isnan(found).mean() < (0.1 if difference is difference_from_neighbours else 0.5)


def test_an_object_is_seen_beside_unknown_pixels() -> None:
    frames, path = pan(40)
    frames[:, 10:20, 70:76] = 255  # at the edge where new parts of the scene appear
    found = difference_from_neighbours(frames, path)
    assert np.nanmedian(found[3:-3, 12:18, 71:75]) > 50


def water(count: int, seed: int) -> NDArray[np.uint8]:
    """Waves that no motion explains: each frame has its own."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 255, (count, 16, WIDTH, 3), np.uint8)
    return np.stack([cv2.GaussianBlur(frame, (0, 0), 1.5) for frame in noise]).astype(np.uint8)


def test_waves_count_less_if_the_camera_moves() -> None:
    frames, _ = pan(12)
    frames[:, -16:] = water(12, 1)
    found = motion_evidence(frames)
    assert {motion.model for motion in found.motions} <= {"affine", "homography"}
    assert found.rigid[:, -12:].mean() < 0.6 < 0.75 < found.rigid[:, :24].mean()
    still = np.repeat(frames[:1], 12, axis=0)
    still[:, -16:] = water(12, 1)
    assert np.array_equal(motion_evidence(still).rigid, np.ones(frames.shape[:3]))
