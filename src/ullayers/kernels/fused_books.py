"""What goes along with time on a GPU beside the frames: evidence, covariances and the pull.

As `kernels.covariance` and `core._centred`, in Triton. Wherever a kernel is launched on a grid with
a side of two, the first is for W and the second for B.
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
def run_starts(
    grams, decays, evidences, short, short_rest, long, long_rest, evidence, starts, end_cov,
    parts, T, C: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """W or B before each run of steps, times its evidence, and after the last, as it is."""
    which, size = tl.program_id(1), C * C
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, runs = cell < size, (T + RUN - 1) // RUN
    row, column = cell // C, cell % C
    mirrored = (row < WIDTH) & (column >= WIDTH)  # not written in `grams`
    source = tl.where(mirrored, column * C + row, cell)
    total = read_covariance(short, short_rest, long, long_rest, cell, inside, which)
    total *= tl.load(evidence + which).to(tl.float64)
    for begin in range(0, runs, AHEAD):
        brought, left = (), ()  # many loads on their way before the first is needed
        for j in tl.static_range(AHEAD):
            t, there = tl.minimum((begin + j) * RUN + RUN, T) - 1, begin + j < runs
            at = (which * T + t).to(tl.int64) * size + source
            brought = brought + (tl.load(grams + at, mask=inside & there, other=0.0),)
            left = left + (tl.load(decays + which * T + t, mask=there, other=1.0),)
        for part in range(1, parts):
            more = ()
            for j in tl.static_range(AHEAD):
                t = tl.minimum((begin + j) * RUN + RUN, T) - 1
                at = ((part * 2 + which) * T + t).to(tl.int64) * size + source
                here = inside & (begin + j < runs)
                more = more + (brought[j] + tl.load(grams + at, mask=here, other=0.0),)
            brought = more
        for j in tl.static_range(AHEAD):
            there = begin + j < runs
            at = (which * runs + begin + j).to(tl.int64) * size + cell
            tl.store(starts + at, total.to(tl.float32), mask=inside & there)
            total = left[j] * total + brought[j].to(tl.float64)
    end = total / tl.maximum(tl.load(evidences + which * T + T - 1), 1e-300)
    value = end.to(tl.float32)
    tl.store(end_cov + 2 * which * size + cell, value, mask=inside)
    tl.store(end_cov + (2 * which + 1) * size + cell, (end - value).to(tl.float32), mask=inside)


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
    means = moved(end_means, i, S * C, 4)
    seen = moved(end_seen, i, S, 2)
    covs = moved(end_cov, i, C * C, 4)
    few = tl.arange(0, 2)
    first = (few < 2) & (tl.program_id(0) == 0)
    evidence, ridge = tl.load(end_evidence + few), tl.load(end_ridge + few)
    more, before, taken = tl.load(tally + 1 + few), tl.load(left_out + few), tl.load(tally)
    put(short_mean, short_mean_rest, means[0], means[1], i, S * C)
    put(long_mean, long_mean_rest, means[2], means[3], i, S * C)
    put(short_evidence, long_evidence, seen[0], seen[1], i, S)
    put(short_cov, short_cov_rest, covs[0], covs[1], i, C * C)
    put(long_cov, long_cov_rest, covs[2], covs[3], i, C * C)
    tl.store(cov_evidence + few, evidence, mask=first)
    tl.store(ridge_levels + few, ridge, mask=first)
    tl.store(left_out + few, before + more, mask=first)
    if CENTRED:
        tl.store(pull + i, tl.load(end_pull + i, mask=i < C, other=0.0), mask=i < C)
    if tl.program_id(0) == 0:
        tl.store(steps, taken)
        tl.store(continues, (taken >= 0) & CONTINUES)


@triton.jit
def moved(source, i, size, COPIES: tl.constexpr):
    """Blocks of some arrays that lie one after the other: all are on their way at once."""
    values = ()
    for copy in tl.static_range(COPIES):
        values = values + (tl.load(source + copy * size + i, mask=i < size, other=0.0),)
    return values


@triton.jit
def put(first, second, value, other, i, size):
    """A block of two arrays."""
    tl.store(first + i, value, mask=i < size)
    tl.store(second + i, other, mask=i < size)
