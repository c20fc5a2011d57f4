"""A chunk of one stream of narrow codes on a GPU: the steps of `kernels.reference`, in Triton.

What has to wait for the frame before is little: means, and sums. It goes first, step by step, W and
B side by side, and leaves both covariances of every step. These are solved all at once. The last
kernel takes the moving average off the gradients and writes the buffers. All is float64, as on a
CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ullayers.kernels.fused_books import exact, joined, last_row
from ullayers.kernels.fused_frame import pair, write_pair
from ullayers.kernels.fused_inverse import swept


@triton.jit
def moved_mean(x, mean, seen, rate, keep):
    """How far a mean lags behind after a frame, and its evidence."""
    grown = keep * seen + rate
    return (x - mean) * (keep * seen / grown), grown


@triton.jit
def trace_of(matrix, c):
    """The sum of the diagonal."""
    return tl.sum(tl.sum(tl.where(c[:, None] == c[None, :], matrix, 0.0), 1), 0)


@triton.jit
def chunk_path(
    y, short_mean, short_mean_rest, long_mean, long_mean_rest, short_evidence, long_evidence,
    short_cov, short_cov_rest, long_cov, long_cov_rest, cov_evidence, ridges, steps, continues,
    totals, deviations, notes, flags, ends, T, largest, known, mu, mu_keep, eps, eps_keep,
    mu_period, eps_period, high, CARRY: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """W or B after each step, times its evidence, and what goes along with it.

    `notes` receives traces, evidences and ridges; `flags` which frames are usable, and which count;
    `ends` the means and their evidences after the last.
    """
    which, c = tl.program_id(0), tl.arange(0, WIDTH)
    inside, is_w, goes_on = c < D, which == 0, (tl.load(continues) != 0) & CARRY
    mu, mu_keep = exact(0, mu, mu_keep, eps, eps_keep)
    eps, eps_keep = exact(1, eps, eps_keep, eps, eps_keep)
    rate, keep = tl.where(is_w, mu, eps), tl.where(is_w, mu_keep, eps_keep)
    period = tl.where(is_w, mu_period, eps_period)
    short = tl.where(goes_on, pair(short_mean, short_mean_rest, c, inside), 0.0)
    long = tl.where(goes_on, pair(long_mean, long_mean_rest, c, inside), 0.0)
    seen = tl.where(goes_on, tl.load(short_evidence).to(tl.float64), known)
    longer = tl.where(goes_on, tl.load(long_evidence).to(tl.float64), known)
    value, rest = short_cov, short_cov_rest
    if which == 1:
        value, rest = long_cov, long_cov_rest
    cells, filled = c[:, None] * D + c[None, :], inside[:, None] & inside[None, :]
    evidence = tl.load(cov_evidence + which).to(tl.float64)
    total = evidence * pair(value, rest, cells, filled)
    trace, ridge = trace_of(total, c), tl.load(ridges + which).to(tl.float64)
    ticks, square = tl.load(steps), c[:, None] * WIDTH + c[None, :]
    for t in range(T):
        x = tl.load(y + t * D + c, mask=inside, other=0.0).to(tl.float32)
        usable = tl.sum((~(tl.abs(x) <= largest)).to(tl.int32), 0) == 0
        x = tl.where(usable, x, 0.0).to(tl.float64)
        within, grown = moved_mean(x, short, seen, mu, mu_keep)
        far, longer_grown = moved_mean(x, long, longer, eps, eps_keep)
        counted = usable & (seen > 0)
        entering = tl.where(is_w, within, far - within)
        renewed = tl.where(ticks % period == 0, high * trace, ridge)
        renewed = tl.where(counted, keep * renewed, renewed)
        ridge = tl.where(usable, renewed, ridge)
        more = keep * total + rate * entering[:, None] * entering[None, :]
        total = tl.where(counted, more, total)
        evidence = tl.where(counted, keep * evidence + rate, evidence)
        trace = trace_of(total, c)
        short, long = tl.where(usable, x - within, short), tl.where(usable, x - far, long)
        seen, longer = tl.where(usable, grown, seen), tl.where(usable, longer_grown, longer)
        ticks += usable.to(tl.int64)
        at = t * 2 + which
        tl.store(totals + at * WIDTH * WIDTH + square, total)
        tl.store(deviations + at * WIDTH + c, tl.where(counted, entering, 0.0))
        tl.store(notes + at * 3, trace)
        tl.store(notes + at * 3 + 1, evidence)
        tl.store(notes + at * 3 + 2, ridge)
        tl.store(flags + t * 2, usable.to(tl.int32), mask=is_w)
        tl.store(flags + t * 2 + 1, counted.to(tl.int32), mask=is_w)
    if is_w:
        tl.store(ends + c, short)
        tl.store(ends + WIDTH + c, long)
        tl.store(ends + 2 * WIDTH, seen)
        tl.store(ends + 2 * WIDTH + 1, longer)


@triton.jit
def chunk_solve(
    totals, deviations, notes, flags, failures, low, noise, D: tl.constexpr, WIDTH: tl.constexpr
):
    """One term of Eq. 11 for one step, in place of what has entered."""
    t, which, c = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDTH)
    at, other = t * 2 + which, t * 2 + 1 - which
    trace, evidence = tl.load(notes + at * 3), tl.load(notes + at * 3 + 1)
    beside = tl.load(notes + other * 3) / tl.maximum(tl.load(notes + other * 3 + 1), 1e-300)
    level = tl.maximum(tl.load(notes + at * 3 + 2), low * trace)
    level = tl.maximum(level, noise * beside * evidence)
    level = tl.where(trace > 0, level, 1.0)
    same = c[:, None] == c[None, :]
    total = tl.load(totals + at * WIDTH * WIDTH + c[:, None] * WIDTH + c[None, :])
    spread = tl.sum(tl.where(same, total, 0.0), 1) + level
    scale = tl.where((c < D) & (spread > 0), 1 / tl.sqrt(spread), 1.0)
    matrix = tl.where(same, 1.0, total * scale[:, None] * scale[None, :])
    inverse, least = swept(matrix, c, D)
    solvable = (tl.load(flags + t * 2 + 1) > 0) & (trace > 0) & (least > 0)
    entered = tl.load(deviations + at * WIDTH + c)
    solved = evidence * scale * tl.sum(inverse * (scale * entered)[None, :], 1)
    tl.debug_barrier()  # all have read
    tl.store(deviations + at * WIDTH + c, tl.where(solvable, solved, 0.0))
    tl.store(failures + at, tl.where(least > 0, 0, 1))


@triton.jit
def chunk_end(
    gradient, short_mean, short_mean_rest, long_mean, long_mean_rest, short_evidence,
    long_evidence, short_cov, short_cov_rest, long_cov, long_cov_rest, cov_evidence, ridges,
    pulls, steps, left_out, continues, totals, solved, notes, flags, failures, ends, T,
    eps, eps_keep, scale, CENTRED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    """The gradients, without their own moving average, and all buffers of the layer."""
    c, line = tl.arange(0, WIDTH), tl.arange(0, STEPS)
    inside = c < D
    rate, keep = exact(1, eps, eps_keep, eps, eps_keep)
    pull = tl.load(pulls + c, mask=inside, other=0.0).to(tl.float64)
    taken, failed = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for begin in range(0, T, STEPS):
        t = begin + line
        there = (t < T)[:, None] & inside[None, :]
        place = t[:, None] * 2 * WIDTH + c[None, :]
        g = tl.load(solved + place, mask=there, other=0.0)
        g -= tl.load(solved + WIDTH + place, mask=there, other=0.0)
        usable = tl.load(flags + t * 2, mask=t < T, other=0)
        counted = tl.load(flags + t * 2 + 1, mask=t < T, other=0) > 0
        bad = tl.load(failures + t * 2, mask=t < T, other=0)
        bad += tl.load(failures + t * 2 + 1, mask=t < T, other=0)
        if CENTRED:
            takes = counted[:, None] & there
            fading, brought = tl.where(takes, keep, 1.0), tl.where(takes, rate * g, 0.0)
            fading, brought = tl.associative_scan((fading, brought), 0, joined)
            path = fading * pull[None, :] + brought
            g = tl.where(takes, g - path, 0.0)
            pull = last_row(path, line, STEPS)
        out = (g * scale).to(gradient.dtype.element_ty)
        tl.store(gradient + t[:, None] * D + c[None, :], out, mask=there)
        taken += tl.sum(usable, 0).to(tl.int64)
        failed += tl.sum(bad * usable, 0).to(tl.int64)
    if CENTRED:
        tl.store(pulls + c, pull.to(tl.float32), mask=inside)
    write_pair(short_mean, short_mean_rest, c, tl.load(ends + c), inside)
    write_pair(long_mean, long_mean_rest, c, tl.load(ends + WIDTH + c), inside)
    tl.store(short_evidence, tl.load(ends + 2 * WIDTH).to(tl.float32))
    tl.store(long_evidence, tl.load(ends + 2 * WIDTH + 1).to(tl.float32))
    cells, filled = c[:, None] * D + c[None, :], inside[:, None] & inside[None, :]
    square = c[:, None] * WIDTH + c[None, :]
    for which in tl.static_range(2):
        at = (T - 1) * 2 + which
        evidence = tl.load(notes + at * 3 + 1)
        total = tl.load(totals + at * WIDTH * WIDTH + square) / tl.maximum(evidence, 1e-300)
        if which == 0:
            write_pair(short_cov, short_cov_rest, cells, total, filled)
        else:
            write_pair(long_cov, long_cov_rest, cells, total, filled)
        tl.store(cov_evidence + which, evidence.to(tl.float32))
        tl.store(ridges + which, tl.load(notes + at * 3 + 2).to(tl.float32))
    tl.store(steps, tl.load(steps) + taken)
    tl.store(left_out, tl.load(left_out) + (T - taken))
    tl.store(left_out + 1, tl.load(left_out + 1) + failed)
    tl.store(continues, taken >= 0)
