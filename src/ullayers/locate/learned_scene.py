"""The scene of a still camera, learned from frames spread over the whole recording."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Frames
from ullayers.locate.parallel import in_parallel
from ullayers.locate.resting import without_resting
from ullayers.locate.scene_median import MEDIAN_DEVIATION, hidden_by_motion, median_over_time
from ullayers.locate.still import NOISE_FLOOR, StillScene
from ullayers.locate.unseen import without_unseen

BANDS = 0.9  # rows have their own gains if these reduce the difference to less than this share
NOISE_BLUR = 2.0  # standard deviation of the filter of the noise, in pixels


def still_scene(sample: Frames, moving: NDArray[np.bool_] | None = None) -> StillScene:
    """Learn the scene from frames spread over a recording.

    Args:
        sample: (time, height, width, 3) uint8; a few dozen frames are enough.
        moving: (time, height, width) pixels that move, from `moving_pixels`. A large object may
            cover a pixel in more than half of the frames.
    """
    flat = np.ones(sample.shape[1:3], np.float32)
    scene = StillScene(median_over_time(sample), flat, bands=False)
    scene = StillScene(scene.backdrop, flat, bands=_has_bands(sample, scene))
    levelled = np.stack(in_parallel(scene.levelled, sample))
    hidden = None if moving is None else hidden_by_motion(levelled, moving)
    scene = StillScene(median_over_time(levelled, hidden), flat, scene.bands)
    differences = np.stack(in_parallel(scene.difference, sample))
    middle = median_over_time(differences, hidden)
    noise = cv2.GaussianBlur(middle, (0, 0), NOISE_BLUR) / MEDIAN_DEVIATION
    scene = StillScene(scene.backdrop, np.maximum(noise, NOISE_FLOOR), scene.bands)
    scene = without_resting(scene, levelled)
    return scene if moving is None else without_unseen(scene, sample, levelled, moving)


def _has_bands(sample: Frames, scene: StillScene) -> bool:
    """Return whether one gain per row explains the frames clearly better than a single gain."""
    banded = StillScene(scene.backdrop, scene.noise, bands=True)
    plain = np.mean([np.median(scene.difference(frame)) for frame in sample[::4]])
    return bool(np.mean([np.median(banded.difference(f)) for f in sample[::4]]) < BANDS * plain)
