"""A collapse meter: is the code still rich, and was every frame usable?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ullayers.kernels.moments import ridges

# Directions that hold less than this share of the largest are rounding errors of others.
NULL = 1e-10


@dataclass(frozen=True)
class Health:
    """How a UL layer is doing. `str()` of it says in words what is wrong, if anything.

    Attributes:
        objective: J = (log det W - log det B) / 2; lower is better, `nan` if nothing moves.
        rank: effective rank of B against W, 0 to `features`: in how many independent directions the
            output varies over the long term more than within moments. B is what the layer saw while
            the weights were changing; for a verdict on a finished network feed its output to a
            fresh layer.
        directions: how many directions the output has at all; fewer than features that vary is a
            collapse, some repeat what others say.
        dead_units: features that have not varied.
        features: how many there are.
        steps: steps learned from so far.
        skipped: positions left out because their values were NaN, infinite, or too large for
            their squares to fit the statistics (1e18 in float32).
        singular: steps without a gradient because W or B had no inverse.
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
        """Whether features that vary repeat each other."""
        return self.directions < self.features - self.dead_units

    def __str__(self) -> str:
        parts = [f"J {self.objective:.3f}, effective rank {self.rank:.2f} of {self.features}"]
        if self.steps == 0:
            parts = ["nothing seen yet"]
        elif self.dead_units == self.features:
            parts.append("the input does not move: nothing can be learned from it")
        elif self.dead_units:
            parts.append(f"{self.dead_units} of {self.features} features never vary")
        if self.collapsed:
            parts.append(f"collapsed: only {self.directions} independent directions are left")
        if self.skipped:
            parts.append(
                f"{self.skipped} positions with NaN, infinite or huge values were left out"
            )
        if self.singular:
            parts.append(
                f"{self.singular} steps gave no gradient, their covariance had no inverse; "
                "use ridge > 0, fewer features or a smaller mu"
            )
        return "; ".join(parts)


def effective_rank(long_cov: Tensor, short_cov: Tensor) -> tuple[float, int]:
    """The effective rank of B against W, and the number of directions that there are.

    Each independent direction counts by the share b / (w + b) of its variance that is long-term.
    Like J, neither number changes with the units or the basis of the output.

    >>> B, W = torch.eye(3), torch.diag(torch.tensor([1e-6, 1e-6, 1.0]))
    >>> rank, directions = effective_rank(B, W)
    >>> round(rank, 3), directions
    (2.5, 3)
    >>> effective_rank(torch.ones(2, 2), torch.zeros(2, 2))  # two outputs that say the same
    (1.0, 1)
    """
    long_cov, short_cov = long_cov.double(), short_cov.double()
    total = long_cov + short_cov
    alive = total.diagonal() > 0
    if not bool(alive.any()):
        return 0.0, 0
    scale = total.diagonal()[alive].rsqrt()
    values, vectors = torch.linalg.eigh(total[alive][:, alive] * scale[:, None] * scale)
    kept = values > NULL * values[-1]
    white = vectors[:, kept] * values[kept].rsqrt()
    long_part = white.T @ (long_cov[alive][:, alive] * scale[:, None] * scale) @ white
    return round(float(long_part.trace()), 12), int(kept.sum())


def log_det_ratio(short_cov: Tensor, long_cov: Tensor, ridge: float) -> Tensor:
    """J = (log det W - log det B) / 2, both with their relative ridge; `nan` if one is zero."""

    def log_det(cov: Tensor, relative: float) -> Tensor:
        cov = cov.double()
        level = relative * cov.trace() / len(cov)
        return torch.logdet(cov + level * torch.eye(len(cov), dtype=cov.dtype, device=cov.device))

    of_w, of_b = ridges(ridge, torch.float64)
    return (log_det(short_cov, of_w) - log_det(long_cov, of_b)) / 2
