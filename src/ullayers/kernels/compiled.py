"""The loop of `kernels.reference`, compiled by numba: for small frames on a CPU, one or many.

Where a frame is a handful of numbers, calls cost more than arithmetic; here a pass is one call.
"""

from __future__ import annotations

import numpy as np

from ullayers.kernels.compiled_state import Array, Buffers, Choices, Covs, Means
from ullayers.kernels.compiling import compiled

STREAM, CLIP, SHARED, TINY = 0, 1, 2, 1e-300  # the first three: what the long-term mean is


@compiled
def find_usable(y: Array, lengths: Array, scatter: Array, largest: float, active: Array) -> int:
    """Which frames count, and how many are there but do not."""
    steps, sequences, positions, d = y.shape
    skipped = 0
    for t in range(steps):
        for n in range(sequences):
            for p in range(positions):
                usable = True
                for k in range(d):
                    usable &= abs(y[t, n, p, k]) <= largest  # not so for a NaN
                if len(scatter):
                    for value in scatter[t, n * positions + p].flat:
                        usable &= abs(value) <= largest**2
                there = t < lengths[n]
                active[t, n * positions + p] = usable and there
                skipped += there and not usable
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
def find_clip_means(y: Array, active: Array, means: Means) -> None:
    """Each stream's mean over all its frames, formed around the first of them."""
    steps, _, positions, d = y.shape
    for s in range(len(means.own)):
        n, p, first = s // positions, s % positions, 0
        for t in range(steps):
            if active[t, s]:
                first = t if means.frames[s] == 0 else first
                means.frames[s] += 1
                for k in range(d):
                    means.own[s, k] += np.float64(y[t, n, p, k]) - y[first, n, p, k]
        for k in range(d):
            if means.frames[s]:
                means.own[s, k] = means.own[s, k] / means.frames[s] + y[first, n, p, k]
            else:
                means.own[s, k] = means.latest[s, k]


@compiled
def begin_means(y: Array, active: Array, buffers: Buffers, choices: Choices) -> Means:
    """What is known before the first frame."""
    _, sequences, positions, d = y.shape
    streams, b = sequences * positions, buffers
    knows_common = choices.mode == SHARED and choices.knows_common
    means = Means(
        b.short_mean.astype(np.float64) if choices.goes_on else np.zeros((streams, d)),
        np.zeros((2, streams, d)), np.zeros((2, streams)),
        b.long_mean.astype(np.float64) if knows_common else np.zeros((positions, d)),
        np.zeros((positions, d)), np.zeros(positions),
        np.zeros((streams, d)), np.zeros(streams, np.int64),
    )  # fmt: skip
    for s in range(streams):
        means.seen[0, s] = choices.known
        means.seen[1, s] = 1.0 if choices.mode == CLIP else choices.known
        means.common_seen[s % positions] = choices.known
    if choices.goes_on:
        for i in range(2 if choices.mode == STREAM else 1):
            value, rest = (
                (b.long_mean, b.long_mean_rest) if i else (b.short_mean, b.short_mean_rest)
            )
            seen = b.long_evidence if i else b.short_evidence
            read_mean(value, rest, seen, means.latest, means.lags[i], means.seen[i])
    if knows_common:
        rest, seen = b.long_mean_rest, b.long_evidence
        read_mean(b.long_mean, rest, seen, means.common, means.common_lags, means.common_seen)
    if choices.mode == CLIP:
        find_clip_means(y, active, means)
    return means


@compiled
def begin_covs(buffers: Buffers) -> Covs:
    """What is known before the first frame."""
    b, d = buffers, len(buffers.short_cov)
    covs = Covs(
        np.zeros((2, d, d)), np.zeros(2), np.zeros(2), np.zeros((2, d, d)), np.zeros(2), np.zeros(d)
    )
    for i in range(2):
        value, rest = (b.long_cov, b.long_cov_rest) if i else (b.short_cov, b.short_cov_rest)
        covs.seen[i], covs.ridges[i] = b.cov_evidence[i], b.ridge_level[i]
        for j in range(d):
            covs.pull[j] = b.pull[0, j]
            for k in range(j, d):
                exact = np.float64(value[j, k])
                if value[j, k] + rest[j, k] == value[j, k]:
                    exact += rest[j, k]
                covs.totals[i, j, k] = exact * covs.seen[i]
    return covs


@compiled
def write_covs(covs: Covs, buffers: Buffers) -> None:
    """Whole matrices, as value and rest."""
    b, d = buffers, len(buffers.short_cov)
    for i in range(2):
        value, rest = (b.long_cov, b.long_cov_rest) if i else (b.short_cov, b.short_cov_rest)
        whole = 1.0 / max(covs.seen[i], TINY)
        for j in range(d):
            for k in range(j, d):
                value[j, k] = covs.totals[i, j, k] * whole
                rest[j, k] = covs.totals[i, j, k] * whole - value[j, k]
            for k in range(j):
                value[j, k], rest[j, k] = value[k, j], rest[k, j]
        b.cov_evidence[i], b.ridge_level[i] = covs.seen[i], covs.ridges[i]
    for k in range(d):
        b.pull[0, k] = covs.pull[k]


@compiled
def write_means(means: Means, buffers: Buffers, mode: int) -> None:
    """As value and rest."""
    b, m = buffers, means
    write_mean(m.latest, m.lags[0], m.seen[0], b.short_mean, b.short_mean_rest, b.short_evidence)
    latest, lags, seen = m.latest, m.lags[1], m.seen[1]
    if mode == CLIP:
        latest, lags = m.own, np.zeros(m.own.shape)
    elif mode == SHARED:
        latest, lags, seen = m.common, m.common_lags, m.common_seen
    write_mean(latest, lags, seen, b.long_mean, b.long_mean_rest, b.long_evidence)


@compiled
def factor(a: Array) -> bool:
    """U with U^T U = a in place of its upper half, four rows at a time; False if there is none."""
    d = len(a)
    for begin in range(0, d, 4):
        end = min(begin + 4, d)
        for j in range(begin, end):
            if not a[j, j] > 0.0:  # nor is a NaN
                return False
            share = 1.0 / np.sqrt(a[j, j])
            for k in range(j, d):
                a[j, k] *= share
            for i in range(j + 1, end):
                share = a[j, i]
                for k in range(i, d):
                    a[i, k] -= share * a[j, k]
        for i in range(end, d):  # not reached by less than four rows
            s, t, u, v = a[begin, i], a[begin + 1, i], a[begin + 2, i], a[begin + 3, i]
            for k in range(i, d):
                near = s * a[begin, k] + t * a[begin + 1, k]
                a[i, k] -= near + (u * a[begin + 2, k] + v * a[begin + 3, k])
    return True


@compiled
def solve(u: Array, x: Array) -> None:
    """Put (U^T U)^-1 x in place of x."""
    d = len(u)
    for j in range(d):
        x[j] /= u[j, j]
        for k in range(j + 1, d):
            x[k] -= x[j] * u[j, k]
    for j in range(d - 1, -1, -1):
        rest = x[j]
        for k in range(j + 1, d):
            rest -= u[j, k] * x[k]
        x[j] = rest / u[j, j]


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
    n = 0
    for s in range(len(mask)):
        n += mask[s]
    return n


@compiled
def follow(lag: Array, shift: Array, seen: float, rate: float) -> float:
    """Let a mean follow a frame that has moved by `shift`; its evidence."""
    grown = (1.0 - rate) * seen + rate
    keep = (1.0 - rate) * seen / grown
    for k in range(len(lag)):
        lag[k] = (lag[k] + shift[k]) * keep
    return grown


@compiled
def follow_common(frame: Array, on: Array, means: Means, eps: float, shift: Array) -> None:
    """One long-term mean a position, for all sequences."""
    positions, d = means.common.shape
    for p in range(positions):
        there = 0
        for k in range(d):
            shift[k] = 0.0
        for s in range(p, len(frame), positions):
            if on[s]:
                there += 1
                for k in range(d):
                    shift[k] += frame[s, k] - means.common[p, k]
        if there:
            for k in range(d):
                shift[k] /= there
                means.common[p, k] += shift[k]
            means.common_seen[p] = follow(means.common_lags[p], shift, means.common_seen[p], eps)


@compiled
def step_means(
    frame: Array, on: Array, means: Means, choices: Choices, deviations: Array, counted: Array
) -> None:
    """Eq. 6 and 7: what enters W and B of every stream, and whether it counts."""
    positions, d = means.common.shape
    shift, mu, eps = np.empty(d), choices.rates[0], choices.rates[1]
    knew = means.common_seen.copy()
    if choices.mode == SHARED:
        follow_common(frame, on, means, eps, shift)
    for s in range(len(frame)):
        counted[0, s] = counted[1, s] = on[s] and means.seen[0, s] > 0
        if not on[s]:
            continue
        short, long, p = means.lags[0, s], means.lags[1, s], s % positions
        for k in range(d):
            shift[k] = frame[s, k] - means.latest[s, k]
            means.latest[s, k] = frame[s, k]
        means.seen[0, s] = follow(short, shift, means.seen[0, s], mu)
        if choices.mode == STREAM:
            means.seen[1, s] = follow(long, shift, means.seen[1, s], eps)
        elif choices.mode == CLIP:
            counted[1, s] = means.frames[s] > 1
            for k in range(d):
                long[k] = frame[s, k] - means.own[s, k]
        else:
            counted[1, s] = knew[p] > 0
            for k in range(d):
                long[k] = (frame[s, k] - means.common[p, k]) + means.common_lags[p, k]
        for k in range(d):
            deviations[0, s, k] = short[k]
            deviations[1, s, k] = long[k] - short[k]


@compiled
def add_squares(
    total: Array, deviations: Array, counted: Array, scatter: Array, rate: float, diagonal: bool
) -> None:
    """One step of Eq. 8 or 9."""
    d, share = len(total), rate / count(counted)
    for i in range(d):
        for j in range(i, d):
            total[i, j] *= 1.0 - rate
    for s in range(len(deviations)):
        if not counted[s]:
            continue
        for i in range(d):
            row, last = deviations[s, i] * share, i + 1 if diagonal else d
            for j in range(i, last):
                total[i, j] += row * deviations[s, j]
            if len(scatter):
                for j in range(i, last):
                    total[i, j] += scatter[s, i, j] * share


@compiled
def step_covs(
    covs: Covs, deviations: Array, counted: Array, scatter: Array, step: int, choices: Choices
) -> int:
    """Eq. 8 and 9, and the factors for Eq. 11; how many there are not. No frame: step -1."""
    singular, none = 0, scatter[:0]
    for i in range(2):
        rate = choices.rates[i]
        if step >= 0 and step % choices.periods[i] == 0:
            covs.ridges[i] = choices.high * trace(covs.totals[i])
        if count(counted[i]):
            extra = none if i else scatter
            add_squares(covs.totals[i], deviations[i], counted[i], extra, rate, choices.diagonal)
            covs.seen[i] = (1.0 - rate) * covs.seen[i] + rate
            covs.ridges[i] *= 1.0 - rate
    for i in range(2):
        total, u, size = covs.totals[i], covs.factors[i], trace(covs.totals[i])
        covs.scales[i] = 0.0
        if size == 0.0:
            continue
        noise = choices.noise * trace(covs.totals[1 - i]) / max(covs.seen[1 - i], TINY)
        level = max(covs.ridges[i], choices.low * size, noise * covs.seen[i])
        for j in range(len(total)):
            for k in range(j, len(total)):
                u[j, k] = total[j, k]
            u[j, j] += level
        if size > 0.0 and factor(u):
            covs.scales[i] = covs.seen[i] / count(counted[i]) if count(counted[i]) else 0.0
        else:
            singular += 1
    return singular


@compiled
def step_gradient(
    covs: Covs, deviations: Array, counted: Array, eps: float, centred: bool
) -> Array:
    """Eq. 11, less its own long-term mean (see `core`)."""
    _, streams, d = deviations.shape
    out, x = np.zeros((streams, d)), np.empty(d)
    for i in range(2):
        share = -covs.scales[i] if i else covs.scales[i]
        for s in range(streams):
            if counted[i, s] and share != 0.0:
                for k in range(d):
                    x[k] = deviations[i, s, k]
                solve(covs.factors[i], x)
                for k in range(d):
                    out[s, k] += share * x[k]
    taking = 0
    for s in range(streams):
        taking += counted[0, s] or counted[1, s]
    if centred and taking:
        for k in range(d):
            push = 0.0
            for s in range(streams):
                push += out[s, k]
            covs.pull[k] = (1.0 - eps) * covs.pull[k] + eps * push
            for s in range(streams):
                takes = counted[0, s] or counted[1, s]
                out[s, k] = out[s, k] - covs.pull[k] / taking if takes else 0.0
    return out


@compiled
def step_scatter(covs: Covs, had_past: Array, scale: float, out: Array) -> None:
    """dJ/dscatter: half of the inverse of W, for every stream that counts."""
    d = out.shape[-1]
    column = np.empty(d)
    for j in range(d):
        for i in range(d):
            column[i] = 0.0
        column[j] = covs.scales[0] * scale / 2
        if covs.scales[0] > 0.0:
            solve(covs.factors[0], column)
        for s in range(len(had_past)):
            for i in range(d):
                out[s, i, j] = column[i] if had_past[s] else 0.0


@compiled
def advance(
    y: Array, lengths: Array, scatter: Array, gradient: Array, scatter_gradient: Array,
    buffers: Buffers, choices: Choices,
) -> None:  # fmt: skip
    """A whole pass; `small.Plan.run` says of what. Buffers are written when all is computed."""
    steps, sequences, positions, d = y.shape
    streams = sequences * positions
    active = np.empty((steps, streams), np.bool_)
    skipped, singular = find_usable(y, lengths, scatter, choices.largest, active), 0
    means, covs = begin_means(y, active, buffers, choices), begin_covs(buffers)
    frame, deviations = np.empty((streams, d)), np.zeros((2, streams, d))
    counted, step = np.zeros((2, streams), np.bool_), buffers.steps[0]
    for t in range(steps):
        live = count(active[t]) > 0
        for s in range(streams):
            for k in range(d):
                frame[s, k] = y[t, s // positions, s % positions, k]
        step_means(frame, active[t], means, choices, deviations, counted)
        extra = scatter[t] if len(scatter) else np.zeros((0, d, d))
        singular += step_covs(covs, deviations, counted, extra, step if live else -1, choices)
        out = step_gradient(covs, deviations, counted, choices.rates[1], choices.centred)
        if len(scatter):
            step_scatter(covs, counted[0], choices.scale, scatter_gradient[t])
        for s in range(streams):
            for k in range(d):
                gradient[t, s // positions, s % positions, k] = out[s, k] * choices.scale
        step += live
    write_means(means, buffers, choices.mode)
    write_covs(covs, buffers)
    buffers.steps[0] = step
    buffers.left_out[0] += skipped
    buffers.left_out[1] += singular
