"""The frames on a GPU: moving averages, Gram matrices and gradients, in Triton.

A frame is a (channels, streams) tile wherever its maps are stored; strides say where. The moving
averages walk through time once and write what enters W and B, stored as the frames are: in
float32 where the gradient and the output will be, so that it takes no more memory.

Only `kernels.launch` imports this module, and only once it has seen a CUDA tensor: Triton comes
with PyTorch's CUDA builds and is not there otherwise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ullayers.kernels.fused_books import exact
from ullayers.kernels.fused_product import plus_product


@triton.jit
def usable_positions(
    y, stride_t, stride_n, stride_p, stride_c, positions, active, counts, tally, T, S, C, largest,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Where every channel is a number whose square fits the statistics; all counts become 0."""
    t, s = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CHANNELS)
    place = t.to(tl.int64) * stride_t + (s // positions) * stride_n + (s % positions) * stride_p
    inside = (c < C)[:, None] & (s < S)[None, :]
    x = tl.load(y + place[None, :] + c[:, None] * stride_c, mask=inside, other=0.0)
    bad = tl.sum((~(tl.abs(x.to(tl.float32)) <= largest)).to(tl.int32), 0)
    tl.store(active + t.to(tl.int64) * S + s, (bad == 0).to(tl.int8), mask=s < S)
    kind = tl.arange(0, 4)
    leads = (kind < 3) & (tl.program_id(1) == 0)
    tl.store(counts + kind * T + t, 0, mask=leads)
    tl.store(tally + kind, 0, mask=leads & (t == 0))


@triton.jit
def count_streams(
    active, seen, continues, known, counts, frames, tally, T, S,
    CARRY: tl.constexpr, CLIP: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How many streams take part in each step: at all, in W and in B; frames of each stream.

    Where a stream counts in W, its `active` becomes 3.
    """
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
        tl.store(active + t[:, None] * S + s[None, :], (on + 2 * past).to(tl.int8), mask=there)
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
            on = tl.load(active + t[:, None] * S + s[None, :], mask=there, other=0).to(tl.int32) & 1
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
    return first, far / tl.maximum(n, 1.0), n


@triton.jit
def walk(
    y, stride_t, stride_n, stride_p, stride_c, positions, active, continues,
    short_mean, short_rest, short_seen, long_mean, long_rest, long_seen, known,
    within, between, end_means, end_seen, T, S, C, mu, mu_keep, eps, eps_keep,
    CARRY: tl.constexpr, CLIP: tl.constexpr, AHEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Both moving averages of one channel of a block of streams; what enters W and B."""
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
        first, far, n = own_mean(y, place, stride_t, active, s, S, T, inside, AHEAD)
    for begin in range(0, T, AHEAD):
        frames, masks = (), ()  # many loads on their way before the first is needed
        for j in tl.static_range(AHEAD):
            there = inside & (begin + j < T)
            step = tl.cast(begin + j, tl.int64)
            frames = frames + (tl.load(y + place + step * stride_t, mask=there, other=0.0),)
            masks = masks + (tl.load(active + step * S + s, mask=there, other=0),)
        for j in tl.static_range(AHEAD):
            x, on, counted = frames[j].to(tl.float32), masks[j] != 0, masks[j] > 1
            lag, seen = follow(lag, x - latest, seen, mu, mu_keep, on)
            long_lag, longer_seen = follow(long_lag, x - latest, longer_seen, eps, eps_keep, on)
            latest = tl.where(on, x, latest)
            if CLIP:
                far_lag = tl.where(on & (n > 1), (x - first) - far - lag, 0.0)
            else:
                far_lag = tl.where(counted, long_lag - lag, 0.0)
            there = inside & (begin + j < T)
            step = tl.cast(begin + j, tl.int64)
            tl.store(within + place + step * stride_t, tl.where(counted, lag, 0.0), mask=there)
            tl.store(between + place + step * stride_t, far_lag, mask=there)
    write_mean(end_means, at, size, latest, -lag, inside)
    if CLIP:
        write_mean(end_means + 2 * size, at, size, first, far, inside)
        longer_seen = tl.zeros([BLOCK], tl.float32) + 1
    else:
        write_mean(end_means + 2 * size, at, size, latest, -long_lag, inside)
    tl.store(end_seen + s, seen, mask=inside & (c == 0))
    tl.store(end_seen + S + s, longer_seen, mask=inside & (c == 0))


@triton.jit
def tile_of(source, place, stride_c, c, C, inside):
    """Some channels of a block of streams."""
    there = (c < C)[:, None] & inside[None, :]
    return tl.load(source + place[None, :] + c[:, None] * stride_c, mask=there, other=0.0)


@triton.jit
def diagonal_of(matrix, c):
    """The diagonal of a square matrix."""
    return tl.sum(tl.where(c[:, None] == c[None, :], matrix, 0.0), 1)


@triton.jit
def covariance_paths(
    within, between, stride_t, stride_n, stride_p, stride_c, positions, shares, grams,
    diagonals, sums, decays, T, S, mu, mu_keep, eps, eps_keep, C: tl.constexpr, WIDTH: tl.constexpr,
    HALVES: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What a run of steps brings to W or B, times its evidence, after each of them.

    A program does every parts-th block of streams. The sums of what enters are written too, and
    what each step leaves of the covariance before the run. Of wide matrices, which are symmetric,
    the upper right square is not written.
    """
    run, part, which = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c, parts = tl.arange(0, WIDTH), tl.num_programs(1)
    if which == 0:
        source = within
    else:
        source = between
    _, keep = exact(which, mu, mu_keep, eps, eps_keep)
    corner = tl.zeros([WIDTH, WIDTH], tl.float32)
    if HALVES:
        side, last = tl.zeros_like(corner), tl.zeros_like(corner)
    # The sums are in units of what their latest frame weighs, so that frames go in as they are.
    unit, left = tl.full([], 1.0, tl.float64), tl.full([], 1.0, tl.float64)
    for t in range(run * RUN, tl.minimum(run * RUN + RUN, T)):
        share = tl.load(shares + which * T + t)
        counts = share > 0
        fading = tl.where(counts, keep * unit / tl.where(counts, share, 1.0), 1.0).to(tl.float32)
        unit, left = tl.where(counts, share, unit), tl.where(counts, keep * left, left)
        line = tl.zeros([WIDTH], tl.float32)
        corner *= fading
        if HALVES:
            side, last, more = side * fading, last * fading, tl.zeros_like(line)
        for first in range(part * BLOCK, S, parts * BLOCK):
            s = first + tl.arange(0, BLOCK)
            place = (s // positions) * stride_n + (s % positions) * stride_p
            frame = source + tl.cast(t, tl.int64) * stride_t
            x = tile_of(frame, place, stride_c, c, C, s < S)
            corner = plus_product(corner, x, x)
            line += tl.sum(x, 1)
            if HALVES:
                z = tile_of(frame, place, stride_c, WIDTH + c, C, s < S)
                side = plus_product(side, z, x)
                last = plus_product(last, z, z)
                more += tl.sum(z, 1)
        at, scale = tl.cast(part * 2 + which, tl.int64) * T + t, unit.to(tl.float32)
        here, cells = (c < C)[:, None] & (c < C)[None, :], c[:, None] * C + c[None, :]
        tl.store(grams + at * C * C + cells, corner * scale, mask=here)
        tl.store(diagonals + at * C + c, diagonal_of(corner, c) * scale, mask=c < C)
        tl.store(sums + at * C + c, line, mask=c < C)
        tl.store(decays + which * T + t, left, mask=part == 0)
        if HALVES:
            below = (WIDTH + c < C)[:, None]
            tl.store(grams + at * C * C + WIDTH * C + cells, side * scale, mask=below)
            inside = below & (WIDTH + c < C)[None, :]
            tl.store(grams + at * C * C + WIDTH * (C + 1) + cells, last * scale, mask=inside)
            there = at * C + WIDTH + c
            tl.store(diagonals + there, diagonal_of(last, c) * scale, mask=WIDTH + c < C)
            tl.store(sums + there, more, mask=WIDTH + c < C)


@triton.jit
def product(
    g, matrix, source, place, stride_c, inside, c, C,
    SIGN: tl.constexpr, SLICE: tl.constexpr, FLIP: tl.constexpr,
):  # fmt: skip
    """`g` and a tile times a symmetric matrix, or minus it, a slice of channels at a time."""
    for first in range(0, C, SLICE):
        k = first + tl.arange(0, SLICE)
        filled = (c < C)[:, None] & (k < C)[None, :]
        m = tl.load(matrix + c[:, None] * C + k[None, :], mask=filled, other=0.0)
        there = (k < C)[:, None] & inside[None, :]
        x = tl.load(source + place[None, :] + k[:, None] * stride_c, mask=there, other=0.0)
        if FLIP:
            g = plus_product(g, SIGN * tl.trans(x), m, False)
        else:
            g = plus_product(g, m, SIGN * tl.trans(x), False)
    return g


@triton.jit
def gradients(
    within, between, stride_t, stride_n, stride_p, stride_c, positions, active,
    inverses, pulls, counts, gradient, T, S, C: tl.constexpr, scale,
    CENTRED: tl.constexpr, CHANNELS: tl.constexpr, SLICE: tl.constexpr, BLOCK: tl.constexpr,
    FLIP: tl.constexpr,
):  # fmt: skip
    """Eq. 11 for one step of a block of streams. `within` may lie where the gradient goes."""
    t, now = tl.program_id(0), tl.program_id(0).to(tl.int64)
    s, c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    place = now * stride_t + (s // positions) * stride_n + (s % positions) * stride_p
    inside = s < S
    if FLIP:
        g = tl.zeros([BLOCK, CHANNELS], tl.float32)
    else:
        g = tl.zeros([CHANNELS, BLOCK], tl.float32)
    w_inverse, b_inverse = inverses + now * C * C, inverses + (T + now) * C * C
    g = product(g, w_inverse, within, place, stride_c, inside, c, C, 1, SLICE, FLIP)
    g = product(g, b_inverse, between, place, stride_c, inside, c, C, -1, SLICE, FLIP)
    if FLIP:
        g = tl.trans(g)
    if CENTRED:
        pull = tl.load(pulls + t * C + c, mask=c < C, other=0.0)
        each = pull / tl.maximum(tl.load(counts + T + t), 1)
        counted = tl.load(active + now * S + s, mask=inside, other=0) > 1
        g -= tl.where(counted[None, :], each[:, None], 0.0)
    g = (g * scale).to(gradient.dtype.element_ty)
    tl.debug_barrier()  # all is read
    there = (c < C)[:, None] & inside[None, :]
    tl.store(gradient + place[None, :] + c[:, None] * stride_c, g, mask=there)
