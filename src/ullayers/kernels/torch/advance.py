"""The recurrence of both layers (Eq. 6-11) in blocks of steps, as PyTorch operations.

Everything works on `y` of shape (T, S, d): T steps, S streams that share W and B, d features.
The tests compare `advance` with a plain loop over steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ullayers.kernels.covariance import (
    Fading,
    Solved,
    forgotten_bits,
    noise_share,
    pull_share,
    ridge_renewals,
    solve,
    trace_path,
)
from ullayers.kernels.state import (
    ClipMeans,
    Covariance,
    Rates,
    Result,
    State,
    before_each,
    clip_mean,
    is_full,
    kept,
    mean_scatter,
    on_host,
    relative,
    scaled,
    with_anchor,
)

MAX_BLOCK, MAX_SMALL_BLOCK = 32, 128  # steps
SMALL_STEP = 512  # values in a frame and in a covariance: below, calls cost more than arithmetic


def advance(
    y: Tensor,
    state: State,
    rates: Rates,
    active: Tensor,
    scatter: Tensor | None = None,
    scale: float = 1.0,
) -> Result:
    """Return the gradients of all frames, and the state after them.

    Args:
        y: (T, S, d) in float32 or wider.
        state: State before the first step, in the working precision; not changed.
        rates: Settings of the layer.
        active: (T, S) bool, where a stream has a frame; elsewhere it does not change.
        scatter: (T, S, d, d) added to the scatter of each frame's deviation in W.
        scale: Factor of the gradients.
    """
    state = with_anchor(y, state, active)
    y = y.to(state.short.dtype)
    clip = None
    if rates.long_term == "clip":
        clip = ClipMeans(clip_mean(relative(y, state, active), active), active.sum(0) > 1)
    gradient = torch.empty_like(y)
    scatter_gradients = []
    singular = torch.zeros((), dtype=torch.int64, device=y.device)
    block = _block_length(y, rates)
    for begin in range(0, len(y), block):
        part = slice(begin, begin + block)
        extra = None if scatter is None else scatter[part]
        x = relative(y[part], state, active[part])
        result = _advance_block(x, state, rates, active[part], extra, clip, gradient[part])
        if result.scatter_gradient is not None:
            scatter_gradients.append(result.scatter_gradient)
        state = result.state
        singular = singular + result.singular
    scatter_gradient = torch.cat(scatter_gradients) if scatter_gradients else None
    return scaled(Result(gradient, scatter_gradient, state, singular), scale)


def _block_length(x: Tensor, rates: Rates) -> int:
    """Return the steps of a block: (block, d, d) must be small and weights must not underflow."""
    _, streams, d = x.shape
    range_bits = 900 if x.dtype == torch.float64 else 100
    in_range = int(range_bits / forgotten_bits(rates.mu))
    longest = min(MAX_BLOCK, 2**22 // d**2)
    if max(streams, d) * d <= SMALL_STEP:
        longest = MAX_SMALL_BLOCK
    return max(1, min(longest, in_range))


def _advance_block(
    x: Tensor,
    state: State,
    rates: Rates,
    active: Tensor,
    scatter: Tensor | None,
    clip: ClipMeans | None,
    target: Tensor,
) -> Result:
    """Run one block of steps and write its gradient to `target`."""
    means = _follow_means(x, state, rates, active, clip)
    had_past, counted = means.had_past, means.counted
    within = kept(means.short_lag, had_past)
    between = kept(means.long_lag - means.short_lag, counted)
    extra = None if scatter is None else mean_scatter(scatter, had_past)
    w_trace = trace_path(within, had_past, state.W, rates.mu, extra)
    b_trace = trace_path(between, counted, state.B, rates.eps, None)
    noise = noise_share(x.dtype) / x.shape[-1]
    live = active.any(1)
    w_renewals = ridge_renewals(rates.mu, state.steps, live)
    b_renewals = ridge_renewals(rates.eps, state.steps, live)
    W = solve(within, had_past, state.W, rates.mu, rates, w_renewals, noise * b_trace, extra)
    B = solve(between, counted, state.B, rates.eps, rates, b_renewals, noise * w_trace, None)
    gradient = torch.sub(W.deviation, B.deviation, out=target if on_host(target) else W.deviation)
    pull = state.pull
    if rates.centred:
        gradient, pull = _centred(gradient, had_past | counted, pull, state.B, b_trace, rates.eps)
    if gradient is not target:
        target.copy_(gradient)
    end = _end_state(means, state, W, B, pull, live.sum())
    scatter_gradient = None
    if scatter is not None and W.inverse is not None:
        scatter_gradient = torch.where(had_past[..., None, None], W.inverse[:, None] / 2, 0)
    return Result(target, scatter_gradient, end, W.singular + B.singular)


def _end_state(
    means: _Means, state: State, W: Solved, B: Solved, pull: Tensor, steps: Tensor
) -> State:
    """Return the state after a block, given that before it and its number of steps."""
    return State(
        anchor=state.anchor,
        short=means.short,
        long=means.long,
        short_evidence=means.short_evidence[-1],
        long_evidence=means.long_evidence[-1],
        pull=pull,
        W=W.end,
        B=B.end,
        steps=state.steps + steps,
    )


class _Means(NamedTuple):
    """The means over a block, as their lags behind the frames, and which frames count."""

    short_lag: Tensor  # (T, S, d) frame minus short-term mean
    long_lag: Tensor  # (T, S, d) frame minus long-term mean
    short: Tensor  # (S, d) short-term mean at the end
    long: Tensor  # (S, d) long-term mean at the end
    short_evidence: Tensor  # (T, S)
    long_evidence: Tensor  # (T, S)
    had_past: Tensor  # (T, S) bool, frames that count for W
    counted: Tensor  # (T, S) bool, frames that count for B


def _follow_means(
    x: Tensor, state: State, rates: Rates, active: Tensor, clip: ClipMeans | None
) -> _Means:
    """Eq. 6 and 7 over a block."""
    track = _Track.of(x, active)
    short_lag, short_evidence, short = track.follow(state.short, state.short_evidence, rates.mu)
    had_past = active & (before_each(state.short_evidence, short_evidence) > 0)
    counted = had_past
    if clip is not None:
        long_lag = x - clip.mean
        long = clip.mean
        long_evidence = torch.ones_like(short_evidence)
        counted = active & clip.long_enough
    elif rates.long_term == "shared":
        long_lag, long_evidence, long = _follow_shared(track, state, rates)
        counted = active & (before_each(state.long_evidence, long_evidence) > 0)
    else:
        long_lag, long_evidence, long = track.follow(state.long, state.long_evidence, rates.eps)
    return _Means(
        short_lag, long_lag, short, long, short_evidence, long_evidence, had_past, counted
    )


def _centred(
    gradient: Tensor, counted: Tensor, pull: Tensor, B: Covariance, trace: Tensor, rate: float
) -> tuple[Tensor, Tensor]:
    """Subtract the gradient's own moving average, the pull.

    J does not change if all outputs are shifted together, so over time the gradients must sum to
    zero. Online they do not, because past outputs cannot be shifted: without this, an output that
    has drifted from its long-term mean is pushed further, and the network learns to drift.

    Args:
        gradient: (T, S, d), changed in place.
        counted: (T, S) bool, frames that have a gradient.
        pull: (1, d) before the block.
        B: The long-term covariance before the block.
        trace: (T,) trace of B after each step.
        rate: Forgetting rate of the pull and of B.
    """
    count = counted.sum(1)
    fading = Fading.of(count, B, rate)
    share = pull_share(
        before_each(B.value.trace(), trace), trace, rate / fading.evidence.clamp(min=1e-300)
    )
    # Product of the shares from one step to another; a share of zero cuts off all that is before.
    logs = torch.where(share > 0, share, 1).log().cumsum(0)
    cuts = (share == 0).cumsum(0)
    since = (logs[:, None] - logs).clamp(max=0).exp() * (cuts[:, None] == cuts)
    since_start = logs.exp() * (cuts == 0)
    pulls = (fading.weights * since) @ gradient.sum(1).double()
    pulls += (fading.decay * since_start)[:, None] * pull.double()
    each = (pulls / count.clamp(min=1)[:, None]).to(gradient.dtype)
    return kept(gradient.sub_(each[:, None]), counted), pulls[-1:].to(pull.dtype)


@dataclass(frozen=True)
class _Track:
    """Frames of a block, with what every moving average over them needs."""

    x: Tensor  # (T, S, d), zero where not active
    active: Tensor  # (T, S)
    clock: Tensor  # (T, S), number of frames of the stream so far in the block
    latest: Tensor  # (T, S, d), the stream's latest frame; undefined before its first
    step: Tensor  # (T, S, d), difference to the frame before; the first is set by `_sum`
    gapless: bool  # known to be active everywhere

    @classmethod
    def of(cls, x: Tensor, active: Tensor) -> _Track:
        clock = active.to(x.dtype).cumsum(0)
        if is_full(active):
            step = torch.empty_like(x)  # in the layout of x: mixing layouts is slow
            torch.sub(x[1:], x[:-1], out=step[1:])
            return cls(x, active, clock, x, step, gapless=True)
        index = torch.arange(len(x), device=x.device)[:, None]
        index = torch.where(active, index, 0).cummax(0).values
        latest = x.gather(0, index[..., None].expand_as(x))
        step = x - before_each(x[0], latest)
        return cls(x, active, clock, latest, step, gapless=False)

    def follow(self, mean: Tensor, evidence: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Update a moving average with the frames of the block.

        Computes the lag x - average from the differences between frames, not the average itself:
        in a scene that comes to rest the lag decays to zero with full relative precision, while
        x - average would be left with rounding errors.

        Returns:
            Lag (T, S, d) and evidence (T, S) after each step, and the average (S, d) at the end.
        """
        alike = self.gapless and is_full(evidence == evidence[0])
        clock, seen = (self.clock[:, :1], evidence[:1]) if alike else (self.clock, evidence)
        log_a = math.log1p(-rate)
        decay = torch.exp(clock * log_a)
        grown = decay * seen - torch.expm1(clock * log_a)
        before = before_each(seen, grown)
        # evidence_t lag_t = a (evidence_{t-1} lag_{t-1} + evidence_{t-1} step_t). The weights
        # factor into a^(c_t) a^(-c_r), which gives a running sum limited only by the exponent.
        weight = (1 - rate) * before / decay
        lag = self._sum(mean, weight, decay / torch.where(grown > 0, grown, 1), alike)
        end = torch.where((self.clock[-1] > 0)[:, None], self.latest[-1] - lag[-1], mean)
        return lag, grown.expand_as(self.clock), end

    def _sum(self, mean: Tensor, weight: Tensor, decay: Tensor, alike: bool) -> Tensor:
        if alike:  # all streams have the same weights: the running sum is one matrix product
            torch.sub(self.x[0], mean, out=self.step[0])
            return _mixed((decay * weight.T).tril(), self.step)
        first = ((self.clock == 1) & self.active)[..., None]
        step = torch.where(first, self.x - mean, self.step)
        return decay[..., None] * ((weight * self.active)[..., None] * step).cumsum(0)


def _mixed(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply (T, T) weights by (T, S, d) values, without copying values stored channels first."""
    if values.mT.is_contiguous():
        return (weights @ values.mT.flatten(1)).view_as(values.mT).mT
    return (weights @ values.flatten(1)).view_as(values)


def _follow_shared(track: _Track, state: State, rates: Rates) -> tuple[Tensor, Tensor, Tensor]:
    """Update the long-term mean that all sequences share (one per position in a conv layer).

    Returns:
        The same as `_Track.follow`.
    """
    steps, streams, d = track.x.shape
    n, positions = rates.sequences, streams // rates.sequences
    count = track.active.view(steps, n, positions).sum(1)
    # Each stream is relative to its own anchor; the shared mean is relative to the first's.
    shift = state.anchor - state.anchor[:positions].repeat(n, 1)
    frames = torch.where(track.active[..., None], track.x + shift, 0)
    pooled = frames.reshape(steps, n, positions, d).sum(1) / count.clamp(min=1)[..., None]
    everyone = _Track.of(pooled, count > 0)
    lag, evidence, end = everyone.follow(
        state.long[:positions], state.long_evidence[:positions], rates.eps
    )
    # Relative to the pooled frame: for a single sequence that is the frame itself, and the lag is
    # exactly that of its mean.
    lags = (track.x + shift) - everyone.latest.repeat(1, n, 1) + lag.repeat(1, n, 1)
    return lags, evidence.repeat(1, n), end.repeat(n, 1) - shift
