"""Data structures of the compiled loop. In pairs, the first is of W (or mu), the second of B."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

from ullayers.kernels.schema import NAMES

Array = Any  # numba infers the types
Buffers = Any  # a StatisticsTuple
StatisticsTuple = namedtuple("StatisticsTuple", NAMES)  # type: ignore[misc]


class Settings(NamedTuple):
    """Settings of a call."""

    rates: tuple[float, float]  # mu and eps
    periods: tuple[int, int]  # steps between renewals of the ridge
    ridge_high: float  # ridge when renewed, relative to the trace
    ridge_low: float  # lower limit of the ridge, relative to the trace
    noise: float  # lower limit of the diagonal, relative to the trace of the other covariance
    jump: float  # see `covariance.pull_share`
    smallest_share: float  # likewise
    centred: bool
    carry_on: bool  # whether streams may continue, if the buffer `continues` allows it
    known: float  # evidence of means before the first frame
    largest: float  # frames with a larger absolute value are skipped
    scale: float  # factor of the gradients


class Means(NamedTuple):
    """Means as lags behind the latest frame: in a still scene they decay without rounding error."""

    latest: Array  # (S, d) latest frames
    lags: Array  # (2, S, d) latest frame minus short- and long-term mean
    evidence: Array  # (2, S)


class Covs(NamedTuple):
    """W and B multiplied by their evidence, lower triangles only."""

    totals: Array  # (2, d, d)
    evidence: Array  # (2,)
    ridges: Array  # (2,)
    factors: Array  # (2, d, d) Cholesky factors of the latest step
    scales: Array  # (2,) factors of the solutions; 0 if there is none
    pull: Array  # (d,) moving average of the gradient
    pull_share: Array  # (1,) share of the pull that the latest step keeps
