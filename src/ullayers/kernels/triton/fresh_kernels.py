"""Fresh statistics on a GPU, in Triton.

Time is cut into segments of a few frames, which are processed in parallel. `summarise` treats each
segment as a clip of its own, and `chain` joins them: it finds the state before each segment. From
there `deviate` computes D = y - short-term mean and E = short-term mean - long-term mean, and their
contribution to the gradient of frames before the segment, which `unchain` sums backwards.
`adjoint` passes D and E back through the means, so that the gradient is one product with the two
factors.

Three things keep this short. A mean is carried as its lag behind the latest frame, so offsets in
the data cost no digits: a frame that is `step` away from the one before it changes the lag to
(1 - gain) (lag + step). The gain, the weight of the latest frame, depends only on how many frames
were seen: it is rate / evidence, and evidences are also the weights by which the means of two
pieces of a clip are joined (the plain mean has rate 1, and its evidence is a count). And both
deviations are zero where they must not count, at the first frame of a stream.

`gram` sums D D^T and E E^T over all frames, and `product` multiplies the output of `adjoint` by the
two factors, both on the matrix units. These compute in tf32, so numbers are rounded to it first; in
full precision a number is the sum of two of them.

`chain`, `deviate`, `unchain` and `adjoint` work on single values and see a frame as one line of
C * P of them, whatever the memory layout. They compute in the dtype of `state`: float32 for maps,
float64 for codes. Only `triton.fresh` imports this module, and only for CUDA tensors, since Triton
is part of PyTorch's CUDA builds only.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Columns of the table of segments: first frame, the frame after the last, clip, and whether it is
# the first or the last segment of its clip.
BEGIN, END, CLIP = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FIRST, LAST, COLUMNS = tl.constexpr(3), tl.constexpr(4), tl.constexpr(5)
# Of the state of each segment: latest frame, the lags of both means, and what later frames bring to
# the gradient through the short-term mean in D and in E, and through the long-term mean.
FIELDS = tl.constexpr(6)
# How a mean moves: as the plain mean of all frames so far, at a rate, or not at all.
PLAIN, MOVING, FIXED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def channel_and_position(i, C, P, CHANNELS_LAST: tl.constexpr):
    """Return channel and position of the values at these offsets in a frame."""
    if CHANNELS_LAST:
        return i % C, i // C
    else:
        return i // P, i % P


@triton.jit
def read_segment(y, begin, end, i, inside, plane, STEPS: tl.constexpr, KIND: tl.constexpr):
    """Load all frames of a segment, without stores in between, so that loads overlap."""
    frames = ()
    for j in tl.static_range(STEPS):
        there, t = inside & (begin + j < end), tl.cast(begin + j, tl.int64)
        frames = frames + (tl.load(y + t * plane + i, mask=there, other=0.0).to(KIND),)
    return frames


@triton.jit
def follow(lag, step, seen, rate, on, MOVES: tl.constexpr):
    """Return the lag of a mean after one more frame if it is `on`, its evidence, and the gain."""
    behind = lag + step
    if MOVES == FIXED:
        return behind, seen, tl.zeros_like(lag)
    if MOVES == PLAIN:
        more = seen + 1
    else:
        more = seen + rate * (1 - seen)
    # Division is not exact to the last digit, and a first frame must leave nothing behind.
    gain = tl.where(on, tl.where(seen > 0, rate / more, 1.0), 0.0)
    return behind - gain * behind, tl.where(on, more, seen), gain


@triton.jit
def advance(means, x, on, mu, eps, MOVES: tl.constexpr):
    """Return both means after one more frame, and its gains."""
    latest, lag, long, seen, long_seen = means
    x = tl.where(on, x, latest)
    lag, seen, gain = follow(lag, x - latest, seen, mu, on, MOVING)
    long, long_seen, long_gain = follow(long, x - latest, long_seen, eps, on, MOVES)
    return (x, lag, long, seen, long_seen), gain, long_gain


@triton.jit
def summarise(
    y, stride_c, stride_p, segments, state, marks, count, tally, mu, eps, largest, plane, C, P,
    MOVES: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Find the latest frame of each segment, the lags of its own two means, and its usable frames.

    Usable frames are marked with one bit each and counted, for every position.
    """
    s, p = tl.program_id(0), (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    c, row = tl.arange(0, CHANNELS)[:, None], segments + s * COLUMNS
    place, inside = c * stride_c + p * stride_p, (c < C) & (p < P)
    KIND: tl.constexpr = state.dtype.element_ty
    nothing, none = tl.zeros([CHANNELS, BLOCK], KIND), tl.zeros([1, BLOCK], KIND)
    means, begin = (nothing, nothing, nothing, none, none), tl.load(row + BEGIN)
    bits, seen = tl.zeros([1, BLOCK], tl.int32), tl.zeros([1, BLOCK], tl.int32)
    for t in tl.range(begin, tl.load(row + END), num_stages=STAGES):
        x = tl.load(y + tl.cast(t, tl.int64) * plane + place, mask=inside, other=0.0)
        x = x.to(KIND)
        bad = tl.max((~(tl.abs(x) <= largest)).to(tl.int32), 0, keep_dims=True)
        bits, seen = bits | ((1 - bad) << (t - begin)), seen + 1 - bad
        means, _, _ = advance(means, x, bad == 0, mu, eps, MOVES)
    at = state + s.to(tl.int64) * FIELDS * plane + place
    for j in tl.static_range(3):
        tl.store(at + j * plane, means[j], mask=inside)
    tl.store(marks + s * P + p, bits, mask=p < P)
    tl.store(count + s * P + p, seen, mask=p < P)
    if (s == 0) & (tl.program_id(1) == 0):
        tl.store(tally + tl.arange(0, 4), 0, mask=tl.arange(0, 4) < 3)


@triton.jit
def share(evidence, more, before):
    """Return the weight of `more` frames in a mean that has seen `before` frames before them."""
    own, all_frames = tl.load(evidence + more), tl.load(evidence + more + before)
    if evidence.dtype.element_ty == tl.float64:
        part = own / all_frames
    else:
        part = tl.div_rn(own, all_frames)
    return tl.where(more > 0, part, 0.0)


@triton.jit
def joined(lag, step, own, weight):
    """Return the lag of the mean of two pieces behind the latest frame of the second."""
    return lag + step + weight * (own - (lag + step))


@triton.jit(do_not_specialize=["size"])
def chain(
    state, count, before, segments, groups, table, size, short_mean, long_mean, steps,
    short_evidence, long_evidence, tally, plane, C, P,
    MOVES: tl.constexpr, CHANNELS_LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Find the state before each segment of a group, the means at the end, and the counts.

    A group has a long-term mean of its own: it is a clip, or all clips if they share it.
    """
    group, i = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c, p = channel_and_position(i, C, P, CHANNELS_LAST)
    inside = i < plane
    n = tl.zeros([BLOCK], tl.int32)  # usable frames of the clip so far
    total, pairs = n, n  # usable frames of the group, and those with one before them in the clip
    latest = tl.zeros([BLOCK], state.dtype.element_ty)  # usable frame of the clip
    newest, lag, long = latest, latest, latest  # newest: of the group
    begin, end = tl.load(groups + 2 * group), tl.load(groups + 2 * group + 1)
    for s in range(begin, end):
        row, at = segments + s * COLUMNS, state + tl.cast(s, tl.int64) * FIELDS * plane + i
        more = tl.load(count + s * P + p, mask=inside, other=0)
        x = tl.load(at, mask=inside, other=0.0)
        own_lag = tl.load(at + plane, mask=inside, other=0.0)
        own_long = tl.load(at + 2 * plane, mask=inside, other=0.0)
        first = tl.load(row + FIRST) != 0
        n, lag = tl.where(first, 0, n), tl.where(first, 0.0, lag)
        latest = tl.where((n == 0) & (more > 0), x, latest)  # before the first, any value will do
        newest = tl.where((total == 0) & (more > 0), x, newest)
        tl.store(at, latest, mask=inside)
        tl.store(at + plane, lag, mask=inside)
        tl.store(at + 2 * plane, long, mask=inside)
        tl.store(before + s * P + p, n, mask=inside & (c == 0))
        x = tl.where(more > 0, x, latest)
        lag = joined(lag, x - latest, own_lag, share(table, more, n))
        step = tl.where(more > 0, x - newest, 0.0)
        long = joined(long, step, own_long, share(table + size, more, total))
        latest, newest = x, tl.where(more > 0, x, newest)
        n, total = n + more, total + more
        if tl.load(row + LAST) != 0:
            pairs += tl.maximum(n - 1, 0)
            mean, to = tl.where(n > 0, latest - lag, 0.0), tl.load(row + CLIP) * P + p
            tl.store(short_mean + to * C + c, mean, mask=inside)
            tl.store(steps + to, n.to(tl.int64), mask=inside & (c == 0))
            tl.store(short_evidence + to, tl.load(table + n), mask=inside & (c == 0))
    seen = tl.load(table + 2 * size + total)
    tl.store(long_evidence + group * P + p, seen, mask=inside & (c == 0))
    tl.store(long_mean + (group * P + p) * C + c, newest - long, mask=inside)
    if MOVES == PLAIN:  # one long-term mean for all frames
        for s in range(begin, end):
            at = state + tl.cast(s, tl.int64) * FIELDS * plane + i
            x = tl.load(at, mask=inside, other=0.0)
            tl.store(at + 2 * plane, (x - newest) + long, mask=inside)
    frames = tl.load(segments + (end - 1) * COLUMNS + END) - tl.load(segments + begin * COLUMNS)
    between = tl.where(total > 1, total, 0) if MOVES == PLAIN else pairs
    add_up(tally, pairs, inside & (c == 0))
    add_up(tally + 1, between, inside & (c == 0))
    add_up(tally + 2, frames - total, inside & (c == 0))


@triton.jit
def add_up(to, counts, mask):
    """Add the sum of all counts to a total."""
    tl.atomic_add(to, tl.sum(tl.where(mask, counts, 0), 0).to(tl.int64))


@triton.jit
def begin_segment(
    y, marks, before, segments, table, size, state, start, i, inside, plane, C, P,
    CHANNELS_LAST: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Load what `deviate` and `adjoint` need of a segment.

    Returns its frames, both means before it, which of its frames are usable, where its state is,
    how many frames it has, and its place in the workspace.
    """
    s = start + tl.program_id(0)
    c, p = channel_and_position(i, C, P, CHANNELS_LAST)
    row = segments + s * COLUMNS
    begin, end = tl.load(row + BEGIN), tl.load(row + END)
    frames = read_segment(y, begin, end, i, inside, plane, STEPS, state.dtype.element_ty)
    at = state + tl.cast(s, tl.int64) * FIELDS * plane + i
    n = tl.load(before + s * P + p, mask=inside, other=0)
    latest = tl.load(at, mask=inside, other=0.0)
    lag = tl.load(at + plane, mask=inside, other=0.0)
    long = tl.load(at + 2 * plane, mask=inside, other=0.0)
    means = (latest, lag, long, tl.load(table + n), tl.load(table + size + n))
    bits = tl.load(marks + s * P + p, mask=inside, other=0)
    offset = tl.cast(begin - tl.load(segments + start * COLUMNS + BEGIN), tl.int64) * plane + i
    return frames, means, bits, at, end - begin, offset


@triton.jit(do_not_specialize=["size", "start"])
def deviate(
    y, marks, before, segments, table, size, state, within, between, start, mu, eps,
    plane, C, P, MOVES: tl.constexpr, CHANNELS_LAST: tl.constexpr, STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute D and E of a segment, and their contribution to the gradient of earlier frames."""
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < plane
    frames, means, bits, at, length, offset = begin_segment(
        y, marks, before, segments, table, size, state, start, i, inside, plane, C, P,
        CHANNELS_LAST, STEPS,
    )  # fmt: skip
    left = tl.full([BLOCK], 1.0, means[1].dtype)  # of what the means were when the segment started
    long_left, nothing = left, left * 0
    to_lag, to_between, to_long = nothing, nothing, nothing
    for j in tl.static_range(STEPS):
        on = (bits >> j) & 1 != 0
        means, gain, long_gain = advance(means, frames[j], on, mu, eps, MOVES)
        d, e = tl.where(on, means[1], 0.0), tl.where(on, means[2] - means[1], 0.0)
        left, long_left = left - gain * left, long_left - long_gain * long_left
        to_lag, to_between = to_lag + left * d, to_between + left * e
        to_long += long_left * e
        there, to = inside & (j < length), offset + j * plane
        tl.store(within + to, d, mask=there)
        tl.store(between + to, e, mask=there)
    tl.store(at + 3 * plane, to_lag, mask=inside)
    tl.store(at + 4 * plane, to_between, mask=inside)
    tl.store(at + 5 * plane, to_long, mask=inside)


@triton.jit(do_not_specialize=["size"])
def unchain(
    state, count, before, segments, groups, table, size, plane, C, P,
    MOVES: tl.constexpr, CHANNELS_LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the contributions of all later frames to the gradient of each segment of a group."""
    group, i = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c, p = channel_and_position(i, C, P, CHANNELS_LAST)
    inside, total = i < plane, tl.zeros([BLOCK], tl.int32)
    to_lag = tl.zeros([BLOCK], state.dtype.element_ty)
    to_between, to_long = to_lag, to_lag
    begin, end = tl.load(groups + 2 * group), tl.load(groups + 2 * group + 1)
    for back in range(0, end - begin):
        s = end - 1 - back
        at = state + tl.cast(s, tl.int64) * FIELDS * plane + i
        n = tl.load(before + s * P + p, mask=inside, other=0)
        more = tl.load(count + s * P + p, mask=inside, other=0)
        own_lag = tl.load(at + 3 * plane, mask=inside, other=0.0)
        own_between = tl.load(at + 4 * plane, mask=inside, other=0.0)
        own_long = tl.load(at + 5 * plane, mask=inside, other=0.0)
        last = tl.load(segments + s * COLUMNS + LAST) != 0
        to_lag, to_between = tl.where(last, 0.0, to_lag), tl.where(last, 0.0, to_between)
        tl.store(at + 3 * plane, to_lag, mask=inside)
        tl.store(at + 4 * plane, to_between, mask=inside)
        tl.store(at + 5 * plane, to_long, mask=inside)
        left = 1 - share(table, more, n)
        to_lag, to_between = own_lag + left * to_lag, own_between + left * to_between
        if MOVES == MOVING:
            to_long -= share(table + size, more, n) * to_long
        to_long, total = to_long + own_long, total + more
    if MOVES == PLAIN:  # every frame has the same share in the mean
        mean = to_long / tl.maximum(total, 1).to(state.dtype.element_ty)
        for s in range(begin, end):
            at = state + tl.cast(s, tl.int64) * FIELDS * plane + i
            tl.store(at + 5 * plane, mean, mask=inside)


@triton.jit(do_not_specialize=["size", "start"])
def adjoint(
    y, marks, before, segments, table, size, state, within, between, start, mu, eps,
    plane, C, P, MOVES: tl.constexpr, CHANNELS_LAST: tl.constexpr, STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Pass D and E of a segment back through the means, to be multiplied with the factors."""
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < plane
    frames, means, bits, at, length, offset = begin_segment(
        y, marks, before, segments, table, size, state, start, i, inside, plane, C, P,
        CHANNELS_LAST, STEPS,
    )  # fmt: skip
    to_lag = tl.load(at + 3 * plane, mask=inside, other=0.0)
    to_between = tl.load(at + 4 * plane, mask=inside, other=0.0)
    to_long = tl.load(at + 5 * plane, mask=inside, other=0.0)
    lags, longs, gains, long_gains = (), (), (), ()
    for j in tl.static_range(STEPS):
        on = (bits >> j) & 1 != 0
        means, gain, long_gain = advance(means, frames[j], on, mu, eps, MOVES)
        lags, longs = lags + (means[1],), longs + (means[2],)
        gains, long_gains = gains + (gain,), long_gains + (long_gain,)
    for j in tl.static_range(STEPS - 1, -1, -1):
        on, d, e = (bits >> j) & 1 != 0, lags[j], longs[j] - lags[j]
        near = tl.where(on, d - gains[j] * (d + to_lag), 0.0)
        far = tl.where(on, e - gains[j] * (e + to_between), 0.0)
        to_lag, to_between = to_lag + near, to_between + far
        if MOVES == MOVING:
            slow = tl.where(on, e - long_gains[j] * (e + to_long), 0.0)
            to_long += slow
        else:
            slow = tl.where(on, e - to_long, 0.0)
        there, to = inside & (j < length), offset + j * plane
        tl.store(within + to, near, mask=there)
        tl.store(between + to, slow - far, mask=there)


@triton.jit
def nearest(x):
    """Round a float32 to tf32; the matrix units would truncate it."""
    return ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["frames"])
def gram(
    within, between, stride_c, stride_p, partial, frames, plane, C, P, FULL: tl.constexpr,
    CHANNELS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum D D^T or E E^T over the tiles of a program.

    A few channels do not fill the matrix units: then a tile holds several frames, and the blocks
    on the diagonal of its product are used. In full precision x is high + low;
    low low^T is beyond the digits of float32, and high low^T is the transpose of low high^T.
    """
    part, which, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    r = tl.arange(0, GROUP * CHANNELS)
    c, g = r % CHANNELS, r // CHANNELS
    source = within if which == 0 else between
    total = tl.zeros([GROUP * CHANNELS, GROUP * CHANNELS], tl.float32)
    cross = tl.zeros_like(total)
    blocks = tl.cdiv(P, BLOCK)
    for unit in range(part, tl.cdiv(frames, GROUP) * blocks, parts):
        t, p = unit // blocks * GROUP + g, unit % blocks * BLOCK + tl.arange(0, BLOCK)
        there = ((c < C) & (t < frames))[:, None] & (p < P)[None, :]
        place = (t * plane + c * stride_c)[:, None] + (p * stride_p)[None, :]
        x = tl.load(source + place, mask=there, other=0.0)
        high = nearest(x)
        if FULL:
            cross = tl.dot(nearest(x - high), tl.trans(high), cross, input_precision="tf32")
        # Added separately: the matrix units would truncate the total each time.
        total += tl.dot(high, tl.trans(high), input_precision="tf32")
    if FULL:
        total += cross + tl.trans(cross)
    wanted = (c < C)[:, None] & (c < C)[None, :] & (g[:, None] == g[None, :])
    slot = (which * parts + part) * GROUP + g
    sums = partial + (slot * C + c)[:, None] * C + c[None, :]
    tl.store(sums, total + tl.load(sums, mask=wanted, other=0.0), mask=wanted)


@triton.jit
def factor_slices(factors, c, C, SLICES: tl.constexpr, SLICE: tl.constexpr):
    """Return rows of both factors, some at a time, each as a sum of two tf32 numbers."""
    high, low = (), ()
    for slice in tl.static_range(2 * SLICES):
        k, which = slice % SLICES * SLICE + tl.arange(0, SLICE), slice // SLICES
        there = (k < C)[:, None] & (c < C)[None, :]
        f = tl.load(factors + (which * C + k)[:, None] * C + c[None, :], mask=there, other=0.0)
        f = f.to(tl.float32)
        high, low = high + (nearest(f),), low + (nearest(f - nearest(f)),)
    return high, low


@triton.jit(do_not_specialize=["frames"])
def product(
    within, between, stride_c, stride_p, factors, above, out, frames, plane, C, P,
    FULL: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of some channels: output of `adjoint` times factors, plus `above`."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    c, blocks = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH), tl.cdiv(P, BLOCK)
    SLICES: tl.constexpr = CHANNELS // WIDTH
    high, low = factor_slices(factors, c, C, SLICES, WIDTH)
    for unit in range(part, frames * blocks, parts):
        t, p = unit // blocks, unit % blocks * BLOCK + tl.arange(0, BLOCK)
        place = tl.cast(t, tl.int64) * plane + p[:, None] * stride_p
        g = tl.zeros([BLOCK, WIDTH], tl.float32)
        for slice in tl.static_range(2 * SLICES):
            k = slice % SLICES * WIDTH + tl.arange(0, WIDTH)
            there = (p < P)[:, None] & (k < C)[None, :]
            source = within if slice < SLICES else between
            x = tl.load(source + place + k[None, :] * stride_c, mask=there, other=0.0)
            x_high = nearest(x)
            if FULL:
                g = tl.dot(nearest(x - x_high), high[slice], g, input_precision="tf32")
                g = tl.dot(x_high, low[slice], g, input_precision="tf32")
            g = tl.dot(x_high, high[slice], g, input_precision="tf32")
        there, at = (p < P)[:, None] & (c < C)[None, :], place + c[None, :] * stride_c
        if above is not None:
            g += tl.load(above + at, mask=there, other=0.0).to(tl.float32)
        tl.store(out + at, g.to(out.dtype.element_ty), mask=there)
