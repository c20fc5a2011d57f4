"""Blobs: outlined regions of a frame, each of which shows one or several objects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Pixels
from ullayers.locate.outline import CORE, contrast_outline
from ullayers.locate.paths import Labelled, label_parts
from ullayers.locate.scene.still import StillScene

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
EM_STEPS = 4
EM_PIXELS = 400  # of a blob that are used to divide it
MOST_TURN = 0.3  # radians: largest rotation of the axes of an object from frame to frame
ELLIPTIC = 0.9  # least share of its ellipse that an elliptic object fills
FIT_STEPS = 5
FIT_POINTS = 800  # points in and around a blob at which ellipses are compared with it
BORDER = 3  # pixels around a blob
SOFTNESS = 0.15  # of the radius of an ellipse: width of its soft edge
STRAY = 0.2  # of its length: standard deviation of an object from its predicted position
STRAY_TURN = 0.3  # radians: the same for its axes
UNLIKE = 0.005  # of its area: usual difference of an object from an ellipse
OVERLAP_GAIN = 0.25  # how far overlapping objects follow the pixels; 1 if they are separate
Doubles = NDArray[np.float64]


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


class Parted(NamedTuple):
    """The objects of a blob.

    Attributes:
        places: (objects, 2) centroids x, y.
        spreads: (objects, 2, 2) covariances of their pixels.
        owner: (pixels,) the object of each pixel.
        known: (objects,) how well the pixels determine each position, from 0 to 1.
    """

    places: Doubles
    spreads: Doubles
    owner: NDArray[np.intp]
    known: Doubles


def part_pixels(pixels: Doubles, places: Doubles, spreads: Doubles, areas: Doubles) -> Parted:
    """Divide the pixels of a blob between objects.

    Objects with the shape of an ellipse, like most animals seen from above, are fitted with one.

    Args:
        pixels: (pixels, 2) centres x, y of all pixels of a blob.
        places: (objects, 2) predicted positions of the objects.
        spreads: (objects, 2, 2) covariances of their pixels.
        areas: (objects,) their usual areas.
    """
    filled = areas / (4 * math.pi * np.sqrt(np.linalg.det(spreads)))
    if filled.min() > ELLIPTIC:
        return fit_ellipses(pixels, places, spreads)
    return mix_gaussians(pixels, places, spreads, areas)


def axes_of(spread: Doubles) -> tuple[float, float, float]:
    """Return the variance along the longer and the shorter axis, and the angle of the longer."""
    (xx, xy), (_, yy) = spread.tolist()
    middle, half = (xx + yy) / 2, math.hypot((xx - yy) / 2, xy)
    return middle + half, middle - half, math.atan2(2 * xy, xx - yy) / 2


def _turned(lengths: Doubles, axes: Doubles, before: float) -> Doubles:
    """Return a covariance as `with_axes_of` does, but with a limited rotation of its axes."""
    turn = (axes_of(axes)[2] - before + math.pi / 2) % math.pi - math.pi / 2
    return _with_angle(lengths, before + min(max(turn, -MOST_TURN), MOST_TURN))


def with_axes_of(lengths: Doubles, axes: Doubles) -> Doubles:
    """Return a covariance with the eigenvalues of one matrix and the eigenvectors of another."""
    return _with_angle(lengths, axes_of(axes)[2])


def _with_angle(lengths: Doubles, angle: float) -> Doubles:
    """Return a covariance with the eigenvalues of a matrix and its longer axis at an angle."""
    longer, shorter = (max(value, 0.25) for value in axes_of(lengths)[:2])
    cosine, sine = math.cos(angle), math.sin(angle)
    mixed = (longer - shorter) * cosine * sine
    return np.array(
        [
            [longer * cosine**2 + shorter * sine**2, mixed],
            [mixed, longer * sine**2 + shorter * cosine**2],
        ]
    )


def separation(places: Doubles, spreads: Doubles) -> Doubles:
    """Return how clearly each object is separated from the others that share its blob.

    It is 0 for an object at the position of another one, and 1 for one that hardly touches it.
    """
    apart = np.ones(len(places))
    for i, place in enumerate(places):
        for j, other in enumerate(places):
            if i != j:
                offset = other - place
                scaled = np.sqrt(offset @ np.linalg.solve(spreads[i] + spreads[j], offset))
                apart[i] = min(apart[i], scaled / 2)
    return apart


def mix_gaussians(pixels: Doubles, places: Doubles, spreads: Doubles, areas: Doubles) -> Parted:
    """Divide pixels between objects of known size by expectation maximisation.

    Args:
        pixels: (pixels, 2) positions x, y.
        places: (objects, 2) predicted positions of the objects.
        spreads: (objects, 2, 2) covariances of their pixels; their axes may rotate.
        areas: (objects,) their usual areas.

    Example:
        >>> left = np.random.default_rng(0).normal((0, 0), 1, (200, 2))
        >>> right = np.random.default_rng(1).normal((4, 0), 1, (200, 2))
        >>> both = np.concatenate([left, right])
        >>> start = np.array([(0.5, 0.5), (3.0, 0.0)])
        >>> places = mix_gaussians(both, start, np.stack([np.eye(2)] * 2), np.ones(2)).places
        >>> bool(np.abs(places - [(0, 0), (4, 0)]).max() < 0.3)
        True
    """
    some = pixels[:: max(1, len(pixels) // EM_PIXELS)]
    expected = places
    angles = [axes_of(each)[2] for each in spreads]
    for _ in range(EM_STEPS):
        chances = _chances(some, places, spreads, areas)
        weight = chances.sum(0)
        if weight.min() < 1:  # one of them is hidden, so the pixels do not show it
            break
        places = (chances.T @ some) / weight[:, None]
        offsets = some[None] - places[:, None]
        second = np.einsum("kp,kpi,kpj->kij", chances.T, offsets, offsets) / weight[:, None, None]
        second += 0.25 * np.eye(2)
        turned = zip(spreads, second, angles, strict=True)
        spreads = np.stack([_turned(*each) for each in turned])
    owner = _chances(pixels, places, spreads, areas).argmax(1)
    gains = np.maximum(separation(places, spreads), OVERLAP_GAIN)
    return Parted(expected + gains[:, None] * (places - expected), spreads, owner, gains)


def _chances(pixels: Doubles, places: Doubles, spreads: Doubles, areas: Doubles) -> Doubles:
    offsets = pixels[None] - places[:, None]
    precision = np.linalg.inv(spreads)
    scaled = np.einsum("kpi,kij,kpj->kp", offsets, precision, offsets)
    logits = np.log(areas)[:, None] - 0.5 * np.log(np.linalg.det(spreads))[:, None] - scaled / 2
    logits -= logits.max(0)
    chances = np.exp(logits)
    shares: Doubles = (chances / chances.sum(0)).T
    return shares


def fit_ellipses(pixels: Doubles, places: Doubles, spreads: Doubles) -> Parted:
    """Divide pixels between objects: fit one ellipse of known size each, near its prediction.

    Args:
        pixels: (pixels, 2) centres x, y of all pixels of a blob.
        places: (objects, 2) predicted positions of the objects.
        spreads: (objects, 2, 2) covariances of their pixels; their axes may rotate.

    Example:
        >>> disc = np.argwhere(np.hypot(*np.mgrid[-4:5, -4:5]) < 4.5) + 0.5
        >>> both = np.unique(np.concatenate([disc, disc + [0, 6]]), axis=0)
        >>> start = np.array([(5.5, 5.0), (4.0, 10.0)])
        >>> places, _, owner, _ = fit_ellipses(both, start, np.stack([5.06 * np.eye(2)] * 2))
        >>> bool(np.abs(places - [(4.5, 4.5), (4.5, 10.5)]).max() < 0.3), len(owner) == len(both)
        (True, True)
    """
    grid, covered, weight = _grid(pixels)
    ellipses = [axes_of(each) for each in spreads]
    half = np.array([[2 * math.sqrt(max(value, 0.25)) for value in each[:2]] for each in ellipses])
    away = np.square(places[:, None] - pixels).sum(2)
    nearest = pixels[away.argmin(1)]
    start = np.where(away.min(1)[:, None] > 1, nearest, places)  # an object lies within its blob
    pose = np.column_stack([start, [each[2] for each in ellipses]])
    expected = pose.copy()
    # Prior: deviation from the predicted position and rotation.
    loose = np.column_stack([STRAY * 2 * half[:, :1]] * 2 + [np.full(len(half), STRAY_TURN)])
    prior = 1 / np.square(loose).ravel()
    weight /= UNLIKE * np.pi * float(np.mean(half.prod(1)))
    for _ in range(FIT_STEPS):
        inside, slopes = _coverage(grid, pose, half)
        outside = np.prod(1 - inside, axis=0)
        others = outside / np.maximum(1 - inside, 1e-6)
        jacobian = (others[:, None] * slopes).reshape(pose.size, -1)
        normal = weight * (jacobian @ jacobian.T) + np.diag(prior)
        wrong = covered - (1 - outside)
        pull = weight * (jacobian @ wrong) - prior * (pose - expected).ravel()
        step = np.linalg.solve(normal, pull).reshape(pose.shape)
        pose = pose + np.clip(step, -2 * loose, 2 * loose)
    known = 1 - np.diag(np.linalg.inv(normal)).reshape(pose.shape) * prior.reshape(pose.shape)
    found = np.stack([_with_angle(*each) for each in zip(spreads, pose[:, 2], strict=True)])
    owner = _radius(pixels, pose, half)[0].argmin(0)
    return Parted(pose[:, :2], found, owner, known[:, :2].mean(1).clip(0, 1))


def _grid(pixels: Doubles) -> tuple[Doubles, Doubles, float]:
    """Return points in and around a blob, whether they are inside, and pixels per point."""
    low, high = pixels.min(0) - BORDER, pixels.max(0) + BORDER
    step = max(1, round(math.sqrt(float(np.prod(high - low + 1)) / FIT_POINTS)))
    x, y = (np.arange(low[i], high[i] + 0.5, step) for i in (0, 1))
    columns, rows = np.floor(pixels - low + 0.5).astype(int).T
    mask = np.zeros(np.floor(high - low + 1.5).astype(int)[::-1])
    mask[rows, columns] = 1
    grid = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    return grid, mask[::step, ::step].ravel(), float(step * step)


def _radius(points: Doubles, pose: Doubles, half: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Return the radius of points relative to ellipses (1 at the outline), and along axes.

    Args:
        points: (points, 2).
        pose: (objects, 3) x, y, angle.
        half: (objects, 2) half axes.
    """
    cosine, sine = np.cos(pose[:, 2:]), np.sin(pose[:, 2:])
    x, y = points[:, 0] - pose[:, :1], points[:, 1] - pose[:, 1:2]
    along, across = (x * cosine + y * sine), (y * cosine - x * sine)
    radius = np.sqrt(np.square(along / half[:, :1]) + np.square(across / half[:, 1:]))
    return np.maximum(radius, 1e-6), along, across


def _coverage(points: Doubles, pose: Doubles, half: Doubles) -> tuple[Doubles, Doubles]:
    """Return (objects, points) coverage of points, and its derivatives by x, y and angle."""
    radius, along, across = _radius(points, pose, half)
    inside = 1 / (1 + np.exp(np.clip((radius - 1) / SOFTNESS, -30, 30)))
    cosine, sine = np.cos(pose[:, 2:]), np.sin(pose[:, 2:])
    first, second = along / np.square(half[:, :1]), across / np.square(half[:, 1:])
    slopes = np.stack(
        [
            first * cosine - second * sine,
            first * sine + second * cosine,
            first * -across + second * along,
        ],
        axis=1,
    )
    return inside, slopes / radius[:, None] * (inside * (1 - inside) / SOFTNESS)[:, None]
