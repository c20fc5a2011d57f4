"""All objects seen by a still camera, window by window."""

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.blobs import Blobs, find_blobs, typical_area
from ullayers.locate.flow import Floats, Frames, Pixels
from ullayers.locate.parallel import in_parallel
from ullayers.locate.tracking import Tracker

Owners = NDArray[np.uint16]


@dataclass
class ObjectFinder:
    """Finds and follows all objects seen by a still camera.

    Args:
        threshold: Evidence above which a pixel belongs to an object.
        patience: Frames after which an unseen object is given up.
    """

    threshold: float
    patience: int
    tracker: Tracker = field(init=False)
    typical: float | None = None

    def __post_init__(self) -> None:
        self.tracker = Tracker(self.patience)

    def follow(self, frames: Frames, masks: NDArray[np.bool_], evidence: Floats) -> Owners:
        """Follow all objects through the next window of frames.

        Args:
            frames: (time, height, width, 3) uint8.
            masks: (time, height, width) mask of everything that stands out.
            evidence: (time, rows, columns).

        Returns:
            (time, height, width) track number of each pixel; 0 for none.
        """
        if self.typical is None:
            self.typical = _typical_area(masks)
        blobs = in_parallel(self._blobs, frames, masks, evidence)
        owners = np.zeros(masks.shape, np.uint16)
        for each, owner in zip(blobs, owners, strict=True):
            self.tracker.step(each, owner)
        return owners

    def _blobs(self, frame: Pixels, mask: NDArray[np.bool_], evidence: Floats) -> Blobs:
        return find_blobs(frame, mask, evidence, self.threshold, self.typical or 0.0)


def _typical_area(masks: NDArray[np.bool_]) -> float | None:
    """Return the median area of objects, weighted by area; None without objects."""
    areas = []
    for mask in masks:
        stats = cv2.connectedComponentsWithStats(mask.view(np.uint8))[2]
        areas += stats[1:, cv2.CC_STAT_AREA].tolist()
    return typical_area(areas) if areas else None
