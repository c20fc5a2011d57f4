"""Inverses of many small covariances, compiled by numba."""

from __future__ import annotations

import numpy as np

from ullayers.kernels.compiled_tiles import NONE, Array
from ullayers.kernels.compiling import compiled


@compiled
def inverse_root(pivot: Array, out: Array) -> float:
    """L^-1 of a matrix L L^T of four by four, of which the upper part counts; its least pivot."""
    least = np.inf
    for i in range(4):
        for j in range(4):
            out[i, j] = i == j
    for k in range(4):
        value = pivot[k, k]
        least = min(least, value) if value > 0 else -1.0  # so it is for a NaN
        root = 1 / np.sqrt(value if value > 0 else 1.0)
        for j in range(4):
            out[k, j] *= root
            if j >= k:
                pivot[k, j] *= root
        for i in range(k + 1, 4):
            for j in range(4):
                out[i, j] -= pivot[k, i] * out[k, j]
                if j >= i:
                    pivot[i, j] -= pivot[k, i] * pivot[k, j]
    return least


@compiled
def sweep(a: Array, x: Array) -> float:
    """Minus the inverse of a symmetric matrix, on and above the diagonal; the least pivot.

    Four pivots P = L L^T at a time: what is left of the matrix is a - x^T x with x = L^-1 times
    their rows. The error grows with the condition as that of Cholesky's method does.

    Args:
        a: C' x C', inverted in place.
        x: (4, C'), to work in.
    """
    width, least = len(a), np.inf
    pivot, root, left = np.empty((4, 4), a.dtype), np.empty((4, 4), a.dtype), a[:4].copy()
    for k in range(0, width, 4):
        for j in range(k):  # what is swept lies above
            for r in range(4):
                left[r, j] = a[j, k + r]
        for r in range(4):
            left[r, k:] = a[k + r, k:]
            pivot[r] = left[r, k : k + 4]
        least = min(least, inverse_root(pivot, root))
        mix(root, left, x)
        for i in range(0, width, 4):
            if i != k:
                take_off(a, x, i)
        x[:, k : k + 4] = -root
        mix(root.T, x, left)
        for r in range(4):
            a[k + r, k:] = left[r, k:]
        for j in range(k):
            for r in range(4):
                a[j, k + r] = left[r, j]
    return least


@compiled
def mix(four: Array, x: Array, out: Array) -> None:
    """A matrix of four by four times four rows."""
    for r in range(4):
        m0, m1, m2, m3 = four[r, 0], four[r, 1], four[r, 2], four[r, 3]
        x0, x1, x2, x3, row = x[0], x[1], x[2], x[3], out[r]
        for j in range(len(row)):
            row[j] = m0 * x0[j] + m1 * x1[j] + m2 * x2[j] + m3 * x3[j]


@compiled
def take_off(a: Array, x: Array, i: int) -> None:
    """Four rows of a - x^T x."""
    width = len(a)
    r0, r1, r2, r3 = a[i, i:], a[i + 1, i:], a[i + 2, i:], a[i + 3, i:]
    z0, z1, z2, z3 = x[0, i:], x[1, i:], x[2, i:], x[3, i:]
    m00, m01, m02, m03 = z0[0], z1[0], z2[0], z3[0]
    m10, m11, m12, m13 = z0[1], z1[1], z2[1], z3[1]
    m20, m21, m22, m23 = z0[2], z1[2], z2[2], z3[2]
    m30, m31, m32, m33 = z0[3], z1[3], z2[3], z3[3]
    for p in range(width - i):
        v0, v1, v2, v3 = z0[p], z1[p], z2[p], z3[p]
        r0[p] -= m00 * v0 + m01 * v1 + m02 * v2 + m03 * v3
        r1[p] -= m10 * v0 + m11 * v1 + m12 * v2 + m13 * v3
        r2[p] -= m20 * v0 + m21 * v1 + m22 * v2 + m23 * v3
        r3[p] -= m30 * v0 + m31 * v1 + m32 * v2 + m33 * v3


@compiled
def invert(
    matrices: Array, levels: Array, scales: Array, sums: Array, pushes: Array, inflations: Array,
    first: int, every: int,
) -> None:  # fmt: skip
    """Scaled inverses in place of matrices, that of B with its sign.

    Args:
        matrices: (n, 2, C', C'), of which the part above the diagonal counts.
        levels: (n, 2), what is added to their diagonals.
        scales: (n, 2), what their inverses are multiplied with.
        sums: (threads, n, 2, C), what `find_grams` has found.
        pushes: (n, 2, C), the products of inverses and sums, written to.
        inflations: (n, 2), the largest product of entries on the diagonals of a matrix and of its
            inverse; -1 if it has none.
        first: the first matrix.
        every: from one to the next.
    """
    d, width = sums.shape[3], matrices.shape[3]
    x, before = np.empty((4, width), matrices.dtype), np.empty(d, matrices.dtype)
    for m in range(first, 2 * len(matrices), every):
        t, which = m // 2, m % 2
        a = matrices[t, which]
        for i in range(width):
            if i < d:
                a[i, i] += levels[t, which]
                before[i] = a[i, i]
            for j in range(max(i, d), width):
                a[i, j] = i == j
        least, most = sweep(a, x), 0.0
        scale = scales[t, which] * (1.0 if which else -1.0)
        for i in range(d):
            most = max(most, -a[i, i] * before[i])
            for j in range(i, d):
                a[i, j] = a[j, i] = a[i, j] * scale if least > 0 else 0.0
        for i in range(width):
            for j in range(max(i, d), width):
                a[i, j] = a[j, i] = NONE
        inflations[t, which] = most if least > 0 else -1.0
        for i in range(d):
            push = 0.0
            for part in range(len(sums)):
                for j in range(d):
                    push += a[i, j] * sums[part, t, which, j]
            pushes[t, which, i] = push
