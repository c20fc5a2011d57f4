"""Cholesky factors and solves for small matrices, compiled by numba.

Calls of LAPACK from compiled code would cost more than these loops.
"""

from __future__ import annotations

import numpy as np

from ullayers.kernels.numba.compiling import compiled
from ullayers.kernels.numba.state_loops import Array


@compiled
def subtract_products(x: Array, z: Array, n: int) -> None:
    """Subtract x[:, :n] z[:, :n]^T from x[:, n : n + 4]; x and z have four rows."""
    x0, x1, x2, x3, z0, z1, z2, z3 = x[0], x[1], x[2], x[3], z[0], z[1], z[2], z[3]
    a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = 0.0  # as many sums as there are registers
    a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = 0.0
    for k in range(n):
        u0, u1, u2, u3, v0, v1, v2, v3 = x0[k], x1[k], x2[k], x3[k], z0[k], z1[k], z2[k], z3[k]
        a00, a01, a02, a03 = a00 + u0 * v0, a01 + u0 * v1, a02 + u0 * v2, a03 + u0 * v3
        a10, a11, a12, a13 = a10 + u1 * v0, a11 + u1 * v1, a12 + u1 * v2, a13 + u1 * v3
        a20, a21, a22, a23 = a20 + u2 * v0, a21 + u2 * v1, a22 + u2 * v2, a23 + u2 * v3
        a30, a31, a32, a33 = a30 + u3 * v0, a31 + u3 * v1, a32 + u3 * v2, a33 + u3 * v3
    x0, x1, x2, x3 = x0[n:], x1[n:], x2[n:], x3[n:]
    x0[0], x0[1], x0[2], x0[3] = x0[0] - a00, x0[1] - a01, x0[2] - a02, x0[3] - a03
    x1[0], x1[1], x1[2], x1[3] = x1[0] - a10, x1[1] - a11, x1[2] - a12, x1[3] - a13
    x2[0], x2[1], x2[2], x2[3] = x2[0] - a20, x2[1] - a21, x2[2] - a22, x2[3] - a23
    x3[0], x3[1], x3[2], x3[3] = x3[0] - a30, x3[1] - a31, x3[2] - a32, x3[3] - a33


@compiled
def factor(a: Array) -> bool:
    """Replace the lower triangle of `a` by its Cholesky factor L; return False if there is none.

    The diagonal holds 1 / L_ii. Works in squares of four by four; remaining rows are done singly.
    """
    for i in range(0, len(a), 4):
        end = min(i + 4, len(a))
        begin = i if end == i + 4 else 0
        for j in range(0, begin, 4):
            subtract_products(a[i:end], a[j : j + 4], j)
            for r in range(i, i + 4):
                for c in range(j, j + 4):
                    left = a[r, c]
                    for k in range(j, c):
                        left -= a[r, k] * a[c, k]
                    a[r, c] = left * a[c, c]
        if begin:
            subtract_products(a[i:end], a[i:end], i)
        for r in range(i, end):
            for c in range(begin, r + 1):
                left = a[r, c]
                for k in range(begin, c):
                    left -= a[r, k] * a[c, k]
                if c < r:
                    a[r, c] = left * a[c, c]
                elif left > 0.0:  # false for NaN
                    a[r, r] = 1.0 / np.sqrt(left)
                else:
                    return False
    return True


@compiled
def solve(factor: Array, x: Array) -> None:
    """Replace x by (L L^T)^-1 x."""
    for i in range(len(x)):
        row, left = factor[i], x[i]
        for k in range(i):
            left -= row[k] * x[k]
        x[i] = left * row[i]
    for i in range(len(x) - 1, -1, -1):
        row = factor[i]
        x[i] *= row[i]
        share = x[i]
        for k in range(i):
            x[k] -= share * row[k]
