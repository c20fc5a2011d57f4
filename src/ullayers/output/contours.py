"""Outlines of masks as polygons in pixels of the video."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.outline import EDGE
from ullayers.locate.parallel import in_parallel

TOLERANCE = 0.75  # pixels of the video by which a polygon may differ from the outline ...
MASK_TOLERANCE = 0.5  # ... or pixels of the mask, where these are larger
MAX_PARTS = 256  # in a frame
FEW_POINTS = 8  # of an outline that is not simplified
ENLARGED = 2.0  # largest magnification before an outline is traced
CORNERS = np.ones((2, 2), np.uint8)

Points = NDArray[np.int32]  # (points, 2) x and y
Mask = NDArray[np.uint8]
Corners = tuple[int, int, int, int]  # left, top, right and bottom


class Contours:
    """Finds the outlines of masks.

    Args:
        size: (width, height) of the masks.
        place: Left, top, width and height of the region they cover, in pixels of the video.

    Example:
        >>> mask = np.zeros((1, 24, 32), np.uint8)
        >>> mask[0, 6:12, 8:16] = 255
        >>> [[polygon]] = Contours((32, 24), (100, 0, 32, 24)).of_masks(mask)
        >>> polygon.tolist()
        [[108, 6], [108, 12], [116, 12], [116, 6]]
    """

    def __init__(self, size: tuple[int, int], place: tuple[int, int, int, int]) -> None:
        self.place = place
        self.scale = place[2] / size[0], place[3] / size[1]
        self.enlarged = [min(max(each, 1.0), ENLARGED) for each in self.scale]
        self.tolerance = max(TOLERANCE, MASK_TOLERANCE * max(self.scale))

    def of_masks(self, masks: NDArray[np.uint8]) -> list[list[Points]]:
        """Return the polygons of each soft mask (time, height, width)."""
        return in_parallel(self._of_mask, masks)

    def of_tracks(self, owners: NDArray[np.uint16]) -> list[dict[int, list[Points]]]:
        """Return the polygons of each track in each image of track numbers."""
        return in_parallel(self._of_labels, owners)

    def _of_mask(self, mask: Mask) -> list[Points]:
        found: list[Points] = []
        around = [
            (max(left - 1, 0), max(top - 1, 0), right + 1, bottom + 1)
            for left, top, right, bottom in _blobs(mask >= EDGE)
        ]
        for left, top, right, bottom in _apart(around):
            found += self._polygons(mask[top:bottom, left:right], left, top)
        return found

    def _of_labels(self, labels: NDArray[np.uint16]) -> dict[int, list[Points]]:
        boxes: dict[int, Corners] = {}
        for blob in _blobs(labels > 0):
            left, top, right, bottom = blob
            for label in np.unique(labels[top:bottom, left:right]).tolist():
                boxes[label] = _union(boxes.get(label, blob), blob)
        boxes.pop(0, None)
        found = {}
        for label, (left, top, right, bottom) in boxes.items():
            part = (labels[top:bottom, left:right] == label).astype(np.uint8) * np.uint8(255)
            found[label] = self._polygons(part, left, top)
        return found

    def _polygons(self, part: Mask, left: int, top: int) -> list[Points]:
        """Return the polygons of a part of a mask, given its position in the mask."""
        picture = cv2.copyMakeBorder(part, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
        height, width = picture.shape
        size = round(width * self.enlarged[0]), round(height * self.enlarged[1])
        if size != (width, height):
            picture = cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR)
        inside = np.asarray(picture >= EDGE).view(np.uint8)
        # Trace the corners of the pixels inside, so that the polygon encloses whole pixels.
        corners = cv2.dilate(inside, CORNERS, anchor=(1, 1))
        outlines, _ = cv2.findContours(corners, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        factor = width * self.scale[0] / size[0], height * self.scale[1] / size[1]
        corner = [
            start + (each - 1) * scale
            for start, each, scale in zip(self.place, (left, top), self.scale, strict=False)
        ]
        simple = [_simplified(each, self.tolerance / max(factor)) for each in outlines]
        return [np.rint(points[:, 0] * factor + corner).astype(np.int32) for points in simple]


def _simplified(outline: Any, tolerance: float) -> Any:
    """Simplify an outline, unless it is too small or thin."""
    if len(outline) <= FEW_POINTS:
        return outline
    simple = cv2.approxPolyDP(outline, tolerance, True)
    return outline if len(simple) < 3 else simple


def _blobs(inside: NDArray[np.bool_]) -> list[Corners]:
    """Return the boxes of the largest connected parts of a mask."""
    pixels = inside.view(np.uint8)
    outlines, _ = cv2.findContours(pixels, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    boxes = [cv2.boundingRect(outline) for outline in outlines]
    if len(boxes) > MAX_PARTS:
        boxes = sorted(boxes, key=lambda box: box[2] * box[3], reverse=True)[:MAX_PARTS]
    return [(left, top, left + width, top + height) for left, top, width, height in boxes]


def _apart(boxes: list[Corners]) -> list[Corners]:
    """Join boxes that overlap, so that no pixel is in two of them.

    >>> _apart([(0, 0, 2, 2), (5, 5, 6, 6), (1, 1, 3, 3)])
    [(5, 5, 6, 6), (0, 0, 3, 3)]
    """
    joined: list[Corners] = []
    for box in boxes:
        while overlapping := next((each for each in joined if _overlap(each, box)), None):
            joined.remove(overlapping)
            box = _union(overlapping, box)
        joined.append(box)
    return joined


def _overlap(a: Corners, b: Corners) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _union(a: Corners, b: Corners) -> Corners:
    return min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])
