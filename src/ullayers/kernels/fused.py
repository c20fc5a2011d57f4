"""The first half of the recurrence on a GPU: moving averages and Gram matrices, in Triton.

A frame is a (channels, streams) tile wherever its maps are stored; strides say where. The moving
averages walk through time once and leave a mark at the start of every `GROUP` of steps. Whoever
needs the deviations of a step later starts from its mark and reads at most a group of frames, so
that no deviation is ever stored.

Only `kernels.launch` imports this module, and only once it has seen a CUDA tensor: Triton comes
with PyTorch's CUDA builds and is not there otherwise.
"""

from __future__ import annotations

import triton
import triton.language as tl

# A mark holds the latest frame, the lag of the short-term and that of the long-term mean.
LATEST, SHORT, LONG = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def usable_positions(
    y, stride_t, stride_n, stride_p, stride_c, positions, active, S, C, largest,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Where every channel is a number whose square fits the statistics."""
    t, s = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CHANNELS)
    place = t.to(tl.int64) * stride_t + (s // positions) * stride_n + (s % positions) * stride_p
    inside = (c < C)[:, None] & (s < S)[None, :]
    x = tl.load(y + place[None, :] + c[:, None] * stride_c, mask=inside, other=0.0)
    bad = tl.sum((~(tl.abs(x.to(tl.float32)) <= largest)).to(tl.int32), 0)
    tl.store(active + t.to(tl.int64) * S + s, (bad == 0).to(tl.int8), mask=s < S)


@triton.jit
def count_streams(
    active, seen, continues, known, counts, frames, tally, T, S,
    CARRY: tl.constexpr, CLIP: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How many streams take part in each step: at all, in W and in B; frames of each stream."""
    s = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = s < S
    evidence = tl.zeros([BLOCK], tl.float32) + known
    if CARRY:
        carried = tl.load(seen + s, mask=inside, other=0.0)
        evidence = tl.where(tl.load(continues) != 0, carried, evidence)
    total = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, T, STEPS):
        t = begin + tl.arange(0, STEPS)
        there = (t < T)[:, None] & inside[None, :]
        on = tl.load(active + t[:, None] * S + s[None, :], mask=there, other=0).to(tl.int32)
        before = total[None, :] + tl.cumsum(on, 0) - on
        past = on * ((before > 0) | (evidence > 0)[None, :]).to(tl.int32)
        tl.atomic_add(counts + t, tl.sum(on, 1), mask=t < T)
        tl.atomic_add(counts + T + t, tl.sum(past, 1), mask=t < T)
        if not CLIP:
            tl.atomic_add(counts + 2 * T + t, tl.sum(past, 1), mask=t < T)
        total += tl.sum(on, 0)
    tl.store(frames + s, total, mask=inside)
    tl.atomic_add(tally + 1, tl.sum(tl.where(inside, T - total, 0), 0).to(tl.int64))
    if CLIP:  # a clip of one frame says nothing about the long term
        many = (total > 1).to(tl.int32)
        for begin in range(0, T, STEPS):
            t = begin + tl.arange(0, STEPS)
            there = (t < T)[:, None] & inside[None, :]
            on = tl.load(active + t[:, None] * S + s[None, :], mask=there, other=0).to(tl.int32)
            tl.atomic_add(counts + 2 * T + t, tl.sum(on * many[None, :], 1), mask=t < T)


@triton.jit
def follow(lag, step, seen, rate, keep, on):
    """How far a moving average lags behind after one more frame, and its evidence."""
    grown = seen + rate * (1 - seen)
    behind = lag + step
    # The two forms keep the digits of a large and of a small rate.
    moved = tl.where(rate > 0.5, (keep * seen / grown) * behind, behind - (rate / grown) * behind)
    return tl.where(on, moved, lag), tl.where(on, grown, seen)


@triton.jit
def read_mean(mean, rest, at, inside, goes_on):
    """A stored mean as value and rest; the rest is void once someone has set the value."""
    value, more = tl.load(mean + at, mask=inside, other=0.0), tl.load(rest + at, mask=inside)
    more = tl.where(value + more == value, more, 0.0)
    return tl.where(goes_on, value, 0.0), tl.where(goes_on, more, 0.0)


@triton.jit
def write_mean(to, at, rows, base, delta, inside):
    """As value and rest; `to` holds all values, then all rests."""
    value = base + delta
    tl.store(to + at, value, mask=inside)
    tl.store(to + rows + at, (base - value) + delta, mask=inside)


@triton.jit
def own_mean(y, place, stride_t, active, s, S, T, inside, AHEAD: tl.constexpr):
    """A clip's mean over its usable frames: the first of them and the mean distance from it."""
    first = tl.zeros_like(s).to(tl.float32)
    far, n = tl.zeros_like(first), tl.zeros_like(first)
    for begin in range(0, T, AHEAD):
        frames, masks = (), ()
        for j in tl.static_range(AHEAD):
            there = inside & (begin + j < T)
            at = tl.cast(begin + j, tl.int64)
            frames = frames + (tl.load(y + place + at * stride_t, mask=there, other=0.0),)
            masks = masks + (tl.load(active + at * S + s, mask=there, other=0) != 0,)
        for j in tl.static_range(AHEAD):
            x, on = frames[j].to(tl.float32), masks[j]
            first = tl.where(on & (n == 0), x, first)
            far += tl.where(on, x - first, 0.0)
            n += tl.where(on, 1.0, 0.0)
    return first, far / tl.maximum(n, 1.0)


@triton.jit
def walk(
    y, stride_t, stride_n, stride_p, stride_c, positions, active, continues,
    short_mean, short_rest, short_seen, long_mean, long_rest, long_seen, known,
    marks, seen_marks, own, end_means, end_seen, T, S, C, mu, mu_keep, eps, eps_keep,
    CARRY: tl.constexpr, CLIP: tl.constexpr, GROUP: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Both moving averages of one channel of a block of streams, through all steps."""
    s, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    inside, at, size = s < S, s * C + c, S * C
    place = (s // positions) * stride_n + (s % positions) * stride_p + c * stride_c
    nothing = tl.zeros([BLOCK], tl.float32)
    latest, lag, long_lag = nothing, nothing, nothing
    seen, longer_seen = nothing + known, nothing + known
    if CARRY:
        goes_on = tl.load(continues) != 0
        latest, rest = read_mean(short_mean, short_rest, at, inside, goes_on)
        value, long_more = read_mean(long_mean, long_rest, at, inside, goes_on)
        lag, long_lag = -rest, (latest - value) - long_more
        carried = tl.load(short_seen + s, mask=inside, other=0.0)
        long_carried = tl.load(long_seen + s, mask=inside, other=0.0)
        seen = tl.where(goes_on, carried, seen)
        longer_seen = tl.where(goes_on, long_carried, longer_seen)
    if CLIP:
        first, far = own_mean(y, place, stride_t, active, s, S, T, inside, AHEAD)
        tl.store(own + c * S + s, first, mask=inside)
        tl.store(own + size + c * S + s, far, mask=inside)
    groups = tl.cdiv(T, GROUP)
    for begin in range(0, T, AHEAD):
        frames, masks = (), ()  # many loads on their way before the first is needed
        for j in tl.static_range(AHEAD):
            there = inside & (begin + j < T)
            step = tl.cast(begin + j, tl.int64)
            frames = frames + (tl.load(y + place + step * stride_t, mask=there, other=0.0),)
            masks = masks + (tl.load(active + step * S + s, mask=there, other=0) != 0,)
        for j in tl.static_range(AHEAD):
            if j % GROUP == 0:
                group = (begin + j) // GROUP
                there = inside & (begin + j < T)
                mark = marks + group.to(tl.int64) * size + c * S + s
                every = tl.cast(groups, tl.int64) * size
                tl.store(mark + LATEST * every, latest, mask=there)
                tl.store(mark + SHORT * every, lag, mask=there)
                tl.store(mark + LONG * every, long_lag, mask=there)
                tl.store(seen_marks + group * S + s, seen, mask=there & (c == 0))
                tl.store(seen_marks + (groups + group) * S + s, longer_seen, mask=there & (c == 0))
            x, on = frames[j].to(tl.float32), masks[j]
            lag, seen = follow(lag, x - latest, seen, mu, mu_keep, on)
            long_lag, longer_seen = follow(long_lag, x - latest, longer_seen, eps, eps_keep, on)
            latest = tl.where(on, x, latest)
    write_mean(end_means, at, size, latest, -lag, inside)
    if CLIP:
        write_mean(end_means + 2 * size, at, size, first, far, inside)
        longer_seen = tl.zeros([BLOCK], tl.float32) + 1
    else:
        write_mean(end_means + 2 * size, at, size, latest, -long_lag, inside)
    tl.store(end_seen + s, seen, mask=inside & (c == 0))
    tl.store(end_seen + S + s, longer_seen, mask=inside & (c == 0))


@triton.jit
def read_mark(
    marks, seen_marks, own, frames, group, groups, at, s, S, C, inside,
    CLIP: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Where the averages of a tile stood before a group of steps; the long-term one for FAR."""
    size = tl.cast(S, tl.int64) * C
    mark = marks + group * size
    latest = tl.load(mark + at, mask=inside, other=0.0)
    lag = tl.load(mark + SHORT * groups * size + at, mask=inside, other=0.0)
    seen = tl.load(seen_marks + group * S + s, mask=s < S, other=0.0)
    long_lag, rest, longer_seen = lag, lag, seen
    if FAR and CLIP:  # in place of the long-term lag: the clip's mean, in two parts
        long_lag = tl.load(own + at, mask=inside, other=0.0)
        rest = tl.load(own + size + at, mask=inside, other=0.0)
        longer_seen = tl.load(frames + s, mask=s < S, other=0).to(tl.float32)
    elif FAR:
        long_lag = tl.load(mark + LONG * groups * size + at, mask=inside, other=0.0)
        longer_seen = tl.load(seen_marks + (groups + group) * S + s, mask=s < S, other=0.0)
    return latest, lag, long_lag, rest, seen, longer_seen


@triton.jit
def deviations(
    x, on, latest, lag, long_lag, rest, seen, longer_seen, mu, mu_keep, eps, eps_keep,
    CLIP: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """One step of a tile: what enters W and, for FAR, B; and where the averages stand then."""
    counted = on & (seen > 0)
    lag, grown = follow(lag, x - latest, seen[None, :], mu, mu_keep, on[None, :])
    within = tl.where(counted[None, :], lag, 0.0)
    between = within
    if FAR and CLIP:
        counted = on & (longer_seen > 1)
        between = tl.where(counted[None, :], (x - long_lag) - rest - lag, 0.0)
    elif FAR:
        long_lag, longer = follow(
            long_lag, x - latest, longer_seen[None, :], eps, eps_keep, on[None, :]
        )
        longer_seen = tl.sum(longer, 0)  # one row
        between = tl.where(counted[None, :], long_lag - lag, 0.0)
    latest = tl.where(on[None, :], x, latest)
    return within, between, counted, latest, lag, long_lag, tl.sum(grown, 0), longer_seen


@triton.jit
def gram_matrices(
    y, stride_t, stride_n, stride_p, stride_c, positions, active, marks, seen_marks, own, frames,
    grams, sums, T, S, C, mu, mu_keep, eps, eps_keep,
    CLIP: tl.constexpr, FAR: tl.constexpr, GROUP: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums over streams of the squares of what enters W, or B for FAR, and of that itself.

    A program does a group of steps of every parts-th block of streams.
    """
    group, part = tl.program_id(0), tl.program_id(1)
    groups, parts = tl.cdiv(T, GROUP), tl.num_programs(1)
    c, begin = tl.arange(0, CHANNELS), group * GROUP
    totals, lines = (), ()
    for j in tl.static_range(GROUP):
        totals = totals + (tl.zeros([CHANNELS, CHANNELS], tl.float32),)
        lines = lines + (tl.zeros([CHANNELS], tl.float32),)
    for first in range(part * BLOCK, S, parts * BLOCK):
        s = first + tl.arange(0, BLOCK)
        inside = (c < C)[:, None] & (s < S)[None, :]
        latest, lag, long_lag, rest, seen, longer_seen = read_mark(
            marks, seen_marks, own, frames, group, groups, c[:, None] * S + s[None, :],
            s, S, C, inside, CLIP, FAR,
        )  # fmt: skip
        place = (s // positions) * stride_n + (s % positions) * stride_p
        place = place[None, :] + c[:, None] * stride_c
        more_totals, more_lines = (), ()
        for j in tl.static_range(GROUP):
            there = begin + j < T
            at = tl.cast(begin + j, tl.int64)
            x = tl.load(y + at * stride_t + place, mask=inside & there, other=0.0)
            on = tl.load(active + at * S + s, mask=(s < S) & there, other=0) != 0
            within, between, counted, latest, lag, long_lag, seen, longer_seen = deviations(
                x.to(tl.float32), on, latest, lag, long_lag, rest, seen, longer_seen,
                mu, mu_keep, eps, eps_keep, CLIP, FAR,
            )  # fmt: skip
            gram = tl.dot(between, tl.trans(between), totals[j], input_precision=PRECISION)
            more_totals = more_totals + (gram,)
            more_lines = more_lines + (lines[j] + tl.sum(between, 1),)
        totals, lines = more_totals, more_lines
    cells = c[:, None] * C + c[None, :]
    filled = (c < C)[:, None] & (c < C)[None, :]
    for j in tl.static_range(GROUP):
        at = tl.cast(part * 2 + FAR, tl.int64) * T + begin + j
        there = begin + j < T
        tl.store(grams + at * C * C + cells, totals[j], mask=filled & there)
        tl.store(sums + at * C + c, lines[j], mask=(c < C) & there)


@triton.jit
def gradients(
    y, stride_t, stride_n, stride_p, stride_c, positions, active, marks, seen_marks, own, frames,
    inverses, pulls, counts, gradient, T, S, C, mu, mu_keep, eps, eps_keep, scale,
    CLIP: tl.constexpr, CENTRED: tl.constexpr, GROUP: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Eq. 11 for a group of steps of a block of streams, in the layout of the frames."""
    group, groups = tl.program_id(0), tl.cdiv(T, GROUP)
    s, c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    inside = (c < C)[:, None] & (s < S)[None, :]
    latest, lag, long_lag, rest, seen, longer_seen = read_mark(
        marks, seen_marks, own, frames, group, groups, c[:, None] * S + s[None, :],
        s, S, C, inside, CLIP, True,
    )  # fmt: skip
    place = (s // positions) * stride_n + (s % positions) * stride_p
    place = place[None, :] + c[:, None] * stride_c
    cells = c[:, None] * C + c[None, :]
    filled = (c < C)[:, None] & (c < C)[None, :]
    for step in range(group * GROUP, tl.minimum(group * GROUP + GROUP, T)):
        at = tl.cast(step, tl.int64)
        x = tl.load(y + at * stride_t + place, mask=inside, other=0.0).to(tl.float32)
        on = tl.load(active + at * S + s, mask=s < S, other=0) != 0
        within, between, counted, latest, lag, long_lag, seen, longer_seen = deviations(
            x, on, latest, lag, long_lag, rest, seen, longer_seen,
            mu, mu_keep, eps, eps_keep, CLIP, True,
        )  # fmt: skip
        w_inverse = tl.load(inverses + at * C * C + cells, mask=filled, other=0.0)
        g = tl.dot(w_inverse, within, input_precision=PRECISION)
        b_inverse = tl.load(inverses + (T + at) * C * C + cells, mask=filled, other=0.0)
        g -= tl.dot(b_inverse, between, input_precision=PRECISION)
        if CENTRED:
            pull = tl.load(pulls + step * C + c, mask=c < C, other=0.0)
            each = pull / tl.maximum(tl.load(counts + T + step), 1)
            g -= tl.where(counted[None, :], each[:, None], 0.0)
        g = (g * scale).to(gradient.dtype.element_ty)
        tl.store(gradient + at * stride_t + place, g, mask=inside)
