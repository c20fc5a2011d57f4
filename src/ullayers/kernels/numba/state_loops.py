"""What the compiled loop works on. Whatever comes in pairs is of W first, then of B."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

from ullayers.kernels.schema import NAMES

Array = Any  # numba infers types by itself
Buffers = Any  # a tuple of the statistics as arrays, each with its name in the schema
StatisticsTuple = namedtuple("StatisticsTuple", NAMES)  # type: ignore[misc]


class Choices(NamedTuple):
    """What does not change in a pass."""

    rates: tuple[float, float]  # mu and eps
    periods: tuple[int, int]  # of the ridge
    high: float  # the ridge when it is renewed, as a share of the trace
    low: float  # and at least
    noise: float  # what of the other covariance may be rounding errors
    centred: bool
    goes_on: bool  # whether the streams may, if the buffer `continues` says so too
    known: float  # evidence of means that nothing has been seen of
    largest: float  # frames with a larger value are left out
    scale: float  # of the gradients


class Means(NamedTuple):
    """Means as their lags behind a frame: a scene at rest must fade without rounding errors."""

    latest: Array  # (S, d), the latest frames
    lags: Array  # (2, S, d), behind them
    seen: Array  # (2, S), evidence


class Covs(NamedTuple):
    """W and B in units of value * evidence, lower halves only."""

    totals: Array  # (2, d, d)
    seen: Array  # (2,), evidence
    ridges: Array  # (2,)
    factors: Array  # (2, d, d), as last solved
    scales: Array  # (2,), what a solution is multiplied with; 0 where there is none
    pull: Array  # (d,)
