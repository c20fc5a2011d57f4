"""Bounding boxes of tracked objects, from their masks or from their size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import UserError
from ullayers.output.mask_images import label_box
from ullayers.output.track_table import Floats, Track
from ullayers.output.tracked_video import TrackedVideo, sure


@dataclass(frozen=True)
class BoxedObject:
    """An object in one frame.

    Attributes:
        frame: Number of the frame.
        object: Number of the object.
        confidence: From 0.5 to 1.
        box: (4,) left, top, width and height in pixels.
        area: Pixels of the mask, or the area in the table; NaN if unknown.
        mask: (height, width); None if there are no masks.
    """

    frame: int
    object: int
    confidence: float
    box: Floats
    area: float
    mask: NDArray[np.bool_] | None = None


def boxed_objects(video: TrackedVideo) -> Iterator[BoxedObject]:
    """Yield the objects with a confidence of at least 0.5, frame by frame.

    Boxes come from the masks if the folder has masks, otherwise from an ellipse with the object's
    length, width and heading. Objects without a mask or a size are left out.

    Raises:
        UserError: There are neither masks nor sizes.
    """
    if video.masks is not None:
        yield from _from_masks(video)
        return
    if not has_sizes(video):
        raise UserError(
            f"{video.name}: boxes need masks, or length and width in tracks.csv; write them with "
            "ul apply --masks"
        )
    found = [item for track in video.tracks for item in _from_sizes(video, track)]
    yield from sorted(found, key=lambda item: (item.frame, item.object))


def has_sizes(video: TrackedVideo) -> bool:
    """Return whether the table has lengths and widths of objects."""
    return any(np.isfinite(track.length + track.width).any() for track in video.tracks)


def _from_masks(video: TrackedVideo) -> Iterator[BoxedObject]:
    rows: dict[int, list[tuple[int, float]]] = {}
    for track in video.tracks:
        clear = sure(track)
        for frame, confidence in zip(
            track.frame[clear].tolist(), track.confidence[clear].tolist(), strict=True
        ):
            rows.setdefault(frame, []).append((track.object, confidence))
    for frame in sorted(rows):
        labels = video.labels(frame)
        if labels is None:
            continue
        for number, confidence in sorted(rows[frame]):
            mask = labels == number
            if mask.any():
                box = np.array(label_box(mask), np.float64)
                yield BoxedObject(frame, number, confidence, box, float(mask.sum()), mask)


def _from_sizes(video: TrackedVideo, track: Track) -> Iterator[BoxedObject]:
    boxes = ellipse_boxes(track, video.width, video.height)
    for row in np.flatnonzero(sure(track) & np.isfinite(boxes).all(1)):
        yield BoxedObject(
            int(track.frame[row]),
            track.object,
            float(track.confidence[row]),
            boxes[row],
            float(track.area[row]),
        )


def ellipse_boxes(track: Track, width: int, height: int) -> Floats:
    """Return the bounding box of an ellipse with the axes of the object, inside the frame.

    Args:
        track: A track with lengths and widths. Where its heading is unknown, the ellipse is a
            circle between both axes.
        width: Width of the frames in pixels.
        height: Height of the frames in pixels.

    Returns:
        (rows, 4) left, top, width and height in pixels; NaN where the size is unknown.
    """
    turned = np.radians(track.heading)
    across, along = np.cos(turned) ** 2, np.sin(turned) ** 2
    round_ = np.isnan(track.heading)
    across[round_] = along[round_] = 0.5
    long, short = track.length**2, track.width**2
    wide = np.sqrt(long * across + short * along)
    high = np.sqrt(long * along + short * across)
    left, right = ((track.x_px + sign * wide / 2).clip(0, width) for sign in (-1, 1))
    top, bottom = ((track.y_px + sign * high / 2).clip(0, height) for sign in (-1, 1))
    return np.stack([left, top, right - left, bottom - top], 1)


def overlap(first: Floats, second: Floats) -> Floats:
    """Return the intersection over union of all pairs of boxes.

    Args:
        first: (n, 4) left, top, width and height.
        second: (m, 4) likewise.

    Returns:
        (n, m) from 0 to 1.

    Example:
        >>> overlap(np.array([[0.0, 0, 2, 1]]), np.array([[1.0, 0, 2, 1]])).round(3).tolist()
        [[0.333]]
    """
    start = np.maximum(first[:, None, :2], second[None, :, :2])
    end = np.minimum((first[:, :2] + first[:, 2:])[:, None], (second[:, :2] + second[:, 2:])[None])
    shared = (end - start).clip(min=0).prod(2)
    both = first[:, 2:].prod(1)[:, None] + second[:, 2:].prod(1)[None] - shared
    share: Floats = np.divide(shared, both, out=np.zeros_like(shared), where=both > 0)
    return share
