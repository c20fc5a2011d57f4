"""All objects seen by a still camera, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ullayers.locate.blobs import CLEAR, Blobs, clarity, join_pieces, peaks_of, typical_area
from ullayers.locate.flow import Floats, Frames, Pixels
from ullayers.locate.looking import SeenFrame
from ullayers.locate.parallel import in_parallel
from ullayers.locate.tracking import Tracker
from ullayers.video import recycled

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

    def follow(self, frames: Frames, looks: Sequence[SeenFrame], evidence: Floats) -> Owners:
        """Follow all objects through the next window of frames.

        Args:
            frames: (time, height, width, 3) uint8.
            looks: What was seen in each frame, with the value of `typical` at that time.
            evidence: (time, rows, columns).

        Returns:
            (time, height, width) track number of each pixel; 0 for none.
        """
        if self.typical is None:
            self.typical = self._typical_area(frames.shape[1:3], looks, evidence)
        blobs = [look.blobs for look in looks if look.blobs is not None]
        if len(blobs) < len(looks):
            blobs = in_parallel(self._blobs, frames, looks, evidence)
        owners: Owners = recycled.zeros(frames.shape[:3], np.uint16)
        for each, owner in zip(blobs, owners, strict=True):
            self.tracker.step(each, owner)
        return owners

    def _blobs(self, frame: Pixels, look: SeenFrame, evidence: Floats) -> Blobs:
        assert look.pieces is not None, "expected all objects"
        return join_pieces(frame, look.pieces, evidence, self.threshold, self.typical or 0.0)

    def _typical_area(
        self, size: tuple[int, ...], looks: Sequence[SeenFrame], evidence: Floats
    ) -> float | None:
        """Return the median area of clear objects, or else of all; None without objects."""
        areas, peaks = np.zeros(0), np.zeros(0)
        for look, strength in zip(looks, evidence, strict=True):
            if look.pieces is not None:
                areas = np.append(areas, look.pieces.areas)
                peaks = np.append(peaks, peaks_of(look.pieces, strength, size))
        # Noise just above the threshold may cover a large area.
        clear = areas[clarity(peaks, self.threshold) >= CLEAR]
        if not areas.size:
            return None
        return typical_area(clear if clear.size else areas)
