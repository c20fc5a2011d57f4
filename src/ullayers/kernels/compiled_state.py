"""What the compiled loop starts from and ends with: the buffers of a layer, in float64.

Whatever comes in pairs is of W first, then of B.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit

STREAM, CLIP, SHARED = 0, 1, 2  # what the long-term mean is
TINY = 1e-300
Array = Any  # numba finds out by itself


def compiled(function: Any) -> Any:
    """Sums may be taken in any order; what is not a number stays one."""
    make = partial(njit, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
    try:
        return make(cache=True)(function)
    except RuntimeError:  # there is no folder to keep it in: every process compiles anew
        return make()(function)


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
    """W and B in units of value * evidence, upper halves only."""

    totals: Array  # (2, d, d)
    seen: Array  # (2,), evidence
    ridges: Array  # (2,)
    factors: Array  # (2, d, d), as last solved
    scales: Array  # (2,), what a solution is multiplied with; 0 where there is none
    pull: Array  # (d,)


@compiled
def find_usable(y: Array, lengths: Array, scatter: Array, largest: float, active: Array) -> int:
    """Which frames count, and how many are there but do not."""
    steps, sequences, positions, d = y.shape
    skipped = 0
    for t in range(steps):
        for n in range(sequences):
            for p in range(positions):
                usable = True
                for k in range(d):
                    usable &= abs(y[t, n, p, k]) <= largest  # not so for a NaN
                if len(scatter):
                    for value in scatter[t, n * positions + p].flat:
                        usable &= abs(value) <= largest**2
                there = t < lengths[n]
                active[t, n * positions + p] = usable and there
                skipped += there and not usable
    return skipped


@compiled
def read_mean(
    value: Array, rest: Array, seen: Array, latest: Array, lags: Array, out: Array
) -> None:
    """A mean behind frames, and its evidence. A rest is void once someone has set the value."""
    for s in range(value.shape[0]):
        out[s] = seen[s]
        for k in range(value.shape[1]):
            lags[s, k] = latest[s, k] - value[s, k]
            if value[s, k] + rest[s, k] == value[s, k]:
                lags[s, k] -= rest[s, k]


@compiled
def write_mean(
    latest: Array, lags: Array, out: Array, value: Array, rest: Array, seen: Array
) -> None:
    """The other way round."""
    for s in range(value.shape[0]):
        seen[s] = out[s]
        for k in range(value.shape[1]):
            value[s, k] = latest[s, k] - lags[s, k]
            rest[s, k] = (latest[s, k] - value[s, k]) - lags[s, k]


@compiled
def copy(source: Array, target: Array) -> None:
    """For rows; numba takes seconds to compile what numpy writes as `target[:] = source`."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@compiled
def find_clip_means(y: Array, active: Array, means: Means) -> None:
    """Each stream's mean over all its frames, formed around the first of them."""
    steps, _, positions, d = y.shape
    for s in range(len(means.own)):
        n, p, first = s // positions, s % positions, 0
        for t in range(steps):
            if active[t, s]:
                first = t if means.frames[s] == 0 else first
                means.frames[s] += 1
                for k in range(d):
                    means.own[s, k] += np.float64(y[t, n, p, k]) - y[first, n, p, k]
        if means.frames[s]:
            for k in range(d):
                means.own[s, k] = means.own[s, k] / means.frames[s] + y[first, n, p, k]


@compiled
def begin_means(y: Array, active: Array, buffers: Buffers, choices: Choices) -> Means:
    """What is known before the first frame."""
    _, sequences, positions, d = y.shape
    streams, b = sequences * positions, buffers
    means = Means(
        np.zeros((streams, d)), np.zeros((2, streams, d)), np.zeros((2, streams)),
        np.zeros((positions, d)), np.zeros((positions, d)), np.zeros(positions),
        np.zeros((streams, d)), np.zeros(streams, np.int64),
    )  # fmt: skip
    for s in range(streams):
        means.seen[0, s] = choices.known
        means.seen[1, s] = 1.0 if choices.mode == CLIP else choices.known
        means.common_seen[s % positions] = choices.known
    if choices.goes_on:
        copy(b.short_mean, means.latest)
        for i in range(2 if choices.mode == STREAM else 1):
            value, rest = (
                (b.long_mean, b.long_mean_rest) if i else (b.short_mean, b.short_mean_rest)
            )
            seen = b.long_evidence if i else b.short_evidence
            read_mean(value, rest, seen, means.latest, means.lags[i], means.seen[i])
    if choices.mode == SHARED and choices.knows_common:
        copy(b.long_mean, means.common)
        rest, seen = b.long_mean_rest, b.long_evidence
        read_mean(b.long_mean, rest, seen, means.common, means.common_lags, means.common_seen)
    if choices.mode == CLIP:
        find_clip_means(y, active, means)
    return means


@compiled
def begin_covs(buffers: Buffers) -> Covs:
    """What is known before the first frame."""
    b, d = buffers, len(buffers.short_cov)
    covs = Covs(
        np.zeros((2, d, d)), np.zeros(2), np.zeros(2), np.zeros((2, d, d)), np.zeros(2), np.zeros(d)
    )
    for i in range(2):
        value, rest = (b.long_cov, b.long_cov_rest) if i else (b.short_cov, b.short_cov_rest)
        covs.seen[i], covs.ridges[i] = b.cov_evidence[i], b.ridge_level[i]
        for j in range(d):
            covs.pull[j] = b.pull[0, j]
            for k in range(j, d):
                exact = np.float64(value[j, k])
                if value[j, k] + rest[j, k] == value[j, k]:
                    exact += rest[j, k]
                covs.totals[i, j, k] = exact * covs.seen[i]
    return covs


@compiled
def write_covs(covs: Covs, buffers: Buffers) -> None:
    """Whole matrices, as value and rest."""
    b, d = buffers, len(buffers.short_cov)
    for i in range(2):
        value, rest = (b.long_cov, b.long_cov_rest) if i else (b.short_cov, b.short_cov_rest)
        for j in range(d):
            for k in range(d):
                exact = covs.totals[i, min(j, k), max(j, k)] / max(covs.seen[i], TINY)
                value[j, k] = exact
                rest[j, k] = exact - value[j, k]
        b.cov_evidence[i], b.ridge_level[i] = covs.seen[i], covs.ridges[i]
    for k in range(d):
        b.pull[0, k] = covs.pull[k]


@compiled
def write_means(means: Means, buffers: Buffers, mode: int) -> None:
    """As value and rest."""
    b, m = buffers, means
    write_mean(m.latest, m.lags[0], m.seen[0], b.short_mean, b.short_mean_rest, b.short_evidence)
    latest, lags, seen = m.latest, m.lags[1], m.seen[1]
    if mode == CLIP:
        latest, lags = m.own, np.zeros(m.own.shape)
    elif mode == SHARED:
        latest, lags, seen = m.common, m.common_lags, m.common_seen
    write_mean(latest, lags, seen, b.long_mean, b.long_mean_rest, b.long_evidence)
