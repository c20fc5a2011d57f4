"""The solves of Eq. 11 on a GPU: (W + ridge)^-1 and (B + ridge)^-1 after every step, in Triton.

As `kernels.covariance`, with one program for every step's matrix. A covariance is what its run of
steps has brought so far, summed over the parts of the streams, and what is left of the run's start.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ullayers.kernels.fused_inverse import less, sweep_half, swept, swept_in_blocks, twice_one


@triton.jit
def covariance_at(
    brought, size, starts, decays, which, t, parts, T, cell, start_cell, inside, C, RUN
):  # fmt: skip
    """Some cells of W or B after a step, times its evidence; before the first step for t = -1."""
    runs, began, now = (T + RUN - 1) // RUN, t >= 0, tl.maximum(t, 0)
    at = (which * runs + now // RUN).to(tl.int64) * C * C
    left = tl.where(began, tl.load(decays + which * T + now), 1.0).to(tl.float32)
    total = left * tl.load(starts + at + start_cell, mask=inside, other=0.0)
    for part in range(parts):
        at = ((part * 2 + which) * T + now).to(tl.int64) * size
        total += tl.load(brought + at + cell, mask=inside & began, other=0.0)
    return total


@triton.jit
def diagonal_at(diagonals, starts, decays, which, t, parts, T, c, C, RUN):
    """The diagonal of W or B, likewise."""
    return covariance_at(
        diagonals, C, starts, decays, which, t, parts, T, c, c * (C + 1), c < C, C, RUN
    )


@triton.jit
def ridge_of(
    diagonals, starts, decays, evidences, ages, renewals, ridges, end_ridge, mu_log_keep,
    eps_log_keep, high, low, noise, which, t, parts, T, C, RUN, c,
):  # fmt: skip
    """What goes onto the diagonal; the trace without it, and the evidence.

    The ridge is what it was set to at its last renewal, faded since.
    """
    book, other = which * T + t, (1 - which) * T + t
    renewed, age = tl.load(renewals + book), tl.load(ages + book)
    then = tl.maximum(renewed - 1, -1)
    before = tl.sum(diagonal_at(diagonals, starts, decays, which, then, parts, T, c, C, RUN), 0)
    trace = tl.sum(diagonal_at(diagonals, starts, decays, which, t, parts, T, c, C, RUN), 0)
    beside = tl.sum(diagonal_at(diagonals, starts, decays, 1 - which, t, parts, T, c, C, RUN), 0)
    weight = tl.load(evidences + book).to(tl.float32)
    beside /= tl.maximum(tl.load(evidences + other).to(tl.float32), 1e-30)
    log_keep = tl.where(which == 0, mu_log_keep, eps_log_keep)
    ridge = tl.where(renewed >= 0, high * before, tl.load(ridges + which)) * tl.exp(age * log_keep)
    tl.store(end_ridge + which, ridge, mask=t == T - 1)
    level = tl.maximum(tl.maximum(ridge, low * trace), noise * beside * weight)
    return tl.where(trace > 0, level, 1.0), trace, weight


@triton.jit
def scale_of(diagonal, level, inside):
    """What makes the diagonal 1."""
    spread = tl.where(inside, diagonal + level, 1.0)
    return tl.where(spread > 0, 1 / tl.sqrt_rn(spread), 1.0)


@triton.jit
def factor_of(counts, which, t, T, trace, weight, least, tally):
    """What the inverse is multiplied with: 0 if there is none. A failure is counted."""
    solved, count = least > 0, tl.load(counts + (1 + which) * T + t)
    tl.atomic_add(tally + 2, tl.where(solved, 0, 1).to(tl.int64))
    return tl.where(solved & (trace > 0) & (count > 0), weight / tl.maximum(count, 1), 0.0)


@triton.jit
def entered(sums, which, t, parts, T, C, c):
    """The sum over streams of what enters W or B."""
    total = tl.zeros_like(c).to(tl.float32)
    for part in range(parts):
        book = ((part * 2 + which) * T + t) * C + c
        total += tl.load(sums + book, mask=c < C, other=0.0)
    return total


@triton.jit
def square(grams, starts, decays, which, t, parts, T, row, column, scale, other, C, RUN):
    """A square of the scaled matrix, with ones on the diagonal."""
    cells, filled = row[:, None] * C + column[None, :], (row < C)[:, None] & (column < C)[None, :]
    matrix = covariance_at(
        grams, C * C, starts, decays, which, t, parts, T, cells, cells, filled, C, RUN
    )
    matrix = matrix * scale[:, None] * other[None, :]
    return tl.where(row[:, None] == column[None, :], 1.0, matrix)


@triton.jit
def inverse_matrices(
    grams, diagonals, starts, decays, counts, evidences, ages, renewals, ridges, sums, roots,
    pushes, end_ridge, tally, parts, T, C: tl.constexpr, mu_log_keep, eps_log_keep,
    high, low, noise, RUN: tl.constexpr, PIVOT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The inverse after a step, over the number of streams that count; its product with `sums`.

    It goes where the covariance was.
    """
    t, which = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, WIDTH)
    level, trace, weight = ridge_of(
        diagonals, starts, decays, evidences, ages, renewals, ridges, end_ridge, mu_log_keep,
        eps_log_keep, high, low, noise, which, t, parts, T, C, RUN, c,
    )  # fmt: skip
    spread = diagonal_at(diagonals, starts, decays, which, t, parts, T, c, C, RUN)
    scale = scale_of(spread, level, c < C)
    matrix = square(grams, starts, decays, which, t, parts, T, c, c, scale, scale, C, RUN)
    tl.debug_barrier()  # all have read
    place = (which * T + t).to(tl.int64)
    target, inside = grams + place * C * C, c < C
    cells, filled = c[:, None] * C + c[None, :], inside[:, None] & inside[None, :]
    if PIVOT == 0:
        inverse, least = swept(matrix.to(tl.float64), c, C)
        inverse, least = inverse.to(tl.float32), least.to(tl.float32)
    else:
        room = roots + place * PIVOT * PIVOT
        inverse, least = swept_in_blocks(matrix, target, room, c, C, PIVOT)
    factor = factor_of(counts, which, t, T, trace, weight, least, tally)
    inverse = inverse * scale[:, None] * scale[None, :] * factor
    inverse = tl.where(factor > 0, inverse, 0.0)
    tl.store(target + cells, inverse, mask=filled)
    total = entered(sums, which, t, parts, T, C, c)
    tl.store(pushes + place * C + c, tl.sum(inverse * total[None, :], 1), mask=inside)


@triton.jit
def wide_inverse_matrices(
    grams, diagonals, starts, decays, counts, evidences, ages, renewals, ridges, sums, roots,
    pushes, end_ridge, tally, parts, T, C: tl.constexpr, mu_log_keep, eps_log_keep,
    high, low, noise, RUN: tl.constexpr, PIVOT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """As `inverse_matrices`, for more than `WIDTH` channels: half after half.

    With two squares of four in the registers, enough programs run at once to hide that a pivot
    waits for the one before.
    """
    t, which = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, WIDTH)
    low_c, OTHERS = WIDTH + c, C - WIDTH
    level, trace, weight = ridge_of(
        diagonals, starts, decays, evidences, ages, renewals, ridges, end_ridge, mu_log_keep,
        eps_log_keep, high, low, noise, which, t, parts, T, C, RUN, tl.arange(0, 2 * WIDTH),
    )  # fmt: skip
    there = low_c < C
    spread = diagonal_at(diagonals, starts, decays, which, t, parts, T, c, C, RUN)
    scale = scale_of(spread, level, c < C)
    spread = diagonal_at(diagonals, starts, decays, which, t, parts, T, low_c, C, RUN)
    low_scale = scale_of(spread, level, there)
    corner = square(grams, starts, decays, which, t, parts, T, c, c, scale, scale, C, RUN)
    side = square(grams, starts, decays, which, t, parts, T, low_c, c, low_scale, scale, C, RUN)
    tl.debug_barrier()  # all have read
    place = (which * T + t).to(tl.int64)
    target, room = grams + place * C * C, roots + place * PIVOT * PIVOT
    cells = c[:, None] * C + c[None, :]
    right, below, last = target + WIDTH, target + WIDTH * C, target + WIDTH * (C + 1)
    corner, side, least = sweep_half(
        corner, side, target, 0, WIDTH * C, WIDTH, WIDTH, OTHERS, room, c, C, PIVOT
    )
    tl.store(target + cells, corner)
    end = square(
        grams, starts, decays, which, t, parts, T, low_c, low_c, low_scale, low_scale, C, RUN
    )
    end = reduced(end, right, WIDTH, OTHERS, c, C, PIVOT)
    tl.debug_barrier()
    end, side, smallest = sweep_half(
        end, tl.trans(side), target, WIDTH * (C + 1), WIDTH, WIDTH * C, OTHERS, WIDTH, room, c, C,
        PIVOT,
    )  # fmt: skip
    corner = reduced(tl.load(target + cells), below, OTHERS, WIDTH, c, C, PIVOT)
    least = tl.minimum(least, smallest)
    factor = factor_of(counts, which, t, T, trace, weight, least, tally)
    scale, low_scale = scale * tl.sqrt_rn(factor), low_scale * tl.sqrt_rn(factor)
    corner = scaled(twice_one(c, corner) - corner, scale, scale, factor)
    side = scaled(-side, scale, low_scale, factor)
    end = scaled(twice_one(c, end) - end, low_scale, low_scale, factor)
    tl.debug_barrier()
    tl.store(target + cells, corner)
    tl.store(right + cells, side, mask=there[None, :])
    tl.store(below + cells, tl.trans(side), mask=there[:, None])
    tl.store(last + cells, end, mask=there[:, None] & there[None, :])
    total = entered(sums, which, t, parts, T, C, c)
    low_total = entered(sums, which, t, parts, T, C, low_c)
    push = tl.sum(corner * total[None, :], 1) + tl.sum(side * low_total[None, :], 1)
    tl.store(pushes + place * C + c, push)
    push = tl.sum(tl.trans(side) * total[None, :], 1) + tl.sum(end * low_total[None, :], 1)
    tl.store(pushes + place * C + low_c, push, mask=there)


@triton.jit
def reduced(
    matrix, source, height, width, c, C, PIVOT: tl.constexpr
):  # fmt: skip
    """The matrix without x x^T; x^T, of some height and width, is what `sweep_half` has left."""
    for first in range(0, height, PIVOT):
        k = first + tl.arange(0, PIVOT)
        inside = (k < height)[None, :] & (c < width)[:, None]
        x = tl.load(source + k[None, :] * C + c[:, None], mask=inside, other=0.0)
        matrix = less(matrix, x, x)
    return matrix


@triton.jit
def scaled(matrix, scale, other, factor):
    """Rows times a scale, columns times another; nothing where there is no inverse."""
    return tl.where(factor > 0, matrix * scale[:, None] * other[None, :], 0.0)
