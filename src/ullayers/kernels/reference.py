"""Eq. 6-11 as a plain loop over steps: every kernel for running statistics must agree with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ullayers.kernels.covariance import (
    RIDGE_HIGH,
    RIDGE_LOW,
    apply_inverse,
    noise_share,
    pull_share,
    ridge_period,
)
from ullayers.kernels.state import (
    ClipMeans,
    Covariance,
    Rates,
    Result,
    State,
    clip_mean,
    mean_scatter,
    relative,
    with_anchor,
)


def reference(
    y: Tensor, state: State, rates: Rates, active: Tensor, scatter: Tensor | None = None
) -> Result:
    """Run Eq. 6-11 one step at a time; the arguments are those of `torch.advance.advance`."""
    origin, whole = anchored(y, state, active)
    clip = None
    if rates.long_term == "clip":
        clip = ClipMeans(clip_mean(whole, active), active.sum(0) > 1)
    steps = []
    for t in range(len(y)):
        extra = None if scatter is None else scatter[t]
        step = _Step(rates, active[t], clip, origin.anchor).run(y[t], state, extra)
        state = step.state
        steps.append(step)
    scatter_gradient = None
    if scatter is not None:
        scatter_gradient = torch.stack(
            [s.scatter_gradient for s in steps if s.scatter_gradient is not None]
        )
    singular = torch.stack([step.singular for step in steps]).sum()
    return Result(torch.stack([s.gradient for s in steps]), scatter_gradient, state, singular)


def anchored(y: Tensor, state: State, active: Tensor) -> tuple[State, Tensor]:
    """Return the state anchored at each stream's first frame, and the frames relative to it."""
    state = with_anchor(y, state, active)
    return state, relative(y, state, active)


class _Means(NamedTuple):
    """The means after a step, relative to its frame, and which streams count."""

    short: Tensor
    long: Tensor
    short_evidence: Tensor
    long_evidence: Tensor
    had_past: Tensor  # (S,) bool, streams that count for W
    counted: Tensor  # (S,) bool, streams that count for B


@dataclass(frozen=True)
class _Step:
    """One step of the recurrence."""

    rates: Rates
    on: Tensor  # (S,) bool, streams that have a frame
    clip: ClipMeans | None
    origin: Tensor  # (S, d), which the clip means are relative to

    def run(self, frame: Tensor, state: State, scatter: Tensor | None) -> Result:
        """Return the gradients (S, d) and (S, d, d) of one frame (S, d), and the next state."""
        # Each frame is the anchor of its own step: what remains of a mean is its lag, exactly.
        state, (x,) = anchored(frame[None], state, self.on[None])
        rates = self.rates
        means = self._means(x, state)
        had_past, counted = means.had_past, means.counted
        within = torch.where(had_past[:, None], x - means.short, 0)
        between = torch.where(counted[:, None], means.short - means.long, 0)
        extra = None if scatter is None else mean_scatter(scatter, had_past)
        W = self._covariance(within, had_past, state.W, rates.mu, state, extra)
        B = self._covariance(between, counted, state.B, rates.eps, state, None)
        w_solved, inverse, w_failed = _solve(within, had_past, W, B, rates, extra is not None)
        b_solved, _, b_failed = _solve(between, counted, B, W, rates, False)
        gradient, pull = self._centred(w_solved - b_solved, had_past | counted, state, B)
        spread = None if inverse is None else had_past[:, None, None] * inverse / 2
        end = State(
            anchor=state.anchor,
            short=means.short,
            long=means.long,
            short_evidence=means.short_evidence,
            long_evidence=means.long_evidence,
            pull=pull,
            W=W,
            B=B,
            steps=state.steps + self.on.any(),
        )
        return Result(gradient, spread, end, w_failed + b_failed)

    def _means(self, x: Tensor, state: State) -> _Means:
        """Eq. 6 and 7."""
        on, rates = self.on, self.rates
        had_past = on & (state.short_evidence > 0)
        counted = had_past
        short, short_evidence = _step_mean(state.short, state.short_evidence, x, on, rates.mu)
        if self.clip is not None:
            # Frames are near each other: their difference has no rounding errors of their offset.
            long = self.clip.mean + (self.origin - state.anchor)
            long_evidence = torch.ones_like(state.long_evidence)
            counted = on & self.clip.long_enough
        elif rates.long_term == "shared":
            long, long_evidence = _step_shared_mean(state, x, on, rates)
            counted = on & (state.long_evidence > 0)
        else:
            long, long_evidence = _step_mean(state.long, state.long_evidence, x, on, rates.eps)
        return _Means(short, long, short_evidence, long_evidence, had_past, counted)

    def _covariance(
        self,
        deviation: Tensor,
        counted: Tensor,
        cov: Covariance,
        rate: float,
        state: State,
        scatter: Tensor | None,
    ) -> Covariance:
        """Eq. 8 or 9."""
        d, count = deviation.shape[-1], int(counted.sum())
        total = cov.value * cov.evidence
        evidence = cov.evidence
        ridge = cov.ridge
        if bool(self.on.any()) and int(state.steps) % ridge_period(rate) == 0:
            ridge = RIDGE_HIGH * self.rates.ridge / d * total.trace()
        if count:
            gram = deviation.double().T @ deviation.double() / count
            gram = gram if scatter is None else gram + scatter
            gram = torch.diag(gram.diagonal()) if self.rates.diagonal else gram
            total = (1 - rate) * total + rate * gram
            evidence = (1 - rate) * evidence + rate
            ridge = (1 - rate) * ridge
        return Covariance(total / evidence.clamp(min=1e-300), evidence, ridge)

    def _centred(
        self, gradient: Tensor, counted: Tensor, state: State, B: Covariance
    ) -> tuple[Tensor, Tensor]:
        """Subtract the gradient's own moving average; see `torch.advance`."""
        if not self.rates.centred or not bool(counted.any()):
            return gradient, state.pull
        eps = self.rates.eps
        share = pull_share(state.B.value.trace(), B.value.trace(), eps / B.evidence)
        kept = ((1 - eps) * share).to(state.pull.dtype) * state.pull
        pull = kept + eps * gradient.sum(0, keepdim=True)
        return torch.where(counted[:, None], gradient - pull / counted.sum(), 0), pull


def _step_mean(
    mean: Tensor, evidence: Tensor, x: Tensor, on: Tensor, rate: float
) -> tuple[Tensor, Tensor]:
    """Return a moving average and its evidence after a frame."""
    grown = (1 - rate) * evidence + rate
    moved = ((1 - rate) * evidence[:, None] * mean + rate * x) / grown[:, None]
    return torch.where(on[:, None], moved, mean), torch.where(on, grown, evidence)


def _step_shared_mean(state: State, x: Tensor, on: Tensor, rates: Rates) -> tuple[Tensor, Tensor]:
    """Return the long-term mean that all sequences share, and its evidence, for each stream."""
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


def _solve(
    deviation: Tensor,
    counted: Tensor,
    cov: Covariance,
    other: Covariance,
    rates: Rates,
    keep_inverse: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return a term of Eq. 11 divided by the counted streams, the inverse, and 1 on failure."""
    d, count = deviation.shape[-1], int(counted.sum())
    trace = cov.value.trace()
    evidence = cov.evidence.clamp(min=1e-300)
    noise = noise_share(deviation.dtype) / d * other.value.trace()
    level = torch.stack([cov.ridge / evidence, RIDGE_LOW * rates.ridge / d * trace, noise]).max()
    eye = torch.eye(d, dtype=cov.value.dtype, device=cov.value.device)
    factor, info = torch.linalg.cholesky_ex(cov.value + torch.where(trace > 0, level, 1.0) * eye)
    usable = (info == 0) & (trace > 0) & (count > 0)
    factor = torch.where(info == 0, factor, eye)
    scale = usable.double() / max(count, 1)
    solved, inverse = apply_inverse(factor, deviation, scale, keep_inverse)
    return solved, inverse, (info != 0).long()
