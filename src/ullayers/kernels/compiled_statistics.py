"""Between the statistics of a layer and what the loops over tiles work on, compiled by numba.

A statistic is its value and a rest, which is void once someone has set the value. Both are added up
and taken apart in float64, in which it does not matter in which order.
"""

from __future__ import annotations

import numpy as np

from ullayers.kernels.compiled_tiles import Array
from ullayers.kernels.compiling import compiled

LINE, TINY = 16, 1e-300  # values that come together from memory; no division by zero


@compiled
def exact(value: float, rest: float) -> float:
    """A statistic, from its two parts."""
    return np.float64(value) + (rest if value + rest == value else 0.0)


@compiled
def read_lags(
    frame: Array, lags: Array, short: Array, short_rest: Array, long: Array, long_rest: Array,
    begin: int, end: int,
) -> None:  # fmt: skip
    """How far both means (P, C) are behind a frame (C, P), at positions from `begin` to `end`."""
    for left in range(begin, end, LINE):
        for c in range(len(frame)):
            for p in range(left, min(left + LINE, end)):
                lags[0, c, p] = frame[c, p] - exact(short[p, c], short_rest[p, c])
            for p in range(left, min(left + LINE, end)):
                lags[1, c, p] = frame[c, p] - exact(long[p, c], long_rest[p, c])


@compiled
def write_means(
    frame: Array, lags: Array, short: Array, short_rest: Array, long: Array, long_rest: Array,
    begin: int, end: int,
) -> None:  # fmt: skip
    """The other way round."""
    for left in range(begin, end, LINE):
        for c in range(len(frame)):
            for p in range(left, min(left + LINE, end)):
                mean = np.float64(frame[c, p]) - lags[0, c, p]
                short[p, c] = mean
                short_rest[p, c] = mean - short[p, c]
            for p in range(left, min(left + LINE, end)):
                mean = np.float64(frame[c, p]) - lags[1, c, p]
                long[p, c] = mean
                long_rest[p, c] = mean - long[p, c]


@compiled
def read_covs(
    short: Array, short_rest: Array, long: Array, long_rest: Array, seen: Array, totals: Array
) -> None:
    """W and B times their evidence."""
    for i in range(len(short)):
        for j in range(len(short)):
            totals[0, i, j] = exact(short[i, j], short_rest[i, j]) * seen[0]
            totals[1, i, j] = exact(long[i, j], long_rest[i, j]) * seen[1]


@compiled
def write_covs(
    short: Array, short_rest: Array, long: Array, long_rest: Array, seen: Array, totals: Array
) -> None:
    """The other way round."""
    for i in range(len(short)):
        for j in range(len(short)):
            value = totals[0, i, j] / max(seen[0], TINY)
            short[i, j] = value
            short_rest[i, j] = value - short[i, j]
            value = totals[1, i, j] / max(seen[1], TINY)
            long[i, j] = value
            long_rest[i, j] = value - long[i, j]
