"""Slow features of sequences: the closed form of the paper for linear functions of the input.

Rows are processed in blocks that end at fixed row counts of the stream, so that `partial_fit` with
any chunks computes the same sums in the same order as `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from math import comb
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ullayers.errors import MissingPackageError
from ullayers.exact.slow_moments import TOL, Bools, Moments, Solution, absorb, solve
from ullayers.exact.slow_moments import Floats as Floats
from ullayers.exact.slow_moments import RankError as RankError

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.preprocessing import PolynomialFeatures
    from sklearn.utils.validation import assert_all_finite, validate_data
except ModuleNotFoundError as error:
    raise MissingPackageError(
        "SlowFeatures needs the package scikit-learn: pip install 'ullayers[sklearn]'"
    ) from error

Rows = tuple[Floats, Bools]  # rows, and which of them start a sequence

BLOCK_VALUES = 2**21  # values collected before they are processed: 16 MB
PRECISIONS = (np.float64, np.float32)


def _is_sequences(X: Any) -> bool:
    return isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) == 2


def _without_graph(X: Any) -> Any:
    """Detach a tensor that requires gradients, which numpy would not accept."""
    return X.detach() if getattr(X, "requires_grad", False) else X


def _starts(lengths: ArrayLike, n_rows: int) -> Bools:
    """Return (rows,) bool: which rows start a sequence."""
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or not (sizes > 0).all():
        raise ValueError(f"expected lengths to be positive integers, got {lengths!r}")
    if sizes.sum() != n_rows:
        raise ValueError(f"expected lengths that add up to {n_rows} rows, got {sizes.sum()}")
    return np.bincount(np.cumsum(sizes) - sizes, minlength=n_rows) > 0


def _check_magnitude(rows: Floats, total: float) -> None:
    """Raise ValueError if a sum over the rows is not finite."""
    if not np.isfinite(total):
        assert_all_finite(rows, input_name="X")
        raise ValueError(
            f"expected values whose squares do not overflow, got {np.abs(rows).max():.3g}"
        )


def _each_sequence(transform: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Let a method that transforms an array also transform a list of sequences, one by one."""

    @wraps(transform)
    def transform_each(self: Any, X: Any) -> Any:
        if _is_sequences(X):
            return [transform(self, sequence) for sequence in X]
        return transform(self, X)

    return transform_each


class _SequencesMixin:
    """Support lists of sequences in `transform`, for every setting of `set_output`.

    scikit-learn turns the output of `transform` and `fit_transform` into one data frame. This must
    happen for each sequence of a list, and not again for the list.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # scikit-learn wraps `transform` here
        cls.transform = _each_sequence(cls.transform)  # type: ignore[attr-defined]

    def fit_transform(self, X: Any, y: object = None, **fit_params: Any) -> Any:
        """Fit to `X` and return its slow features, as `transform` does.

        Args:
            X: Array or list of arrays.
            y: Ignored.
            **fit_params: Passed to `fit`.
        """
        return self.fit(X, y, **fit_params).transform(X)  # type: ignore[attr-defined]


class SlowFeatures(
    _SequencesMixin,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Slow feature analysis: linear functions of the input that change least from row to row.

    Minimises J = E||y_t - y_{t-1}||^2 - log det cov(y) over linear functions y of the input. As in
    Eq. 5 of the paper, every output has mean squared step 1 and variance 1 / (2 lambda), where
    2 lambda is its mean squared step at unit variance. `fit` and `partial_fit` accept

    - an array (rows, features): one sequence. In `partial_fit` it continues the array of the call
      before, and the step between the two counts;
    - a list or tuple of such arrays, or an array with `lengths`: complete sequences. Steps between
      sequences do not count, nor do steps into or out of the call;
    - in `fit` only, an iterator: its items are passed to `partial_fit` one by one, so that memory
      stays bounded.

    Invalid input raises `ValueError` and changes nothing. Constant, duplicate, badly scaled or
    nearly dependent features need no preparation. A direction that is constant within sequences
    but differs between them would make J minus infinity: its mean squared step is taken as 2.2e-16
    of its variance, so it comes first, with standard deviation 6.7e7.

    In a `Pipeline`, most other steps accept one array only: concatenate the sequences and pass
    `slowfeatures__lengths` to `fit`. After `set_output(transform="pandas")`, a list of sequences
    becomes a list of data frames.

    Args:
        n_components: Number of outputs.
        degree: Use all monomials of the input up to this degree as features.
        half_life: Number of rows after which the weight of a row has halved; None for equal
            weights.
        tol: Ignore directions narrower than `tol` times the widest, with every feature scaled to
            unit variance; None for 1e-12.

    Attributes:
        components_: (n_components, features) weights; the largest weight of a component is
            positive.
        mean_: Mean of the features. Outputs are (features - mean_) @ components_.T.
        eigenvalues_: Lambda of each output, ascending.
        objective_: J = sum(1 + log(2 lambda)).
        rank_: Number of directions in which the features vary.
        origin_: First row. With degree > 1 the features are the monomials of X - origin_.
        n_features_in_: Number of input features.
        n_samples_seen_: Number of rows seen.

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
        self.n_components = n_components
        self.degree = degree
        self.half_life = half_life
        self.tol = tol

    def _reset(self) -> None:
        for name in ("n_features_in_", "feature_names_in_", "origin_"):
            self.__dict__.pop(name, None)
        self.n_samples_seen_ = self._n_steps = self._n_waiting = 0
        self._waiting: list[Rows] = []
        self._moments: Moments | None = None
        self._solution: Solution | None = None
        self._open = False  # whether the next array continues the last sequence
        self._accumulated = self.degree, self.half_life
        self._solved_for: tuple[int, float | None] | None = None  # parameters of the solution

    def fit(self, X: Any, y: object = None, lengths: ArrayLike | None = None) -> Self:
        """Fit to `X` alone; see the class for accepted types.

        Args:
            X: Array, list of arrays or iterator of arrays.
            y: Ignored.
            lengths: Number of rows of each sequence in an array.
        """
        with self._all_or_nothing():
            self._reset()
            streamed = isinstance(X, Iterator)
            for item in X if streamed else [X]:
                self._take(item, lengths, copy=streamed)
            if not self.__sklearn_is_fitted__():
                raise ValueError(f"expected consecutive rows, got n_samples={self.n_samples_seen_}")
            self._moments = self._with_waiting()
            self._waiting = []
            self._n_waiting = 0
            self._solved()
        return self

    def partial_fit(self, X: Any, y: object = None, lengths: ArrayLike | None = None) -> Self:
        """Add `X` to the data. The eigenproblem is solved when a result is needed.

        Args:
            X: Array or list of arrays.
            y: Ignored.
            lengths: Number of rows of each sequence in an array.
        """
        with self._all_or_nothing():
            if not hasattr(self, "n_samples_seen_"):
                self._reset()
            self._take(X, lengths)
        return self

    def transform(self, X: Any) -> Any:
        """Return the slow features of each row; for a list of sequences, a list of arrays."""
        solution = self._solved()
        if isinstance(X, Iterator):
            raise ValueError("expected an array or a list of arrays, got an iterator")
        rows = validate_data(self, _without_graph(X), reset=False, dtype=PRECISIONS)
        return (self._expand(rows) - solution.mean) @ solution.components.T

    # The eigenproblem is solved when one of these is first read.
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
            raise NotFittedError(
                "SlowFeatures is not fitted: call fit first, with at least two consecutive rows"
            )
        parameters = self.n_components, self.tol
        if self._solution is None or self._solved_for != parameters:
            self._check_parameters()
            moments = self._with_waiting()
            if self.tol is not None:  # the widths of all directions are known from roots only
                moments = moments.to_roots()
            self._solution = solve(moments, self.n_components, self.tol or TOL)
            self._solved_for = parameters
        return self._solution

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        before = dict(vars(self))  # a shallow copy, since arrays are replaced and never changed
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _take(self, X: Any, lengths: ArrayLike | None, copy: bool = True) -> None:
        """Validate an array or a list of sequences and add its rows."""
        self._check_parameters()
        several = _is_sequences(X)
        if isinstance(X, list | tuple) and not X:
            raise ValueError("expected an array or at least one sequence, got an empty list")
        if several and lengths is not None:
            raise ValueError("expected lengths only with a single array, got a list of sequences")
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
            raise ValueError(
                f"expected {before} as in earlier calls, got other values; call fit to start again"
            )

    def _checked(self, X: Any) -> Any:
        if isinstance(X, Iterator):
            raise ValueError("expected an array or a list of arrays, got an iterator")
        is_valid = type(X) is np.ndarray and X.ndim == 2 and X.size > 0 and X.dtype in PRECISIONS
        options: dict[str, Any] = {"dtype": PRECISIONS, "ensure_all_finite": False}
        if is_valid:
            options = {"skip_check_array": True}
        reset = not hasattr(self, "n_features_in_")
        return validate_data(self, _without_graph(X), reset=reset, **options)

    def _append(self, rows: Floats, starts: Bools, copy: bool) -> None:
        """Split the stream into blocks at fixed row counts; an incomplete block waits."""
        if self._moments is None:
            self.origin_: Floats = rows[0].astype(np.float64)
            none = np.zeros(comb(rows.shape[1] + self.degree, self.degree) - 1)
            self._moments = Moments(0.0, 0.0, none, none, np.diag(none), np.diag(none))
        self.n_samples_seen_ += len(rows)
        self._n_steps += int(len(rows) - np.count_nonzero(starts))
        n = len(self._moments.mean)
        size = max(BLOCK_VALUES // n, 4 * n)  # enough rows to vary in every direction
        while self._n_waiting + len(rows) >= size:
            room = size - self._n_waiting
            self._waiting = [*self._waiting, (rows[:room], starts[:room])]
            self._moments = self._with_waiting()
            self._waiting = []
            self._n_waiting = 0
            rows, starts = rows[room:], starts[room:]
        if copy:
            rows = rows.astype(np.float64)
            _check_magnitude(rows, float(np.vdot(rows, rows)))
        self._waiting = [*self._waiting, (rows, starts)] if len(rows) else []
        self._n_waiting += len(rows)

    def _with_waiting(self) -> Moments:
        """Return the moments including the waiting rows, as roots if precision requires it."""
        assert self._moments is not None
        if not self._waiting:
            return self._moments
        parts = zip(*self._waiting, strict=True)
        rows, starts = (np.concatenate(part) if len(part) > 1 else part[0] for part in parts)
        with np.errstate(invalid="ignore", over="ignore"):  # reported below
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
