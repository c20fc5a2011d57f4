"""Eq. 6-11 as a plain loop over steps: what running statistics are tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from ullayers.kernels.moments import Rates
from ullayers.kernels.torch.running import Result, State

NOISE_UNITS, JUMP = 16, 100.0
RIDGE_HIGH, RIDGE_LOW = 4.0, 0.25


def running_loop(
    y: Tensor, state: State, rates: Rates, active: Tensor, scatter: Tensor | None = None
) -> Result:
    """Run the recurrence one step at a time; the arguments are those of `advance`."""
    clip, seldom = None, None
    if rates.long_term == "clip":
        first = y.gather(0, active.to(torch.uint8).argmax(0).expand(1, *y.shape[1:]))[0]
        first = torch.where(active.any(0), first, state.means[0])
        lags = torch.where(active[:, None], y - first, 0).sum(0)
        clip = first, lags / active.sum(0).clamp(min=1)
        seldom = active.sum(0) < 2
    gradients, spreads, singular = [], [], 0
    for t, frame in enumerate(y):
        extra = None if scatter is None else scatter[t]
        gradient, spread, state, failed = _step(frame, state, rates, active[t], extra, clip, seldom)
        gradients.append(gradient)
        spreads.append(spread)
        singular += failed
    spread = None if scatter is None else torch.stack([s for s in spreads if s is not None])
    return Result(torch.stack(gradients), spread, state, torch.tensor(singular))


def _step(
    frame: Tensor,
    state: State,
    rates: Rates,
    on: Tensor,
    scatter: Tensor | None,
    clip: tuple[Tensor, Tensor] | None,
    seldom: Tensor | None,
) -> tuple[Tensor, Tensor | None, State, int]:
    """Return the gradients (d, S) and (S, d, d), the next state, and the matrices not inverted."""
    d, streams = frame.shape
    # Eq. 6 and 7, as the lags of the means behind the frame.
    had_past = on & (state.seen[0] > 0)
    counted = had_past
    lag, short = _follow(frame, state, 0, rates.mu, on)
    if clip is not None:
        assert seldom is not None
        far = frame - clip[0] - clip[1]
        long = clip[0], clip[1], torch.ones_like(state.seen[1])
        counted = on & ~seldom
    elif rates.long_term == "shared":
        n = rates.sequences
        positions = streams // n
        groups, there = frame.view(d, n, positions), on.view(n, positions)
        number = there.sum(0)
        pooled = torch.where(there, groups, 0).sum(1) / number.clamp(min=1)
        counted = on & (state.seen[1] > 0)
        one = State(
            state.means[..., :positions],
            state.rests[..., :positions],
            state.seen[:, :positions],
            *(state.covariances, state.evidence, state.ridge, state.pull, state.steps),
        )
        near, pooled_mean = _follow(pooled, one, 1, rates.eps, number > 0)
        far = (groups - pooled[:, None] + near[:, None]).reshape(d, streams)
        mean, rest, seen = pooled_mean
        long = mean.repeat(1, n), rest.repeat(1, n), seen.repeat(n)
    else:
        far, long = _follow(frame, state, 1, rates.eps, on)
    within = torch.where(had_past, lag, 0)
    between = torch.where(counted, far - lag, 0)
    # Eq. 8 and 9.
    extra = None
    if scatter is not None:
        extra = torch.where(had_past[:, None, None], scatter, 0).sum(0)
        extra = extra / had_past.sum().clamp(min=1)
    live = bool(on.any())
    W = _covariance(within, had_past, state, 0, rates, extra, live)
    B = _covariance(between, counted, state, 1, rates, None, live)
    # Eq. 11.
    w_solved, inverse, w_failed = _solve(within, had_past, W, B, rates)
    b_solved, _, b_failed = _solve(between, counted, B, W, rates)
    gradient, pull = w_solved - b_solved, state.pull
    both = had_past | counted
    if rates.centred and bool(both.any()):
        before, after = state.covariances[1].trace(), B[0].trace()
        share = 1.0
        if after > (1 + JUMP * rates.eps / B[1]) * before:
            share = float((before / after).sqrt())
        pull = (1 - rates.eps) * share * pull + rates.eps * gradient.sum(1)
        gradient = torch.where(both, gradient - pull[:, None] / both.sum(), 0)
    spread = None if scatter is None else had_past[:, None, None] * inverse / 2
    end = State(
        torch.stack([short[0], long[0]]),
        torch.stack([short[1], long[1]]),
        torch.stack([short[2], long[2]]),
        torch.stack([W[0], B[0]]),
        torch.stack([W[1], B[1]]),
        torch.stack([W[2], B[2]]),
        pull,
        state.steps + int(live),
    )
    return gradient, spread, end, w_failed + b_failed


def _follow(
    x: Tensor, state: State, i: int, rate: float, on: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return the lag of a mean behind a frame; and the mean, its rest and its evidence."""
    mean, rest, evidence = state.means[i], state.rests[i], state.seen[i]
    grown = (1 - rate) * evidence + rate
    lag = (1 - rate) * evidence / grown * (x - mean - rest)
    moved = x - lag
    kept = torch.where(on, moved, mean), torch.where(on, x - moved - lag, rest)
    return lag, (*kept, torch.where(on, grown, evidence))


def _covariance(
    deviation: Tensor,
    counted: Tensor,
    state: State,
    i: int,
    rates: Rates,
    scatter: Tensor | None,
    live: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return W or B, its evidence and its ridge after a step."""
    rate = (rates.mu, rates.eps)[i]
    count, evidence, ridge = int(counted.sum()), state.evidence[i], state.ridge[i]
    total = state.covariances[i] * evidence
    bits = -torch.log2(torch.tensor(1 - rate, dtype=torch.float64))
    period = max(1, min(64, int(4 / bits)))
    if live and int(state.steps) % period == 0:
        ridge = RIDGE_HIGH * rates.ridge / len(total) * total.trace()
    if count:
        gram = deviation @ deviation.T / count
        gram = gram if scatter is None else gram + scatter
        gram = torch.diag(gram.diagonal()) if rates.diagonal else gram
        total = (1 - rate) * total + rate * gram
        evidence, ridge = (1 - rate) * evidence + rate, (1 - rate) * ridge
    return total / evidence.clamp(min=1e-300), evidence, ridge


def _solve(
    deviation: Tensor,
    counted: Tensor,
    cov: tuple[Tensor, Tensor, Tensor],
    other: tuple[Tensor, Tensor, Tensor],
    rates: Rates,
) -> tuple[Tensor, Tensor, int]:
    """Return a term of Eq. 11 divided by the counted streams, the inverse, and 1 on failure."""
    value, evidence, ridge = cov
    d, count, trace = len(value), int(counted.sum()), value.trace()
    noise = NOISE_UNITS * torch.finfo(value.dtype).eps / d * other[0].trace()
    level = torch.stack(
        [ridge / evidence.clamp(min=1e-300), RIDGE_LOW * rates.ridge / d * trace, noise]
    )
    shift = torch.where(trace > 0, level.max(), 1.0)
    factor, info = torch.linalg.cholesky_ex(value + shift * torch.eye(d, dtype=value.dtype))
    if bool(info) or not bool(trace > 0) or not count:
        return torch.zeros_like(deviation), torch.zeros_like(value), int(bool(info))
    solved = torch.cholesky_solve(deviation, factor) / count
    return solved, torch.cholesky_inverse(factor) / count, 0
