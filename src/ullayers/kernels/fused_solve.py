"""The second half of the recurrence on a GPU: covariances, their inverses and the pull, in Triton.

As `kernels.covariance` and `core._centred`, with one program for every step's matrix. Wherever a
kernel is launched on a grid of two columns, the first is for W and the second for B.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def read_covariance(short, short_rest, long, long_rest, cell, inside, which):
    """W or B as stored: value and rest; the rest is void once someone has set the value."""
    if which == 0:
        value = tl.load(short + cell, mask=inside, other=0.0)
        rest = tl.load(short_rest + cell, mask=inside, other=0.0)
    else:
        value = tl.load(long + cell, mask=inside, other=0.0)
        rest = tl.load(long_rest + cell, mask=inside, other=0.0)
    rest = tl.where(value + rest == value, rest, 0.0)
    return value.to(tl.float64) + rest.to(tl.float64)


@triton.jit
def exact(which, mu, mu_keep, eps, eps_keep):
    """A rate and one minus it, in float64, from whichever of the two is the smaller."""
    rate = tl.where(which == 0, mu, eps).to(tl.float64)
    keep = tl.where(which == 0, mu_keep, eps_keep).to(tl.float64)
    return tl.where(rate > 0.5, 1 - keep, rate), tl.where(rate > 0.5, keep, 1 - rate)


@triton.jit
def joined(keep, value, next_keep, next_value):
    """Two stretches of a linear recurrence, one after the other."""
    return keep * next_keep, value * next_keep + next_value


@triton.jit
def later(first, second):
    """The larger of two, for a scan."""
    return tl.maximum(first, second)


@triton.jit
def last_row(path, line, STEPS: tl.constexpr):
    """Where a path over `STEPS` lines ends."""
    return tl.sum(tl.where((line == STEPS - 1)[:, None], path, 0.0), 0)


@triton.jit
def covariance_path(
    grams, shares, short, short_rest, long, long_rest, evidence,
    end_cov, parts, T, C: tl.constexpr, mu, mu_keep, eps, eps_keep, AHEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """W or B after each step, times its evidence, written over the first part of `grams`."""
    which, size = tl.program_id(1), C * C
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < size
    rate, keep = exact(which, mu, mu_keep, eps, eps_keep)
    weight = tl.load(evidence + which).to(tl.float64)
    total = weight * read_covariance(short, short_rest, long, long_rest, cell, inside, which)
    for begin in range(0, T, AHEAD):
        brought = ()  # many loads on their way before the first is needed
        for j in tl.static_range(AHEAD):
            at, there = (which * T + begin + j).to(tl.int64) * size + cell, inside & (begin + j < T)
            brought = brought + (tl.load(grams + at, mask=there, other=0.0),)
        for part in range(1, parts):
            more = ()
            for j in tl.static_range(AHEAD):
                at = ((part * 2 + which) * T + begin + j).to(tl.int64) * size + cell
                there = inside & (begin + j < T)
                more = more + (brought[j] + tl.load(grams + at, mask=there, other=0.0),)
            brought = more
        for j in tl.static_range(AHEAD):
            share = tl.load(shares + which * T + begin + j, mask=begin + j < T, other=0.0)
            now = keep * total + share * brought[j].to(tl.float64)
            total = tl.where(share > 0, now, total)
            weight = tl.where(share > 0, keep * weight + rate, weight)
            at = (which * T + begin + j).to(tl.int64) * size + cell
            tl.store(grams + at, total.to(tl.float32), mask=inside & (begin + j < T))
    end = total / tl.maximum(weight, 1e-300)
    value = end.to(tl.float32)
    tl.store(end_cov + 2 * which * size + cell, value, mask=inside)
    tl.store(end_cov + (2 * which + 1) * size + cell, (end - value).to(tl.float32), mask=inside)


@triton.jit
def books(
    counts, evidence, steps, evidences, shares, ages, renewals, end_evidence, tally, T,
    mu, mu_keep, eps, eps_keep, mu_period, eps_period, STEPS: tl.constexpr,
):  # fmt: skip
    """Of every step: the evidence, the last renewal of the ridge, and its fadings since."""
    which, line = tl.program_id(0), tl.arange(0, STEPS)
    rate, keep = exact(which, mu, mu_keep, eps, eps_keep)
    period = tl.where(which == 0, mu_period, eps_period)
    weight = tl.load(evidence + which).to(tl.float64)
    ticks, clock = tl.load(steps), 0
    renewed, since = -1, 0
    for begin in range(0, T, STEPS):
        t = begin + line
        live = (tl.load(counts + t, mask=t < T, other=0) > 0).to(tl.int32)
        number = tl.load(counts + (1 + which) * T + t, mask=t < T, other=0)
        counted = (number > 0).to(tl.int32)
        before = ticks + (tl.cumsum(live, 0) - live)
        clocks = clock + tl.cumsum(counted, 0)
        renews = (live > 0) & (before % period == 0)
        latest = tl.associative_scan(tl.where(renews, t, renewed), 0, later)
        marks = tl.associative_scan(tl.where(renews, clocks - counted, since), 0, later)
        fading, brought = tl.where(counted > 0, keep, 1.0), tl.where(counted > 0, rate, 0.0)
        fading, brought = tl.associative_scan((fading, brought), 0, joined)
        weights = fading * weight + brought
        at = which * T + t
        tl.store(evidences + at, weights, mask=t < T)
        tl.store(shares + at, tl.where(number > 0, rate / tl.maximum(number, 1), 0.0), mask=t < T)
        tl.store(ages + at, clocks - marks, mask=t < T)
        tl.store(renewals + at, latest, mask=t < T)
        end = line == STEPS - 1
        weight = tl.sum(tl.where(end, weights, 0.0), 0)
        ticks += tl.sum(live, 0)
        clock += tl.sum(counted, 0)
        renewed = tl.max(latest, 0)
        since = tl.max(marks, 0)
    tl.store(end_evidence + which, weight.to(tl.float32))
    tl.store(tally, ticks, mask=which == 0)


@triton.jit
def ridge_level(
    totals, renewals, ages, ridges, start_trace, log_keep, high, t, which, T, C, c
):  # fmt: skip
    """The ridge that belongs to a step: what it was set to at its last renewal, faded since."""
    book = which * T + t
    renewed, age = tl.load(renewals + book), tl.load(ages + book)
    before = (which * T + tl.maximum(renewed - 1, 0)).to(tl.int64) * C * C
    there = (c < C) & (renewed > 0)
    trace = tl.sum(tl.load(totals + before + c * (C + 1), mask=there, other=0.0).to(tl.float64), 0)
    trace = tl.where(renewed > 0, trace, start_trace)
    ridge = tl.where(renewed >= 0, high * trace, tl.load(ridges + which).to(tl.float64))
    return ridge * tl.exp(age * log_keep)


@triton.jit
def swept(matrix, c, C):
    """The inverse of a matrix with ones on its diagonal, by Gauss's sweeps; its least pivot.

    A pivot's row and column would each need a case of their own. With p - 1 in the pivot's place
    the plain update gives them too, and leaves a 2 on the diagonal that is taken off at the end.
    The pivots are at most 1, so that no digits are lost.
    """
    least = tl.full([], 1.0, matrix.dtype)
    for k in range(C):
        column = tl.sum(matrix * (c == k).to(matrix.dtype)[None, :], 1)
        pivot = tl.sum(tl.where(c == k, column, 0.0), 0)
        least = tl.where(pivot > 0, tl.minimum(least, pivot), 0.0)  # a NaN compares as false
        pivot = tl.where(pivot > 0, pivot, 1.0)
        column = tl.where(c == k, pivot - 1, column)
        matrix -= column[:, None] * (column / pivot)[None, :]
    return tl.where(c[:, None] == c[None, :], 2.0, 0.0).to(matrix.dtype) - matrix, least


@triton.jit
def one(row, i: tl.constexpr):
    """An entry of a row, for all to use."""
    return tl.gather(row, tl.zeros_like(row).to(tl.int32) + i, 0)


@triton.jit
def inverse_root(source, stride, to, b, inside, N: tl.constexpr):
    """The inverse of the lower Cholesky factor of a small matrix, into `to`; the least pivot.

    Rows are held one by one: a row fits into a part of a warp, so no warp waits for another.
    """
    least = tl.full([N], 1.0, tl.float32)
    rows, roots = (), ()
    for i in tl.static_range(N):
        row = tl.load(source + i * stride + b, mask=(b < inside) & (i < inside), other=0.0)
        rows = rows + (tl.where((b == i) & (i >= inside), 1.0, row),)
        roots = roots + (tl.where(b == i, 1.0, 0.0),)
    for k in tl.static_range(N):
        pivot = one(rows[k], k)
        least = tl.where(pivot > 0, tl.minimum(least, pivot), 0.0)  # a NaN compares as false
        pivot = tl.where(pivot > 0, pivot, 1.0)
        share = rows[k] / pivot
        tl.store(to + k * N + b, roots[k] * tl.rsqrt(pivot))
        left, more = (), ()
        for i in tl.static_range(N):
            if i > k:
                below = one(share, i)
                left = left + (rows[i] - below * rows[k],)
                more = more + (roots[i] - below * roots[k],)
            else:
                left, more = left + (rows[i],), more + (roots[i],)
        rows, roots = left, more
    return tl.min(least, 0)


@triton.jit
def swept_in_blocks(
    matrix, scratch, roots, cells, filled, c, C, PIVOT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """As `swept`, with `PIVOT` rows and columns at a time, on the matrix units.

    A pivot P = L L^T goes in as L^-1: the error of a product with P^-1 would grow with P's
    condition, this one's with its root. The matrix stays in registers, of which no part can be
    taken; so the columns that come next go through `scratch`, where the inverse will be.
    """
    least = tl.full([], 1.0, tl.float32)
    b = tl.arange(0, PIVOT)
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
        columns -= (c[:, None] == k[None, :]).to(tl.float32)
        across = tl.dot(columns, tl.trans(root), input_precision=PRECISION)
        matrix = tl.dot(-across, tl.trans(across), matrix, input_precision=PRECISION)
    tl.debug_barrier()
    return tl.where(c[:, None] == c[None, :], 2.0, 0.0) - matrix, least


@triton.jit
def inverse_matrices(
    totals, counts, evidences, ages, renewals, ridges, short, short_rest, long, long_rest, evidence,
    sums, inverses, roots, pushes, end_ridge, tally, parts, T, C: tl.constexpr,
    mu_log_keep, eps_log_keep, high, low, noise, PIVOT: tl.constexpr, CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """(W + ridge)^-1 and (B + ridge)^-1 of every step, over the number of streams that count."""
    t, which = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, CHANNELS)
    diagonal = c * (C + 1)
    start = read_covariance(short, short_rest, long, long_rest, diagonal, c < C, which)
    start_trace = tl.sum(start, 0) * tl.load(evidence + which).to(tl.float64)
    log_keep = tl.where(which == 0, mu_log_keep, eps_log_keep).to(tl.float64)
    at = (which * T + t).to(tl.int64) * C * C
    cells, filled = c[:, None] * C + c[None, :], (c < C)[:, None] & (c < C)[None, :]
    matrix = tl.load(totals + at + cells, mask=filled, other=0.0)
    spread = tl.load(totals + at + diagonal, mask=c < C, other=0.0).to(tl.float64)
    other_at = ((1 - which) * T + t).to(tl.int64) * C * C
    other = tl.load(totals + other_at + diagonal, mask=c < C, other=0.0).to(tl.float64)
    weight = tl.load(evidences + which * T + t)
    other_trace = tl.sum(other, 0) / tl.maximum(tl.load(evidences + (1 - which) * T + t), 1e-300)
    trace = tl.sum(spread, 0)
    ridge = ridge_level(
        totals, renewals, ages, ridges, start_trace, log_keep, high, t, which, T, C, c
    )
    level = tl.maximum(tl.maximum(ridge, low * trace), noise * other_trace * weight)
    level = tl.where(trace > 0, level, 1.0)
    spread = tl.where(c < C, spread + level, 1.0)
    scale = tl.where(spread > 0, 1 / tl.sqrt(spread), 1.0)
    if PIVOT == 0:
        matrix = matrix.to(tl.float64)
    else:
        scale = scale.to(tl.float32)
    matrix = matrix * scale[:, None] * scale[None, :]
    matrix = tl.where(c[:, None] == c[None, :], 1.0, matrix).to(matrix.dtype)
    if PIVOT == 0:
        inverse, least = swept(matrix, c, C)
    else:
        inverse, least = swept_in_blocks(
            matrix,
            inverses + at,
            roots + (which * T + t) * PIVOT * PIVOT,
            cells,
            filled,
            c,
            C,
            PIVOT,
            PRECISION,
        )
    count = tl.load(counts + (1 + which) * T + t)
    solved = least > 0
    factor = tl.where(solved & (trace > 0) & (count > 0), weight / tl.maximum(count, 1), 0.0)
    inverse = inverse * scale[:, None] * scale[None, :] * factor.to(matrix.dtype)
    inverse = tl.where(factor > 0, inverse, 0.0).to(tl.float32)
    tl.store(inverses + at + cells, inverse, mask=filled)
    book = (which * T + t) * C + c
    total = tl.zeros([CHANNELS], tl.float32)
    for part in range(parts):
        total += tl.load(sums + part * 2 * T * C + book, mask=c < C, other=0.0)
    tl.store(pushes + book, tl.sum(inverse * total[None, :], 1), mask=c < C)
    tl.atomic_add(tally + 2, tl.where(solved, 0, 1).to(tl.int64))
    tl.store(end_ridge + which, ridge.to(tl.float32), mask=t == T - 1)


@triton.jit
def pull_path(
    pushes, counts, pull, pulls, end_pull, T, C, eps, eps_keep,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The moving average of the gradient of a shift of all outputs together, after each step."""
    c, line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, STEPS)
    rate, keep = exact(1, eps, eps_keep, eps, eps_keep)
    now = tl.load(pull + c, mask=c < C, other=0.0).to(tl.float64)
    for begin in range(0, T, STEPS):
        t = begin + line
        inside = (t < T)[:, None] & (c < C)[None, :]
        at = t[:, None] * C + c[None, :]
        push = tl.load(pushes + at, mask=inside, other=0.0)
        push -= tl.load(pushes + T * C + at, mask=inside, other=0.0)
        taking = (tl.load(counts + T + t, mask=t < T, other=0) > 0)[:, None] & inside
        fading, brought = tl.where(taking, keep, 1.0), tl.where(taking, rate * push, 0.0)
        fading, brought = tl.associative_scan((fading, brought), 0, joined)
        path = fading * now[None, :] + brought
        tl.store(pulls + at, path, mask=inside)
        now = last_row(path, line, STEPS)
    tl.store(end_pull + c, now, mask=c < C)


@triton.jit
def commit(
    end_means, end_seen, end_cov, end_evidence, end_ridge, end_pull, tally,
    short_mean, short_mean_rest, long_mean, long_mean_rest, short_evidence, long_evidence,
    short_cov, short_cov_rest, long_cov, long_cov_rest, cov_evidence, ridge_levels, pull, steps,
    left_out, continues, S, C,
    CENTRED: tl.constexpr, CONTINUES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what the kernels have found to the buffers of the layer."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    moved(end_means, short_mean, i, S * C)
    moved(end_means + S * C, short_mean_rest, i, S * C)
    moved(end_means + 2 * S * C, long_mean, i, S * C)
    moved(end_means + 3 * S * C, long_mean_rest, i, S * C)
    moved(end_seen, short_evidence, i, S)
    moved(end_seen + S, long_evidence, i, S)
    moved(end_cov, short_cov, i, C * C)
    moved(end_cov + C * C, short_cov_rest, i, C * C)
    moved(end_cov + 2 * C * C, long_cov, i, C * C)
    moved(end_cov + 3 * C * C, long_cov_rest, i, C * C)
    moved(end_evidence, cov_evidence, i, 2)
    moved(end_ridge, ridge_levels, i, 2)
    if CENTRED:
        moved(end_pull, pull, i, C)
    moved(tally, steps, i, 1)
    more = tl.load(tally + 1 + i, mask=i < 2, other=0)
    tl.store(left_out + i, tl.load(left_out + i, mask=i < 2, other=0) + more, mask=i < 2)
    tl.store(continues + i, (i >= 0) & CONTINUES, mask=i < 1)


@triton.jit
def moved(source, to, i, size):
    """A block of a copy."""
    tl.store(to + i, tl.load(source + i, mask=i < size, other=0), mask=i < size)
