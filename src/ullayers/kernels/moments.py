"""What the frames of one call sum up to, and the derivatives of J that follow from the sums.

With D = y - short-term mean and E = short-term mean - long-term mean of every frame,

    W = mean D D^T,    B = mean E E^T,    J = (log det W - log det B) / 2,

so dJ/dD = D W^-1 / n and dJ/dE = -E B^-1 / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ullayers.kernels.state import Rates

REDUCED_PRECISION = (torch.float32, torch.bfloat16, torch.float16)
NOISE = 16.0  # rounding errors, in units of the last place
# An output that vanishes adds log(ridge of W / ridge of B) / 2 to J. With equal ridges that would
# pay, and J would be lowest for a single output that is not zero.
BETWEEN_RIDGE = 1e-4  # of B, relative to that of W


@dataclass(frozen=True)
class Request:
    """What a call asks of a kernel, beside its frames.

    Attributes:
        lengths: frames of each clip.
        rates: mu, eps, ridge and the kind of long-term mean.
        largest: a frame with a larger value, or a NaN, at a position is left out there.
    """

    lengths: tuple[int, ...]
    rates: Rates
    largest: float


@dataclass(frozen=True)
class Moments:
    """What the frames of a call sum up to."""

    within: Tensor  # (d, d) float64, sum of D D^T
    between: Tensor  # (d, d) float64, sum of E E^T
    counts: Tensor  # (3,) int64: terms of both sums, and (frame, position) pairs left out
    short_mean: Tensor  # (clips, d, positions) after the last frame of each clip
    long_mean: Tensor  # likewise; (1, d, positions) if it is shared
    steps: Tensor  # (clips, 1, positions) int64, usable frames of each stream
    rows: Tensor | None = None  # (2, n, n) float64: D^T D and E^T E, if `is_by_rows`
    scatter: Tensor | None = None  # (d, d) float64, to be added to `within`
    saved: tuple[Tensor, ...] = ()  # what a kernel wants back for the gradient


@dataclass(frozen=True)
class Weights:
    """The derivatives of J: D @ matrices[0] by D, and E @ matrices[1] by E.

    If `by_rows`, they are matrices[0] @ D and matrices[1] @ E, with a row for each frame.
    """

    matrices: Tensor  # (2, d, d) or (2, n, n) float64, symmetric
    by_rows: bool


@dataclass(frozen=True)
class Evaluation:
    """The statistics of a call, and the derivatives of their J."""

    covariances: Tensor  # (2, d, d) float64: W and B
    singular: Tensor  # () int64: how many of W and B have no inverse
    counts: Tensor  # these four and `saved` as in `Moments`
    short_mean: Tensor
    long_mean: Tensor
    steps: Tensor
    weights: Weights
    saved: tuple[Tensor, ...]


def averaged_frames(steps: Tensor, rates: Rates) -> Tensor:
    """How many frames long-term means are taken over, from those of the streams (clips, ...)."""
    return steps.sum(0, keepdim=True) if rates.long_term == "shared" else steps


def counts_of(steps: Tensor, request: Request) -> Tensor:
    """`Moments.counts`, from the usable frames of each stream (clips, 1, positions)."""
    within = (steps - 1).clamp(min=0).sum()
    number = averaged_frames(steps, request.rates)
    stream = request.rates.long_term == "stream"
    between = within if stream else torch.where(number > 1, number, 0).sum()
    return torch.stack([within, between, sum(request.lengths) * steps.shape[2] - steps.sum()])


def is_by_rows(shape: Sequence[int], request: Request, scatter: Tensor | None) -> bool:
    """Whether frames are fewer than features, so that an inverse of their own products is smaller.

    Args:
        shape: of the frames: (..., features, positions).
        request: what is asked.
        scatter: to be added to W, if there is any: then W is no sum over frames alone.
    """
    rows = max(request.lengths) * len(request.lengths)
    few = shape[-1] == 1 and rows < shape[-2]
    return few and scatter is None and not request.rates.diagonal


def weigh(moments: Moments, rates: Rates, precision: torch.dtype) -> Evaluation:
    """W, B and the derivatives of J.

    The ridge is part of J: W + r tr(W)/d with the relative ridge r, and for B the smaller one of
    `ridges`. Where W is no more than rounding errors of B, a constant keeps it above those, and B
    above those of W. If one of them is zero, or has no inverse, J is not defined and all
    derivatives are zero.

    Args:
        moments: the sums.
        rates: the ridge, and whether covariances are diagonal.
        precision: of the arithmetic that has found the sums.
    """
    count = moments.counts[:2].clamp(min=1)[:, None, None]
    within = moments.within if moments.scatter is None else moments.within + moments.scatter
    covariances = torch.stack([within, moments.between]) / count
    d = covariances.shape[-1]
    if rates.diagonal:
        covariances = torch.diag_embed(covariances.diagonal(dim1=1, dim2=2))
    small = covariances if moments.rows is None else moments.rows / count
    trace = covariances.diagonal(dim1=1, dim2=2).sum(1)
    relative = on_device(ridges(rates.ridge, precision), trace.device)
    noise = (NOISE * torch.finfo(precision).eps) ** 2
    own, other = relative / d * trace, noise / d * trace.flip(0)
    moves = (trace > 0).all()
    level = torch.where(moves, torch.maximum(own, other), 1.0)
    inverse, failed = _inverse(small, level)
    # The ridge is a multiple of the trace, which is a function of the frames as well.
    inverse_trace = inverse.diagonal(dim1=1, dim2=2).sum(1) + (d - small.shape[-1]) / level
    by_trace = relative / d * inverse_trace * (own >= other)
    inverse.diagonal(dim1=1, dim2=2).add_(by_trace[:, None])
    inverse[1].neg_()
    usable = moves & (failed == 0)
    weights = Weights(torch.where(usable, inverse / count, 0.0), moments.rows is not None)
    return Evaluation(
        covariances, failed, moments.counts, moments.short_mean, moments.long_mean, moments.steps,
        weights, moments.saved,
    )  # fmt: skip


def in_float32(weights: Weights) -> Tensor:
    """The matrices for kernels that work in float32; zeros if it cannot hold them all.

    That is so for inputs of about 1e-21.
    """
    single = weights.matrices.to(torch.float32)
    return torch.where(single.isfinite().all(), single, 0.0)


def ridges(ridge: float, precision: torch.dtype) -> tuple[float, float]:
    """What is added to the diagonals of W and B, relative to their mean diagonal.

    >>> ridges(1e-4, torch.float64)
    (0.0001, 1e-08)
    """
    least = NOISE * torch.finfo(precision).eps if ridge > 0 else 0.0
    return max(ridge, least), max(BETWEEN_RIDGE * ridge, least)


def on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """In float64. They are kept, since a copy from the host waits for the GPU."""
    if torch.compiler.is_compiling():
        return torch.tensor(numbers, dtype=torch.float64, device=device)
    return _kept_on_device(numbers, device)


@lru_cache(maxsize=64)
def _kept_on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _inverse(matrices: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Of (2, n, n) matrices plus their levels, and how many of them have none."""
    shifted = matrices.clone()
    shifted.diagonal(dim1=1, dim2=2).add_(level[:, None])
    factor, info = torch.linalg.cholesky_ex(shifted)
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    # Not cholesky_inverse, which a CUDA graph cannot record.
    root = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
    return root.mT @ root, (info != 0).sum()
