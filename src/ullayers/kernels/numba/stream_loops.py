"""The loop of `kernels.reference`, compiled by numba: for small frames of streams on a CPU.

Where a frame is a handful of numbers, calls cost more than arithmetic; here a pass is one call.
Plain loops stand in place of numpy's functions, most of which take seconds to compile.
"""

from __future__ import annotations

import numpy as np

from ullayers.kernels.numba.compiling import compiled
from ullayers.kernels.numba.state_loops import Array, Buffers, Choices, Covs, Means

TINY = 1e-300


@compiled
def trace(a: Array) -> float:
    """The sum of the diagonal."""
    total = 0.0
    for i in range(len(a)):
        total += a[i, i]
    return total


@compiled
def count(mask: Array) -> int:
    """How often it holds."""
    total = 0
    for each in mask:
        total += each
    return total


@compiled
def find_usable(y: Array, scatter: Array, largest: float, active: Array) -> int:
    """Which frames count, and how many do not."""
    steps, streams, d = y.shape
    skipped = 0
    for t in range(steps):
        for s in range(streams):
            usable = True
            for k in range(d):
                usable &= abs(y[t, s, k]) <= largest  # not so for a NaN
            if len(scatter):
                for j in range(d):
                    for k in range(d):
                        usable &= abs(scatter[t, s, j, k]) <= largest**2
            active[t, s] = usable
            skipped += not usable
    return skipped


@compiled
def read_mean(
    value: Array, rest: Array, seen: Array, latest: Array, lags: Array, out: Array
) -> None:
    """A mean behind frames, and its evidence. A rest is void once someone has set the value."""
    for s in range(value.shape[0]):
        out[s] = seen[s]
        for k in range(value.shape[1]):
            lags[s, k] = latest[s, k] - value[s, k]
            if value[s, k] + rest[s, k] == value[s, k]:
                lags[s, k] -= rest[s, k]


@compiled
def write_mean(
    latest: Array, lags: Array, out: Array, value: Array, rest: Array, seen: Array
) -> None:
    """The other way round."""
    for s in range(value.shape[0]):
        seen[s] = out[s]
        for k in range(value.shape[1]):
            value[s, k] = latest[s, k] - lags[s, k]
            rest[s, k] = (latest[s, k] - value[s, k]) - lags[s, k]


@compiled
def begin_means(b: Buffers, goes_on: bool, known: float) -> Means:
    """What is known before the first frame."""
    streams, d = b.short_mean.shape
    m = Means(np.zeros((streams, d)), np.zeros((2, streams, d)), np.full((2, streams), known))
    if goes_on:
        for s in range(streams):
            for k in range(d):
                m.latest[s, k] = b.short_mean[s, k]
        read_mean(b.short_mean, b.short_mean_rest, b.short_evidence, m.latest, m.lags[0], m.seen[0])
        read_mean(b.long_mean, b.long_mean_rest, b.long_evidence, m.latest, m.lags[1], m.seen[1])
    return m


@compiled
def begin_covs(b: Buffers, room: Array) -> Covs:
    """What is known before the first frame."""
    d = len(b.short_cov)
    covs = Covs(room[0], np.zeros(2), np.zeros(2), room[1], np.zeros(2), np.zeros(d))
    for k in range(d):
        covs.pull[k] = b.pull[0, k]
    for i in range(2):
        value, rest = (b.long_cov, b.long_cov_rest) if i else (b.short_cov, b.short_cov_rest)
        covs.seen[i], covs.ridges[i] = b.cov_evidence[i], b.ridge_level[i]
        for j in range(d):
            for k in range(j + 1):
                holds = value[j, k] + rest[j, k] == value[j, k]
                exact = np.float64(value[j, k]) + (rest[j, k] if holds else 0.0)
                covs.totals[i, j, k] = exact * covs.seen[i]
    return covs


@compiled
def mirror(a: Array) -> None:
    """Copy the lower half to the upper, eight columns at a time, as near memory holds them."""
    for begin in range(0, len(a), 8):
        all_eight = begin + 8 <= len(a)
        for i in range(begin if all_eight else 0):
            row, column = a[i, begin : begin + 8], a[begin : begin + 8, i]
            for k in range(8):
                row[k] = column[k]
        for i in range(begin, min(begin + 8, len(a))):
            for k in range(begin if all_eight else 0, i):
                a[k, i] = a[i, k]


@compiled
def write_covs(covs: Covs, b: Buffers) -> None:
    """Whole matrices, as value and rest."""
    d = len(b.short_cov)
    for i in range(2):
        value, rest = (b.long_cov, b.long_cov_rest) if i else (b.short_cov, b.short_cov_rest)
        whole = 1.0 / max(covs.seen[i], TINY)
        for j in range(d):
            for k in range(j + 1):
                value[j, k] = covs.totals[i, j, k] * whole
                rest[j, k] = covs.totals[i, j, k] * whole - value[j, k]
        mirror(value)
        mirror(rest)
        b.cov_evidence[i], b.ridge_level[i] = covs.seen[i], covs.ridges[i]
    for k in range(d):
        b.pull[0, k] = covs.pull[k]


@compiled
def subtract_products(x: Array, z: Array, n: int) -> None:
    """Sums over n columns, of four rows times four others, from the next four columns of `x`."""
    x0, x1, x2, x3, z0, z1, z2, z3 = x[0], x[1], x[2], x[3], z[0], z[1], z[2], z[3]
    a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = 0.0  # as many as registers hold
    a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = 0.0
    for k in range(n):
        u0, u1, u2, u3, v0, v1, v2, v3 = x0[k], x1[k], x2[k], x3[k], z0[k], z1[k], z2[k], z3[k]
        a00, a01, a02, a03 = a00 + u0 * v0, a01 + u0 * v1, a02 + u0 * v2, a03 + u0 * v3
        a10, a11, a12, a13 = a10 + u1 * v0, a11 + u1 * v1, a12 + u1 * v2, a13 + u1 * v3
        a20, a21, a22, a23 = a20 + u2 * v0, a21 + u2 * v1, a22 + u2 * v2, a23 + u2 * v3
        a30, a31, a32, a33 = a30 + u3 * v0, a31 + u3 * v1, a32 + u3 * v2, a33 + u3 * v3
    x0, x1, x2, x3 = x0[n:], x1[n:], x2[n:], x3[n:]
    x0[0], x0[1], x0[2], x0[3] = x0[0] - a00, x0[1] - a01, x0[2] - a02, x0[3] - a03
    x1[0], x1[1], x1[2], x1[3] = x1[0] - a10, x1[1] - a11, x1[2] - a12, x1[3] - a13
    x2[0], x2[1], x2[2], x2[3] = x2[0] - a20, x2[1] - a21, x2[2] - a22, x2[3] - a23
    x3[0], x3[1], x3[2], x3[3] = x3[0] - a30, x3[1] - a31, x3[2] - a32, x3[3] - a33


@compiled
def factor(a: Array) -> bool:
    """L with L L^T = a in place of its lower half, but 1 / L_ii; False if there is none.

    By squares of four numbers; what is left of its rows is taken as a whole.
    """
    for i in range(0, len(a), 4):
        end = min(i + 4, len(a))
        begin = i if end == i + 4 else 0
        for j in range(0, begin, 4):
            subtract_products(a[i:end], a[j : j + 4], j)
            for r in range(i, i + 4):
                for c in range(j, j + 4):
                    left = a[r, c]
                    for k in range(j, c):
                        left -= a[r, k] * a[c, k]
                    a[r, c] = left * a[c, c]
        if begin:
            subtract_products(a[i:end], a[i:end], i)
        for r in range(i, end):
            for c in range(begin, r + 1):
                left = a[r, c]
                for k in range(begin, c):
                    left -= a[r, k] * a[c, k]
                if c < r:
                    a[r, c] = left * a[c, c]
                elif left > 0.0:  # which a NaN is not
                    a[r, r] = 1.0 / np.sqrt(left)
                else:
                    return False
    return True


@compiled
def solve(factor: Array, x: Array) -> None:
    """Put (L L^T)^-1 x in place of x."""
    for i in range(len(x)):
        row, left = factor[i], x[i]
        for k in range(i):
            left -= row[k] * x[k]
        x[i] = left * row[i]
    for i in range(len(x) - 1, -1, -1):
        row = factor[i]
        x[i] *= row[i]
        share = x[i]
        for k in range(i):
            x[k] -= share * row[k]


@compiled
def follow(lag: Array, shift: Array, seen: float, rate: float) -> float:
    """Let a mean follow a frame that has moved by `shift`; its evidence."""
    grown = (1.0 - rate) * seen + rate
    keep = (1.0 - rate) * seen / grown
    for k in range(len(lag)):
        lag[k] = (lag[k] + shift[k]) * keep
    return grown


@compiled
def step_means(
    frame: Array, on: Array, means: Means, choices: Choices, deviations: Array, counted: Array
) -> None:
    """Eq. 6 and 7: what enters W and B of every stream, and whether it counts."""
    mu, eps = choices.rates
    shift = np.empty(frame.shape[1])
    for s in range(len(frame)):
        counted[s] = on[s] and means.seen[0, s] > 0
        if not on[s]:
            continue
        short, long = means.lags[0, s], means.lags[1, s]
        for k in range(len(shift)):
            shift[k] = np.float64(frame[s, k]) - means.latest[s, k]
            means.latest[s, k] = frame[s, k]
        means.seen[0, s] = follow(short, shift, means.seen[0, s], mu)
        means.seen[1, s] = follow(long, shift, means.seen[1, s], eps)
        for k in range(len(shift)):
            deviations[0, s, k] = short[k]
            deviations[1, s, k] = long[k] - short[k]


@compiled
def add_squares(
    total: Array, deviations: Array, counted: Array, scatter: Array, rate: float
) -> None:
    """One step of Eq. 8 or 9."""
    share = rate / count(counted)
    for i in range(len(total)):
        row = total[i, : i + 1]
        for j in range(i + 1):
            row[j] *= 1.0 - rate
        for s in range(len(deviations)):
            if counted[s]:
                x, weight = deviations[s], deviations[s, i] * share
                for j in range(i + 1):
                    row[j] += weight * x[j]
                if len(scatter):
                    for j in range(i + 1):
                        row[j] += scatter[s, i, j] * share


@compiled
def step_covs(
    covs: Covs, deviations: Array, counted: Array, scatter: Array, step: int, choices: Choices
) -> int:
    """Eq. 8 and 9, and the factors for Eq. 11; how many there are not. No frame: step -1."""
    singular, there = 0, count(counted)
    for i in range(2):
        rate = choices.rates[i]
        if step >= 0 and step % choices.periods[i] == 0:
            covs.ridges[i] = choices.high * trace(covs.totals[i])
        if there:
            extra = scatter[: 0 if i else len(scatter)]
            add_squares(covs.totals[i], deviations[i], counted, extra, rate)
            covs.seen[i] = (1.0 - rate) * covs.seen[i] + rate
            covs.ridges[i] *= 1.0 - rate
    for i in range(2):
        total, lower, size = covs.totals[i], covs.factors[i], trace(covs.totals[i])
        covs.scales[i] = 0.0
        if size == 0.0:
            continue
        noise = choices.noise * trace(covs.totals[1 - i]) / max(covs.seen[1 - i], TINY)
        level = max(covs.ridges[i], choices.low * size, noise * covs.seen[i])
        for j in range(len(total)):
            for k in range(j + 1):
                lower[j, k] = total[j, k]
            lower[j, j] += level
        if size > 0.0 and factor(lower):
            covs.scales[i] = covs.seen[i] / there if there else 0.0
        else:
            singular += 1
    return singular


@compiled
def step_gradient(
    covs: Covs, deviations: Array, counted: Array, choices: Choices, out: Array
) -> None:
    """Eq. 11, less its own long-term mean (see `core`), scaled."""
    (_, streams, d), eps, there = deviations.shape, choices.rates[1], count(counted)
    x, g = np.empty(d), np.zeros((streams, d))
    for i in range(2):
        share = -covs.scales[i] if i else covs.scales[i]
        for s in range(streams):
            if counted[s] and share != 0.0:
                for k in range(d):
                    x[k] = deviations[i, s, k]
                solve(covs.factors[i], x)
                for k in range(d):
                    g[s, k] += share * x[k]
    if choices.centred and there:
        for k in range(d):
            push = 0.0
            for s in range(streams):
                push += g[s, k]
            covs.pull[k] = (1.0 - eps) * covs.pull[k] + eps * push
            for s in range(streams):
                g[s, k] -= covs.pull[k] / there if counted[s] else 0.0
    for s in range(streams):
        for k in range(d):
            out[s, k] = g[s, k] * choices.scale


@compiled
def step_scatter(covs: Covs, had_past: Array, scale: float, out: Array) -> None:
    """dJ/dscatter: half of the inverse of W, for every stream that counts."""
    d = out.shape[-1]
    for j in range(d):
        column = np.zeros(d)
        column[j] = covs.scales[0] * scale / 2
        if covs.scales[0] > 0.0:
            solve(covs.factors[0], column)
        for s in range(len(had_past)):
            for i in range(d):
                out[s, i, j] = column[i] if had_past[s] else 0.0


@compiled
def advance(
    y: Array, gradient: Array, scatter: Array, scatter_gradient: Array, b: Buffers,
    choices: Choices, room: Array,
) -> None:  # fmt: skip
    """A whole pass; `small.Loop.run` says of what. Buffers are written when all is computed."""
    steps, streams, d = y.shape
    active, singular, step = np.empty((steps, streams), np.bool_), 0, b.steps[0]
    skipped = find_usable(y, scatter, choices.largest, active)
    means = begin_means(b, choices.goes_on and b.continues[0], choices.known)
    covs, none = begin_covs(b, room), np.zeros((0, d, d))
    deviations, counted = np.zeros((2, streams, d)), np.zeros(streams, np.bool_)
    for t in range(steps):
        live = count(active[t]) > 0
        step_means(y[t], active[t], means, choices, deviations, counted)
        extra = scatter[t] if len(scatter) else none
        singular += step_covs(covs, deviations, counted, extra, step if live else -1, choices)
        step_gradient(covs, deviations, counted, choices, gradient[t])
        if len(scatter):
            step_scatter(covs, counted, choices.scale, scatter_gradient[t])
        step += live
    latest, lags, seen = means
    write_mean(latest, lags[0], seen[0], b.short_mean, b.short_mean_rest, b.short_evidence)
    write_mean(latest, lags[1], seen[1], b.long_mean, b.long_mean_rest, b.long_evidence)
    write_covs(covs, b)
    b.steps[0] = step
    b.left_out[0] += skipped
    b.left_out[1] += singular
    b.continues[0] = True
