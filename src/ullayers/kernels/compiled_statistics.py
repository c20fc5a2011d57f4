"""Between the statistics of a layer and what the loops over tiles work on, compiled by numba.

A statistic is its value and a rest, which is void once someone has set the value. Four arrays are
those of the short-term one and then of the long-term one.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ullayers.kernels.compiled_tiles import Array
from ullayers.kernels.compiling import compiled

Arrays = tuple[Array, Array, Array, Array]
in_this_order = partial(compiled, any_order=False)
LINE, TINY = 16, 1e-300  # values that come together from memory; no division by zero


@in_this_order
def lag_of(frame: float, value: float, rest: float) -> float:
    """How far a mean is behind a frame: in a scene at rest that is less than any digit of them."""
    lag = np.float64(frame) - value
    return lag - rest if value + rest == value else lag


@in_this_order
def read_lags(frame: Array, lags: Array, means: Arrays, begin: int, end: int) -> None:
    """How far both means (P, C) are behind a frame (C, P), at positions from `begin` to `end`."""
    for which in range(2):
        value, rest = means[2 * which], means[2 * which + 1]
        for left in range(begin, end, LINE):
            for c in range(len(frame)):
                for p in range(left, min(left + LINE, end)):
                    lags[which, c, p] = lag_of(frame[c, p], value[p, c], rest[p, c])


@in_this_order
def write_means(frame: Array, lags: Array, means: Arrays, begin: int, end: int) -> None:
    """The other way round."""
    for which in range(2):
        value, rest = means[2 * which], means[2 * which + 1]
        for left in range(begin, end, LINE):
            for c in range(len(frame)):
                for p in range(left, min(left + LINE, end)):
                    value[p, c] = np.float64(frame[c, p]) - lags[which, c, p]
                    rest[p, c] = (np.float64(frame[c, p]) - value[p, c]) - lags[which, c, p]


@compiled
def read_covs(covs: Arrays, seen: Array, totals: Array) -> None:
    """W and B times their evidence."""
    for which in range(2):
        value, rest = covs[2 * which], covs[2 * which + 1]
        for i in range(len(value)):
            for j in range(len(value)):
                holds = value[i, j] + rest[i, j] == value[i, j]
                exact = np.float64(value[i, j]) + (rest[i, j] if holds else 0.0)
                totals[which, i, j] = exact * seen[which]


@compiled
def write_covs(covs: Arrays, seen: Array, totals: Array) -> None:
    """The other way round."""
    for which in range(2):
        value, rest = covs[2 * which], covs[2 * which + 1]
        for i in range(len(value)):
            for j in range(len(value)):
                exact = totals[which, i, j] / max(seen[which], TINY)
                value[i, j] = exact
                rest[i, j] = exact - value[i, j]
