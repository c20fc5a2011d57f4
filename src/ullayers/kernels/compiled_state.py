"""What the compiled loop works on. Whatever comes in pairs is of W first, then of B."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numba.core import cgutils, types
from numba.extending import intrinsic

from ullayers.kernels.compiling import compiled

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
    continues: bool  # what the buffer of that name is set to
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
    continues: Array


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


@intrinsic
def pointer(_context: Any, address: Any) -> Any:
    """Memory at an address, for `carray`."""

    def convert(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(address), convert


@compiled
def array_at(address: int, shape: tuple[int, ...], kind: Array) -> Array:
    """As if it were an array that somebody has handed over."""
    return carray(pointer(address), shape, kind.dtype)  # type: ignore[call-arg]


@compiled
def unpacked(
    y_at: int, gradient_at: int, kind: Array, layout: Array, own_kind: Array
) -> tuple[Array, Array, Buffers]:
    """The frames (T, S, d), their gradient, and the statistics of a layer.

    Args:
        y_at: the address of the frames.
        gradient_at: that of their gradient.
        kind: an array of what both are.
        layout: T, S, d, rows of the long-term mean, and then the address of every statistic, as
            `Buffers` has them.
        own_kind: an array of what statistics are.
    """
    steps, streams, d, rows = layout[0], layout[1], layout[2], layout[3]
    at, own = layout[4:], own_kind
    integers, truth = np.empty(0, np.int64), np.empty(0, np.bool_)
    buffers = Buffers(
        array_at(at[0], (streams, d), own), array_at(at[1], (streams, d), own),
        array_at(at[2], (rows, d), own), array_at(at[3], (rows, d), own),
        array_at(at[4], (d, d), own), array_at(at[5], (d, d), own),
        array_at(at[6], (d, d), own), array_at(at[7], (d, d), own),
        array_at(at[8], (streams,), own), array_at(at[9], (rows,), own),
        array_at(at[10], (2,), own), array_at(at[11], (2,), own), array_at(at[12], (1, d), own),
        array_at(at[13], (1,), integers), array_at(at[14], (2,), integers),
        array_at(at[15], (1,), truth),
    )  # fmt: skip
    shape = (steps, streams, d)
    return array_at(y_at, shape, kind), array_at(gradient_at, shape, kind), buffers
