"""Sums over the frames of one call, and the derivatives of J that follow from them.

With D = y - short-term mean and E = short-term mean - long-term mean of every frame,

    W = mean D D^T,    B = mean E E^T,    J = (log det W - log det B) / 2,

so dJ/dD = D W^-1 / n and dJ/dE = -E B^-1 / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

LongTerm = Literal["stream", "clip", "shared"]
REDUCED_PRECISION = (torch.float32, torch.bfloat16, torch.float16)
NOISE = 16.0  # rounding errors, in units of the last place
# Few frames per feature give ill-conditioned covariances; these are computed in float64.
CAREFUL_VALUES, CAREFUL_FRAMES = 2**18, 8
SMALLEST_TRACE = 1e-72  # of W and B; float32 cannot hold the gradients of smaller ones
# An output that vanishes adds log(ridge of W / ridge of B) / 2 to J. With equal ridges, J would be
# lowest when all outputs but one vanish.
BETWEEN_RIDGE = 1e-4  # of B, relative to that of W


@dataclass(frozen=True)
class Rates:
    """Settings of a layer that its statistics depend on."""

    mu: float
    eps: float
    ridge: float
    long_term: LongTerm = "stream"
    sequences: int = 1  # number of equal groups of streams; "shared" averages over them
    diagonal: bool = False  # keep variances only
    centred: bool = True  # subtract the pull from every gradient


@dataclass(frozen=True)
class Request:
    """Settings of a call.

    Attributes:
        lengths: Number of frames of each clip.
        rates: mu, eps, ridge and the kind of long-term mean.
        largest: Frames with a larger value, or a NaN, at a position are skipped there.
        scale: Factor of the gradient of J.
        processes: Number of processes whose sums are added up; see `torch.pooled`.
        longest: Number of frames of their longest clip, if there are several.
    """

    lengths: tuple[int, ...]
    rates: Rates
    largest: float
    scale: float = 1.0
    processes: int = 1
    longest: int = 0

    @property
    def steps(self) -> int:
        """Number of frames of the longest clip."""
        return max(self.lengths) if self.processes == 1 else self.longest


@dataclass(frozen=True)
class FrameCounts:
    """Number of frames on which the statistics of a call are based."""

    steps: Tensor  # (clips, 1, positions) int64, usable frames of each stream
    counts: Tensor  # (3,) int64: terms of the sums for W and B, and skipped (frame, position) pairs
    short_evidence: Tensor  # (clips * positions,) of the short-term means
    long_evidence: Tensor  # likewise; (positions,) if the long-term mean is shared


@dataclass(frozen=True)
class Moments:
    """Sums over the frames of a call, and the means after its last frames."""

    sums: Tensor  # (2, d, d) float64: of D D^T and of E E^T
    seen: FrameCounts
    short_mean: Tensor  # (clips * positions, d) after the last frame of each clip
    long_mean: Tensor  # likewise; (positions, d) if it is shared
    rows: Tensor | None = None  # (2, n, n) float64: D^T D and E^T E, if `is_by_rows`
    saved: tuple[Tensor, ...] = ()  # tensors that the kernel needs for the gradient
    between: Tensor | None = None  # (1, d, positions) sum of E, if a mean is shared by processes


@dataclass(frozen=True)
class Weights:
    """Derivatives of J: D @ matrices[0] with respect to D, and E @ matrices[1] to E.

    If `by_rows`, they are matrices[0] @ D and matrices[1] @ E, with one row per frame.
    """

    matrices: Tensor  # (2, d, d) or (2, n, n) float64, symmetric
    by_rows: bool


@dataclass(frozen=True)
class Evaluation:
    """The statistics of a call, and the derivatives of their J."""

    covariances: Tensor  # (2, d, d) float64: W and B
    traces: Tensor  # (2,) float64: of W and B
    evidence: Tensor  # (2,) float64: of W and B
    left_out: Tensor  # (2,) int64: skipped (frame, position) pairs; matrices without an inverse
    seen: FrameCounts
    short_mean: Tensor
    long_mean: Tensor
    weights: Weights
    saved: tuple[Tensor, ...]


def working_precision(frames: Tensor) -> torch.dtype:
    """Return the dtype of the arithmetic, whatever the precision of the network."""
    count, d, positions = frames.shape
    return precision_of(frames.dtype, frames.numel(), count * positions, d)


def precision_of(dtype: torch.dtype, values: int, frames: int, features: int) -> torch.dtype:
    """Return the dtype of the arithmetic for a number of values; positions count as frames."""
    small = values <= CAREFUL_VALUES or frames < CAREFUL_FRAMES * features
    return torch.float64 if small else torch.promote_types(dtype, torch.float32)


def averaged_frames(steps: Tensor, rates: Rates) -> Tensor:
    """Return the frames per long-term mean, given those of each stream (clips, ...)."""
    return steps.sum(0, keepdim=True) if rates.long_term == "shared" else steps


def count_frames(steps: Tensor, request: Request, shared: Tensor | None = None) -> FrameCounts:
    """Derive all counts from the usable frames of each stream (clips, 1, positions).

    Args:
        steps: Usable frames of each stream.
        request: Settings of the call.
        shared: (1, 1, positions) frames per long-term mean, if processes share it.
    """
    rates = request.rates
    within = (steps - 1).clamp(min=0).sum()
    number = averaged_frames(steps, rates)
    whole = number if shared is None else shared
    stream = rates.long_term == "stream"
    between = within if stream else torch.where(whole > 1, number, 0).sum()
    skipped = sum(request.lengths) * steps.shape[2] - steps.sum()
    return FrameCounts(
        steps,
        torch.stack([within, between, skipped]),
        -torch.expm1(steps.flatten().double() * math.log1p(-rates.mu)),
        -torch.expm1(whole.flatten().double() * math.log1p(-rates.eps)),
    )


@lru_cache(maxsize=64)
def count_all_frames(request: Request, positions: int, device: torch.device) -> FrameCounts:
    """Return the counts of a call in which all frames are usable; do not write to the tensors."""
    lengths = torch.tensor(request.lengths, device=device)
    steps = lengths.view(-1, 1, 1).repeat(1, 1, positions)
    return count_frames(steps, request)


def by_stream(means: Tensor) -> Tensor:
    """Return (clips, d, positions) means as (clips * positions, d)."""
    return means.mT.reshape(-1, means.shape[1])


def covariance_evidence(request: Request) -> tuple[float, float]:
    """Return the evidence of W and B after the steps of a call."""
    steps, rates = request.steps, request.rates
    return -math.expm1(steps * math.log1p(-rates.mu)), -math.expm1(steps * math.log1p(-rates.eps))


def is_by_rows(frames: Tensor, request: Request, scatter: Tensor | None) -> bool:
    """Return whether frames are so few that inverting D^T D is faster than inverting D D^T.

    Args:
        frames: (..., features, positions).
        request: Settings of the call.
        scatter: Scatter to be added to W, if any; W is then not a sum over frames alone.
    """
    if request.processes > 1:  # their D^T D cannot be added up
        return False
    rows = max(request.lengths) * len(request.lengths)
    features, positions = frames.shape[-2:]
    # Our GPU kernels work with D D^T only; they are faster unless the matrices are very large.
    few = positions == 1 and rows * (4 if frames.is_cuda else 1) < features
    return few and scatter is None and not request.rates.diagonal


def weigh(moments: Moments, request: Request, precision: torch.dtype) -> Evaluation:
    """Compute W, B and the derivatives of J.

    The ridge is part of J: W + r tr(W)/d with the relative ridge r, and for B the smaller one of
    `ridges`. A constant bounds each matrix from below by the rounding errors of the other. If W or
    B is zero (below `SMALLEST_TRACE`) or has no inverse, J is undefined and all derivatives are
    zero.

    Args:
        moments: Sums over the frames.
        request: Settings of the call.
        precision: Precision in which the sums were computed.
    """
    count = moments.seen.counts[:2].clamp(min=1)[:, None, None]
    covariances = moments.sums / count
    d = covariances.shape[-1]
    if request.rates.diagonal:
        covariances = torch.diag_embed(covariances.diagonal(dim1=1, dim2=2))
    small = covariances if moments.rows is None else moments.rows / count
    traces = covariances.diagonal(dim1=1, dim2=2).sum(1)
    of_w, of_b = (ridge / d for ridge in ridges(request.rates.ridge, precision))
    noise = (NOISE * torch.finfo(precision).eps) ** 2 / d
    # Row i: the ridge of matrix i by its own trace on the diagonal, and by the other's beside it.
    levels = on_device((of_w, noise, noise, of_b), traces.device).view(2, 2) * traces
    level = levels.amax(1)
    inverse, info = _inverse(small, level)
    inverse_trace = inverse.diagonal(dim1=1, dim2=2).sum(1)
    if moments.rows is not None:
        inverse_trace = inverse_trace + (d - small.shape[-1]) / level
    # The ridge is a multiple of the trace, which depends on the frames as well.
    by_trace = on_device((of_w, of_b), traces.device) * inverse_trace * (levels.diagonal() == level)
    inverse.diagonal(dim1=1, dim2=2).add_(by_trace[:, None])
    factor = on_device((request.scale, -request.scale), traces.device).view(2, 1, 1) / count
    failed, moves = info != 0, (traces > SMALLEST_TRACE).all()
    usable = moves & ~failed.any()
    weights = Weights(torch.where(usable, inverse * factor, 0.0), moments.rows is not None)
    left_out = torch.stack([moments.seen.counts[2], (failed & moves).sum()])
    seen = on_device(covariance_evidence(request), traces.device)
    evidence = torch.where(moments.seen.counts[:2] > 0, seen, 0)
    return Evaluation(
        covariances,
        traces,
        evidence,
        left_out,
        moments.seen,
        moments.short_mean,
        moments.long_mean,
        weights,
        moments.saved,
    )


def in_float32(weights: Weights) -> Tensor:
    """Return the matrices in float32, or zeros where float32 cannot hold them.

    Inputs of about 1e-21 are too small for it.
    """
    single = weights.matrices.to(torch.float32)
    return torch.where(single.isfinite().all(), single, 0.0)


def ridges(ridge: float, precision: torch.dtype) -> tuple[float, float]:
    """Return what is added to the diagonals of W and B, relative to their mean diagonal.

    >>> ridges(1e-4, torch.float64)
    (0.0001, 1e-08)
    """
    least = NOISE * torch.finfo(precision).eps if ridge > 0 else 0.0
    return max(ridge, least), max(BETWEEN_RIDGE * ridge, least)


def on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return float64 numbers on a device; cached, since copies from the host wait for the GPU."""
    if torch.compiler.is_compiling():
        return torch.tensor(numbers, dtype=torch.float64, device=device)
    return _cached_on_device(numbers, device)


@lru_cache(maxsize=256)
def _cached_on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _inverse(matrices: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return inverses of (2, n, n) matrices plus their levels, and LAPACK's error codes."""
    shifted = matrices.clone()
    shifted.diagonal(dim1=1, dim2=2).add_(level[:, None])
    factor, info = torch.linalg.cholesky_ex(shifted)
    # Not cholesky_inverse: CUDA graphs cannot record it, and it raises if a factor is singular.
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    root = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
    return root.mT @ root, info
