"""Between the statistics of a layer and what the loops over tiles work on, compiled by numba.

A statistic is its value and a rest, which is void once someone has set the value.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ullayers.kernels.compiled_tiles import Array
from ullayers.kernels.compiling import compiled

in_this_order = partial(compiled, any_order=False)
LINE, TINY = 16, 1e-300  # values that come together from memory; no division by zero


@in_this_order
def lag_of(frame: float, value: float, rest: float) -> float:
    """How far a mean is behind a frame: in a scene at rest that is less than any digit of them."""
    lag = np.float64(frame) - value
    return lag - rest if value + rest == value else lag


@in_this_order
def read_lags(
    frame: Array, lags: Array, short: Array, short_rest: Array, long: Array, long_rest: Array,
    begin: int, end: int,
) -> None:  # fmt: skip
    """How far both means (P, C) are behind a frame (C, P), at positions from `begin` to `end`."""
    for left in range(begin, end, LINE):
        for c in range(len(frame)):
            for p in range(left, min(left + LINE, end)):
                lags[0, c, p] = lag_of(frame[c, p], short[p, c], short_rest[p, c])
            for p in range(left, min(left + LINE, end)):
                lags[1, c, p] = lag_of(frame[c, p], long[p, c], long_rest[p, c])


@in_this_order
def write_means(
    frame: Array, lags: Array, short: Array, short_rest: Array, long: Array, long_rest: Array,
    begin: int, end: int,
) -> None:  # fmt: skip
    """The other way round."""
    for left in range(begin, end, LINE):
        for c in range(len(frame)):
            for p in range(left, min(left + LINE, end)):
                short[p, c] = np.float64(frame[c, p]) - lags[0, c, p]
                short_rest[p, c] = (np.float64(frame[c, p]) - short[p, c]) - lags[0, c, p]
            for p in range(left, min(left + LINE, end)):
                long[p, c] = np.float64(frame[c, p]) - lags[1, c, p]
                long_rest[p, c] = (np.float64(frame[c, p]) - long[p, c]) - lags[1, c, p]


@compiled
def exact(value: float, rest: float) -> float:
    """An entry of a covariance, from its two parts."""
    return np.float64(value) + (rest if value + rest == value else 0.0)


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
