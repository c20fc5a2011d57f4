"""Moments of sequences, and the slowest linear functions of their features.

The solver needs two matrices: how the features vary, and how they step from row to row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpocon, dpotrf, dtpqrt

from ullayers.errors import Error
from ullayers.exact.markov import fix_signs

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

TILE_VALUES = 100_000  # values processed at once: 800 kB, which fits a cache
QR_COLUMNS = 8  # columns per block of a QR factorisation
TOL = 1e-12  # directions narrower than this, relative to the widest, are ignored
EPS = float(np.finfo(np.float64).eps)
# Below these reciprocal condition numbers, sums of squares are replaced by QR factors. At the
# limit, a mean squared step has a relative error of 1e-5.
SPREAD_RCOND, STEP_RCOND = 1e-10, 5e-14


class RankError(Error):
    """The input varies in fewer directions than the number of components."""


class Moments(NamedTuple):
    """Moments of all rows so far.

    `spread` and `steps` are upper triangles of symmetric matrices or, if `rooted`, triangles R with
    R^T R equal to these. Roots cost more, but keep directions that a sum of squares loses to
    rounding.
    """

    weight: float  # total weight of the rows
    step_weight: float  # total weight of the steps
    mean: Floats
    last: Floats  # the latest row
    spread: Floats  # scatter of the rows about their mean
    steps: Floats  # scatter of the steps
    rooted: bool = False

    def to_roots(self) -> Moments:
        """Return the same moments as roots."""
        if self.rooted:
            return self
        return self._replace(spread=_root(self.spread), steps=_root(self.steps), rooted=True)

    def trustworthy(self) -> bool:
        """Return whether every direction that varies is resolved."""
        limits = ((self.spread, SPREAD_RCOND), (self.steps, STEP_RCOND))
        return self.rooted or all(_rcond(squares) > limit for squares, limit in limits)


class Solution(NamedTuple):
    """The slowest outputs, scaled as in Eq. 5."""

    components: Floats
    mean: Floats
    eigenvalues: Floats
    rank: int  # number of directions in which the features vary


def absorb(m: Moments, z: Floats, starts: Bools, half_life: float | None = None) -> Moments:
    """Return the moments with more rows.

    Args:
        m: The moments before.
        z: (rows, features), which follow the rows before.
        starts: (rows,) whether a row starts a sequence, so that no step leads to it.
        half_life: Number of rows after which the weight of a row has halved.
    """
    decay, weights = 1.0, np.ones(len(z))
    if half_life is not None:
        decay = 2 ** (-len(z) / half_life)
        weights = np.exp2(-np.arange(len(z))[::-1] / half_life)
    old, new = m.weight * decay, float(weights.sum())
    share = new / (old + new)
    mean = _mean(z, weights / new)
    shrink = decay**0.5 if m.rooted else decay
    shift = np.sqrt(old * share) * (mean - m.mean)  # its square is added by merging two means
    roots = None if half_life is None else np.sqrt(weights)
    spread, steps = _add_rows(
        _add(m.spread * shrink, shift[None], m.rooted), m.steps * shrink, m, mean, z, starts, roots
    )
    return Moments(
        weight=old + new,
        step_weight=m.step_weight * decay + float(weights @ ~starts),
        mean=m.mean + share * (mean - m.mean),
        last=z[-1].copy(),
        spread=spread,
        steps=steps,
        rooted=m.rooted,
    )


def _add_rows(
    spread: Floats,
    steps: Floats,
    m: Moments,
    mean: Floats,
    z: Floats,
    starts: Bools,
    roots: Floats | None,
) -> tuple[Floats, Floats]:
    """Add the scatter of the rows and of their steps, tile by tile.

    Args:
        spread: Scatter of the rows before.
        steps: Scatter of the steps before.
        m: The moments before.
        mean: Mean of the new rows.
        z: The new rows.
        starts: Whether a row starts a sequence.
        roots: Square roots of the rows' weights; None if all are 1.
    """
    size = max(TILE_VALUES // len(mean) // 8 * 8, len(mean))
    buffer = np.empty((min(size, len(z)), len(mean)))
    for i in range(0, len(z), size):
        here = slice(i, i + size)
        tile = z[here]
        rows = buffer[: len(tile)]
        factor = None if roots is None else roots[here, None]
        np.subtract(tile[1:], tile[:-1], out=rows[1:])
        rows[0] = tile[0] - (z[i - 1] if i else m.last)
        rows[starts[here]] = 0.0
        steps = _add(steps, rows if factor is None else rows * factor, m.rooted)
        _subtract_row(tile, mean, out=rows)
        spread = _add(spread, rows if factor is None else rows * factor, m.rooted)
    return spread, steps


def solve(m: Moments, n_components: int, tol: float) -> Solution:
    """Return the slowest outputs, from the moments alone.

    Args:
        m: The moments.
        n_components: Number of outputs.
        tol: Directions narrower than this, relative to the widest, are ignored.

    Raises:
        RankError: If the features vary in fewer directions than `n_components`.
    """
    scale = np.linalg.norm(m.spread, axis=0) if m.rooted else np.sqrt(np.diagonal(m.spread))
    scale = np.where(scale > 0, scale, 1.0)
    whiten = _whiten(m, scale, tol) if m.rooted else None
    rank = len(scale) if whiten is None else whiten.shape[1]
    if n_components > rank:
        reason = "" if rank else ", every feature is constant"
        limit = f"rank_={rank} of input with n_features={len(scale)}{reason}"
        raise RankError(f"expected at most {limit}, got n_components={n_components}")
    if whiten is None:
        units = np.outer(scale, scale)
        values, vectors = eigh(
            m.steps / units,
            m.spread / units,
            lower=False,
            subset_by_index=(0, n_components - 1),
            check_finite=False,
        )
    else:
        values, vectors = _slowest((m.steps / scale) @ whiten, n_components)
        vectors = whiten @ vectors
    doubled = np.maximum(values * (m.weight / m.step_weight), EPS)  # 2 lambda; 0 has no optimum
    weights = (vectors / scale[:, None]).T * np.sqrt(m.weight / doubled)[:, None]
    return Solution(fix_signs(weights.T).T, m.mean, doubled / 2, rank)


def slowest_components(sequences: Sequence[Floats], n_components: int) -> Floats:
    """Return the `components_` of `SlowFeatures`, which needs scikit-learn, for a few sequences.

    Args:
        sequences: (rows, features) each, at least one of two rows; copied into one array.
        n_components: Number of outputs.

    Raises:
        RankError: If the features vary in fewer directions than `n_components`.
        ValueError: If there are no steps, or values are not finite.

    Example:
        >>> slow, fast = np.sin(np.arange(200) / 30), np.cos(np.arange(200) / 3)
        >>> rows = np.column_stack([slow + fast, slow - fast])
        >>> weights = slowest_components([rows[:90], rows[90:]], 1)
        >>> bool(abs(weights[0, 0] / weights[0, 1] - 1) < 0.1)
        True
    """
    rows = np.concatenate(sequences)
    lengths = [len(sequence) for sequence in sequences]
    starts = np.isin(np.arange(len(rows)), np.cumsum([0, *lengths]))
    if starts.all() or not np.isfinite(np.vdot(rows, rows)):
        raise ValueError("expected a sequence of two rows or more, and finite values")
    none = np.zeros(rows.shape[1])
    before = Moments(0.0, 0.0, none, none, np.diag(none), np.diag(none))
    moments = absorb(before, rows, starts)
    if not moments.trustworthy():
        moments = absorb(before.to_roots(), rows, starts)
    return solve(moments, n_components, TOL).components


def _mean(z: Floats, shares: Floats) -> Floats:
    """Return the mean of the rows, with weights that sum to one."""
    mean: Floats = shares @ z
    # With a large offset the sum is rounded; relative to the first row, a constant stays exact.
    near = np.abs(mean - z[0]) <= 1e-9 * np.abs(mean)
    if near.any():
        mean[near] = z[0, near] + shares @ (z[:, near] - z[0, near])
    return mean


def _subtract_row(z: Floats, row: Floats, out: Floats) -> None:
    # Numpy loops over rows here. Eight short rows viewed as one long row are three times as fast.
    if len(z) % 8 == 0:
        z = z.reshape(-1, 8 * row.size)
        out = out.reshape(-1, 8 * row.size)
        row = np.tile(row, 8)
    np.subtract(z, row, out=out)


def _add(total: Floats, rows: Floats, rooted: bool) -> Floats:
    """Add the scatter of rows to a sum of squares, or to a root."""
    if rooted:  # dtpqrt uses the triangular shape: three times as fast as a full QR
        return np.asarray(dtpqrt(0, min(QR_COLUMNS, len(total)), total, rows)[0])
    return dsyrk(1.0, rows.T, 1.0, total, overwrite_c=True)


def _root(squares: Floats) -> Floats:
    """Return a triangle R with R^T R equal to a sum of squares."""
    scale = np.sqrt(np.diagonal(squares))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = eigh(squares / np.outer(scale, scale), lower=False)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T * scale
    return np.asarray(np.linalg.qr(root, mode="r"))


def _rcond(squares: Floats) -> float:
    """Return the reciprocal condition number after scaling to unit diagonal."""
    scale = np.sqrt(np.diagonal(squares))
    if not scale.all():
        return 0.0
    unit = squares / np.outer(scale, scale).T  # column order, as BLAS returned the squares
    sizes = np.abs(unit)  # zero below the diagonal
    norm = (sizes.sum(axis=0) + sizes.sum(axis=1)).max() - 1
    factor, failed = dpotrf(unit, overwrite_a=True)
    return 0.0 if failed else float(dpocon(factor, norm)[0])


def _whiten(m: Moments, scale: Floats, tol: float) -> Floats:
    """Return directions of unit spread, without null directions."""
    _, sizes, directions = np.linalg.svd(m.spread / scale, full_matrices=False)
    # Null directions are below `tol` of the largest, or below the rounding error of an offset.
    offset = np.abs(m.mean) * (np.sqrt(m.weight) / scale)
    noise = 8 * EPS * np.linalg.norm(directions * offset, axis=1)
    keep = sizes > np.maximum(tol * sizes[0], noise)
    return np.asarray((directions[keep] / sizes[keep, None]).T)


def _slowest(root: Floats, n_components: int) -> tuple[Floats, Floats]:
    """Return the smallest eigenpairs of root^T root; small eigenvalues are accurate too."""
    _, sizes, turn = np.linalg.svd(np.linalg.qr(root, mode="r"))
    sizes = np.concatenate([sizes, np.zeros(root.shape[1] - len(sizes))])
    return sizes[::-1][:n_components] ** 2, turn[::-1][:n_components].T
