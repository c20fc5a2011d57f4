"""The recurrence under both layers (Eq. 6-11), in whole chunks.

Everything works on `y` of shape (T, S, d): T steps, S streams that share W and B, d features.
`advance` takes the steps in blocks and gives the same gradients and the same end state as
`kernels.reference`, which walks them one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ullayers.kernels.covariance import (
    forgotten_bits,
    noise_share,
    ridge_renewals,
    solve,
    trace_path,
)
from ullayers.kernels.reference import reference
from ullayers.kernels.state import (
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

MAX_BLOCK, MAX_SMALL_BLOCK = 32, 128
SMALL_STEP = 512  # numbers in a frame and in a covariance: there calls cost more than their work


def advance(
    y: Tensor,
    state: State,
    rates: Rates,
    active: Tensor,
    scatter: Tensor | None = None,
    scale: float = 1.0,
) -> Result:
    """What `reference` does, without a loop over steps.

    Args:
        y: (T, S, d) in float32 or wider.
        state: where the statistics stand, in the precision to work in; not changed.
        rates: the rates and choices of the layer.
        active: (T, S) bool. A stream stands still wherever it is not active.
        scatter: (T, S, d, d) more scatter for each frame to bring to W, beside its deviation's.
        scale: of the gradients.
    """
    if len(y) == 1 and on_host(y):  # a single step has no loop to save
        y = y.to(state.short.dtype)
        return scaled(reference(y, state, rates, active, scatter), scale)
    state = with_anchor(y, state, active)
    y = y.to(state.short.dtype)
    is_clip = rates.long_term == "clip"
    own_mean = clip_mean(relative(y, state, active), active) if is_clip else None
    gradient = torch.empty_like(y)
    scatter_gradients = []
    singular = torch.zeros((), dtype=torch.int64, device=y.device)
    block = _block_length(y, rates)
    for begin in range(0, len(y), block):
        part = slice(begin, begin + block)
        extra = None if scatter is None else scatter[part]
        x, target = relative(y[part], state, active[part]), gradient[part]
        result = _advance_block(x, state, rates, active[part], extra, own_mean, active, target)
        if result.gradient is not target:
            target.copy_(result.gradient)
        scatter_gradients.append(result.scatter_gradient)
        state = result.state
        singular = singular + result.singular
    extra_gradient = None if scatter is None else torch.cat(scatter_gradients)  # type: ignore[arg-type]
    return scaled(Result(gradient, extra_gradient, state, singular), scale)


def _block_length(x: Tensor, rates: Rates) -> int:
    """As many steps as keep the temporary (block, d, d) small and the weights inside range."""
    _, streams, d = x.shape
    range_bits = 900 if x.dtype == torch.float64 else 100
    in_range = int(range_bits / forgotten_bits(rates.mu))
    longest = (
        MAX_SMALL_BLOCK if max(streams, d) * d <= SMALL_STEP else min(MAX_BLOCK, 2**22 // d**2)
    )
    return max(1, min(longest, in_range))


def _advance_block(
    x: Tensor,
    state: State,
    rates: Rates,
    active: Tensor,
    scatter: Tensor | None,
    own_mean: Tensor | None,
    whole_active: Tensor,
    target: Tensor,
) -> Result:
    """One block; its gradient is written straight to `target` where that can be."""
    track = _Track.of(x, active)
    short_lag, short_evidence, short = track.follow(state.short, state.short_evidence, rates.mu)
    had_past = active & (before_each(state.short_evidence, short_evidence) > 0)
    if own_mean is not None:
        long_lag, long, long_evidence = x - own_mean, own_mean, torch.ones_like(short_evidence)
        counted = active & (whole_active.sum(0) > 1)
    elif rates.long_term == "shared":
        long_lag, long_evidence, long = _follow_shared(track, state, rates)
        counted = active & (before_each(state.long_evidence, long_evidence) > 0)
    else:
        long_lag, long_evidence, long = track.follow(state.long, state.long_evidence, rates.eps)
        counted = had_past
    within = kept(short_lag, had_past)
    between = kept(long_lag - short_lag, counted)
    extra = None if scatter is None else mean_scatter(scatter, had_past)
    live = active.any(1)
    share = noise_share(x.dtype) / x.shape[-1]
    w_noise = share * trace_path(between, counted, state.B, rates.eps, None)
    b_noise = share * trace_path(within, had_past, state.W, rates.mu, extra)
    w_solved, w_inverse, W, w_bad = solve(
        within, had_past, state.W, rates.mu, rates,
        ridge_renewals(rates.mu, state.steps, live), w_noise, extra,
    )  # fmt: skip
    b_solved, _, B, b_bad = solve(
        between, counted, state.B, rates.eps, rates,
        ridge_renewals(rates.eps, state.steps, live), b_noise, None,
    )  # fmt: skip
    out = target if on_host(target) else w_solved
    gradient, pull = torch.sub(w_solved, b_solved, out=out), state.pull
    if rates.centred:
        gradient, pull = _centred(gradient, had_past | counted, pull, rates.eps)
    end = State(
        state.anchor, short, long, short_evidence[-1], long_evidence[-1], pull, W, B,
        state.steps + live.sum(),
    )  # fmt: skip
    scatter_gradient = None
    if scatter is not None and w_inverse is not None:
        scatter_gradient = torch.where(had_past[..., None, None], w_inverse[:, None] / 2, 0)
    return Result(gradient, scatter_gradient, end, w_bad + b_bad)


def _centred(gradient: Tensor, counted: Tensor, pull: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Take off the gradient's own long-term mean.

    J does not change if all outputs are shifted together, so over time the gradients must add up
    to nothing. The past cannot be shifted, so online they do not: what has drifted off the
    long-term mean is pushed on, and a network learns to drift instead of to follow the video.
    """
    count = counted.sum(1, keepdim=True)
    track = _Track.of(gradient.sum(1, keepdim=True), count > 0)
    lag, _, end = track.follow(pull, torch.ones_like(pull[:, 0]), rate)
    each = (track.latest - lag) / count.clamp(min=1)[..., None]
    return kept(gradient.sub_(each), counted), end


@dataclass(frozen=True)
class _Track:
    """Frames of a block with what every moving average over them needs."""

    x: Tensor  # (T, S, d), zero where not active
    active: Tensor  # (T, S)
    clock: Tensor  # (T, S), frames of the stream so far in the block
    latest: Tensor  # (T, S, d), the stream's latest frame; of no meaning before its first
    step: Tensor  # (T, S, d), from the frame before to this one; the first is set by `_sum`
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
        """Let a moving average follow the frames.

        Not the average itself is computed but its lag x - average, from the frames' steps: in a
        scene that comes to rest the lag fades to nothing with all its digits, where a difference
        would be left with rounding errors.

        Returns:
            lag (T, S, d) and evidence (T, S) after each step, and the average (S, d) at the end.
        """
        alike = self.gapless and is_full(evidence == evidence[0])
        clock, seen = (self.clock[:, :1], evidence[:1]) if alike else (self.clock, evidence)
        log_a = math.log1p(-rate)
        decay = torch.exp(clock * log_a)
        grown = decay * seen - torch.expm1(clock * log_a)
        before = before_each(seen, grown)
        # evidence_t lag_t = a (evidence_{t-1} lag_{t-1} + evidence_{t-1} step_t), with weights
        # that factor into a^(c_t) a^(-c_r): a running sum. Only the exponent's range limits it.
        weight = (1 - rate) * before / decay
        lag = self._sum(mean, weight, decay / torch.where(grown > 0, grown, 1), alike)
        end = torch.where((self.clock[-1] > 0)[:, None], self.latest[-1] - lag[-1], mean)
        return lag, grown.expand_as(self.clock), end

    def _sum(self, mean: Tensor, weight: Tensor, decay: Tensor, alike: bool) -> Tensor:
        if alike:  # all streams weigh their steps alike: the running sum is one matrix product
            torch.sub(self.x[0], mean, out=self.step[0])
            return _mixed((decay * weight.T).tril(), self.step)
        first = ((self.clock == 1) & self.active)[..., None]
        step = torch.where(first, self.x - mean, self.step)
        return decay[..., None] * ((weight * self.active)[..., None] * step).cumsum(0)


def _mixed(weights: Tensor, values: Tensor) -> Tensor:
    """(T, T) weights times (T, S, d) values, without copying what is stored channels first."""
    if values.mT.is_contiguous():
        return (weights @ values.mT.flatten(1)).view_as(values.mT).mT
    return (weights @ values.flatten(1)).view_as(values)


def _follow_shared(track: _Track, state: State, rates: Rates) -> tuple[Tensor, Tensor, Tensor]:
    """One long-term mean for all sequences of the batch (per position, for a conv layer)."""
    steps, streams, d = track.x.shape
    n, positions = rates.sequences, streams // rates.sequences
    count = track.active.view(steps, n, positions).sum(1)
    # Every stream is relative to an anchor of its own; the mean is formed relative to the first's.
    shift = state.anchor - state.anchor[:positions].repeat(n, 1)
    frames = torch.where(track.active[..., None], track.x + shift, 0)
    pooled = frames.reshape(steps, n, positions, d).sum(1) / count.clamp(min=1)[..., None]
    everyone = _Track.of(pooled, count > 0)
    lag, evidence, end = everyone.follow(
        state.long[:positions], state.long_evidence[:positions], rates.eps
    )
    # Frame by frame around what all have in common: of a single sequence that is the frame itself,
    # and its lag is exactly that of its mean.
    lags = (track.x + shift) - everyone.latest.repeat(1, n, 1) + lag.repeat(1, n, 1)
    return lags, evidence.repeat(1, n), end.repeat(n, 1) - shift
