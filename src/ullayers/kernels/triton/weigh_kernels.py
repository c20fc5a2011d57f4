"""W, B and the derivatives of J on a GPU, in one Triton kernel."""

from __future__ import annotations

import triton
import triton.language as tl

from ullayers.kernels.triton.inverse_kernels import inverse_root_in_blocks, less


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
