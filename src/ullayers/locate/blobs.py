"""Blobs: outlined regions of a frame, each of which shows one or several objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Pixels
from ullayers.locate.objects import Labelled, label_parts
from ullayers.locate.outline import CORE, contrast_outline
from ullayers.locate.still import StillScene

MOST_BLOBS = 64  # largest number of blobs in a frame
CLEAR = 0.5  # confidence of a clear object
LEAST_MASS = 0.05  # smallest mass of an outlined part, as a share of that of a clear object
SMALLEST = 0.12  # smallest area of a blob, as a share of that of a typical object
LEAST_PIXELS = 4  # smallest area of a blob
UNCLEAR = 0.75  # an object whose evidence is 1.5 times the threshold has a confidence of 0.5
MOST_PIECES = 256  # largest number of components in a frame that are joined
# Largest area of a piece, and of a joined object, as shares of that of a typical object.
PIECE, WHOLE = 0.6, 1.3
BODY = 0.5  # smallest evidence of the body, as a share of the usual evidence of the object
PIECE_GAP = 0.25  # largest gap between pieces, as a share of the root of the area of an object


@dataclass(frozen=True)
class Blobs:
    """The blobs of one frame.

    Attributes:
        rows: (pixels,) rows of the pixels of all blobs, blob by blob.
        columns: (pixels,) their columns.
        starts: (blobs + 1,) index of the first pixel of each blob, and the number of pixels.
        places: (blobs, 2) centroids x, y in pixels.
        spreads: (blobs, 2, 2) covariance of the pixels of each blob.
        cores: (blobs, 2, 2) the same for its core, from `core_of`.
        areas: (blobs,) number of pixels.
        clarity: (blobs,) confidence that it is an object, from 0 to 1.
        colours: (blobs, features) appearance.
        boxes: (blobs, 4) left, top, right, bottom in pixels.
        typical: Area of a typical object in pixels; 0 if unknown.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    starts: NDArray[np.intp]
    places: NDArray[np.float64]
    spreads: NDArray[np.float64]
    cores: NDArray[np.float64]
    areas: NDArray[np.float64]
    clarity: NDArray[np.float64]
    colours: NDArray[np.float64]
    boxes: NDArray[np.float64]
    typical: float = 0.0

    def pixels(self, blob: int) -> NDArray[np.float64]:
        """Return (pixels, 2) positions x, y of the pixels of a blob."""
        own = slice(self.starts[blob], self.starts[blob + 1])
        return np.column_stack([self.columns[own] + 0.5, self.rows[own] + 0.5])

    def paint(self, values: NDArray[np.uint16], image: NDArray[np.uint16]) -> None:
        """Set the pixels of each blob to its value, in a (height, width) image."""
        image[self.rows, self.columns] = np.repeat(values, np.diff(self.starts))


class Pieces(NamedTuple):
    """Connected components of the pixels of objects in a frame.

    Attributes:
        rows: (pixels,) rows of all pixels, ascending.
        columns: (pixels,) their columns.
        number: (pixels,) component of each pixel, from 0.
        areas: (components,) number of pixels.
        boxes: (components, 4) left, top, right, bottom in pixels.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    number: NDArray[np.int32]
    areas: NDArray[np.float64]
    boxes: NDArray[np.float64]


WHOLE_FRAME = slice(None), slice(None)


def find_pieces(mask: NDArray[np.bool_], within: tuple[slice, slice] = WHOLE_FRAME) -> Pieces:
    """Find the connected components of a mask.

    Args:
        mask: (height, width) pixels of objects.
        within: Rows and columns outside which there are none.
    """
    # Objects cover little of a frame, so only the box around them is processed.
    down, across = within[0].start or 0, within[1].start or 0
    left, top, width, height = cv2.boundingRect(mask[within].view(np.uint8))
    left, top = left + across, top + down
    part = np.ascontiguousarray(mask[top : top + height, left : left + width])
    if not part.size:
        nowhere = np.zeros(0, np.intp)
        return Pieces(nowhere, nowhere, np.zeros(0, np.int32), np.zeros(0), np.zeros((0, 4)))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(
        part.view(np.uint8), connectivity=8, ltype=cv2.CV_32S
    )
    pixels = np.flatnonzero(part)
    rows, columns = np.divmod(pixels, width)
    number = np.asarray(labels, np.int32).ravel().take(pixels) - 1
    x, y, wide, high, areas = stats[1:].T.astype(float)
    boxes = np.stack([x + left, y + top, x + wide + left, y + high + top], 1)
    return Pieces(rows + top, columns + left, number, areas, boxes)


def _moments(
    rows: NDArray[Any], columns: NDArray[Any], number: NDArray[Any], count: int
) -> tuple[NDArray[np.float64], ...]:
    x, y = columns + 0.5, rows + 0.5
    areas = np.bincount(number, minlength=count).astype(float)
    safe = np.maximum(areas, 1)
    means = [np.bincount(number, values, count) / safe for values in (x, y)]
    dx, dy = x - means[0].take(number), y - means[1].take(number)
    xx, xy, yy = (np.bincount(number, v, count) / safe + f for v, f in _products(dx, dy))
    spreads = np.stack([xx, xy, xy, yy], 1).reshape(-1, 2, 2)
    return np.stack(means, 1), spreads, areas


def _products(
    dx: NDArray[np.float64], dy: NDArray[np.float64]
) -> list[tuple[NDArray[np.float64], float]]:
    """Return the second moments, and the contribution of the extent of a pixel."""
    return [(dx * dx, 1 / 12), (dx * dy, 0.0), (dy * dy, 1 / 12)]


def _appearance(
    values: NDArray[np.uint8], number: NDArray[Any], areas: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return (blobs, 6) mean and standard deviation of the colours of the pixels of each blob."""
    safe = np.maximum(areas, 1)
    features = []
    for colour in np.ascontiguousarray(values.T, np.float64):
        mean = np.bincount(number, colour, len(areas)) / safe
        square = np.bincount(number, colour * colour, len(areas)) / safe
        features += [mean, np.sqrt(np.maximum(square - mean**2, 0))]
    return np.stack(features, 1)


def outline_all(
    frame: Pixels,
    scene: StillScene,
    gain: Floats,
    evidence: Floats,
    threshold: float,
    least: float,
) -> NDArray[np.bool_]:
    """Outline everything that stands out in a frame.

    Args:
        frame: (height, width, 3) uint8.
        scene: The scene at the size of the frame.
        gain: Gain of the light in this frame.
        evidence: (rows, columns) of any size.
        threshold: Evidence above which a pixel belongs to something.
        least: Smallest sum of the evidence of a part.
    """
    mask = np.zeros(frame.shape[:2], bool)
    labelled = label_parts(evidence, threshold)
    for label in clear_labels(labelled, max(least, threshold)):
        found = contrast_outline(frame, scene, gain, labelled.labels == label)
        mask[found.box] |= found.clear
    return mask


def clear_labels(labelled: Labelled, least: float) -> list[int]:
    """Return the labels of the parts of at least this mass, largest first, up to a limit."""
    largest = np.argsort(-labelled.masses)[:MOST_BLOBS]
    return [int(label) for label in largest if labelled.masses[label] >= least]


def typical_area(areas: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the median area of connected parts, weighted by area.

    >>> typical_area([1, 1, 1, 1, 10, 12])
    10.0
    """
    ordered = np.sort(areas)
    half = np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)
    return float(ordered[half])


def find_blobs(
    frame: Pixels, mask: NDArray[np.bool_], strength: Floats, threshold: float, typical: float
) -> Blobs:
    """Find the blobs of a frame.

    Args:
        frame: (height, width, 3) uint8.
        mask: (height, width) pixels of objects.
        strength: (rows, columns) evidence, of any size.
        threshold: Evidence above which a pixel belongs to an object.
        typical: Area of a typical object in pixels. Pieces of objects are joined, and much smaller
            blobs are left out.
    """
    return join_pieces(frame, find_pieces(mask), strength, threshold, typical)


def join_pieces(
    frame: Pixels, pieces: Pieces, strength: Floats, threshold: float, typical: float
) -> Blobs:
    """Join pieces of objects to blobs.

    Args:
        frame: As in `find_blobs`.
        pieces: Pieces of the objects in the frame.
        strength: As in `find_blobs`.
        threshold: As in `find_blobs`.
        typical: As in `find_blobs`.
    """
    lookup, boxes = _join_pieces(pieces.areas, pieces.boxes, typical)
    number = lookup.take(pieces.number)
    order = np.argsort(number, kind="stable")  # a radix sort, as the numbers have 16 bits
    counts = np.bincount(number, minlength=len(boxes) + 1)
    order, counts = order[counts[0] :], counts[1:]
    rows, columns = pieces.rows.take(order), pieces.columns.take(order)
    starts = np.concatenate([[0], np.cumsum(counts)])
    number = np.repeat(np.arange(len(boxes)), counts)
    places, spreads, areas = _moments(rows, columns, number, len(boxes))
    near = _strength_at(rows, columns, strength, frame.shape[:2])
    peaks = np.maximum.reduceat(near, starts[:-1]) if len(boxes) else np.zeros(0)
    seen = frame.reshape(-1, 3).take(rows * frame.shape[1] + columns, axis=0)
    colours = _appearance(seen, number, areas)
    core = core_of(near, number)
    cores = _moments(rows[core], columns[core], number[core], len(boxes))[1]
    return Blobs(
        rows,
        columns,
        starts,
        places,
        spreads,
        cores,
        areas,
        clarity(peaks, threshold),
        colours,
        boxes,
        typical,
    )


def clarity(peaks: NDArray[Any], threshold: float) -> NDArray[np.float64]:
    """Return the confidence that something is an object, from its largest evidence.

    >>> clarity(np.array([3.0, 4.5, 30.0]), threshold=3.0).tolist()
    [0.25, 0.5, 0.925]
    """
    clear: NDArray[np.float64] = 1 - UNCLEAR * threshold / np.maximum(peaks, 1e-9)
    return clear.clip(0, 1)


def peaks_of(pieces: Pieces, strength: Floats, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the largest evidence of each piece of a (height, width) frame."""
    peaks = np.zeros(len(pieces.areas))
    near = _strength_at(pieces.rows, pieces.columns, strength, size)
    np.maximum.at(peaks, pieces.number, near)
    return peaks


def core_of(near: Floats, number: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which pixels are in the core of their object: its body, without wings or fur.

    The axis of an animal is that of its body. Its outline also covers parts of weaker contrast.

    Args:
        near: (pixels,) evidence.
        number: (pixels,) object of each pixel, from 0, ascending.

    Example:
        >>> core_of(np.array([1.0, 5, 9, 9, 9, 9]), np.zeros(6, np.intp)).tolist()
        [False, True, True, True, True, True]
    """
    if not len(number):
        return np.zeros(0, bool)
    starts = np.searchsorted(number, np.arange(number[-1] + 2))
    usual = [
        np.partition(near[start:end], rank)[rank]
        for start, end in pairwise(starts.tolist())
        for rank in [int(CORE * (end - start - 1))]
    ]
    core: NDArray[np.bool_] = near > BODY * np.array(usual, near.dtype).take(number)
    return core


def core_covariance(
    mask: NDArray[np.bool_],
    strength: Floats,
    corner: tuple[int, int] = (0, 0),
    size: tuple[int, ...] | None = None,
) -> NDArray[np.float64]:
    """Return the variances xx, xy and yy of the core of an object; NaN if the mask is empty.

    Args:
        mask: Pixels of the object in a part of the frame.
        strength: (rows, columns) evidence of the frame, of any size.
        corner: Row and column of this part in the frame.
        size: (height, width) of the frame; None for that of the mask.
    """
    rows, columns = np.divmod(np.flatnonzero(mask), mask.shape[1])
    rows, columns = rows + corner[0], columns + corner[1]
    near = _strength_at(rows, columns, strength, mask.shape if size is None else size)
    core = core_of(near, np.zeros(len(rows), np.intp))
    if not core.any():
        return np.full(3, np.nan)
    spread = _moments(rows[core], columns[core], np.zeros(core.sum(), np.intp), 1)[1]
    variances: NDArray[np.float64] = spread[0].ravel()[[0, 1, 3]]
    return variances


def _strength_at(
    rows: NDArray[np.intp], columns: NDArray[np.intp], strength: Floats, size: tuple[int, ...]
) -> Floats:
    """Return the evidence at pixels of a (height, width) frame."""
    scale = np.array(strength.shape) / size
    row, column = (
        (np.arange(count) * factor).astype(int)
        for count, factor in zip(size, scale.tolist(), strict=True)
    )
    near: Floats = strength.ravel().take(row.take(rows) * strength.shape[1] + column.take(columns))
    return near


def _join_pieces(
    areas: NDArray[np.float64], boxes: NDArray[np.float64], typical: float
) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    """Join small components to nearby components that are not whole objects either.

    Args:
        areas: (components,) pixels.
        boxes: (components, 4) left, top, right, bottom.
        typical: Area of a typical object.

    Returns:
        The blob number of each component (1 for the largest, 0 for none), and the boxes.
    """
    areas, boxes = areas.copy(), boxes.copy()
    order = np.argsort(-areas, kind="stable")[:MOST_PIECES]
    group = np.arange(len(areas))
    for piece in order[::-1]:  # from the smallest
        if areas[piece] >= PIECE * typical:
            break
        gap = np.maximum(boxes[order, :2] - boxes[piece, 2:], boxes[piece, :2] - boxes[order, 2:])
        near = np.linalg.norm(np.maximum(gap, 0), axis=1)
        usable = (areas[order] > 0) & (order != piece)
        usable &= areas[order] + areas[piece] <= WHOLE * typical
        near[~usable | (near > PIECE_GAP * np.sqrt(typical))] = np.inf
        if np.isfinite(near).any():
            other = order[near.argmin()]
            group[group == piece] = other
            areas[other] += areas[piece]
            areas[piece] = 0
            boxes[other, :2] = np.minimum(boxes[other, :2], boxes[piece, :2])
            boxes[other, 2:] = np.maximum(boxes[other, 2:], boxes[piece, 2:])
    kept = order[areas[order] >= max(SMALLEST * typical, LEAST_PIXELS)]
    kept = kept[np.argsort(-areas[kept], kind="stable")][:MOST_BLOBS]
    numbers = np.zeros(len(areas), np.int16)
    numbers[kept] = np.arange(1, len(kept) + 1)
    return numbers[group], boxes[kept]
