"""One frame of one stream on a GPU: the step of `kernels.reference` as a single Triton kernel.

A camera brings one frame at a time, and what costs then is the number of kernels. All is computed
in float64, as on a CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ullayers.kernels.fused_solve import exact, swept


@triton.jit
def pair(value, rest, at, inside):
    """What two buffers hold together; the rest is void once someone has set the value."""
    v, r = tl.load(value + at, mask=inside, other=0.0), tl.load(rest + at, mask=inside, other=0.0)
    return v.to(tl.float64) + tl.where(v + r == v, r, 0.0).to(tl.float64)


@triton.jit
def write_pair(value, rest, at, exactly, mask):
    """In two buffers, the second for what the first cannot hold."""
    v = exactly.to(tl.float32)
    tl.store(value + at, v, mask=mask)
    tl.store(rest + at, (exactly - v).to(tl.float32), mask=mask)


@triton.jit
def step_mean(mean, rest, evidence, x, goes_on, known, rate, keep, c, inside):
    """How far a moving average lags behind the frame, its evidence, and that before."""
    seen = tl.where(goes_on, tl.load(evidence).to(tl.float64), known)
    lag = x - tl.where(goes_on, pair(mean, rest, c, inside), 0.0)
    grown = keep * seen + rate
    return lag * (keep * seen / grown), grown, seen


@triton.jit
def traces(value, rest, evidence, deviation, counted, rate, keep, c, inside, D: tl.constexpr):
    """The trace of a covariance, times its evidence, before the step; after it; and as it is."""
    seen = tl.load(evidence).to(tl.float64)
    before = seen * tl.sum(pair(value, rest, c * (D + 1), inside), 0)
    after = tl.where(counted, keep * before + rate * tl.sum(deviation * deviation, 0), before)
    seen = tl.where(counted, keep * seen + rate, seen)
    return before, after / tl.maximum(seen, 1e-300)


@triton.jit
def step_covariance(
    value, rest, evidence, ridges, deviation, before, other, counted, usable, renews, rate, keep,
    high, low, noise, c, inside, D: tl.constexpr,
):  # fmt: skip
    """Eq. 8 or 9, written to the buffers; the solved deviation, and whether there is none."""
    cells, filled = c[:, None] * D + c[None, :], inside[:, None] & inside[None, :]
    same = c[:, None] == c[None, :]
    seen, ridge = tl.load(evidence).to(tl.float64), tl.load(ridges).to(tl.float64)
    total = seen * pair(value, rest, cells, filled)
    ridge = tl.where(renews, high * before, ridge)
    moved = keep * total + rate * deviation[:, None] * deviation[None, :]
    total, ridge = tl.where(counted, moved, total), tl.where(counted, keep * ridge, ridge)
    seen = tl.where(counted, keep * seen + rate, seen)
    spread = tl.sum(tl.where(same, total, 0.0), 1)
    trace = tl.sum(spread, 0)
    level = tl.maximum(tl.maximum(ridge, low * trace), noise * other * seen)
    spread = tl.where(inside, spread + tl.where(trace > 0, level, 1.0), 1.0)
    scale = tl.where(spread > 0, 1 / tl.sqrt(spread), 1.0)
    matrix = tl.where(same, 1.0, total * scale[:, None] * scale[None, :])
    inverse, least = swept(matrix, c, D)
    solved = seen * scale * tl.sum(inverse * (scale * deviation)[None, :], 1)
    write_pair(value, rest, cells, total / tl.maximum(seen, 1e-300), filled & usable)
    tl.debug_barrier()  # all have read
    tl.store(evidence, seen.to(tl.float32), mask=usable)
    tl.store(ridges, ridge.to(tl.float32), mask=usable)
    return tl.where((least > 0) & (trace > 0) & counted, solved, 0.0), least <= 0


@triton.jit
def one_frame(
    y, gradient, short_mean, short_mean_rest, long_mean, long_mean_rest, short_evidence,
    long_evidence, short_cov, short_cov_rest, long_cov, long_cov_rest, cov_evidence, ridges,
    pulls, steps, left_out, continues, largest, known, mu, mu_keep, eps, eps_keep, mu_period,
    eps_period, high, low, noise, scale,
    CARRY: tl.constexpr, CENTRED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Eq. 6-11 for one frame, from the buffers and back to them."""
    c = tl.arange(0, WIDTH)
    inside = c < D
    x = tl.load(y + c, mask=inside, other=0.0).to(tl.float32)
    usable = tl.sum((~(tl.abs(x) <= largest)).to(tl.int32), 0) == 0
    x = tl.where(usable, x, 0.0).to(tl.float64)
    mu, mu_keep = exact(0, mu, mu_keep, eps, eps_keep)
    eps, eps_keep = exact(1, eps, eps_keep, eps, eps_keep)
    goes_on = (tl.load(continues) != 0) & CARRY
    within, grown, seen = step_mean(
        short_mean, short_mean_rest, short_evidence, x, goes_on, known, mu, mu_keep, c, inside
    )
    far, longer, _ = step_mean(
        long_mean, long_mean_rest, long_evidence, x, goes_on, known, eps, eps_keep, c, inside
    )
    counted = usable & (seen > 0)
    between, n = far - within, tl.load(steps)
    w_before, w_trace = traces(
        short_cov, short_cov_rest, cov_evidence, within, counted, mu, mu_keep, c, inside, D
    )
    b_before, b_trace = traces(
        long_cov, long_cov_rest, cov_evidence + 1, between, counted, eps, eps_keep, c, inside, D
    )
    tl.debug_barrier()  # all have read
    w_solved, w_bad = step_covariance(
        short_cov, short_cov_rest, cov_evidence, ridges, within, w_before, b_trace, counted, usable,
        n % mu_period == 0, mu, mu_keep, high, low, noise, c, inside, D,
    )  # fmt: skip
    b_solved, b_bad = step_covariance(
        long_cov, long_cov_rest, cov_evidence + 1, ridges + 1, between, b_before, w_trace, counted,
        usable, n % eps_period == 0, eps, eps_keep, high, low, noise, c, inside, D,
    )  # fmt: skip
    g = w_solved - b_solved
    if CENTRED:
        old = tl.load(pulls + c, mask=inside, other=0.0).to(tl.float64)
        pull = eps_keep * old + eps * g
        g = tl.where(counted, g - pull, 0.0)
        tl.debug_barrier()  # all have read
        tl.store(pulls + c, pull.to(tl.float32), mask=inside & counted)
    tl.store(gradient + c, (g * scale).to(gradient.dtype.element_ty), mask=inside)
    write_pair(short_mean, short_mean_rest, c, x - within, inside & usable)
    write_pair(long_mean, long_mean_rest, c, x - far, inside & usable)
    tl.store(short_evidence, grown.to(tl.float32), mask=usable)
    tl.store(long_evidence, longer.to(tl.float32), mask=usable)
    tl.store(steps, n + 1, mask=usable)
    skipped, singular = tl.load(left_out), tl.load(left_out + 1)
    bad = tl.where(usable, w_bad.to(tl.int64) + b_bad.to(tl.int64), 0)
    tl.debug_barrier()
    tl.store(left_out, skipped + 1, mask=~usable)
    tl.store(left_out + 1, singular + bad)
    tl.store(continues, goes_on | True)
