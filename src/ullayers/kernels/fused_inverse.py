"""Inverses of symmetric positive definite matrices inside a Triton kernel.

Gauss's sweeps turn a matrix into its inverse, pivot by pivot. A pivot's row and column would each
need a case of their own. With p - 1 in the pivot's place the plain update gives them too, and
leaves a 2 on the diagonal that is taken off at the end. Matrices come with ones on the diagonal,
or with what a sweep leaves of such: the pivots are at most 1, so that no digits are lost.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ullayers.kernels.fused_product import plus_product


@triton.jit
def swept(matrix, c, C):
    """The inverse, by sweeps one by one; the least pivot."""
    least = tl.full([], 1.0, matrix.dtype)
    for k in range(C):
        column = tl.sum(matrix * (c == k).to(matrix.dtype)[None, :], 1)
        pivot = tl.sum(tl.where(c == k, column, 0.0), 0)
        least = tl.where(pivot > 0, tl.minimum(least, pivot), 0.0)  # a NaN compares as false
        pivot = tl.where(pivot > 0, pivot, 1.0)
        column = tl.where(c == k, pivot - 1, column)
        matrix -= column[:, None] * (column / pivot)[None, :]
    return twice_one(c, matrix) - matrix, least


@triton.jit
def twice_one(c, matrix):
    """Twice the unit matrix."""
    return tl.where(c[:, None] == c[None, :], 2.0, 0.0).to(matrix.dtype)


@triton.jit
def one(row, i: tl.constexpr):
    """An entry of a row, for all to use."""
    return tl.gather(row, tl.zeros_like(row).to(tl.int32) + i, 0)


@triton.jit
def inverse_root(source, stride, to, b, inside, N: tl.constexpr):
    """The inverse of the lower Cholesky factor of a small matrix, into `to`; the least pivot.

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
        least = tl.where(pivot > 0, tl.minimum(least, pivot), 0.0)  # a NaN compares as false
        pivot = tl.where(pivot > 0, pivot, 1.0)
        root = tl.rsqrt(pivot)
        root = root * (1.5 - 0.5 * pivot * root * root)  # the GPU's is not exact to the last bit
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
    """Columns of the matrix times the transpose of a pivot's inverse root."""
    nothing = tl.zeros([columns.shape[0], root.shape[0]], columns.dtype)
    return plus_product(nothing, columns, root)


@triton.jit
def less(matrix, x, y):
    """The matrix without x y^T."""
    return plus_product(matrix, -x, y)


@triton.jit
def swept_in_blocks(
    matrix, scratch, roots, c, C, PIVOT: tl.constexpr
):  # fmt: skip
    """The inverse of a C x C matrix, with `PIVOT` sweeps at a time on the matrix units.

    A pivot P = L L^T goes in as L^-1: the error of a product with P^-1 would grow with P's
    condition, this one's with its root. The matrix stays in registers, of which no part can be
    taken; so the columns that come next go through `scratch`, where the inverse will be.
    """
    least = tl.full([], 1.0, matrix.dtype)
    b = tl.arange(0, PIVOT)
    cells, filled = c[:, None] * C + c[None, :], (c < C)[:, None] & (c < C)[None, :]
    for first in range(0, C, PIVOT):
        k = first + b
        coming = (c >= first) & (c < first + PIVOT)
        tl.store(scratch + cells, matrix, mask=filled & coming[None, :])
        tl.debug_barrier()
        smallest = inverse_root(scratch + first * (C + 1), C, roots, b, C - first, PIVOT)
        least = tl.minimum(least, smallest)
        tl.debug_barrier()
        there = (c < C)[:, None] & (k < C)[None, :]
        columns = tl.load(scratch + c[:, None] * C + k[None, :], mask=there, other=0.0)
        root = tl.load(roots + b[:, None] * PIVOT + b[None, :])
        columns -= (c[:, None] == k[None, :]).to(matrix.dtype)
        across = times_root(columns, root)
        matrix = less(matrix, across, across)
    tl.debug_barrier()
    return twice_one(c, matrix) - matrix, least


@triton.jit
def inverse_root_in_blocks(matrix, scratch, to, roots, c, C: tl.constexpr, PIVOT: tl.constexpr):
    """The inverse of the lower Cholesky factor of a C x C matrix, into `to`; the least pivot.

    Where a matrix is eliminated tile by tile, this loses as few digits as Cholesky's method; with
    the inverses of tiles, the conditions of two of them would multiply.
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
        tl.debug_barrier()  # all have read
        tl.store(to + k[:, None] * C + c[None, :], down)
    tl.debug_barrier()
    return least


@triton.jit
def sweep_half(
    corner, side, scratch, corner_at, side_at, rest_at, inside, others, roots, c, C,
    PIVOT: tl.constexpr,
):  # fmt: skip
    """Sweep the pivots of one half of a C x C matrix, of which two squares are in registers.

    The third, of the other half alone, is still to be reduced by x x^T, with x^T from `scratch`.

    Args:
        corner: the square of this half.
        side: the square of the other half's rows and this half's columns.
        scratch: where the inverse will be, for columns on their way.
        corner_at: where the corner's columns go there.
        side_at: where the side's columns go.
        rest_at: where x^T is left.
        inside: rows of this half that are there.
        others: rows of the other half.
        roots: room for a pivot's root.
        c: 0, 1, ... up to a half.
        C: the width of the whole.
        PIVOT: sweeps at a time.
    """
    least = tl.full([], 1.0, tl.float32)
    b = tl.arange(0, PIVOT)
    here, there = (c < inside)[:, None], (c < others)[:, None]
    whole = c[:, None] * C + c[None, :]
    for first in range(0, inside, PIVOT):
        k = first + b
        coming = ((c >= first) & (c < first + PIVOT) & (c < inside))[None, :]
        tl.store(scratch + corner_at + whole, corner, mask=coming & here)
        tl.store(scratch + side_at + whole, side, mask=coming & there)
        tl.debug_barrier()
        pivot = scratch + corner_at + first * (C + 1)
        least = tl.minimum(least, inverse_root(pivot, C, roots, b, inside - first, PIVOT))
        tl.debug_barrier()
        cells, these = c[:, None] * C + k[None, :], (k < inside)[None, :]
        columns = tl.load(scratch + corner_at + cells, mask=these & here, other=0.0)
        columns -= (c[:, None] == k[None, :]).to(tl.float32)
        beside = tl.load(scratch + side_at + cells, mask=these & there, other=0.0)
        root = tl.load(roots + b[:, None] * PIVOT + b[None, :])
        across = times_root(columns, root)
        x = times_root(beside, root)
        corner = less(corner, across, across)
        side = less(side, x, across)
        tl.store(scratch + rest_at + k[None, :] * C + c[:, None], x, mask=these & there)
    tl.debug_barrier()
    return corner, side, least
