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
def faded(total, brought, rate, keep):
    """One step of an average; the two forms keep the digits of a large and of a small rate."""
    small = total + rate * (brought - total)
    return tl.where(rate > 0.5, keep * total + rate * brought, small)


@triton.jit
def covariance_path(
    grams, counts, short, short_rest, long, long_rest, evidence, steps,
    evidences, ages, renewals, end_cov, end_evidence, tally, parts, T, C,
    mu, mu_keep, eps, eps_keep, mu_period, eps_period, AHEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """W or B after each step, times its evidence, written over the first part of `grams`.

    The first program of each also keeps the books: the evidence, the last renewal of the ridge
    before each step, and how many times the ridge has faded since.
    """
    which, size = tl.program_id(1), C * C
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, keeps_books = cell < size, tl.program_id(0) == 0
    rate = tl.where(which == 0, mu, eps).to(tl.float64)
    keep = tl.where(which == 0, mu_keep, eps_keep).to(tl.float64)
    period = tl.where(which == 0, mu_period, eps_period)
    weight = tl.load(evidence + which).to(tl.float64)
    total = weight * read_covariance(short, short_rest, long, long_rest, cell, inside, which)
    ticks, age, renewed = tl.load(steps), 0, -1
    for begin in range(0, T, AHEAD):
        brought = ()
        for j in tl.static_range(AHEAD):
            at = (which * T + begin + j).to(tl.int64) * size + cell
            there = inside & (begin + j < T)
            gram = tl.load(grams + at, mask=there, other=0.0)
            for part in range(1, parts):
                at += 2 * T.to(tl.int64) * size
                gram += tl.load(grams + at, mask=there, other=0.0)
            brought = brought + (gram,)
        for j in tl.static_range(AHEAD):
            t = begin + j
            live = tl.load(counts + t, mask=t < T, other=0) > 0
            count = tl.load(counts + (1 + which) * T + t, mask=t < T, other=0)
            renew = live & (ticks % period == 0)
            age, renewed = tl.where(renew, 0, age), tl.where(renew, t, renewed)
            ticks += live.to(tl.int64)
            mean = brought[j].to(tl.float64) / tl.maximum(count, 1)
            total = tl.where(count > 0, faded(total, mean, rate, keep), total)
            weight = tl.where(count > 0, faded(weight, 1.0, rate, keep), weight)
            age += (count > 0).to(tl.int32)
            at = (which * T + t).to(tl.int64) * size + cell
            tl.store(grams + at, total.to(tl.float32), mask=inside & (t < T))
            book = which * T + t
            tl.store(evidences + book, weight, mask=keeps_books & (t < T))
            tl.store(ages + book, age, mask=keeps_books & (t < T))
            tl.store(renewals + book, renewed, mask=keeps_books & (t < T))
    end = total / tl.maximum(weight, 1e-300)
    value = end.to(tl.float32)
    tl.store(end_cov + 2 * which * size + cell, value, mask=inside)
    tl.store(end_cov + (2 * which + 1) * size + cell, (end - value).to(tl.float32), mask=inside)
    tl.store(end_evidence + which, weight.to(tl.float32), mask=keeps_books)
    tl.store(tally, ticks, mask=keeps_books & (which == 0))


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
def inverse_matrices(
    totals, counts, evidences, ages, renewals, ridges, short, short_rest, long, long_rest, evidence,
    sums, inverses, pushes, end_ridge, tally, parts, T, C, mu_log_keep, eps_log_keep,
    high, low, noise, WIDE: tl.constexpr, CHANNELS: tl.constexpr,
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
    if WIDE:
        matrix = matrix.to(tl.float64)
    else:
        scale = scale.to(tl.float32)
    matrix = matrix * scale[:, None] * scale[None, :]
    matrix = tl.where(c[:, None] == c[None, :], 1.0, matrix).to(matrix.dtype)
    inverse, least = swept(matrix, c, C)
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
def joined(keep, value, next_keep, next_value):
    """Two stretches of a linear recurrence, one after the other."""
    return keep * next_keep, value * next_keep + next_value


@triton.jit
def pull_path(
    pushes, counts, pull, pulls, end_pull, T, C, eps, eps_keep,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The moving average of the gradient of a shift of all outputs together, after each step."""
    c, line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, STEPS)
    now = tl.load(pull + c, mask=c < C, other=0.0)
    for begin in range(0, T, STEPS):
        t = begin + line
        inside = (t < T)[:, None] & (c < C)[None, :]
        at = t[:, None] * C + c[None, :]
        push = tl.load(pushes + at, mask=inside, other=0.0)
        push -= tl.load(pushes + T * C + at, mask=inside, other=0.0)
        taking = (tl.load(counts + T + t, mask=t < T, other=0) > 0)[:, None] & inside
        keep = tl.where(taking, eps_keep, 1.0)
        value = tl.where(taking, eps * push, 0.0)
        keep, value = tl.associative_scan((keep, value), 0, joined)
        path = keep * now[None, :] + value
        tl.store(pulls + at, path, mask=inside)
        now = tl.sum(tl.where((line == STEPS - 1)[:, None], path, 0.0), 0)
    tl.store(end_pull + c, now, mask=c < C)
