"""The smallest eigenpairs of a Markov chain's Laplacian, for up to a million states.

Three solvers: dense for small chains, Lanczos for chains that mix fast, and for all others a
multilevel solver that merges states into successively coarser chains.
"""

from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigsh

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Pairs = tuple[Floats, Floats, int]  # eigenvalues, eigenvectors, steps taken

DENSE = 1500  # up to this many states a dense eigensolver is fastest
COARSEST = 600  # the multilevel solver inverts a matrix of about this size
MIXES_FAST = 0.1  # smallest eigenvalue above which Lanczos is faster than multilevel
MAX_STEPS = 300  # of the multilevel solver; most chains need 15 to 40
TOLERANCE = 1e-5  # residual of an eigenpair, relative to its eigenvalue ...
ROUNDING = 1e-14  # ... plus the rounding error of double precision for a matrix of norm two
SWEEPS = 1 / (1.25 + 0.75 * np.cos([np.pi / 4, 3 * np.pi / 4]))  # Chebyshev roots of [0.5, 2]


def smallest_eigenpairs(walk: Any, root: Floats, d: int) -> tuple[Floats, Floats, float, int]:
    """Return the d smallest eigenpairs of I - walk, without the trivial one.

    Args:
        walk: (n, n) symmetric normalised walk.
        root: (n,) its trivial eigenvector, the square root of the stationary distribution.
        d: Number of eigenpairs.

    Returns:
        Eigenvalues, eigenvectors, the largest relative residual, and the number of steps.

    Raises:
        RuntimeError: If the solver does not reach its tolerance.
    """
    if len(root) <= max(DENSE, 20 * d):
        values, vectors, steps = _dense(walk, root, d)
    else:
        start = np.random.default_rng(0).standard_normal(len(root))
        probe = eigsh(walk, 2, which="LA", ncv=20, tol=0.1, v0=start, return_eigenvectors=False)
        found = _lanczos(walk, d, start) if 1 - min(probe) > MIXES_FAST else None
        values, vectors, steps = found or _multilevel(walk, root, d)
    error = np.linalg.norm(_laplace(walk, vectors) - vectors * values, axis=0)
    if values[0] <= ROUNDING or (error > 2 * (TOLERANCE * values + ROUNDING)).any():
        raise RuntimeError(
            f"expected residuals under {TOLERANCE}, got {error / values} for eigenvalues {values} "
            f"after {steps} steps: the chain is almost disconnected, or too ill-conditioned"
        )
    return values, vectors, float((error / values).max()), steps


def _dense(walk: Any, root: Floats, d: int) -> Pairs:
    # The trivial eigenvalue is moved to 3, so that it does not mix with others near zero.
    shifted = np.eye(len(root)) - walk.toarray() + 3 * np.outer(root, root)
    values, vectors = scipy.linalg.eigh(shifted, subset_by_index=(0, d - 1))
    return values, vectors, 0


def _laplace(walk: Any, x: Floats) -> Floats:
    """Return (I - walk) x."""
    return np.asarray(x - walk @ x)


def _lanczos(walk: Any, d: int, start: Floats) -> Pairs | None:
    """Run Lanczos, for chains that mix fast; return None if it misses a multiple eigenvalue."""
    calls, size = count(), max(20, 2 * d + 8)
    whole = LinearOperator(walk.shape, lambda x: (next(calls), walk @ x)[1])
    top, vectors = eigsh(whole, d + 1, which="LA", ncv=size, tol=TOLERANCE / 10, v0=start)
    # From one start vector, copies of a multiple eigenvalue are found only by rounding.
    left = LinearOperator(walk.shape, lambda x: walk @ x - vectors @ (top * (x @ vectors)))
    missed = eigsh(left, 1, which="LA", tol=0.01, v0=start)[0][0] > top[0] + TOLERANCE
    return None if missed else (1 - top[-2::-1], vectors[:, -2::-1], next(calls))


@dataclass(frozen=True)
class _Level:
    """A chain, and how its states are merged into the next coarser chain."""

    walk: Any
    root: Floats
    damping: Floats  # inverse diagonal of I - walk; at the coarsest level its full inverse
    lift: Any = None  # from coarser vectors to finer ones; columns are orthonormal
    twice: bool = False  # whether to visit the coarser chain twice per cycle


def _merge(walk: Any, root: Floats, rng: np.random.Generator) -> Ints:
    """Return group labels: each state joins the one to which it is linked most strongly."""
    i, j = walk.tocoo().coords
    away = root**2 * np.maximum(1 - walk.diagonal(), 1e-15)  # probability of leaving the state
    # Equal links are decided by random preferences: groups become round instead of long.
    preference = 1 + rng.random(root.size) / 2
    tie = (
        walk.data * root[i] * root[j] / np.minimum(away[i], away[j]) * preference[i] * preference[j]
    )
    tie[i == j] = 0
    best = tie == np.maximum.reduceat(tie, walk.indptr[:-1])[i]
    graph = sp.coo_array((tie[best], (i[best], j[best])), shape=walk.shape)
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def _hierarchy(walk: Any, root: Floats, coarsest: int) -> list[_Level]:
    """Return the chain and its successively coarser versions."""
    levels: list[_Level] = []
    rng = np.random.default_rng(0)
    while walk.shape[0] > coarsest:
        group = _merge(walk, root, rng)
        merged = np.sqrt(np.bincount(group, root**2))
        lift = sp.csr_array((root / merged[group], group, np.arange(root.size + 1)))
        coarse = sp.csr_array(lift.T @ (walk @ lift))
        damping = 1 / np.maximum(1 - walk.diagonal(), 1e-15)[:, None]
        twice = coarse.nnz < walk.nnz / 2 and merged.size > coarsest
        levels.append(_Level(walk, root, damping, lift, twice))
        walk, root = sp.csr_array((coarse + coarse.T) / 2), merged
    rest = np.eye(root.size) - walk.toarray() + np.outer(root, root)
    return [*levels, _Level(walk, root, np.linalg.inv(rest) - np.outer(root, root))]


def _cycle(levels: list[_Level], b: Floats) -> Floats:
    """Solve (I - walk) x = b approximately: damped sweeps, then the residual on coarser levels."""
    level = levels[0]
    if level.lift is None:
        return np.asarray(level.damping @ b)
    x = SWEEPS[0] * level.damping * b
    x += SWEEPS[1] * level.damping * (b - _laplace(level.walk, x))
    left = level.lift.T @ (b - _laplace(level.walk, x))
    x += level.lift @ (_two_cycles if level.twice else _cycle)(levels[1:], left)
    for sweep in reversed(SWEEPS):
        x += sweep * level.damping * (b - _laplace(level.walk, x))
    return np.asarray(x)


def _two_cycles(levels: list[_Level], b: Floats) -> Floats:
    """Combine two cycles as in conjugate gradients (Notay's K-cycle)."""
    first = _cycle(levels, b)
    image = _laplace(levels[0].walk, first)
    length = _fit(first, b, image)
    left = b - image * length
    second = _cycle(levels, left)
    second -= first * _fit(image, second, first)
    return first * length + second * _fit(second, left, _laplace(levels[0].walk, second))


def _fit(x: Floats, b: Floats, image: Floats) -> Floats:
    """Return x.b / x.image by columns, 0 where x is 0."""
    over = np.einsum("ij,ij->j", x, b)
    under = np.einsum("ij,ij->j", x, image)
    return np.asarray(np.divide(over, under, out=np.zeros_like(over), where=under > 0))


def _orthonormal(x: Floats, basis: Floats, root: Floats) -> Floats:
    """Return the columns of x made orthonormal, also to the basis and to the trivial vector."""
    for _ in range(2):  # once leaves rounding errors as large as what was removed
        x = x - root[:, None] * (root @ x) - basis @ (basis.T @ x)
        x /= np.maximum(np.linalg.norm(x, axis=0), 1e-300)
        size, mix = np.linalg.eigh(x.T @ x)
        x = x @ (mix[:, size > 1e-10] / np.sqrt(size[size > 1e-10]))
    return np.asarray(x)


def _davidson(levels: list[_Level], start: Floats, d: int, tolerance: float) -> Pairs:
    """Run block Davidson: the basis grows by one cycle applied to the residuals."""
    walk = levels[0].walk
    root = levels[0].root
    width = start.shape[1]
    basis, image = np.empty((2, root.size, 5 * width))
    inner = np.empty((5 * width, 5 * width))
    last = np.empty((0, width))
    m = 0
    fresh = _orthonormal(start, basis[:, :0], root)
    for step in count(1):
        old, m = m, m + fresh.shape[1]
        basis[:, old:m] = fresh
        image[:, old:m] = _laplace(walk, fresh)
        inner[:m, old:m] = basis[:, :m].T @ image[:, old:m]
        values, mix = np.linalg.eigh(inner[:m, :m], UPLO="U")  # only this triangle is filled
        best = mix[:, :width]
        error = image[:, :m] @ best - basis[:, :m] @ (best * values[:width])
        rough = np.linalg.norm(error, axis=0) > tolerance * values[:width] + ROUNDING
        if not rough[:d].any() or step == MAX_STEPS:
            break
        last = np.pad(last, ((0, m - len(last)), (0, 0)))
        if m + width > len(inner):  # full: restart from the best vectors, now and a step ago
            keep = np.linalg.qr(np.hstack([best, last]))[0]
            mix = keep.T @ mix
            old, m = m, keep.shape[1]
            basis[:, :m] = basis[:, :old] @ keep
            image[:, :m] = image[:, :old] @ keep
            inner[:m, :m] = mix * values @ mix.T
        last = mix[:, :width]
        fresh = _orthonormal(_cycle(levels, error[:, rough]), basis[:, :m], root)
    return values[:width], basis[:, :m] @ best, step


def _multilevel(walk: Any, root: Floats, d: int) -> Pairs:
    """Refine the eigenpairs of the coarsest chain level by level."""
    width = d + 2 + d // 8  # with spare vectors, since clustered eigenvalues converge together
    levels = _hierarchy(walk, root, max(COARSEST, 6 * width))
    vectors = np.linalg.eigh(levels[-1].walk.toarray())[1][:, -2 : -2 - width : -1]
    for k in reversed(range(len(levels) - 1)):
        start = np.random.default_rng(k).standard_normal((levels[k].root.size, width))
        start[:, : vectors.shape[1]] = levels[k].lift @ vectors  # a small chain has fewer vectors
        wanted, tolerance = (width, 0.1) if k else (d, TOLERANCE)
        values, vectors, steps = _davidson(levels[k:], start, wanted, tolerance)
    return values[:d], vectors[:, :d], steps
