"""A collapse meter: is the code still rich, and was every frame usable?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Health:
    """How a UL layer is doing. `str()` of it says in words what is wrong, if anything.

    Attributes:
        objective: J = (log det W - log det B) / 2; lower is better, `nan` if nothing moves.
        short_rank: effective rank of W, between 1 and the number of features (0: nothing moves).
        long_rank: effective rank of B. One that falls towards 1 while `short_rank` stays is a
            collapse: all outputs say the same. B is what the layer saw while the weights were
            changing; for a verdict on a finished network feed its output to a fresh layer.
        dead_units: features that have not varied at all.
        steps: steps learned from so far.
        skipped: positions left out because their values were NaN, infinite, or too large for
            their squares to fit the statistics (1e18 in float32).
        singular: steps without a gradient because W or B had no inverse (only with `ridge=0`).
    """

    objective: float
    short_rank: float
    long_rank: float
    dead_units: int
    features: int
    steps: int
    skipped: int
    singular: int

    @property
    def collapsed(self) -> bool:
        """Whether B has hardly more than one direction: a tenth of the way from 1 to all."""
        return self.long_rank < 1 + 0.1 * (self.features - 1)

    def __str__(self) -> str:
        parts = [
            f"J {self.objective:.3f}, effective rank {self.long_rank:.2f} over the long term and "
            f"{self.short_rank:.2f} over the short term, of {self.features}"
        ]
        if self.steps == 0:
            parts = ["nothing seen yet"]
        elif self.long_rank == 0:
            parts.append("the input does not move: nothing can be learned from it")
        elif self.dead_units:
            parts.append(f"{self.dead_units} of {self.features} features never vary")
        elif self.collapsed:
            parts.append("collapsed: the features repeat each other")
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


def effective_rank(covariance: Tensor) -> float:
    """How many directions a covariance really has, whatever the features' units.

    The exponential of the entropy of the correlation matrix's eigenvalues: d for uncorrelated
    features, 1 if all say the same, 0 if none varies.

    >>> effective_rank(torch.eye(3))
    3.0
    >>> effective_rank(torch.ones(3, 3))
    1.0
    """
    variance = covariance.diagonal()
    alive = variance > 0
    if not bool(alive.any()):
        return 0.0
    deviation = variance[alive].double().sqrt()
    correlation = covariance[alive][:, alive].double() / torch.outer(deviation, deviation)
    share = torch.linalg.eigvalsh(correlation).clamp(min=0)
    share = share / share.sum()
    entropy = -torch.xlogy(share, share).sum()
    return round(float(torch.exp(entropy)), 12)


def log_det_ratio(short_cov: Tensor, long_cov: Tensor, ridge: float) -> float:
    """J = (log det W - log det B) / 2, both with their relative ridge; `nan` if one is zero."""

    def log_det(cov: Tensor) -> Tensor:
        cov = cov.double()
        level = ridge * cov.trace() / len(cov)
        return torch.logdet(cov + level * torch.eye(len(cov), device=cov.device))

    return float(log_det(short_cov) - log_det(long_cov)) / 2
