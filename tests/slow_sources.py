"""Three slow and many fast sources, mixed by a matrix of any condition number."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor


@cache
def ill_conditioned(condition: float, steps: int = 10_000, d: int = 50) -> tuple[Tensor, Tensor]:
    """Return mixed signals (steps, d) and the slow sources (steps, 3), float64."""
    rng = np.random.default_rng(0)
    t = np.arange(steps)[:, None]
    sources = np.sin(2 * np.pi * t / np.array([1000, 700, 450]) + np.array([0.3, 1.0, 2.0]))
    signals = np.concatenate([sources, rng.standard_normal((steps, d - 3))], axis=1)
    left, _ = np.linalg.qr(rng.standard_normal((d, d)))
    right, _ = np.linalg.qr(rng.standard_normal((d, d)))
    mixing = (left * np.logspace(0, -np.log10(condition), d)) @ right
    return torch.from_numpy(signals @ mixing), torch.from_numpy(sources)


def read_out_r2(y: Tensor, sources: Tensor) -> float:
    """Return the R2 of a linear read-out, fitted on the first half and scored on the second."""
    half = len(y) // 2
    inputs = torch.cat([y, torch.ones(len(y), 1, dtype=y.dtype)], 1)
    weights = torch.linalg.lstsq(inputs[:half], sources[:half]).solution
    truth = sources[half:]
    error = truth - inputs[half:] @ weights
    return float(1 - error.square().sum() / (truth - truth.mean(0)).square().sum())
