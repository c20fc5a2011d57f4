"""Mixtures of three slow sources with fast ones, and the score of recovering the slow ones."""

from __future__ import annotations

import numpy as np

from ullayers.exact.slow_features import Floats

SLOW = 3  # number of slow sources
PERIODS = np.array([2500.0, 1700.0, 1100.0])


def slow_sources(n_rows: int) -> Floats:
    """Return three sines, (rows, 3)."""
    t = np.arange(n_rows)[:, None]
    return np.asarray(np.sin(2 * np.pi * t / PERIODS + np.array([0.1, 0.5, 1.0])))


def mixture(n_rows: int, n_features: int, condition: float | None = None) -> Floats:
    """Return slow sources and white noise, mixed linearly.

    Args:
        n_rows: Number of rows.
        n_features: Number of features, and of sources.
        condition: Condition number of the mixing matrix; None for a Gaussian matrix.
    """
    rng = np.random.default_rng(0)
    fast = rng.standard_normal((n_rows, n_features - SLOW))
    mixing = rng.standard_normal((n_features, n_features))
    if condition is not None:
        left, _, right = np.linalg.svd(mixing)
        mixing = (left * np.logspace(0, -np.log10(condition), n_features)) @ right
    return np.hstack([slow_sources(n_rows), fast]) @ mixing


def read_out_r2(features: Floats) -> float:
    """Return the R2 of a linear read-out of the slow sources, of the worst of them.

    The read-out is fitted on the first half of the rows and scored on the second half. Features
    that are not finite give NaN.

    >>> read_out_r2(slow_sources(9000)) > 0.9999
    True
    """
    truth = slow_sources(len(features))
    half = len(features) // 2
    spread = features.std(axis=0)
    scaled = features / np.where(spread > 0, spread, 1)  # constant features have no spread
    inputs = np.column_stack([scaled, np.ones(len(features))])
    if not np.isfinite(inputs).all():
        return float("nan")
    weights = np.linalg.lstsq(inputs[:half], truth[:half], rcond=None)[0]
    error = ((truth[half:] - inputs[half:] @ weights) ** 2).sum(axis=0)
    total = ((truth[half:] - truth[half:].mean(axis=0)) ** 2).sum(axis=0)
    return float((1 - error / total).min())
