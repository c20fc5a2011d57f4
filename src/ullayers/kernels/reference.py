"""Eq. 6-11 as a plain loop: what every faster path is tested against, and what one frame takes."""

from __future__ import annotations

import torch
from torch import Tensor

from ullayers.kernels.covariance import (
    RIDGE_HIGH,
    RIDGE_LOW,
    apply_inverse,
    noise_share,
    ridge_period,
)
from ullayers.kernels.state import (
    Covariance,
    Rates,
    Result,
    State,
    anchored,
    clip_mean,
    mean_scatter,
)


def reference(
    y: Tensor, state: State, rates: Rates, active: Tensor, scatter: Tensor | None = None
) -> Result:
    """Eq. 6-11 one step at a time; see `core.advance` for the arguments."""
    origin, whole = anchored(y, state, active)
    own_mean = clip_mean(whole, active) + origin.anchor if rates.long_term == "clip" else None
    gradients, scatter_gradients = [], []
    singular = torch.zeros((), dtype=torch.int64, device=y.device)
    for t in range(len(y)):
        # Each frame is the anchor of its own step: what is left of a mean is its lag, exactly.
        state, (x,) = anchored(y[t : t + 1], state, active[t : t + 1])
        on, steps = active[t], int(state.steps)
        had_past = on & (state.short_evidence > 0)
        short, short_evidence = _step_mean(state.short, state.short_evidence, x, on, rates.mu)
        if own_mean is not None:
            long, long_evidence = own_mean - state.anchor, torch.ones_like(state.long_evidence)
            counted = on & (active.sum(0) > 1)
        elif rates.long_term == "shared":
            long, long_evidence = _step_shared_mean(state, x, on, rates)
            counted = on & (state.long_evidence > 0)
        else:
            long, long_evidence = _step_mean(state.long, state.long_evidence, x, on, rates.eps)
            counted = had_past
        extra = None if scatter is None else mean_scatter(scatter[t], had_past)
        live, within, between = bool(on.any()), x - short, short - long
        within = torch.where(had_past[:, None], within, 0)
        between = torch.where(counted[:, None], between, 0)
        renew = [live and steps % ridge_period(rate) == 0 for rate in (rates.mu, rates.eps)]
        W = _step_covariance(within, had_past, state.W, rates.mu, rates, renew[0], extra)
        B = _step_covariance(between, counted, state.B, rates.eps, rates, renew[1], None)
        w_solved, w_inverse, w_bad = _solve(within, had_past, W, B, rates, extra is not None)
        b_solved, _, b_bad = _solve(between, counted, B, W, rates, False)
        gradient, pull, taking = w_solved - b_solved, state.pull, had_past | counted
        if rates.centred and bool(taking.any()):
            pull = (1 - rates.eps) * pull + rates.eps * gradient.sum(0, keepdim=True)
            gradient = torch.where(taking[:, None], gradient - pull / taking.sum(), 0)
        gradients.append(gradient)
        if w_inverse is not None:
            scatter_gradients.append(had_past[:, None, None] * w_inverse / 2)
        singular = singular + w_bad + b_bad
        state = State(
            state.anchor, short, long, short_evidence, long_evidence, pull, W, B,
            state.steps + on.any(),
        )  # fmt: skip
    extra_gradient = None if scatter is None else torch.stack(scatter_gradients)
    return Result(torch.stack(gradients), extra_gradient, state, singular)


def _step_mean(
    mean: Tensor, evidence: Tensor, x: Tensor, on: Tensor, rate: float
) -> tuple[Tensor, Tensor]:
    grown = (1 - rate) * evidence + rate
    moved = ((1 - rate) * evidence[:, None] * mean + rate * x) / grown[:, None]
    return torch.where(on[:, None], moved, mean), torch.where(on, grown, evidence)


def _step_shared_mean(state: State, x: Tensor, on: Tensor, rates: Rates) -> tuple[Tensor, Tensor]:
    n, positions = rates.sequences, len(x) // rates.sequences
    shift = state.anchor - state.anchor[:positions].repeat(n, 1)
    groups = torch.where(on[:, None], x + shift, 0).view(n, positions, -1)
    count = on.view(n, positions).sum(0)
    mean, evidence = _step_mean(
        state.long[:positions],
        state.long_evidence[:positions],
        groups.sum(0) / count.clamp(min=1)[:, None],
        count > 0,
        rates.eps,
    )
    return mean.repeat(n, 1) - shift, evidence.repeat(n)


def _step_covariance(
    deviation: Tensor,
    counted: Tensor,
    cov: Covariance,
    rate: float,
    rates: Rates,
    renew: bool,
    scatter: Tensor | None,
) -> Covariance:
    """One step of Eq. 8 or 9."""
    d, count = deviation.shape[-1], int(counted.sum())
    total, evidence, ridge = cov.value * cov.evidence, cov.evidence, cov.ridge
    if renew:
        ridge = RIDGE_HIGH * rates.ridge / d * total.trace()
    if count:
        gram = deviation.double().T @ deviation.double() / count
        gram = gram if scatter is None else gram + scatter
        gram = torch.diag(gram.diagonal()) if rates.diagonal else gram
        total = (1 - rate) * total + rate * gram
        evidence = (1 - rate) * evidence + rate
        ridge = (1 - rate) * ridge
    return Covariance(total / evidence.clamp(min=1e-300), evidence, ridge)


def _solve(
    deviation: Tensor,
    counted: Tensor,
    cov: Covariance,
    other: Covariance,
    rates: Rates,
    keep_inverse: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """A term of Eq. 11 for all streams, divided by their number; the inverse; whether it failed."""
    d, count = deviation.shape[-1], int(counted.sum())
    trace, evidence = cov.value.trace(), cov.evidence.clamp(min=1e-300)
    noise = noise_share(deviation.dtype) / d * other.value.trace()
    level = torch.stack([cov.ridge / evidence, RIDGE_LOW * rates.ridge / d * trace, noise]).max()
    eye = torch.eye(d, dtype=cov.value.dtype, device=cov.value.device)
    factor, info = torch.linalg.cholesky_ex(cov.value + torch.where(trace > 0, level, 1.0) * eye)
    usable = (info == 0) & (trace > 0) & (count > 0)
    factor = torch.where(info == 0, factor, eye)
    scale = usable.double() / max(count, 1)
    solved, inverse = apply_inverse(factor, deviation, scale, keep_inverse)
    return solved, inverse, (info != 0).long()
