"""The loop of `kernels.reference`, compiled by numba: for small frames on a CPU, one or many.

Where a frame is a handful of numbers, calls into PyTorch cost more than all arithmetic. Here a pass
is one call, from the buffers of a layer to those after the frames.
"""

from __future__ import annotations

import numpy as np

from ullayers.kernels.compiled_state import (
    CLIP,
    SHARED,
    STREAM,
    TINY,
    Array,
    Buffers,
    Choices,
    Covs,
    Means,
    begin_covs,
    begin_means,
    compiled,
    find_usable,
    write_covs,
    write_means,
)


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
        if not count(counted[i]) or size == 0.0:
            continue
        noise = choices.noise * trace(covs.totals[1 - i]) / max(covs.seen[1 - i], TINY)
        level = max(covs.ridges[i], choices.low * size, noise * covs.seen[i])
        for j in range(len(total)):
            for k in range(j, len(total)):
                u[j, k] = total[j, k]
            u[j, j] += level
        if size > 0.0 and factor(u):
            covs.scales[i] = covs.seen[i] / count(counted[i])
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
    """A whole pass. The buffers are written when all is computed.

    Args:
        y: (T, N, P, d), the frames.
        lengths: (N,), how many of them each sequence has.
        scatter: (T, S, d, d), or with no steps if there is none.
        gradient: written to; shape of y.
        scatter_gradient: written to; shape of scatter.
        buffers: the statistics.
        choices: what does not change.
    """
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
