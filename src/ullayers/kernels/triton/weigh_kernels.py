"""W, B and the derivatives of J on a GPU, in one Triton kernel.

Matrices whose inverse Cholesky factors are computed have ones on the diagonal, or are what
elimination leaves of such a matrix: the pivots are at most 1, so that no digits are lost.
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


@triton.jit
def weigh(
    sums, tally, covariances, traces, evidence, left_out, matrices, scratch, of_w, of_b, noise,
    scale, w_seen, b_seen, C, WIDTH: tl.constexpr, PIVOT: tl.constexpr,
):  # fmt: skip
    """Compute W, B and the derivatives of J in one program; see `moments.weigh`.

    `matrices` are zero also if float32 cannot hold them.
    """
    c = tl.arange(0, WIDTH)
    inside, same = c < C, c[:, None] == c[None, :]
    cells, there = c[:, None] * C + c[None, :], (c < C)[:, None] & (c < C)[None, :]
    wide = c[:, None] * WIDTH + c[None, :]
    roots, inverses = scratch + WIDTH * WIDTH, scratch + 2 * WIDTH * WIDTH
    n_w = tl.maximum(tl.load(tally), 1).to(tl.float64)
    n_b = tl.maximum(tl.load(tally + 1), 1).to(tl.float64)
    diagonal = sums + c * (C + 1)
    w_trace = tl.sum(tl.load(diagonal, mask=inside, other=0.0), 0) / n_w
    b_trace = tl.sum(tl.load(diagonal + C * C, mask=inside, other=0.0), 0) / n_b
    failed, largest = tl.zeros([], tl.int64), tl.zeros([], tl.float64)
    for which in range(2):
        is_w, place = which == 0, which * C * C
        n = tl.where(is_w, n_w, n_b)
        relative = tl.where(is_w, of_w, of_b).to(tl.float64)
        own = relative * tl.where(is_w, w_trace, b_trace)
        level = tl.maximum(own, noise * tl.where(is_w, b_trace, w_trace))
        covariance = tl.load(sums + place + cells, mask=there, other=0.0) / n
        tl.store(covariances + place + cells, covariance, mask=there)
        size = tl.load(diagonal + place, mask=inside, other=0.0) / n + level
        unit = tl.where(inside & (size > 0), 1 / tl.sqrt(size), 1.0)
        units = unit[:, None] * unit[None, :]
        matrix = tl.where(same, 1.0, covariance * units)
        least = inverse_root_in_blocks(matrix, scratch, inverses, roots, c, WIDTH, PIVOT)
        failed += tl.where(least > 0, 0, 1)
        root = tl.load(inverses + wide)
        inverse = less(tl.zeros_like(matrix), -tl.trans(root), tl.trans(root)) * units
        by_trace = tl.where(own >= level, relative, 0.0)
        by_trace *= tl.sum(tl.sum(tl.where(same & there, inverse, 0.0), 1), 0)
        inverse = tl.where(same, inverse + by_trace, inverse)
        inverse *= tl.where(is_w, scale, -scale) / n
        most = tl.max(tl.max(tl.where(there, tl.abs(inverse), 0.0), 1), 0)
        largest = tl.maximum(largest, most)
        tl.store(matrices + place + cells, inverse, mask=there)
        tl.debug_barrier()  # before the next matrix is written to `inverses`
    moves = (w_trace > 0) & (b_trace > 0)
    if not (moves & (failed == 0) & (largest <= 3e38)):
        zeros = tl.zeros([WIDTH, WIDTH], tl.float64)
        tl.store(matrices + cells, zeros, mask=there)
        tl.store(matrices + C * C + cells, zeros, mask=there)
    tl.store(traces, w_trace)
    tl.store(traces + 1, b_trace)
    tl.store(evidence, tl.where(tl.load(tally) > 0, w_seen, 0.0))
    tl.store(evidence + 1, tl.where(tl.load(tally + 1) > 0, b_seen, 0.0))
    tl.store(left_out, tl.load(tally + 2))
    tl.store(left_out + 1, tl.where(moves, failed, 0))
