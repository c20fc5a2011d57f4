"""Eq. 2-5 of the paper: the objective, Markov chains of states, and the closed-form optimum.

A chain is solved as its normalised walk S = D^-1/2 W D^-1/2, with W the symmetrised pair
probabilities and D their row sums: L u = lambda D u reads (I - S) x = lambda x with x = D^1/2 u.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from ullayers.errors import UserError
from ullayers.exact.eigen import smallest_eigenpairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROW_SUM_ERROR = 1e-5  # of a transition matrix in single precision, or written with six digits


class DisconnectedError(UserError):
    """The chain falls into parts that never meet, so J has no minimum (log 0).

    `labels` holds the part of each state, -1 for a state that is never visited.

    >>> raise DisconnectedError(np.array([0, 1, 1, -1]))
    Traceback (most recent call last):
    ullayers.exact.markov.DisconnectedError: expected one connected chain, got 2 parts...
    """

    def __init__(self, labels: Ints) -> None:
        self.labels = labels
        sizes = np.sort(np.bincount(labels[labels >= 0]))[::-1]
        shown = ", ".join(map(str, sizes[:8])) + (", ..." if sizes.size > 8 else "")
        super().__init__(
            f"expected one connected chain, got {sizes.size} parts of {shown} states; solve each "
            "alone (part = np.flatnonzero(error.labels == 0); matrix[part][:, part]) or link them"
        )


@dataclass(frozen=True)
class Spectrum:
    """The optimum of Eq. 3 over all embeddings of a chain's states.

    Attributes:
        embedding: (n, d), Eq. 5 with R = I; NaN for states that are never visited.
        eigenvalues: (d,), the smallest nonzero eigenvalues of (L, D), ascending.
        objective: J of the embedding, d + log det(2 Lambda).
        stationary: (n,), the share of time spent in each state.
        residual: largest ||L u - lambda D u|| / lambda, in the norm of D^-1 with u^T D u = 1.
        iterations: steps of the iterative solver on the full chain, 0 for the dense one.

    >>> closed_form([[0, 1], [1, 0]], d=1).stationary
    array([0.5, 0.5])
    """

    embedding: Floats
    eigenvalues: Floats
    objective: float
    stationary: Floats
    residual: float
    iterations: int


def objective(y: Any, lengths: ArrayLike | None = None) -> float:
    """Eq. 2 of a finished embedding: E||y_t - y_{t-1}||^2 - log det cov(y).

    Args:
        y: (T, d) array or tensor, or (T,) for d = 1. The covariance is that of all T rows.
        lengths: how many rows each sequence has; no step is taken from one to the next.

    Returns:
        J; +inf where cov(y) is singular to within rounding (constant or dependent outputs,
        d >= T): the degenerate case that the log det forbids.

    >>> objective([-1.0, 1.0, -1.0, 1.0]), objective([5.0, 5.0, 5.0])
    (4.0, inf)
    """
    given = _array(y)
    real = given.dtype.kind in "biuf"
    if not real or given.ndim not in (1, 2) or given.size == 0 or not np.isfinite(given).all():
        raise ValueError(f"expected finite y of shape (T, d) or (T,), got {given.shape}: {given}")
    eps = float(np.finfo(given.dtype).eps) if given.dtype.kind == "f" else 2.0**-52
    values = given.astype(np.float64).reshape(len(given), -1)
    first = _step_starts(len(values), lengths)
    if first.size == 0:
        raise ValueError("expected a sequence of two rows or more, got none")
    centred = values - values.mean(axis=0)  # before any square, so an offset costs nothing
    spread = np.sqrt(np.mean(centred**2, axis=0))
    noise = 16 * eps * np.abs(values).max(axis=0)  # what rounding alone would show as spread
    if len(values) <= values.shape[1] or (spread <= noise).any():
        return np.inf
    axes = np.linalg.svd(centred / spread / np.sqrt(len(values)), compute_uv=False)
    if axes[-1] <= values.shape[1] * (noise / spread).max():
        return np.inf
    step = np.mean(np.sum((centred[first + 1] - centred[first]) ** 2, axis=1))
    return float(step - 2 * np.log(spread).sum() - 2 * np.log(axes).sum())


def transitions(states: Any, lengths: ArrayLike | None = None, n: int | None = None) -> Any:
    """Counts the steps from state i (row) to state j (column), as an (n, n) `csr_array`.

    Args:
        states: integer state ids, as one sequence or as a list of sequences.
        lengths: cuts one array into sequences; no pair is counted from one to the next.
        n: the number of states; by default the largest id plus one.

    >>> transitions([0, 1, 1, 0]).toarray()
    array([[0, 1],
           [1, 1]])
    """
    if isinstance(states, list | tuple) and any(np.ndim(part) for part in states):
        if lengths is not None:
            raise ValueError("expected lengths only beside one array, got a list of sequences too")
        parts = [_state_ids(part) for part in states]
        ids, lengths = np.concatenate(parts), [part.size for part in parts]
    else:
        ids = _state_ids(states)
    if n is not None and not _is_whole(n):
        raise ValueError(f"expected a whole number of states n, got {n!r}")
    size = int(ids.max(initial=-1)) + 1 if n is None else int(n)
    if size < 1 or ids.min(initial=0) < 0 or ids.max(initial=0) >= size:
        raise ValueError(f"expected ids from 0 to n - 1 with n = {size} >= 1, got {ids}")
    first = _step_starts(ids.size, lengths)
    pairs = np.ones(first.size, dtype=np.int64), (ids[first], ids[first + 1])
    return sp.coo_array(pairs, shape=(size, size)).tocsr()


def closed_form(transitions: Any, d: int) -> Spectrum:
    """The embedding of a chain's states that minimises Eq. 3, by Eq. 5 with R = I.

    On a pure time chain, where every frame is a state of its own and is visited once, the answer
    is a set of cosines of the frame index and knows nothing of the data. Revisited states, or
    pairs added between similar frames, are what makes it useful. A chain that is not reversible
    counts with its symmetrised pairs (p_ij + p_ji) / 2, as in Eq. 4, and p_i are their row sums.
    Signs are fixed: the largest entry of a column is positive.

    Args:
        transitions: (n, n) array or scipy sparse matrix: counts, joint probabilities of pairs, or
            a transition matrix (floating point, every row sums to one within 1e-5), which is
            weighted by its stationary distribution. A state that is never visited, or left for
            good, gets a row of NaN.
        d: how many features, at most the number of visited states minus one.

    Raises:
        ValueError: for input that is no such matrix; DisconnectedError for parts that never meet.
        RuntimeError: if the solver does not reach its tolerance.

    >>> closed_form([[0, 1, 0], [1, 0, 1], [0, 1, 0]], d=2).eigenvalues.round(6)
    array([1., 2.])
    """
    pairs = _pair_probabilities(transitions)
    stationary = np.asarray(pairs.sum(axis=1))
    visited = np.flatnonzero(stationary > 0)
    pairs = pairs[visited][:, visited]
    parts, part = connected_components(pairs, directed=False)
    if parts > 1:
        raise DisconnectedError(np.where(stationary > 0, part[np.cumsum(stationary > 0) - 1], -1))
    if not _is_whole(d) or not 1 <= d < visited.size:
        raise ValueError(f"expected 1 <= d <= {visited.size - 1} (visited states - 1), got {d!r}")
    root = np.sqrt(stationary[visited])
    walk = sp.csr_array(sp.diags_array(1 / root) @ pairs @ sp.diags_array(1 / root))
    eigenvalues, vectors, residual, steps = smallest_eigenpairs(walk, root, d)
    embedding = np.full((stationary.size, d), np.nan)
    embedding[visited] = fix_signs(vectors / root[:, None]) / np.sqrt(2 * eigenvalues)
    j = d + float(np.log(2 * eigenvalues).sum())
    return Spectrum(embedding, eigenvalues, j, stationary, residual, steps)


def _array(values: Any) -> NDArray[Any]:
    """Any array-like as an array; tensors are known by their methods, so torch is not imported."""
    if hasattr(values, "detach"):
        values = (values.float() if "bfloat16" in str(values.dtype) else values).detach().cpu()
    return np.asarray(values)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _step_starts(total: int, lengths: ArrayLike | None) -> Ints:
    """Every t such that t and t + 1 belong to one sequence."""
    inside = np.ones(max(total - 1, 0), dtype=bool)
    if lengths is not None:
        sizes = _array(lengths)
        whole = sizes.ndim == 1 and sizes.dtype.kind in "iu" and (sizes >= 0).all()
        if not whole or sizes.sum() != total:
            raise ValueError(f"expected whole lengths that sum to {total}, got {lengths!r}")
        ends = np.cumsum(sizes)
        inside[ends[(ends > 0) & (ends < total)] - 1] = False
    return np.flatnonzero(inside)


def _state_ids(states: Any) -> Ints:
    ids = _array(states)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"expected 1-D integer state ids, got shape {ids.shape} of {ids.dtype}")
    return ids.astype(np.int64)


def _pair_probabilities(matrix: Any) -> Any:
    """Symmetric joint probabilities of adjacent states that sum to one, from checked input."""
    given: Any = matrix if sp.issparse(matrix) else _array(matrix)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.dtype.kind not in "biuf":
        raise ValueError(f"expected a square real matrix, got {given.shape} of {given.dtype}")
    pairs: Any = sp.csr_array(given).astype(np.float64)
    pairs.eliminate_zeros()  # a stored zero is no link
    low, high = pairs.data.min(initial=0), pairs.data.max(initial=0)
    if not (low >= 0 and 0 < high < np.inf):
        raise ValueError(f"expected finite entries >= 0, not all zero, got {low} to {high}")
    rows = np.asarray(pairs.sum(axis=1))
    # Whole numbers are counts, even where each state was left just once.
    if given.dtype.kind == "f" and np.abs(rows - 1).max() <= ROW_SUM_ERROR:
        pairs = sp.csr_array(sp.diags_array(1 / rows) @ pairs)
        pairs = sp.csr_array(sp.diags_array(_stationary(pairs)) @ pairs)
    pairs = pairs / pairs.data.max()  # first, for the sum of huge entries could overflow
    return sp.csr_array((pairs + pairs.T) / (2 * pairs.sum()))


def _stationary(chain: Any) -> Floats:
    """The distribution that a row-stochastic matrix settles in; zero for transient states."""
    _, label = connected_components(chain, directed=True, connection="strong")
    i, j = chain.tocoo().coords
    sinks = np.setdiff1d(label, label[i[label[i] != label[j]]])
    home = label == sinks[0]
    if sinks.size > 1:
        raise DisconnectedError(np.where(np.isin(label, sinks), np.searchsorted(sinks, label), -1))
    inflow, share = sp.csr_array(chain.T), home / home.sum()
    for _ in range(200):  # enough where the chain mixes fast, and there an LU would fill up
        before, share = share, (share + inflow @ share) / 2  # half a step, so no period survives
        if np.abs(share - before).sum() < 1e-14:
            return np.asarray(share / share.sum())
    first, *others = np.argsort(~home, kind="stable")
    held = sp.csc_array(sp.eye_array(len(others)) - inflow[others][:, others])
    share[first], share[others] = 1, splu(held).solve(inflow[others][:, [first]].toarray().ravel())
    return np.asarray(home * share / share.sum())


def fix_signs(vectors: Floats) -> Floats:
    """Makes each column's largest entry positive; the first of those alike but for rounding."""
    size = np.abs(vectors)
    first = np.argmax(size >= (1 - 1e-6) * size.max(axis=0), axis=0)
    return np.asarray(vectors * np.sign(vectors[first, np.arange(vectors.shape[1])]))
