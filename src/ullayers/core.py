"""The recurrence under both layers (Eq. 6-11), in whole chunks.

Everything works on `y` of shape (T, S, d): T steps, S streams that share W and B, d features.
`advance` takes the steps in blocks and gives the same gradients and the same end state as
`kernels.reference`, which walks them one by one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ullayers.kernels.covariance import may_use_low_rank, ridge_renewals, solve
from ullayers.kernels.state import (
    Rates,
    Result,
    State,
    anchored,
    before_each,
    clip_mean,
    mean_scatter,
)

MAX_BLOCK = 32


def advance(
    y: Tensor, state: State, rates: Rates, active: Tensor, scatter: Tensor | None = None
) -> Result:
    """What `reference` does, without a loop over steps.

    Args:
        y: (T, S, d) in the precision to work in, float32 or wider.
        state: where the statistics stand; not changed.
        rates: the rates and choices of the layer.
        active: (T, S) bool. A stream stands still wherever it is not active.
        scatter: (T, S, d, d) more scatter for each frame to bring to W, beside its deviation's.
    """
    state, x = anchored(y, state, active)
    own_mean = clip_mean(x, active) if rates.long_term == "clip" else None
    gradient = torch.empty_like(x)
    scatter_gradients = []
    singular = torch.zeros((), dtype=torch.int64, device=y.device)
    block = _block_length(x, rates)
    for begin in range(0, len(x), block):
        part = slice(begin, begin + block)
        extra = None if scatter is None else scatter[part]
        result = _advance_block(x[part], state, rates, active[part], extra, own_mean, active)
        gradient[part] = result.gradient
        scatter_gradients.append(result.scatter_gradient)
        state = result.state
        singular = singular + result.singular
    extra_gradient = None if scatter is None else torch.cat(scatter_gradients)  # type: ignore[arg-type]
    return Result(gradient, extra_gradient, state, singular)


def _block_length(x: Tensor, rates: Rates) -> int:
    """As many steps as keep the temporary (block, d, d) small and the weights inside range."""
    d = x.shape[-1]
    if may_use_low_rank(x):
        return 64
    range_bits = 900 if x.dtype == torch.float64 else 100
    in_range = int(range_bits / -math.log2(1 - rates.mu))
    return max(1, min(MAX_BLOCK, in_range, 2**22 // d**2))


def _advance_block(
    x: Tensor,
    state: State,
    rates: Rates,
    active: Tensor,
    scatter: Tensor | None,
    own_mean: Tensor | None,
    whole_active: Tensor,
) -> Result:
    short, short_evidence = _scan_mean(x, active, state.short, state.short_evidence, rates.mu)
    had_past = active & (before_each(state.short_evidence, short_evidence) > 0)
    if own_mean is not None:
        long, long_evidence = own_mean[None], torch.ones_like(state.long_evidence)[None]
        counted = active & (whole_active.sum(0) > 1)
    elif rates.long_term == "shared":
        long, long_evidence = _scan_shared_mean(x, active, state, rates)
        counted = active & (before_each(state.long_evidence, long_evidence) > 0)
    else:
        long, long_evidence = _scan_mean(x, active, state.long, state.long_evidence, rates.eps)
        counted = had_past
    within = torch.where(had_past[..., None], x - short, 0)
    extra = None if scatter is None else mean_scatter(scatter, had_past)
    live = active.any(1)
    w_renewals = ridge_renewals(rates.mu, state.steps, live)
    w_solved, w_inverse, W, w_bad = solve(
        within, had_past, state.W, rates.mu, rates, w_renewals, extra
    )
    between = torch.where(counted[..., None], short - long, 0)
    b_renewals = ridge_renewals(rates.eps, state.steps, live)
    b_solved, _, B, b_bad = solve(between, counted, state.B, rates.eps, rates, b_renewals, None)
    end = State(
        state.anchor, short[-1], long[-1], short_evidence[-1], long_evidence[-1], W, B,
        state.steps + live.sum(),
    )  # fmt: skip
    scatter_gradient = None
    if scatter is not None and w_inverse is not None:
        scatter_gradient = torch.where(had_past[..., None, None], w_inverse[:, None] / 2, 0)
    return Result(w_solved - b_solved, scatter_gradient, end, w_bad + b_bad)


def _scan_mean(
    x: Tensor, active: Tensor, mean: Tensor, evidence: Tensor, rate: float
) -> tuple[Tensor, Tensor]:
    """A moving average over all steps at once, each stream with a clock of its own.

    With c the number of active steps so far, weights a^(c_t - c_r) factor into a^(c_t) a^(-c_r),
    so a running sum of the scaled frames does it. Later terms are the larger ones: nothing
    cancels, only the exponent's range limits the length of a block.
    """
    log_a = math.log1p(-rate)
    clock = active.to(x.dtype).cumsum(0)
    decay = torch.exp(clock * log_a)
    weighted = (rate / decay)[..., None] * x  # x is zero where not active
    total = decay[..., None] * ((evidence[:, None] * mean)[None] + weighted.cumsum(0))
    grown = decay * evidence - torch.expm1(clock * log_a)
    return total / torch.where(grown > 0, grown, 1)[..., None], grown


def _scan_shared_mean(
    x: Tensor, active: Tensor, state: State, rates: Rates
) -> tuple[Tensor, Tensor]:
    """One long-term mean for all sequences of the batch (per position, for a conv layer)."""
    steps, streams, d = x.shape
    n, positions = rates.sequences, streams // rates.sequences
    count = active.view(steps, n, positions).sum(1)
    # Every stream is relative to an anchor of its own; the mean is formed relative to the first's.
    shift = state.anchor - state.anchor[:positions].repeat(n, 1)
    frames = torch.where(active[..., None], x + shift, 0).reshape(steps, n, positions, d)
    pooled = frames.sum(1) / count.clamp(min=1)[..., None]
    mean, evidence = _scan_mean(
        pooled, count > 0, state.long[:positions], state.long_evidence[:positions], rates.eps
    )
    return mean.repeat(1, n, 1) - shift, evidence.repeat(1, n)
