"""Inverse Cholesky factors of symmetric positive definite matrices inside a Triton kernel.

Matrices have ones on the diagonal, or are what elimination leaves of such a matrix: the pivots are
at most 1, so that no digits are lost.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def one(row, i: tl.constexpr):
    """Broadcast the i-th entry of a row."""
    return tl.gather(row, tl.zeros_like(row).to(tl.int32) + i, 0)


@triton.jit
def inverse_root(source, stride, to, b, inside, N: tl.constexpr):
    """Store the inverse of the lower Cholesky factor of a small matrix; return the least pivot.

    Rows are held one by one: a row fits into a part of a warp, so no warp waits for another.
    """
    dtype = source.dtype.element_ty
    least = tl.full([N], 1.0, dtype)
    rows, roots = (), ()
    for i in tl.static_range(N):
        row = tl.load(source + i * stride + b, mask=(b < inside) & (i < inside), other=0.0)
        rows = rows + (tl.where((b == i) & (i >= inside), 1.0, row).to(dtype),)
        roots = roots + (tl.where(b == i, 1.0, 0.0).to(dtype),)
    for k in tl.static_range(N):
        pivot = one(rows[k], k)
        least = tl.where(pivot > 0, tl.minimum(least, pivot), 0.0)  # false for NaN
        pivot = tl.where(pivot > 0, pivot, 1.0)
        root = tl.rsqrt(pivot)
        root = root * (1.5 - 0.5 * pivot * root * root)  # a Newton step: rsqrt is approximate
        across, down = rows[k] * root, roots[k] * root
        tl.store(to + k * N + b, down)
        left, more = (), ()
        for i in tl.static_range(N):
            if i > k:
                below = one(across, i)
                left = left + (rows[i] - below * across,)
                more = more + (roots[i] - below * down,)
            else:
                left, more = left + (rows[i],), more + (roots[i],)
        rows, roots = left, more
    return tl.min(least, 0)


@triton.jit
def times_root(columns, root):
    """Multiply columns by the transpose of a pivot's inverse root, in float64."""
    zeros = tl.zeros([columns.shape[0], root.shape[0]], tl.float64)
    return tl.dot(columns, tl.trans(root), zeros, out_dtype=tl.float64, input_precision="ieee")


@triton.jit
def less(matrix, x, y):
    """Return matrix - x y^T, in float64."""
    return tl.dot(-x, tl.trans(y), matrix, out_dtype=tl.float64, input_precision="ieee")


@triton.jit
def inverse_root_in_blocks(matrix, scratch, to, roots, c, C: tl.constexpr, PIVOT: tl.constexpr):
    """Store the inverse of the lower Cholesky factor of a C x C matrix; return the least pivot.

    Eliminating tiles with inverse roots loses as few digits as Cholesky's method; with inverses of
    tiles, the condition numbers of two tiles would multiply.
    """
    least = tl.full([], 1.0, matrix.dtype)
    b = tl.arange(0, PIVOT)
    cells = c[:, None] * C + c[None, :]
    inverse = tl.where(c[:, None] == c[None, :], 1.0, 0.0).to(matrix.dtype)
    for first in range(0, C, PIVOT):
        k = first + b
        coming = (c >= first) & (c < first + PIVOT)
        tl.store(scratch + cells, matrix, mask=coming[None, :])
        tl.store(to + cells, inverse, mask=coming[:, None])
        tl.debug_barrier()
        smallest = inverse_root(scratch + first * (C + 1), C, roots, b, C - first, PIVOT)
        least = tl.minimum(least, smallest)
        tl.debug_barrier()
        below = (c >= first + PIVOT)[:, None]
        columns = tl.load(scratch + c[:, None] * C + k[None, :], mask=below, other=0.0)
        root = tl.load(roots + b[:, None] * PIVOT + b[None, :])
        rows = tl.load(to + k[:, None] * C + c[None, :])
        across = times_root(columns, root)
        down = tl.trans(times_root(tl.trans(rows), root))
        matrix = less(matrix, across, across)
        inverse = less(inverse, across, tl.trans(down))
        tl.debug_barrier()  # all threads have read
        tl.store(to + k[:, None] * C + c[None, :], down)
    tl.debug_barrier()
    return least
