"""Three slow sources among fast ones, and how well they are found again."""

from __future__ import annotations

import numpy as np

from ullayers.exact.slow_features import Floats

SLOW = 3  # sources
PERIODS = np.array([2500.0, 1700.0, 1100.0])


def slow_sources(n_rows: int) -> Floats:
    """(rows, 3) three sines."""
    t = np.arange(n_rows)[:, None]
    return np.asarray(np.sin(2 * np.pi * t / PERIODS + np.array([0.1, 0.5, 1.0])))


def mixture(n_rows: int, n_features: int, condition: float | None = None) -> Floats:
    """The slow sources and white noises behind a mixing: Gaussian, or of a given condition."""
    rng = np.random.default_rng(0)
    fast = rng.standard_normal((n_rows, n_features - SLOW))
    mixing = rng.standard_normal((n_features, n_features))
    if condition is not None:
        left, _, right = np.linalg.svd(mixing)
        mixing = (left * np.logspace(0, -np.log10(condition), n_features)) @ right
    return np.hstack([slow_sources(n_rows), fast]) @ mixing


def read_out_r2(features: Floats) -> float:
    """Of a linear read-out of the sources, the worst of them.

    It is fitted on the first half and scored on the second. What is constant tells nothing, and
    what is no number says so.

    >>> read_out_r2(slow_sources(9000)) > 0.9999
    True
    """
    truth, half = slow_sources(len(features)), len(features) // 2
    spread = features.std(axis=0)
    known = np.column_stack([features / np.where(spread > 0, spread, 1), np.ones(len(features))])
    if not np.isfinite(known).all():
        return float("nan")
    weights = np.linalg.lstsq(known[:half], truth[:half], rcond=None)[0]
    error = ((truth[half:] - known[half:] @ weights) ** 2).sum(axis=0)
    total = ((truth[half:] - truth[half:].mean(axis=0)) ** 2).sum(axis=0)
    return float((1 - error / total).min())
