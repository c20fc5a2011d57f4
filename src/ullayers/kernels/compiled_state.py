"""What the compiled loop works on. Whatever comes in pairs is of W first, then of B."""

from __future__ import annotations

from typing import Any, NamedTuple

Array = Any  # numba finds out by itself


class Choices(NamedTuple):
    """What does not change in a pass."""

    rates: Array  # (2,) mu and eps
    periods: Array  # (2,) of the ridge
    high: float  # the ridge when it is renewed, as a share of the trace
    low: float  # and at least
    noise: float  # what of the other covariance may be rounding errors
    mode: int  # what the long-term mean is
    diagonal: bool
    centred: bool
    goes_on: bool  # whether the streams do
    knows_common: bool  # whether a shared mean is there from before
    known: float  # evidence of means that nothing has been seen of
    largest: float  # frames with a larger value are left out
    scale: float  # of the gradients


class Buffers(NamedTuple):
    """The statistics of a layer."""

    short_mean: Array
    short_mean_rest: Array
    long_mean: Array
    long_mean_rest: Array
    short_cov: Array
    short_cov_rest: Array
    long_cov: Array
    long_cov_rest: Array
    short_evidence: Array
    long_evidence: Array
    cov_evidence: Array
    ridge_level: Array
    pull: Array
    steps: Array
    left_out: Array


class Means(NamedTuple):
    """Means as their lags behind a frame: a scene at rest must fade without rounding errors."""

    latest: Array  # (S, d), the latest frames
    lags: Array  # (2, S, d), behind them
    seen: Array  # (2, S), evidence
    common: Array  # (P, d), the latest frame of a position in all sequences
    common_lags: Array  # (P, d)
    common_seen: Array  # (P,)
    own: Array  # (S, d), whole clips' means
    frames: Array  # (S,), of each clip


class Covs(NamedTuple):
    """W and B in units of value * evidence, lower halves only."""

    totals: Array  # (2, d, d)
    seen: Array  # (2,), evidence
    ridges: Array  # (2,)
    factors: Array  # (2, d, d), as last solved
    scales: Array  # (2,), what a solution is multiplied with; 0 where there is none
    pull: Array  # (d,)
