"""Slow features of sequences: the paper's closed form, restricted to linear functions of the input.

Two matrices are kept, how the features vary and how they step; the solver eats these, never data.
Rows are taken up in blocks whose edges lie at fixed row counts of the stream, whatever chunks they
arrive in, so that `partial_fit` over any chunks forms the same sums in the same order as `fit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import comb
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpocon, dpotrf, dtpqrt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.validation import assert_all_finite, validate_data

from ullayers.errors import UserError
from ullayers.exact.markov import fix_signs

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = tuple[Floats, Bools]  # rows, and which of them no step leads to

BLOCK, TILE = 2**21, 100_000  # values kept waiting, and values worked on at once: 16 MB, 800 kB
QR_BLOCK = 8  # columns
EPS = float(np.finfo(np.float64).eps)
# Beyond these, sums of squares give way to QR factors. A mean squared step is then 1e-5 off.
SPREAD_RCOND, STEP_RCOND = 1e-10, 5e-14


class RankError(UserError):
    """The input varies in fewer directions than there are components asked for."""


class Moments(NamedTuple):
    """What is known of the rows so far.

    `spread` and `steps` are sums of squares, of the rows about their mean and of their steps: the
    upper triangle of a symmetric matrix or, if `rooted`, a triangle R with R^T R equal to it. Roots
    cost more, and keep directions that rounding would drown in a sum of squares.
    """

    weight: float
    step_weight: float
    mean: Floats
    last: Floats
    spread: Floats
    steps: Floats
    rooted: bool = False

    def to_roots(self) -> Moments:
        """Return the same moments as roots."""
        if self.rooted:
            return self
        return self._replace(spread=_root(self.spread), steps=_root(self.steps), rooted=True)

    def trustworthy(self) -> bool:
        """Whether every direction that varies is resolved."""
        limits = ((self.spread, SPREAD_RCOND), (self.steps, STEP_RCOND))
        return self.rooted or all(_rcond(squares) > limit for squares, limit in limits)


class Solution(NamedTuple):
    """The slowest outputs, scaled as Eq. 5, and the number of directions they were chosen from."""

    components: Floats
    mean: Floats
    eigenvalues: Floats
    rank: int


def absorb(m: Moments, z: Floats, starts: Bools, half_life: float | None = None) -> Moments:
    """Add the rows `z`; `starts` marks the rows that no step leads to."""
    decay, weights = 1.0, np.ones(len(z))
    if half_life is not None:
        decay, weights = 2 ** (-len(z) / half_life), np.exp2(-np.arange(len(z))[::-1] / half_life)
    old, old_steps, new = m.weight * decay, m.step_weight * decay, float(weights.sum())
    mean, share = _mean(z, weights / new), new / (old + new)
    shrink = decay**0.5 if m.rooted else decay
    link = np.sqrt(old * share) * (mean - m.mean)  # merging two means adds this, squared
    spread, steps = _add(m.spread * shrink, link[None], m.rooted), m.steps * shrink
    size = max(TILE // len(mean) // 8 * 8, len(mean))
    buffer = np.empty((min(size, len(z)), len(mean)))
    for i in range(0, len(z), size):
        tile, here = z[i : i + size], slice(i, i + size)
        rows, root = (
            buffer[: len(tile)],
            None if half_life is None else np.sqrt(weights[here, None]),
        )
        np.subtract(tile[1:], tile[:-1], out=rows[1:])
        rows[0] = tile[0] - (z[i - 1] if i else m.last)
        rows[starts[here]] = 0.0
        steps = _add(steps, rows if root is None else rows * root, m.rooted)
        _subtract_row(tile, mean, out=rows)
        spread = _add(spread, rows if root is None else rows * root, m.rooted)
    totals = old + new, old_steps + float(weights @ ~starts)
    return Moments(*totals, m.mean + share * (mean - m.mean), z[-1].copy(), spread, steps, m.rooted)


def solve(m: Moments, n_components: int, tol: float) -> Solution:
    """Find the slowest outputs from the moments alone."""
    scale = np.linalg.norm(m.spread, axis=0) if m.rooted else np.sqrt(np.diagonal(m.spread))
    scale = np.where(scale > 0, scale, 1.0)
    whiten = _whiten(m, scale, tol) if m.rooted else None
    rank = len(scale) if whiten is None else whiten.shape[1]
    if n_components > rank:
        reason = "" if rank else ", every feature is constant"
        limit = f"rank_={rank} of input with n_features={len(scale)}{reason}"
        raise RankError(f"expected at most {limit}, got n_components={n_components}")
    if whiten is None:
        units, some = np.outer(scale, scale), (0, n_components - 1)
        pencil = m.steps / units, m.spread / units
        values, vectors = eigh(*pencil, lower=False, subset_by_index=some, check_finite=False)
    else:
        values, vectors = _slowest((m.steps / scale) @ whiten, n_components)
        vectors = whiten @ vectors
    doubled = np.maximum(values * (m.weight / m.step_weight), EPS)  # 2 lambda; zero has no optimum
    weights = (vectors / scale[:, None]).T * np.sqrt(m.weight / doubled)[:, None]
    return Solution(fix_signs(weights.T).T, m.mean, doubled / 2, rank)


def _mean(z: Floats, shares: Floats) -> Floats:
    mean: Floats = shares @ z
    # Beside a large offset the sum rounds; counted from the first row, a constant stays exact.
    near = np.abs(mean - z[0]) <= 1e-9 * np.abs(mean)
    if near.any():
        mean[near] = z[0, near] + shares @ (z[:, near] - z[0, near])
    return mean


def _subtract_row(z: Floats, row: Floats, out: Floats) -> None:
    # Numpy loops row by row here. Eight short rows seen as one long row are three times as fast.
    if len(z) % 8 == 0:
        z, row, out = z.reshape(-1, 8 * row.size), np.tile(row, 8), out.reshape(-1, 8 * row.size)
    np.subtract(z, row, out=out)


def _add(total: Floats, rows: Floats, rooted: bool) -> Floats:
    if rooted:  # made for a triangle above rows: thrice as fast as a QR of all of it
        return np.asarray(dtpqrt(0, min(QR_BLOCK, len(total)), total, rows)[0])
    return dsyrk(1.0, rows.T, 1.0, total, overwrite_c=True)


def _root(squares: Floats) -> Floats:
    scale = np.sqrt(np.diagonal(squares))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = eigh(squares / np.outer(scale, scale), lower=False)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T * scale
    return np.asarray(np.linalg.qr(root, mode="r"))


def _rcond(squares: Floats) -> float:
    """Reciprocal condition number at unit diagonal: units must not count."""
    scale = np.sqrt(np.diagonal(squares))
    if not scale.all():
        return 0.0
    unit = squares / np.outer(scale, scale).T  # in the order of columns, as BLAS gave the squares
    sizes = np.abs(unit)  # nothing is below the diagonal
    norm = (sizes.sum(axis=0) + sizes.sum(axis=1)).max() - 1
    factor, failed = dpotrf(unit, overwrite_a=True)
    return 0.0 if failed else float(dpocon(factor, norm)[0])


def _whiten(m: Moments, scale: Floats, tol: float) -> Floats:
    """Directions of unit spread; null directions are left out."""
    _, sizes, directions = np.linalg.svd(m.spread / scale, full_matrices=False)
    # Null is what is below `tol` of the largest, or no more than a large offset's rounding error.
    offset = np.abs(m.mean) * (np.sqrt(m.weight) / scale)
    noise = 8 * EPS * np.linalg.norm(directions * offset, axis=1)
    keep = sizes > np.maximum(tol * sizes[0], noise)
    return np.asarray((directions[keep] / sizes[keep, None]).T)


def _slowest(root: Floats, n_components: int) -> tuple[Floats, Floats]:
    """Smallest eigenvalues and vectors of root^T root, accurate however small they are."""
    _, sizes, turn = np.linalg.svd(np.linalg.qr(root, mode="r"))
    sizes = np.concatenate([sizes, np.zeros(root.shape[1] - len(sizes))])
    return sizes[::-1][:n_components] ** 2, turn[::-1][:n_components].T


def _is_sequences(X: Any) -> bool:
    return isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) == 2


def _without_graph(X: Any) -> Any:
    """A tensor that requires gradients, as one that does not; numpy would refuse it."""
    return X.detach() if getattr(X, "requires_grad", False) else X


def _starts(lengths: ArrayLike, n_rows: int) -> Bools:
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or not (sizes > 0).all():
        raise ValueError(f"expected lengths to be positive whole numbers, got {lengths!r}")
    if sizes.sum() != n_rows:
        raise ValueError(f"expected lengths that add up to {n_rows} rows, got {sizes.sum()}")
    return np.bincount(np.cumsum(sizes) - sizes, minlength=n_rows) > 0


def _check_magnitude(rows: Floats, total: float) -> None:
    if not np.isfinite(total):
        assert_all_finite(rows, input_name="X")
        raise ValueError(f"expected values whose squares add up, got {np.abs(rows).max():.3g}")


class SlowFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Slow feature analysis: the directions of the input that change least from row to row.

    Minimises J = E||y_t - y_{t-1}||^2 - log det cov(y) over linear functions y of the input. As in
    Eq. 5 of the paper, every output has mean squared step 1 and variance 1 / (2 lambda), where
    2 lambda is its mean squared step at unit variance. `fit` and `partial_fit` take

    - an array (rows, features): one sequence. In `partial_fit` it goes on where the array of the
      call before ended, and the step between the two counts;
    - a list or tuple of such arrays, or an array with `lengths`: whole sequences. No step is
      counted over a boundary, nor into or out of the call: an array in the next call starts anew;
    - in `fit`, an iterator: its items go to `partial_fit` one by one, so memory stays bounded.

    Input that is refused raises `ValueError` and changes nothing. Constant, duplicate, badly
    scaled or nearly dependent features need no preparation. A direction that never changes inside
    a sequence but differs between sequences would drive J to minus infinity: its mean squared
    step is taken as 2.2e-16 of its variance, so it comes first, with standard deviation 6.7e7.

    Args:
        n_components: Number of outputs.
        degree: Use all monomials of the input up to this degree as features.
        half_life: Number of rows after which a row counts half. None: all rows count the same.
        tol: Directions narrower than `tol` times the widest, at unit variance of every feature,
            are null and left out. None: 1e-12.

    Attributes:
        components_, mean_: Outputs are (features - mean_) @ components_.T. The largest weight of
            each component is positive.
        eigenvalues_, objective_: Lambda of each output, ascending; J = sum(1 + log(2 lambda)).
        rank_: Number of directions in which the features vary.
        origin_: First row seen. With degree > 1 the features are the monomials of X - origin_.
        n_features_in_, n_samples_seen_: Numbers of input features, and of rows seen.

    Examples:
        >>> import numpy as np
        >>> from ullayers.exact.slow_features import SlowFeatures
        >>> slow, noise = np.sin(np.arange(2000) / 100), np.random.default_rng(0).normal(size=2000)
        >>> X = np.column_stack([slow + noise, slow - 2 * noise])
        >>> y = SlowFeatures(n_components=1).fit_transform(X)
        >>> print(f"{abs(np.corrcoef(y.T, slow)[0, 1]):.4f}, {np.square(np.diff(y.T)).mean():.4f}")
        1.0000, 1.0000
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        degree: int = 1,
        half_life: float | None = None,
        tol: float | None = None,
    ) -> None:
        self.n_components, self.degree = n_components, degree
        self.half_life, self.tol = half_life, tol

    def _reset(self) -> None:
        for name in ("n_features_in_", "feature_names_in_", "origin_"):
            self.__dict__.pop(name, None)
        self.n_samples_seen_ = self._n_steps = self._n_waiting = 0
        self._waiting: list[Rows] = []
        self._moments: Moments | None = None
        self._solution: Solution | None = None
        self._open = False  # whether the next array goes on with the sequence before it
        self._accumulated = self.degree, self.half_life
        self._asked: tuple[int, float | None] | None = None  # what the solution is the answer to

    def fit(self, X: Any, y: object = None, lengths: ArrayLike | None = None) -> Self:
        """Learn from `X` alone; see the class for what it may be. `y` is ignored."""
        with self._all_or_nothing():
            self._reset()
            streamed = isinstance(X, Iterator)
            for item in X if streamed else [X]:
                self._take(item, lengths, copy=streamed)
            if not self.__sklearn_is_fitted__():
                raise ValueError(f"expected consecutive rows, got n_samples={self.n_samples_seen_}")
            self._moments, self._waiting, self._n_waiting = self._with_waiting(), [], 0
            self._solved()
        return self

    def partial_fit(self, X: Any, y: object = None, lengths: ArrayLike | None = None) -> Self:
        """Learn from `X` too. The eigenproblem waits until its solution is asked for."""
        with self._all_or_nothing():
            if not hasattr(self, "n_samples_seen_"):
                self._reset()
            self._take(X, lengths)
        return self

    def transform(self, X: Any) -> Any:
        """Return the slow features of each row; if `X` is a list of sequences, a list of them."""
        solution = self._solved()
        if isinstance(X, Iterator):
            raise ValueError("expected an array or a list of arrays, got an iterator, now spent")
        if _is_sequences(X):
            return [self.transform(sequence) for sequence in X]
        kinds = (np.float64, np.float32)
        rows = validate_data(self, _without_graph(X), reset=False, dtype=kinds)
        return (self._expand(rows) - solution.mean) @ solution.components.T

    # The eigenproblem is solved when one of these is first asked for.
    components_ = property(lambda self: self._solved().components)
    mean_ = property(lambda self: self._solved().mean)
    eigenvalues_ = property(lambda self: self._solved().eigenvalues)
    objective_ = property(lambda self: float(np.sum(1 + np.log(2 * self._solved().eigenvalues))))
    rank_ = property(lambda self: self._solved().rank)
    _n_features_out = property(lambda self: len(self._solved().components))

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "_n_steps", 0) > 0

    def _solved(self) -> Solution:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("SlowFeatures is not fitted: it has seen no two consecutive rows")
        asked = self.n_components, self.tol
        if self._solution is None or self._asked != asked:
            self._check_parameters()
            moments = self._with_waiting()
            # A cut of the user's own needs the widths of all directions, which roots give.
            moments = moments if self.tol is None else moments.to_roots()
            self._solution = solve(moments, self.n_components, self.tol or 1e-12)
            self._asked = asked
        return self._solution

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        before = dict(vars(self))  # a shallow copy will do: arrays are replaced, not written into
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _take(self, X: Any, lengths: ArrayLike | None, copy: bool = True) -> None:
        self._check_parameters()
        several = _is_sequences(X)
        if isinstance(X, list | tuple) and not X:
            raise ValueError("expected an array or at least one sequence, got an empty list")
        if several and lengths is not None:
            raise ValueError("expected lengths with a single array, got a list of sequences")
        arrays = [self._checked(x) for x in (X if several else [X])]
        starts = [_starts([len(a)] if lengths is None else lengths, len(a)) for a in arrays]
        whole = several or lengths is not None
        if whole and all(marks.all() for marks in starts):
            raise ValueError("expected a sequence of two rows or more, got n_samples=1 in each")
        starts[0][0] = whole or not self._open
        for rows, marks in zip(arrays, starts, strict=True):
            self._append(rows, marks, copy)
        self._open, self._solution = not whole, None

    def _check_parameters(self) -> None:
        kinds = {"n_components": Integral, "degree": Integral, "half_life": Real, "tol": Real}
        for name, kind in kinds.items():
            value = getattr(self, name)
            given = value is not None or kind is Integral
            if given and not (isinstance(value, kind) and float(value) > 0):
                raise ValueError(f"expected {name} to be {kind.__name__} and > 0, got {value!r}")
        if self.tol is not None and self.tol >= 1:
            raise ValueError(f"expected tol < 1, got {self.tol!r}")
        if self._accumulated != (self.degree, self.half_life):
            before = dict(zip(("degree", "half_life"), self._accumulated, strict=True))
            raise ValueError(f"expected {before} as in the calls before, got changes; call fit")

    def _checked(self, X: Any) -> Any:
        if isinstance(X, Iterator):
            raise ValueError("expected an array or a list of arrays, got an iterator")
        kinds, reset = (np.float64, np.float32), not hasattr(self, "n_features_in_")
        fine = type(X) is np.ndarray and X.ndim == 2 and X.size > 0 and X.dtype in kinds
        how = {"skip_check_array": True} if fine else {"dtype": kinds, "ensure_all_finite": False}
        return validate_data(self, _without_graph(X), reset=reset, **how)

    def _append(self, rows: Floats, starts: Bools, copy: bool) -> None:
        """Cut the stream at fixed row counts into blocks; rows short of a block wait."""
        if self._moments is None:
            self.origin_: Floats = rows[0].astype(np.float64)
            none = np.zeros(comb(rows.shape[1] + self.degree, self.degree) - 1)
            self._moments = Moments(0.0, 0.0, none, none, np.diag(none), np.diag(none))
        self.n_samples_seen_ += len(rows)
        self._n_steps += int(len(rows) - np.count_nonzero(starts))
        n = len(self._moments.mean)
        size = max(BLOCK // n, 4 * n)  # rows enough to fill every direction
        while self._n_waiting + len(rows) >= size:
            room = size - self._n_waiting
            self._waiting = [*self._waiting, (rows[:room], starts[:room])]
            self._moments, self._waiting, self._n_waiting = self._with_waiting(), [], 0
            rows, starts = rows[room:], starts[room:]
        if copy:
            rows = rows.astype(np.float64)
            _check_magnitude(rows, float(np.vdot(rows, rows)))
        self._waiting = [*self._waiting, (rows, starts)] if len(rows) else []
        self._n_waiting += len(rows)

    def _with_waiting(self) -> Moments:
        """Return the moments with the waiting rows in, as roots if rounding asks for it."""
        assert self._moments is not None
        if not self._waiting:
            return self._moments
        parts = zip(*self._waiting, strict=True)
        rows, starts = (np.concatenate(part) if len(part) > 1 else part[0] for part in parts)
        with np.errstate(invalid="ignore", over="ignore"):  # told below, in words
            moments = absorb(self._moments, self._expand(rows), starts, self.half_life)
        _check_magnitude(rows, moments.mean.sum() + np.trace(moments.spread))
        if moments.trustworthy():
            return moments
        return absorb(self._moments.to_roots(), self._expand(rows), starts, self.half_life)

    def _expand(self, rows: Floats) -> Floats:
        if self.degree == 1:
            return np.ascontiguousarray(rows, dtype=np.float64)
        power = PolynomialFeatures(self.degree, include_bias=False)
        return np.asarray(power.fit_transform(rows - self.origin_))
