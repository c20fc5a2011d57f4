"""Eq. 8, 9 and the solves of Eq. 11, for a whole block of steps as one batch of d x d factors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ullayers.kernels.state import Covariance, Rates, before_each

# The ridge is set high, decays with the covariance it protects, and is never let below low, all
# times `ridge * trace / d`. It is renewed at fixed step counts, so it does not depend on how a
# stream is cut into calls.
RIDGE_HIGH, RIDGE_LOW = 4.0, 0.25
# In a still scene W fades away and only rounding errors are left to divide by it; it is kept above
# this many units in the last place of B, and B of W.
NOISE_UNITS = 16


def ridge_renewals(rate: float, steps: Tensor, live: Tensor) -> Tensor:
    """(T,) bool: before which steps the ridge is renewed. Steps without a frame do not count."""
    ticks = steps + live.cumsum(0) - live.long()
    return live & (ticks % ridge_period(rate) == 0)


def ridge_period(rate: float) -> int:
    """Steps between two renewals of the ridge: while it decays by at most 16, and at most 64."""
    return max(1, min(64, int(4 / forgotten_bits(rate))))


def forgotten_bits(rate: float) -> float:
    """By how many powers of two a weight falls in one step."""
    return -math.log1p(-rate) / math.log(2)


def noise_share(dtype: torch.dtype) -> float:
    """What of a covariance may be rounding errors of the other, in the precision of the work."""
    return NOISE_UNITS * torch.finfo(dtype).eps


def trace_path(
    deviation: Tensor, counted: Tensor, cov: Covariance, rate: float, scatter: Tensor | None
) -> Tensor:
    """(T,): the trace of the covariance after each step."""
    count = counted.sum(1)
    brought = torch.linalg.vector_norm(deviation, dim=(1, 2)).double().square()
    brought = brought / count.clamp(min=1)
    if scatter is not None:
        brought = brought + scatter.diagonal(dim1=1, dim2=2).sum(1)
    fading = Fading.of(count, cov, rate)
    total: Tensor = fading.decay * cov.value.trace() * cov.evidence + fading.weights @ brought
    return total / fading.evidence.clamp(min=1e-300)


@dataclass(frozen=True)
class Fading:
    """How a covariance forgets over a block; a step without a counted stream does not count."""

    features: int
    rate: float
    clock: Tensor  # (T,) steps that counted so far
    decay: Tensor  # (T,) what is left of the start's weight
    evidence: Tensor  # (T,) the sum of all weights
    weights: Tensor  # (T, T) rate * a^(c_t - c_r) for r <= t: the sum of Eq. 8 is a product

    @classmethod
    def of(cls, count: Tensor, cov: Covariance, rate: float) -> Fading:
        """A covariance over the steps of a block."""
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
    """Rows of `deviation` times the scaled inverse, and that inverse if it is to be kept.

    Two triangular solves lose fewer digits than a product with the inverse, but only pay where
    the rows are few; those come in float64.
    """
    scale, inverse = scale[..., None, None], None
    if keep_inverse or deviation.dtype != torch.float64:
        inverse = torch.cholesky_inverse(factor) * scale
    if inverse is None or deviation.dtype == torch.float64:
        return torch.cholesky_solve(deviation.mT, factor).mT * scale, inverse
    narrow = inverse.to(deviation.dtype)
    if deviation.mT.is_contiguous():  # stored channels first: leave it so
        return (narrow @ deviation.mT).mT, inverse
    return deviation @ narrow, inverse


def solve(
    deviation: Tensor,
    counted: Tensor,
    cov: Covariance,
    rate: float,
    rates: Rates,
    renewals: Tensor,
    noise: Tensor,
    scatter: Tensor | None,
) -> tuple[Tensor, Tensor | None, Covariance, Tensor]:
    """Move `cov` on by a block of steps and solve it for every step's deviations.

    All covariances and their Cholesky factors are one batch of d x d matrices.

    Args:
        deviation: (T, S, d), zero where not counted.
        counted: (T, S) bool, the streams that take part in each step.
        cov: the covariance before the block.
        rate: how fast it forgets.
        rates: the choices of the layer.
        renewals: (T,) bool, as from `ridge_renewals`.
        noise: (T,), what the diagonal may not fall below.
        scatter: (T, d, d), more scatter for each step to bring.

    Returns:
        the solved deviations (T, S, d), each divided by the step's number of counted streams; the
        inverses (T, d, d) likewise, where they were formed; the end covariance; and how many
        steps could not be solved (their result is zero).
    """
    (T, _, d), count = deviation.shape, counted.sum(1)
    counts = count.clamp(min=1).double()
    fading = Fading.of(count, cov, rate)
    if rates.diagonal:
        gram = torch.diag_embed(deviation.square().sum(1).double())
    else:
        gram = (deviation.mT @ deviation).double()
    gram = gram / counts[:, None, None]
    if scatter is not None:
        gram = gram + (scatter * torch.eye(d, device=scatter.device) if rates.diagonal else scatter)
    start, evidence = cov.value * cov.evidence, fading.evidence
    brought = (fading.weights @ gram.flatten(1)).view(T, d, d)
    total = fading.decay[:, None, None] * start + brought
    trace = total.diagonal(dim1=1, dim2=2).sum(1)
    level, ridge = diagonal_path(trace, start.trace(), cov.ridge, fading, rates, renewals, noise)
    factor, info = torch.linalg.cholesky_ex(total + torch.diag_embed(level[:, None].expand(T, d)))
    eye = torch.eye(d, dtype=total.dtype, device=total.device)
    factor = torch.where((info == 0)[:, None, None], factor, eye)
    usable = (info == 0) & (trace > 0) & (count > 0)
    scale, has_scatter = evidence * usable / counts, scatter is not None
    solved, inverse = apply_inverse(factor, deviation, scale, has_scatter)
    end = Covariance(total[-1] / evidence[-1].clamp(min=1e-300), evidence[-1], ridge[-1])
    return solved, inverse, end, (info != 0).sum()


def diagonal_path(
    trace: Tensor,
    before: Tensor,
    ridge: Tensor,
    fading: Fading,
    rates: Rates,
    renewals: Tensor,
    noise: Tensor,
) -> tuple[Tensor, Tensor]:
    """(T,), (T,): what is added to the diagonal at each step, and the ridge, which is part of it.

    Args:
        trace: (T,), of value * evidence after each step.
        before: () before the first.
        ridge: () before the first.
        fading: how the covariance forgets.
        rates: the choices of the layer.
        renewals: (T,) bool, as from `ridge_renewals`.
        noise: (T,), what the diagonal may not fall below.
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
    """The ridge at each step: what it was set to before the last renewal's step, decayed since."""
    index = torch.arange(len(clock), device=clock.device)
    last = torch.where(renewals, index, -1).cummax(0).values
    ever, last = last >= 0, last.clamp(min=0)
    since = torch.where(ever, before_each(torch.zeros_like(clock[0]), clock)[last], 0)
    return torch.where(ever, renewed[last], ridge) * torch.exp((clock - since) * math.log1p(-rate))
