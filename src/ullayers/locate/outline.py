"""Outlines: masks at the resolution of the video that follow the edges of the object."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Pixels
from ullayers.locate.scene.still import StillScene, divided, quantiles

GUIDE_RADIUS = 1 / 54  # of the longer side
GUIDE_NOISE = 25.0  # squared grey levels: edges below about five levels are not followed
CORE = 0.8  # quantile of the difference that defines the contrast of an object
FAINT = 0.5  # of the contrast of an object: least contrast of a part of it
PART = 0.2  # of the square root of the area: least size of a part with its own contrast
THIN = 0.06  # of the square root of the area: half the width of parts that are left out,
MOST_THIN = 2  # pixels: such as tails, but not the legs of a large animal
NOISE_BLUR = 0.8  # pixels
DEEP = 2.5  # pixels of a part: farther inside, a pixel belongs to the object
WEAK = 0.2  # of the contrast of an object: with less, it may be a gap between two of them
MARGIN = 0.25  # of the size of a part: largest distance of its outline from it

SQUARE = np.ones((3, 3), np.uint8)

Mask = NDArray[np.bool_]
Places = NDArray[np.intp]  # flat indices of pixels
Soft = NDArray[np.uint8]  # 255 on the object, `EDGE` at its outline


class Outlined(NamedTuple):
    """The mask of an object inside a box; it is zero elsewhere.

    Attributes:
        box: Rows and columns of the frame.
        soft: The soft mask.
        clear: The pixels of clear contrast alone, which keep objects that touch apart.
    """

    box: tuple[slice, slice]
    soft: Soft
    clear: Mask


def mask_moments(mask: Mask, left: int = 0, top: int = 0) -> tuple[float, ...]:
    """Return the centroid x, y, the variances xx, xy, yy and the area of a mask, in pixels.

    For an empty mask, all values but the area are NaN.

    Args:
        mask: (height, width) a part of a frame.
        left: Its first column in the frame.
        top: Its first row in the frame.

    Example:
        >>> mask = np.zeros((8, 8), bool)
        >>> mask[2:4, 1:7] = True
        >>> [round(value, 6) for value in mask_moments(mask)]  # 6**2 / 12 and 2**2 / 12
        [4.0, 3.0, 3.0, 0.0, 0.333333, 12.0]
    """
    pixels = mask.view(np.uint8)
    column, row, width, height = cv2.boundingRect(pixels)
    if not width:
        return (*[np.nan] * 5, 0.0)
    found = cv2.moments(pixels[row : row + height, column : column + width], binaryImage=True)
    area = found["m00"]
    x, y = left + column + 0.5 + found["m10"] / area, top + row + 0.5 + found["m01"] / area
    pixel = 1 / 12  # variance within a pixel
    spread = (found[name] / area for name in ("mu20", "mu11", "mu02"))
    xx, xy, yy = spread
    return x, y, xx + pixel, xy, yy + pixel, area


def edge_outline(frame: Pixels, chance: Floats, part: Mask) -> Soft:
    """Return the soft mask of an object from the probabilities of cells.

    Args:
        frame: (height, width, 3) uint8.
        chance: (rows, columns) probability that a cell belongs to the object.
        part: (rows, columns) cells of the object, to separate it from others.
    """
    near = cv2.dilate(part.astype(np.uint8), SQUARE).astype(np.float32)
    sharp = _follow_edges(frame, _enlarge(chance * near, frame))
    return _to_bytes(sharp)


def contrast_outline(frame: Pixels, scene: StillScene, gain: Floats, part: Mask) -> Outlined:
    """Return the soft mask of an object seen by a still camera, from its contrast.

    Args:
        frame: (height, width, 3) uint8.
        scene: The scene at the size of the frame.
        gain: Gain of the light in this frame: one number, or one for each row.
        part: (rows, columns) the object at a smaller size.
    """
    box = _box(part, *frame.shape[:2])
    rows = gain if len(gain) == 1 else _rows_of(gain, box[0], len(frame))
    crop = StillScene(scene.backdrop[box], scene.noise[box], scene.bands)
    levelled = divided(np.ascontiguousarray(frame[box]), rows)
    blurred = cv2.GaussianBlur(crop.distance(levelled), (0, 0), NOISE_BLUR)
    difference = np.asarray(blurred, np.float32)
    inside = _enlarged_part(part, box, *frame.shape[:2])
    pixels = np.flatnonzero(inside)
    if not len(pixels):
        return Outlined(box, np.zeros(inside.shape, np.uint8), inside)
    # Faint parts, and a backdrop similar to the object, lower the expected contrast.
    core = max(float(quantiles(difference.ravel().take(pixels), CORE)), 1e-9)
    faint = _contrast_of_parts(difference, inside, len(pixels), core)
    before = _contrast_before(crop, levelled, difference, pixels, core)
    contrast = difference / cv2.pow(faint * faint * before, 1 / 3)
    reached = contrast > 0.5
    depth = round(DEEP * len(frame) / len(part))
    within = _deep_inside(inside, depth) & _hull(reached & inside) & (difference > WEAK * core)
    clear = _main_body(reached, inside, pixels)
    body = _main_body(reached | within, inside, pixels)
    # Holes belong to the object; beyond its outline, the mask ends within a pixel.
    fringe = cv2.dilate(body.view(np.uint8), SQUARE) * np.float32(0.49)
    soft = np.where(body, np.maximum(contrast, 0.51), np.minimum(contrast, fringe))
    return Outlined(box, _to_bytes(soft), clear)


def _rows_of(gain: Floats, rows: slice, height: int) -> Floats:
    """Return the gain (rows, 1, 1) of some rows of a frame, from that of a smaller frame."""
    large = cv2.resize(gain[:, :, 0], (1, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(large, np.float32)[rows, :, None]


def _contrast_of_parts(difference: Floats, inside: Mask, area: int, core: float) -> Floats:
    """Return the contrast near each pixel, so that faint parts get their own outlines.

    Args:
        difference: (height, width) from the scene.
        inside: (height, width) approximate mask of the object.
        area: Number of its pixels.
        core: Usual difference of the object, without its faint parts.
    """
    side = 2 * max(1, round(PART * math.sqrt(area))) + 1
    relative = np.where(inside & (difference > FAINT / 2 * core), difference / core, 0)
    count = cv2.blur((relative > 0).astype(np.float32), (side, side))
    # Between the mean, which a blurred edge would lower, and the maximum, which jeans below a dark
    # jacket do not reach.
    fourth = cv2.blur(np.square(np.square(relative)), (side, side)) / np.maximum(count, 1e-6)
    near: Floats = core * np.sqrt(np.sqrt(fourth.clip(FAINT**4, 1)))
    return near


def _contrast_before(
    scene: StillScene, levelled: Floats, difference: Floats, inside: Places, usual: float
) -> Floats:
    """Return the contrast between an object of one colour and the backdrop at each pixel.

    A red cushion stands out from a lamp more than from the ceiling around it.
    """
    core = inside[difference.ravel().take(inside) > usual / 2]
    colours = np.ascontiguousarray(levelled.reshape(-1, 3).take(core, axis=0).T)
    distance = scene.distance_of_colour(quantiles(colours, 0.5))
    distance = np.asarray(cv2.GaussianBlur(distance, (0, 0), NOISE_BLUR), np.float32)
    behind = max(float(quantiles(distance.ravel().take(core), 1 - CORE)), 1e-9)
    share: Floats = (distance / behind).clip(FAINT, 1)
    return np.float32(usual) * share


def _to_bytes(values: Floats) -> Soft:
    """Return values of 0..1 as bytes; one half becomes `EDGE`."""
    scaled: Soft = (256 * values).clip(0, 255).astype(np.uint8)
    return scaled


def _box(part: Mask, height: int, width: int) -> tuple[slice, slice]:
    """Return the rows and columns of the larger image around a part."""
    left, top, columns, rows = cv2.boundingRect(part.view(np.uint8))
    slices = []
    for first, count, size, whole in (
        (top, rows, height, part.shape[0]),
        (left, columns, width, part.shape[1]),
    ):
        scale = size / whole
        margin = MARGIN * scale * (count + 4)
        start = max(0, int(scale * first - margin))
        slices.append(slice(start, min(size, int(np.ceil(scale * (first + count) + margin)))))
    return slices[0], slices[1]


def _enlarged_part(part: Mask, box: tuple[slice, slice], height: int, width: int) -> Mask:
    """Return a box of a part that is enlarged to a size, by linear interpolation."""
    rows, columns = part.shape
    down, across = rows / height, columns / width
    to_part = np.array(  # centres of pixels are at one half
        [
            [across, 0, (box[1].start + 0.5) * across - 0.5],
            [0, down, (box[0].start + 0.5) * down - 0.5],
        ]
    )
    size = box[1].stop - box[1].start, box[0].stop - box[0].start
    values = cv2.warpAffine(
        part.view(np.uint8) * np.uint8(255),
        to_part,
        size,
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return values > 127


def _deep_inside(inside: Mask, depth: int) -> Mask:
    """Return the pixels of a mask that are at least `depth` pixels away from its outline."""
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * depth + 1, 2 * depth + 1))
    return np.asarray(cv2.erode(inside.view(np.uint8), disc) > 0)


def _hull(mask: Mask) -> Mask:
    """Return the convex hull of a mask: a textured object resembles the backdrop in places."""
    points = cv2.findNonZero(mask.view(np.uint8))
    hull = np.zeros(mask.shape, np.uint8)
    if points is not None:
        cv2.fillConvexPoly(hull, cv2.convexHull(points), 1)
    return hull.astype(bool)


def _main_body(reached: Mask, inside: Mask, pixels: Places) -> Mask:
    """Drop thin parts and parts that do not touch the object; fill holes."""
    body = reached.view(np.uint8)
    radius = min(round(THIN * math.sqrt(np.count_nonzero(reached & inside))), MOST_THIN)
    if radius:
        side = 2 * radius + 1
        opened = cv2.morphologyEx(
            body, cv2.MORPH_OPEN, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side))
        )
        if cv2.countNonZero(cv2.bitwise_and(opened, inside.view(np.uint8))):
            body = np.asarray(opened, np.uint8)
    count, labels = cv2.connectedComponents(body, connectivity=8)
    touching = np.zeros(count, np.uint8)
    touching[labels.ravel().take(pixels)] = 1
    touching[0] = 0
    kept = touching.take(np.asarray(labels, np.int32))
    edges, _ = cv2.findContours(kept, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = np.asarray(cv2.drawContours(kept, edges, -1, 1, thickness=cv2.FILLED), np.uint8)
    return filled.view(np.bool_)


def _enlarge(values: Floats, frame: Pixels) -> Floats:
    height, width = frame.shape[:2]
    large = cv2.resize(values, (width, height), interpolation=cv2.INTER_LINEAR)
    return cast("Floats", large)


def _follow_edges(frame: Pixels, values: Floats) -> Floats:
    """Align values with the edges of the frame: a guided filter (He et al. 2010), per colour."""
    guides = [frame[..., i].astype(np.float32) for i in range(3)]
    filtered: Floats = np.mean([_guided_filter(guide, values) for guide in guides], axis=0)
    return filtered


def _guided_filter(guide: Floats, values: Floats) -> Floats:
    radius = max(2, round(GUIDE_RADIUS * max(guide.shape)))
    side = (2 * radius + 1, 2 * radius + 1)
    guide_mean, mean = cv2.blur(guide, side), cv2.blur(values, side)
    covariance = cv2.blur(guide * values, side) - guide_mean * mean
    variance = cv2.blur(guide * guide, side) - guide_mean * guide_mean
    slope = covariance / (variance + GUIDE_NOISE)
    offset = mean - slope * guide_mean
    filtered: Floats = cv2.blur(slope, side) * guide + cv2.blur(offset, side)
    return filtered
