"""Eq. 6-11 as a loop over small frames on a CPU, compiled by numba.

For frames of a few numbers, Python calls cost more than arithmetic; here a forward pass is one
call. Plain loops replace numpy functions, most of which take seconds to compile.
"""

from __future__ import annotations

import numpy as np

from ullayers.kernels.numba.cholesky_loops import factor, solve
from ullayers.kernels.numba.compiling import compiled
from ullayers.kernels.numba.state_loops import Array, Buffers, Covs, Means, Settings

TINY = 1e-300


@compiled
def trace(a: Array) -> float:
    """Return the sum of the diagonal."""
    total = 0.0
    for i in range(len(a)):
        total += a[i, i]
    return total


@compiled
def count(mask: Array) -> int:
    """Return the number of true entries."""
    total = 0
    for each in mask:
        total += each
    return total


@compiled
def find_usable(y: Array, scatter: Array, largest: float, active: Array) -> int:
    """Mark the usable frames in `active`; return the number of others."""
    steps, streams, d = y.shape
    skipped = 0
    for t in range(steps):
        for s in range(streams):
            usable = True
            for k in range(d):
                usable &= abs(y[t, s, k]) <= largest  # false for NaN
            if len(scatter):
                for j in range(d):
                    for k in range(d):
                        usable &= abs(scatter[t, s, j, k]) <= largest**2
            active[t, s] = usable
            skipped += not usable
    return skipped


@compiled
def read_mean(
    value: Array, rest: Array, saved_evidence: Array, latest: Array, lags: Array, evidence: Array
) -> None:
    """Read a mean from its buffers; `rest` is ignored if `value` was set by the user."""
    for s in range(value.shape[0]):
        evidence[s] = saved_evidence[s]
        for k in range(value.shape[1]):
            lags[s, k] = latest[s, k] - value[s, k]
            if value[s, k] + rest[s, k] == value[s, k]:
                lags[s, k] -= rest[s, k]


@compiled
def write_mean(
    latest: Array, lags: Array, evidence: Array, value: Array, rest: Array, saved_evidence: Array
) -> None:
    """Write a mean to its buffers."""
    for s in range(value.shape[0]):
        saved_evidence[s] = evidence[s]
        for k in range(value.shape[1]):
            value[s, k] = latest[s, k] - lags[s, k]
            rest[s, k] = (latest[s, k] - value[s, k]) - lags[s, k]


@compiled
def read_means(b: Buffers, carry_on: bool, known: float) -> Means:
    """Return the means before the first frame."""
    streams, d = b.short_mean.shape
    m = Means(np.zeros((streams, d)), np.zeros((2, streams, d)), np.full((2, streams), known))
    if carry_on:
        for s in range(streams):
            for k in range(d):
                m.latest[s, k] = b.short_mean[s, k]
        short_lags, short_evidence = m.lags[0], m.evidence[0]
        long_lags, long_evidence = m.lags[1], m.evidence[1]
        value, rest = b.short_mean, b.short_mean_rest
        read_mean(value, rest, b.short_evidence, m.latest, short_lags, short_evidence)
        value, rest = b.long_mean, b.long_mean_rest
        read_mean(value, rest, b.long_evidence, m.latest, long_lags, long_evidence)
    return m


@compiled
def read_covs(b: Buffers, workspace: Array) -> Covs:
    """Return the covariances before the first frame."""
    d = len(b.short_cov)
    totals, factors = workspace[0], workspace[1]
    covs = Covs(totals, np.zeros(2), np.zeros(2), factors, np.zeros(2), np.zeros(d), np.ones(1))
    for k in range(d):
        covs.pull[k] = b.pull[0, k]
    for i in range(2):
        value, rest = (b.long_cov, b.long_cov_rest) if i else (b.short_cov, b.short_cov_rest)
        covs.evidence[i] = b.cov_evidence[i]
        covs.ridges[i] = b.ridge_level[i]
        for j in range(d):
            for k in range(j + 1):
                holds = value[j, k] + rest[j, k] == value[j, k]
                exact = np.float64(value[j, k]) + (rest[j, k] if holds else 0.0)
                covs.totals[i, j, k] = exact * covs.evidence[i]
    return covs


@compiled
def mirror(a: Array) -> None:
    """Copy the lower triangle to the upper one, eight columns at a time, which suits the cache."""
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
    """Write both covariances and the pull to their buffers."""
    d = len(b.short_cov)
    for i in range(2):
        value, rest = (b.long_cov, b.long_cov_rest) if i else (b.short_cov, b.short_cov_rest)
        inverse = 1.0 / max(covs.evidence[i], TINY)
        for j in range(d):
            for k in range(j + 1):
                value[j, k] = covs.totals[i, j, k] * inverse
                rest[j, k] = covs.totals[i, j, k] * inverse - value[j, k]
        mirror(value)
        mirror(rest)
        b.cov_evidence[i] = covs.evidence[i]
        b.ridge_level[i] = covs.ridges[i]
    for k in range(d):
        b.pull[0, k] = covs.pull[k]
        if np.isinf(b.pull[0, k]):  # outputs of about 1e-38: the pull does not fit the buffer
            b.pull[0, k] = 0.0


@compiled
def follow(lag: Array, shift: Array, evidence: float, rate: float) -> float:
    """Update a mean's lag after the frame has moved by `shift`; return the mean's evidence."""
    grown = (1.0 - rate) * evidence + rate
    keep = (1.0 - rate) * evidence / grown
    for k in range(len(lag)):
        lag[k] = (lag[k] + shift[k]) * keep
    return grown


@compiled
def step_means(
    frame: Array, on: Array, means: Means, settings: Settings, deviations: Array, counted: Array
) -> None:
    """Eq. 6 and 7: compute each stream's deviations for W and B, and whether they count."""
    mu, eps = settings.rates
    shift = np.empty(frame.shape[1])
    for s in range(len(frame)):
        counted[s] = on[s] and means.evidence[0, s] > 0
        if not on[s]:
            continue
        short, long = means.lags[0, s], means.lags[1, s]
        for k in range(len(shift)):
            shift[k] = np.float64(frame[s, k]) - means.latest[s, k]
            means.latest[s, k] = frame[s, k]
        means.evidence[0, s] = follow(short, shift, means.evidence[0, s], mu)
        means.evidence[1, s] = follow(long, shift, means.evidence[1, s], eps)
        for k in range(len(shift)):
            deviations[0, s, k] = short[k]
            deviations[1, s, k] = long[k] - short[k]


@compiled
def add_squares(
    total: Array, deviations: Array, counted: Array, scatter: Array, rate: float
) -> None:
    """Update one covariance (Eq. 8 or 9)."""
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
def update_covs(
    covs: Covs, deviations: Array, counted: Array, scatter: Array, step: int, settings: Settings
) -> None:
    """Update W and B (Eq. 8 and 9) and their ridges; `step` is -1 if there is no frame."""
    for i in range(2):
        rate = settings.rates[i]
        if step >= 0 and step % settings.periods[i] == 0:
            covs.ridges[i] = settings.ridge_high * trace(covs.totals[i])
        if count(counted):
            extra = scatter[: 0 if i else len(scatter)]
            add_squares(covs.totals[i], deviations[i], counted, extra, rate)
            covs.evidence[i] = (1.0 - rate) * covs.evidence[i] + rate
            covs.ridges[i] *= 1.0 - rate


@compiled
def update_pull_share(covs: Covs, before: float, settings: Settings) -> None:
    """Compute the share of the pull to keep; see `covariance.pull_share`.

    Args:
        covs: The covariances after the step.
        before: Trace of B before the step.
        settings: Settings of the call.
    """
    evidence = max(covs.evidence[1], TINY)
    after = trace(covs.totals[1]) / evidence
    covs.pull_share[0] = 1.0
    if after > (1.0 + settings.jump * settings.rates[1] / evidence) * before:
        share = np.sqrt(before / after)
        covs.pull_share[0] = share if share >= settings.smallest_share else 0.0


@compiled
def factor_covs(covs: Covs, streams: int, settings: Settings) -> int:
    """Factor W and B with their ridges; return how many could not be factored."""
    singular = 0
    for i in range(2):
        total, lower, size = covs.totals[i], covs.factors[i], trace(covs.totals[i])
        covs.scales[i] = 0.0
        if size == 0.0:
            continue
        noise = settings.noise * trace(covs.totals[1 - i]) / max(covs.evidence[1 - i], TINY)
        level = max(covs.ridges[i], settings.ridge_low * size, noise * covs.evidence[i])
        for j in range(len(total)):
            for k in range(j + 1):
                lower[j, k] = total[j, k]
            lower[j, j] += level
        if size > 0.0 and factor(lower):
            covs.scales[i] = covs.evidence[i] / streams if streams else 0.0
        else:
            singular += 1
    return singular


@compiled
def step_covs(
    covs: Covs, deviations: Array, counted: Array, scatter: Array, step: int, settings: Settings
) -> int:
    """Update and factor W and B; return how many could not be factored."""
    before = trace(covs.totals[1]) / max(covs.evidence[1], TINY)
    update_covs(covs, deviations, counted, scatter, step, settings)
    update_pull_share(covs, before, settings)
    singular: int = factor_covs(covs, count(counted), settings)
    return singular


@compiled
def add_solutions(covs: Covs, deviations: Array, counted: Array, g: Array) -> None:
    """Add both terms of Eq. 11 to `g`."""
    _, streams, d = deviations.shape
    x = np.empty(d)
    for i in range(2):
        scale = -covs.scales[i] if i else covs.scales[i]
        for s in range(streams):
            if counted[s] and scale != 0.0:
                for k in range(d):
                    x[k] = deviations[i, s, k]
                solve(covs.factors[i], x)
                for k in range(d):
                    g[s, k] += scale * x[k]


@compiled
def subtract_pull(covs: Covs, counted: Array, eps: float, g: Array) -> None:
    """Subtract the gradient's own moving average; see `torch.advance._centred`."""
    streams, d = g.shape
    there = count(counted)
    keep = (1.0 - eps) * covs.pull_share[0]
    for k in range(d):
        total = 0.0
        for s in range(streams):
            total += g[s, k]
        covs.pull[k] = keep * covs.pull[k] + eps * total
        for s in range(streams):
            g[s, k] -= covs.pull[k] / there if counted[s] else 0.0


@compiled
def step_gradient(
    covs: Covs, deviations: Array, counted: Array, settings: Settings, out: Array
) -> None:
    """Write the scaled gradient of one step (Eq. 11) to `out`."""
    _, streams, d = deviations.shape
    g = np.zeros((streams, d))
    add_solutions(covs, deviations, counted, g)
    if settings.centred and count(counted):
        subtract_pull(covs, counted, settings.rates[1], g)
    for s in range(streams):
        for k in range(d):
            out[s, k] = g[s, k] * settings.scale
            if np.isinf(out[s, k]):  # outputs of about 1e-38: the gradient does not fit
                out[s, k] = 0.0


@compiled
def step_scatter(covs: Covs, had_past: Array, scale: float, out: Array) -> None:
    """Write dJ/dscatter to `out`: half of the inverse of W, for every stream that counts."""
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
    y: Array,
    gradient: Array,
    scatter: Array,
    scatter_gradient: Array,
    b: Buffers,
    settings: Settings,
    workspace: Array,
) -> None:
    """Run a forward pass; see `stream.Loop.run`. Buffers are written at the very end."""
    steps, streams, d = y.shape
    active = np.empty((steps, streams), np.bool_)
    skipped = find_usable(y, scatter, settings.largest, active)
    means = read_means(b, settings.carry_on and b.continues[0], settings.known)
    covs = read_covs(b, workspace)
    no_scatter = np.zeros((0, d, d))
    deviations, counted = np.zeros((2, streams, d)), np.zeros(streams, np.bool_)
    step, singular = b.steps[0], 0
    for t in range(steps):
        live = count(active[t]) > 0
        step_means(y[t], active[t], means, settings, deviations, counted)
        extra = scatter[t] if len(scatter) else no_scatter
        singular += step_covs(covs, deviations, counted, extra, step if live else -1, settings)
        step_gradient(covs, deviations, counted, settings, gradient[t])
        if len(scatter):
            step_scatter(covs, counted, settings.scale, scatter_gradient[t])
        step += live
    latest, lags, seen = means
    write_mean(latest, lags[0], seen[0], b.short_mean, b.short_mean_rest, b.short_evidence)
    write_mean(latest, lags[1], seen[1], b.long_mean, b.long_mean_rest, b.long_evidence)
    write_covs(covs, b)
    b.steps[0] = step
    b.left_out[0] += skipped
    b.left_out[1] += singular
    b.continues[0] = True
