"""Eq. 2-5 of the paper: the objective, Markov chains of states, and the closed-form optimum.

The solver works on the normalised walk S = D^-1/2 W D^-1/2, with W the symmetrised pair
probabilities and D their row sums: L u = lambda D u reads (I - S) x = lambda x with x = D^1/2 u.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from ullayers.errors import Error
from ullayers.exact.eigen import smallest_eigenpairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROW_SUM_ERROR = 1e-5  # for a transition matrix in single precision, or with six decimal digits
MANY_STATES, STATES_PER_ID = 10**8, 1000  # more of both: the ids are labels, not counted from 0


class DisconnectedError(Error):
    """The chain consists of disconnected parts, so that J has no minimum (log 0).

    `labels` holds the part of each state, or -1 for a state that is never visited.

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
            "part separately (part = np.flatnonzero(error.labels == 0); matrix[part][:, part]) or "
            "connect them"
        )


@dataclass(frozen=True)
class Spectrum:
    """The optimum of Eq. 3 over all embeddings of a chain's states.

    Attributes:
        embedding: (n, d), Eq. 5 with R = I; NaN for states that are never visited.
        eigenvalues: (d,), the smallest nonzero eigenvalues of (L, D), ascending.
        objective: J of the embedding, d + log det(2 Lambda).
        stationary: (n,), the share of time spent in each state.
        residual: Largest ||L u - lambda D u|| / lambda, in the norm of D^-1 with u^T D u = 1.
        iterations: Steps of the iterative solver on the full chain; 0 for the dense solver.

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
    """Return J of an embedding (Eq. 2): E||y_t - y_{t-1}||^2 - log det cov(y).

    Args:
        y: (T, d) array or tensor, or (T,) for d = 1. The covariance is that of all T rows.
        lengths: Number of rows of each sequence; steps between sequences do not count.

    Returns:
        J, or +inf if cov(y) is singular up to rounding (constant or dependent outputs, d >= T).

    >>> objective([-1.0, 1.0, -1.0, 1.0]), objective([5.0, 5.0, 5.0])
    (4.0, inf)
    """
    given = _array(y)
    if given.dtype.kind not in "biuf" or given.ndim not in (1, 2) or given.size == 0:
        got = f"shape {given.shape} of {given.dtype}"
        raise ValueError(f"expected numbers of shape (T, d) or (T,), got {got}")
    if not np.isfinite(given).all():
        raise ValueError(f"expected finite y, got {(~np.isfinite(given)).sum()} NaN or infinite")
    eps = float(np.finfo(given.dtype).eps) if given.dtype.kind == "f" else 2.0**-52
    values = given.astype(np.float64).reshape(len(given), -1)
    first = _step_starts(len(values), lengths)
    if first.size == 0:
        raise ValueError("expected at least one sequence of two rows or more, got none")
    centred = values - values.mean(axis=0)  # before squaring, so that an offset costs no digits
    spread = np.sqrt(np.mean(centred**2, axis=0))
    noise = 16 * eps * np.abs(values).max(axis=0)  # spread caused by rounding alone
    if len(values) <= values.shape[1] or (spread <= noise).any():
        return np.inf
    axes = np.linalg.svd(centred / spread / np.sqrt(len(values)), compute_uv=False)
    if axes[-1] <= values.shape[1] * (noise / spread).max():
        return np.inf
    step = np.mean(np.sum((centred[first + 1] - centred[first]) ** 2, axis=1))
    return float(step - 2 * np.log(spread).sum() - 2 * np.log(axes).sum())


def transitions(states: Any, lengths: ArrayLike | None = None, n: int | None = None) -> Any:
    """Count the steps from state i (row) to state j (column), as an (n, n) `csr_array`.

    Args:
        states: Integer state ids, as one sequence or as a list of sequences.
        lengths: Number of ids of each sequence in one array; steps between sequences do not count.
        n: Number of states; by default the largest id plus one.

    Raises:
        ValueError: If an argument is invalid, or n is so large that the ids must be renumbered.

    >>> transitions([0, 1, 1, 0]).toarray()
    array([[0, 1],
           [1, 1]])
    """
    if isinstance(states, list | tuple) and any(np.ndim(part) for part in states):
        if lengths is not None:
            raise ValueError("expected lengths only with a single array, got a list of sequences")
        parts = [_state_ids(part) for part in states]
        ids = np.concatenate(parts)
        lengths = [part.size for part in parts]
    else:
        ids = _state_ids(states)
    if n is not None and not _is_whole(n):
        raise ValueError(f"expected n to be an integer number of states, got {n!r}")
    size = int(ids.max(initial=-1)) + 1 if n is None else int(n)
    if size < 1 or ids.min(initial=0) < 0 or ids.max(initial=0) >= size:
        raise ValueError(f"expected ids from 0 to n - 1 with n = {size} >= 1, got {ids}")
    if size > MANY_STATES and size > STATES_PER_ID * ids.size:
        raise ValueError(
            f"expected ids that count the states from 0, got {ids.size} ids with n = {size}; "
            "renumber them with np.unique(states, return_inverse=True)[1]"
        )
    first = _step_starts(ids.size, lengths)
    pairs = np.ones(first.size, dtype=np.int64), (ids[first], ids[first + 1])
    return sp.coo_array(pairs, shape=(size, size)).tocsr()


def closed_form(transitions: Any, d: int) -> Spectrum:
    """Return the embedding of a chain's states that minimises Eq. 3 (Eq. 5 with R = I).

    If every frame is a state of its own and visited once, the result is a set of cosines of the
    frame index, independent of the data. It is useful if states are visited repeatedly, or if pairs
    of similar frames are added. A chain that is not reversible is symmetrised, (p_ij + p_ji) / 2 as
    in Eq. 4, and p_i are the row sums. Signs are fixed: the largest entry of a column is positive.

    Args:
        transitions: (n, n) array or scipy sparse matrix of counts, of joint probabilities, or of
            transition probabilities (floating point, each row sums to one within 1e-5), which are
            weighted by their stationary distribution. States that are never visited, or never
            returned to, get a row of NaN.
        d: Number of features, at most the number of visited states minus one.

    Raises:
        ValueError: If the matrix or `d` is invalid.
        DisconnectedError: If the chain consists of disconnected parts.
        RuntimeError: If the solver does not reach its tolerance.

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
    if visited.size < 2:
        raise ValueError("expected a chain that keeps visiting two states or more, got one state")
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
    """Return an array-like as an array; accepts tensors without importing torch."""
    if hasattr(values, "detach"):
        values = (values.float() if "bfloat16" in str(values.dtype) else values).detach().cpu()
    return np.asarray(values)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _step_starts(total: int, lengths: ArrayLike | None) -> Ints:
    """Return all t for which t and t + 1 belong to the same sequence."""
    inside = np.ones(max(total - 1, 0), dtype=bool)
    if lengths is not None:
        sizes = _array(lengths)
        whole = sizes.ndim == 1 and sizes.dtype.kind in "iu" and (sizes >= 0).all()
        if not whole or sizes.sum() != total:
            raise ValueError(f"expected integer lengths that sum to {total}, got {lengths!r}")
        ends = np.cumsum(sizes)
        inside[ends[(ends > 0) & (ends < total)] - 1] = False
    return np.flatnonzero(inside)


def _state_ids(states: Any) -> Ints:
    ids = _array(states)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"expected 1-D integer state ids, got shape {ids.shape} of {ids.dtype}")
    return ids.astype(np.int64)


def _pair_probabilities(matrix: Any) -> Any:
    """Return symmetric joint probabilities of adjacent states, which sum to one."""
    given: Any = matrix if sp.issparse(matrix) else _array(matrix)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.dtype.kind not in "biuf":
        raise ValueError(f"expected a square real matrix, got {given.shape} of {given.dtype}")
    pairs: Any = sp.csr_array(given).astype(np.float64)
    pairs.eliminate_zeros()  # a stored zero is not a link
    low = pairs.data.min(initial=0)
    high = pairs.data.max(initial=0)
    if not (low >= 0 and 0 < high < np.inf):
        raise ValueError(f"expected finite entries >= 0, not all zero, got {low} to {high}")
    with np.errstate(over="ignore"):  # huge entries are no probabilities
        rows = np.asarray(pairs.sum(axis=1))
    # Integers are counts, even if each state was left exactly once.
    if given.dtype.kind == "f" and np.abs(rows - 1).max() <= ROW_SUM_ERROR:
        pairs = sp.csr_array(sp.diags_array(1 / rows) @ pairs)
        pairs = sp.csr_array(sp.diags_array(_stationary(pairs)) @ pairs)
    pairs.data /= pairs.data.max()  # first, because a sum of huge entries could overflow
    return sp.csr_array((pairs + pairs.T) / (2 * pairs.sum()))


def _stationary(chain: Any) -> Floats:
    """Return the stationary distribution of a transition matrix; zero for transient states."""
    _, label = connected_components(chain, directed=True, connection="strong")
    i, j = chain.tocoo().coords
    sinks = np.setdiff1d(label, label[i[label[i] != label[j]]])
    home = label == sinks[0]
    if sinks.size > 1:
        raise DisconnectedError(np.where(np.isin(label, sinks), np.searchsorted(sinks, label), -1))
    inflow, share = sp.csr_array(chain.T), home / home.sum()
    for _ in range(200):  # enough for chains that mix fast, where LU factors would be dense
        before, share = share, (share + inflow @ share) / 2  # a lazy chain, which is not periodic
        if np.abs(share - before).sum() < 1e-14:
            return np.asarray(share / share.sum())
    first, *others = np.argsort(~home, kind="stable")
    held = sp.csc_array(sp.eye_array(len(others)) - inflow[others][:, others])
    share[first] = 1
    share[others] = splu(held).solve(inflow[others][:, [first]].toarray().ravel())
    return np.asarray(home * share / share.sum())


def fix_signs(vectors: Floats) -> Floats:
    """Make the largest entry of each column positive; ties go to the first."""
    size = np.abs(vectors)
    first = np.argmax(size >= (1 - 1e-6) * size.max(axis=0), axis=0)
    return np.asarray(vectors * np.sign(vectors[first, np.arange(vectors.shape[1])]))
