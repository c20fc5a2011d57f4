"""Walking people are found wherever they are, however they were filmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.datasets import walking
from tests.real_data import DATA
from ullayers.locate.moving.segment import segment_motion
from ullayers.locate.paths import fill_gaps

# A still camera and two that pan; the last person was lost in frames of 48 x 144 pixels.
SCENES = ("0_DaSide0811-seq2-119", "1_DaSide0811-seq10-396", "0_DaSide0811-seq4-110")

Frames = NDArray[np.uint8]


def scaled(width: float) -> Callable[[Frames], Frames]:
    def scale(frames: Frames) -> Frames:
        size = round(width * frames.shape[2]), frames.shape[1]
        images = [cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in frames]
        return np.asarray(images, np.uint8)

    return scale


VARIANTS: dict[str, Callable[[Frames], Frames]] = {
    "half width": scaled(0.5),
    "double width": scaled(2),
    "every second frame": lambda frames: frames[::2],
    "mirrored": lambda frames: np.ascontiguousarray(frames[:, :, ::-1]),
    "darker by half": lambda frames: frames // 2,
}


def found_x(change: Callable[[Frames], Frames]) -> list[NDArray[np.float64]]:
    """x in each scene after a change of its frames."""
    found = []
    for scene in walking(DATA):
        if scene.name in SCENES:
            images: list[Any] = [cv2.imread(str(file)) for file in scene.files]
            frames = np.ascontiguousarray(np.stack(images)[..., ::-1])
            found.append(fill_gaps(segment_motion(change(frames)).positions)[:, 0])
    return found


def truth() -> list[NDArray[np.float64]]:
    return [np.asarray(s.truth["x"], float) for s in walking(DATA) if s.name in SCENES]


@pytest.mark.data
@pytest.mark.parametrize("name", VARIANTS)
def test_walking_people_are_found_in_any_version(name: str) -> None:
    for x, expected in zip(found_x(VARIANTS[name]), truth(), strict=True):
        if name == "every second frame":
            expected = expected[::2]
        if name == "mirrored":
            expected = 1 - expected
        assert np.corrcoef(x, expected)[0, 1] > 0.98
