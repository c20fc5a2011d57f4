"""Measures of collapse and of skipped input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ullayers.kernels.moments import ridges

RELATIVE_CUT = 1e-10  # directions below this share of the largest are rounding errors


@dataclass(frozen=True)
class Health:
    """State of a UL layer; `str()` describes problems in words.

    Attributes:
        objective: J = (log det W - log det B) / 2; lower is better, NaN if nothing varies.
        rank: Effective rank of B relative to W, from 0 to `features`: the number of independent
            directions in which the output varies more over the long term than within moments.
            With running statistics B depends on past weights; to evaluate a trained network, feed
            its output to a new layer.
        directions: Number of linearly independent directions in which the output varies. If it is
            below the number of features that vary, the output has collapsed.
        dead_units: Number of features that do not vary.
        features: Number of features.
        steps: Number of steps learned from.
        skipped: Number of positions skipped because of values that are NaN, infinite, or too large
            for their squares to fit the statistics (1e18 in float32).
        singular: Number of steps without a gradient because W or B had no inverse.
    """

    objective: float
    rank: float
    directions: int
    dead_units: int
    features: int
    steps: int
    skipped: int
    singular: int

    @property
    def collapsed(self) -> bool:
        """Whether features that vary are linearly dependent."""
        return self.directions < self.features - self.dead_units

    def __str__(self) -> str:
        parts = [f"J {self.objective:.3f}, effective rank {self.rank:.2f} of {self.features}"]
        if self.steps == 0:
            parts = ["no frames yet"]
        elif self.dead_units == self.features:
            parts.append("the input does not vary, so nothing can be learned from it")
        elif self.dead_units:
            parts.append(f"{self.dead_units} of {self.features} features do not vary")
        if self.collapsed:
            directions = _counted(self.directions, "independent direction")
            parts.append(f"collapsed: only {directions}")
        if self.skipped:
            skipped = _counted(self.skipped, "position")
            parts.append(f"{skipped} with NaN, infinite or huge values skipped")
        if self.singular:
            parts.append(
                f"{_counted(self.singular, 'step')} had no gradient because a covariance had no "
                "inverse; use ridge > 0, fewer features or a smaller mu"
            )
        return "; ".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def effective_rank(long_cov: Tensor, short_cov: Tensor) -> tuple[float, int]:
    """Return the effective rank of B relative to W, and the number of independent directions.

    Each independent direction counts by its share b / (w + b) of long-term variance. Like J, both
    numbers are invariant to scaling and to a change of basis of the output.

    Args:
        long_cov: (d, d) long-term covariance B.
        short_cov: (d, d) short-term covariance W.

    >>> B, W = torch.eye(3), torch.diag(torch.tensor([1e-6, 1e-6, 1.0]))
    >>> rank, directions = effective_rank(B, W)
    >>> round(rank, 3), directions
    (2.5, 3)
    >>> effective_rank(torch.ones(2, 2), torch.zeros(2, 2))  # two equal outputs
    (1.0, 1)
    """
    # As in numpy.linalg.matrix_rank; the entries are rounded to the precision of the statistics.
    cut = max(RELATIVE_CUT, len(long_cov) * torch.finfo(long_cov.dtype).eps)
    long_cov, short_cov = long_cov.double(), short_cov.double()
    total = long_cov + short_cov
    alive = total.diagonal() > 0
    if not bool(alive.any()):
        return 0.0, 0
    scale = total.diagonal()[alive].rsqrt()
    values, vectors = torch.linalg.eigh(total[alive][:, alive] * scale[:, None] * scale)
    kept = values > cut * values[-1]
    white = vectors[:, kept] * values[kept].rsqrt()
    long_part = white.T @ (long_cov[alive][:, alive] * scale[:, None] * scale) @ white
    return round(float(long_part.trace()), 12), int(kept.sum())


def log_det_ratio(short_cov: Tensor, long_cov: Tensor, ridge: float) -> Tensor:
    """Return J = (log det W - log det B) / 2, with ridges; NaN if W or B is zero."""

    def log_det(cov: Tensor, relative: float) -> Tensor:
        cov = cov.double()
        level = relative * cov.trace() / len(cov)
        return torch.logdet(cov + level * torch.eye(len(cov), dtype=cov.dtype, device=cov.device))

    of_w, of_b = ridges(ridge, torch.float64)
    return (log_det(short_cov, of_w) - log_det(long_cov, of_b)) / 2
