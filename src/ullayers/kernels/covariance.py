"""Update W and B over a block of steps and solve for the gradient (Eq. 8, 9, 11).

All covariances of a block, and their Cholesky factors, are one batch of d x d matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ullayers.kernels.state import Covariance, Rates, before_each

# The ridge is set to RIDGE_HIGH, decays together with the covariance, and never falls below
# RIDGE_LOW; both are multiples of `ridge * trace / d`. It is renewed at fixed step counts, so it
# does not depend on how a stream is split into calls.
RIDGE_HIGH, RIDGE_LOW = 4.0, 0.25
# In a still scene W decays to zero and only rounding errors would be divided by it. W is kept
# above this many units in the last place of B, and B above as many of W.
NOISE_UNITS = 16
# A frame this many times larger than B (in squares) means that the outputs changed their scale.
JUMP = 100.0
SMALLEST_SHARE = 1e-30  # of the pull; below this it is dropped


def ridge_renewals(rate: float, steps: Tensor, live: Tensor) -> Tensor:
    """Return (T,) bool: the steps before which the ridge is renewed.

    Args:
        rate: Forgetting rate of the covariance.
        steps: Number of steps before the block.
        live: (T,) bool, the steps that have a frame; other steps are not counted.
    """
    number = steps + live.cumsum(0) - live.long()
    return live & (number % ridge_period(rate) == 0)


def ridge_period(rate: float) -> int:
    """Return the steps between two renewals of the ridge: at most 64, or a decay by 16."""
    return max(1, min(64, int(4 / forgotten_bits(rate))))


def forgotten_bits(rate: float) -> float:
    """Return by how many powers of two a weight decays in one step."""
    return -math.log1p(-rate) / math.log(2)


def noise_share(dtype: torch.dtype) -> float:
    """Return the share of one covariance that may be rounding errors in the other."""
    return NOISE_UNITS * torch.finfo(dtype).eps


def pull_share(before: Tensor, after: Tensor, frame_weight: Tensor) -> Tensor:
    """Return the share of the pull that a step keeps: 1, or less if the outputs' scale jumps.

    Gradients are inversely proportional to the scale of the outputs. Without this, gradients from
    before a jump (from 1e-5 to 1, say) would dominate the pull for thousands of frames.

    Args:
        before: Trace of B before the step.
        after: Trace of B after the step.
        frame_weight: Weight of the step's own frames in B.
    """
    jumps = after > (1 + JUMP * frame_weight) * before
    share = torch.where(jumps, (before / after).sqrt(), 1)
    return torch.where(share < SMALLEST_SHARE, 0, share)


def trace_path(
    deviation: Tensor, counted: Tensor, cov: Covariance, rate: float, scatter: Tensor | None
) -> Tensor:
    """Return (T,): the trace of the covariance after each step."""
    count = counted.sum(1)
    added = torch.linalg.vector_norm(deviation, dim=(1, 2)).double().square()
    added = added / count.clamp(min=1)
    if scatter is not None:
        added = added + scatter.diagonal(dim1=1, dim2=2).sum(1)
    fading = Fading.of(count, cov, rate)
    total: Tensor = fading.decay * cov.value.trace() * cov.evidence + fading.weights @ added
    return total / fading.evidence.clamp(min=1e-300)


@dataclass(frozen=True)
class Fading:
    """Weights of a moving average over a block; a step without a counted stream changes nothing."""

    features: int
    rate: float
    clock: Tensor  # (T,) number of counted steps so far
    decay: Tensor  # (T,) remaining weight of the value before the block
    evidence: Tensor  # (T,) sum of all weights
    weights: Tensor  # (T, T) rate * a^(c_t - c_r) for r <= t, so that Eq. 8 is a matrix product

    @classmethod
    def of(cls, count: Tensor, cov: Covariance, rate: float) -> Fading:
        """Return the weights for a block, from the number of counted streams of each step."""
        log_a = math.log1p(-rate)
        clock = (count > 0).double().cumsum(0)
        decay = torch.exp(clock * log_a)
        age = (clock[:, None] - clock[None, :]).clamp(min=0)
        weights = (rate * torch.exp(age * log_a) * (count > 0)).tril()
        evidence = decay * cov.evidence - torch.expm1(clock * log_a)
        return cls(len(cov.value), rate, clock, decay, evidence, weights)


def apply_inverse(
    factor: Tensor, deviation: Tensor, scale: Tensor, keep_inverse: bool
) -> tuple[Tensor, Tensor | None]:
    """Multiply the rows of `deviation` by the scaled inverse.

    Two triangular solves are more accurate than a product with the inverse, but faster only for
    few rows, which are in float64.

    Args:
        factor: (..., d, d) Cholesky factors.
        deviation: (..., S, d).
        scale: (...) factor of the result.
        keep_inverse: Whether to return the inverse in any case.

    Returns:
        The product (..., S, d), and the scaled inverse if it was computed.
    """
    scale = scale[..., None, None]
    is_wide = deviation.dtype == torch.float64
    inverse = None
    if keep_inverse or not is_wide:
        inverse = torch.cholesky_inverse(factor) * scale
    if inverse is None or is_wide:
        return torch.cholesky_solve(deviation.mT, factor).mT * scale, inverse
    narrow = inverse.to(deviation.dtype)
    # Outputs of about 1e-21 have an inverse that does not fit: no gradient then.
    narrow = torch.where(narrow.isfinite().all(-1, keepdim=True).all(-2, keepdim=True), narrow, 0)
    if deviation.mT.is_contiguous():  # stored channels first: keep that layout
        return (narrow @ deviation.mT).mT, inverse
    return deviation @ narrow, inverse


class Solved(NamedTuple):
    """Result of `solve`."""

    deviation: Tensor  # (T, S, d) solved, divided by the step's number of counted streams
    inverse: Tensor | None  # (T, d, d) likewise, if it was computed
    end: Covariance
    singular: Tensor  # () int64, steps without an inverse; their result is zero


def solve(
    deviation: Tensor,
    counted: Tensor,
    cov: Covariance,
    rate: float,
    rates: Rates,
    renewals: Tensor,
    noise: Tensor,
    scatter: Tensor | None,
) -> Solved:
    """Update `cov` over a block of steps and solve it for the deviations of every step.

    Args:
        deviation: (T, S, d), zero where not counted.
        counted: (T, S) bool, the streams that take part in each step.
        cov: The covariance before the block.
        rate: Its forgetting rate.
        rates: Settings of the layer.
        renewals: (T,) bool from `ridge_renewals`.
        noise: (T,) lower limit of the diagonal.
        scatter: (T, d, d) added to each step's scatter.
    """
    count = counted.sum(1)
    fading = Fading.of(count, cov, rate)
    counts = count.clamp(min=1).double()
    grams = _grams(deviation, counts, rates.diagonal, scatter)
    start = cov.value * cov.evidence
    added = (fading.weights @ grams.flatten(1)).view_as(grams)
    total = fading.decay[:, None, None] * start + added
    trace = total.diagonal(dim1=1, dim2=2).sum(1)
    level, ridge = _diagonal_path(trace, start.trace(), cov.ridge, fading, rates, renewals, noise)
    factor, failed = _factors(total, level)
    usable = ~failed & (trace > 0) & (count > 0)
    scale = fading.evidence * usable / counts
    solved, inverse = apply_inverse(factor, deviation, scale, scatter is not None)
    evidence = fading.evidence[-1]
    end = Covariance(total[-1] / evidence.clamp(min=1e-300), evidence, ridge[-1])
    return Solved(solved, inverse, end, failed.sum())


def _grams(deviation: Tensor, counts: Tensor, diagonal: bool, scatter: Tensor | None) -> Tensor:
    """Return (T, d, d): the scatter of each step, averaged over its counted streams."""
    if diagonal:
        grams = torch.diag_embed(deviation.square().sum(1).double())
    else:
        grams = (deviation.mT @ deviation).double()
    grams = grams / counts[:, None, None]
    if scatter is None:
        return grams
    if diagonal:
        scatter = torch.diag_embed(scatter.diagonal(dim1=1, dim2=2))
    return grams + scatter


def _factors(total: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return Cholesky factors of matrices plus `level`, and (T,) bool where there is none."""
    steps, d, _ = total.shape
    factor, info = torch.linalg.cholesky_ex(
        total + torch.diag_embed(level[:, None].expand(steps, d))
    )
    failed = info != 0
    eye = torch.eye(d, dtype=total.dtype, device=total.device)
    return torch.where(failed[:, None, None], eye, factor), failed


def _diagonal_path(
    trace: Tensor,
    before: Tensor,
    ridge: Tensor,
    fading: Fading,
    rates: Rates,
    renewals: Tensor,
    noise: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return (T,) what is added to the diagonal at each step, and (T,) the ridge.

    Args:
        trace: (T,) trace of value * evidence after each step.
        before: () the same before the first step.
        ridge: () ridge before the first step.
        fading: Weights of the covariance.
        rates: Settings of the layer.
        renewals: (T,) bool from `ridge_renewals`.
        noise: (T,) lower limit of the diagonal.
    """
    relative = rates.ridge / fading.features
    renewed = RIDGE_HIGH * relative * before_each(before, trace)
    path = _ridge_levels(ridge, renewed, renewals, fading.clock, fading.rate)
    level = torch.maximum(path, RIDGE_LOW * relative * trace)
    level = torch.maximum(level, noise * fading.evidence)
    # Without any scatter there is nothing to solve; the 1 only keeps the factor defined.
    return torch.where(trace > 0, level, 1.0), path


def _ridge_levels(
    ridge: Tensor, renewed: Tensor, renewals: Tensor, clock: Tensor, rate: float
) -> Tensor:
    """Return (T,): the ridge at each step, as last renewed and decayed since."""
    index = torch.arange(len(clock), device=clock.device)
    last = torch.where(renewals, index, -1).cummax(0).values
    ever = last >= 0
    last = last.clamp(min=0)
    since = torch.where(ever, before_each(torch.zeros_like(clock[0]), clock)[last], 0)
    return torch.where(ever, renewed[last], ridge) * torch.exp((clock - since) * math.log1p(-rate))
