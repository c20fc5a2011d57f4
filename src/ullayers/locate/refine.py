"""Refinement: which cells belong to the object, given its motion, its colours and its shape.

Motion shows where an object is, but not all of it: a foot rests on the ground, and foam moves with
a boat. Over the window, its colours and its shape around its centre are known better than in a
single frame. Each is a histogram of the cells that belong to the object by motion and of all
others, and they are combined as if they were independent (naive Bayes).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from ullayers.locate.flow import Floats
from ullayers.locate.judge import fill_gaps

STRENGTH_BINS = 40
STRENGTH_RANGE = 0.01, 0.999  # quantiles of the strength that the bins cover
STRENGTH_BLUR = 1.5  # bins
COLOUR_BINS = 16  # along each axis of the Lab colour space
COLOUR_WIDTH = 16.0, 5.0, 5.0  # of a bin; most colours are close to grey
COLOUR_BLUR = 0.7  # bins
SHAPE_BLUR = 2.5  # cells
LARGEST_RATIO = 4.0  # of a logarithm: no single histogram decides alone
FEW = 1e-3  # cells added to each bin, so that an empty one decides nothing

Bins = NDArray[np.intp]
Doubles = NDArray[np.float64]


def refine(colours: Floats, strength: Floats, chance: Floats) -> Floats:
    """Return the probability that each cell belongs to the object.

    Args:
        colours: (time, rows, columns, 3) colours of the cells, in OpenCV's Lab of 8 bits.
        strength: (time, rows, columns) evidence of motion.
        chance: (time, rows, columns) probability of each cell by motion alone, 0 for other objects.
            In some frame, it must not be 0 everywhere.

    Example:
        >>> colours = np.full((6, 20, 30, 3), 128, np.float32)
        >>> truth = np.zeros((6, 20, 30), bool)
        >>> for t in range(6):
        ...     truth[t, 5:15, 3 * t + 4 : 3 * t + 12] = True
        >>> colours[truth] = 60, 160, 128
        >>> seen = truth.astype(np.float32)
        >>> seen[2, 10:] = 0  # in one frame, motion shows the upper half only
        >>> found = refine(colours, 1 + 4 * seen, seen) > 0.5
        >>> bool((found == truth).mean() > 0.99)
        True
    """
    known = chance.ravel().astype(float)
    odds = _shape_odds(chance)
    for bins, blur in (
        (_strength_bins(strength), STRENGTH_BLUR),
        (_colour_bins(colours), COLOUR_BLUR),
    ):
        odds += _log_ratio(bins, known, blur).clip(-LARGEST_RATIO, LARGEST_RATIO)
    found: Floats = (1 / (1 + np.exp(-odds))).reshape(chance.shape).astype(np.float32)
    return found


def _shape_odds(chance: Floats) -> Doubles:
    """Return the logarithm of the odds of each cell, given its position relative to the object."""
    count, rows, columns = chance.shape
    y, x = np.mgrid[:rows, :columns]
    centre = np.full((count, 2), np.nan)
    for t, frame in enumerate(chance):
        if (total := frame.sum()) > 0:
            centre[t] = (frame * x).sum() / total, (frame * y).sum() / total
    centre = fill_gaps(centre).round().astype(int)
    down = y - centre[:, 1, None, None] + rows
    right = x - centre[:, 0, None, None] + columns
    shape = 2 * rows, 2 * columns
    bins = np.ravel_multi_index((down.ravel(), right.ravel()), shape)
    size = shape[0] * shape[1]
    inside = np.bincount(bins, chance.ravel(), size).reshape(shape)
    seen = np.bincount(bins, minlength=size).reshape(shape).astype(float)
    share = (_blurred(inside, SHAPE_BLUR) + FEW) / (_blurred(seen, SHAPE_BLUR) + 2 * FEW)
    share = share.clip(FEW, 1 - FEW)
    odds: Doubles = np.log(share / (1 - share)).ravel()[bins]
    return odds


def _strength_bins(strength: Floats) -> tuple[Bins, tuple[int, ...]]:
    logarithm = np.log(np.maximum(strength, 1e-3)).ravel()
    low, high = np.quantile(logarithm, STRENGTH_RANGE)
    edges = np.linspace(float(low), float(high), STRENGTH_BINS)
    return np.digitize(logarithm, edges), (STRENGTH_BINS + 1,)


def _colour_bins(colours: Floats) -> tuple[Bins, tuple[int, ...]]:
    shape = (COLOUR_BINS,) * 3
    bins = (colours.reshape(-1, 3) - 128) / COLOUR_WIDTH + COLOUR_BINS / 2
    inside = bins.astype(int).clip(0, COLOUR_BINS - 1)
    return np.ravel_multi_index(tuple(inside.T), shape), shape


def _log_ratio(binned: tuple[Bins, tuple[int, ...]], known: Doubles, blur: float) -> Doubles:
    """Return the logarithm of the ratio of probabilities in the object and outside it."""
    bins, shape = binned
    size = int(np.prod(shape))
    inside, outside = (
        _blurred(np.bincount(bins, weights, size).astype(float).reshape(shape), blur)
        for weights in (known, 1 - known)
    )
    few = FEW / size
    ratio = (inside / inside.sum() + few) / (outside / outside.sum() + few)
    logarithm: Doubles = np.log(ratio).ravel()[bins]
    return logarithm


def _blurred(counts: Doubles, width: float) -> Doubles:
    smooth: Doubles = gaussian_filter(counts, width)
    return smooth
