"""What the frames of one call sum up to, and the derivatives of J that follow from the sums.

With D = y - short-term mean and E = short-term mean - long-term mean of every frame,

    W = mean D D^T,    B = mean E E^T,    J = (log det W - log det B) / 2,

so dJ/dD = D W^-1 / n and dJ/dE = -E B^-1 / n.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ullayers.kernels.state import Rates

NOISE = 16.0  # deviations below this many rounding errors of the other kind carry no information


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
    steps: Tensor | None = None  # (clips, 1, positions), frames of a stream; None: all
    rows: Tensor | None = None  # (2, n, n) float64: D^T D and E^T E, if frames are fewer than d
    scatter: Tensor | None = None  # (d, d) float64, to be added to `within`
    saved: tuple[Tensor, ...] = ()  # what a kernel wants back for the gradient


@dataclass(frozen=True)
class Weights:
    """The derivatives of J: D @ matrices[0] by D, and E @ matrices[1] by E.

    If `by_rows`, they are matrices[0] @ D and matrices[1] @ E, with a row for each frame.
    """

    matrices: Tensor  # (2, d, d) or (2, n, n) float64, symmetric
    by_rows: bool
    covariances: Tensor  # (2, d, d) float64: W and B
    singular: Tensor  # () int64: how many of W and B have no inverse


def weigh(moments: Moments, rates: Rates, precision: torch.dtype) -> Weights:
    """W, B and the derivatives of J.

    The ridge is part of J: W + r tr(W)/d with the relative ridge r, and likewise B. Where W is no
    more than rounding errors of B, it is kept above those, and B above those of W. If one of them
    is zero, or has no inverse, J is not defined and all derivatives are zero.

    Args:
        moments: the sums.
        rates: the ridge, and whether covariances are diagonal.
        precision: of the arithmetic that has found the sums.
    """
    count = moments.counts[:2].clamp(min=1).double()[:, None, None]
    within = moments.within if moments.scatter is None else moments.within + moments.scatter
    covariances = torch.stack([within, moments.between]) / count
    d = covariances.shape[-1]
    if rates.diagonal:
        covariances = torch.diag_embed(covariances.diagonal(dim1=1, dim2=2))
    by_rows = moments.rows is not None and not rates.diagonal
    small = moments.rows / count if by_rows and moments.rows is not None else covariances
    trace = covariances.diagonal(dim1=1, dim2=2).sum(1)
    noise = (NOISE * torch.finfo(precision).eps) ** 2
    own, other = rates.ridge / d * trace, noise / d * trace.flip(0)
    moves = (trace > 0).all()
    level = torch.where(moves, torch.maximum(own, other), 1.0)
    inverse, failed = _inverse(small, level)
    inverse_trace = inverse.diagonal(dim1=1, dim2=2).sum(1) + (d - small.shape[-1]) / level
    # The level is a multiple of one of the two traces, which are functions of D and E as well.
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64, device=trace.device)
    follows_own = (own >= other).double()
    by_own = rates.ridge / d * follows_own * sign * inverse_trace
    by_other = noise / d * (1 - follows_own) * sign * inverse_trace
    shift = by_own + by_other.flip(0)
    eye = torch.eye(small.shape[-1], dtype=torch.float64, device=trace.device)
    matrices = sign[:, None, None] * inverse + shift[:, None, None] * eye
    usable = moves & ~failed.any()
    matrices = torch.where(usable, matrices / count, 0.0)
    return Weights(matrices, by_rows, covariances, failed.sum())


def _inverse(matrices: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Of (2, n, n) matrices plus their levels, and which of them have none."""
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    factor, info = torch.linalg.cholesky_ex(matrices + level[:, None, None] * eye)
    failed = info != 0
    factor = torch.where(failed[:, None, None], eye, factor)
    return torch.cholesky_inverse(factor), failed
