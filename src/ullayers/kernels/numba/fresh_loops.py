"""Sums and gradients over the maps of one call on a CPU, compiled by numba.

Time is cut into blocks and positions into tiles. A block of a tile is laid out as (channels,
columns), with a column for each step and position, and stays in the cache while its Gram matrices
or products are formed. A moving average is kept as its lag behind the latest usable frame: at a
step lag <- keep * (lag + change), with keep = 0 at a stream's first frame, so clips need no other
boundary. A stream stands still (keep = 1, change = 0) where a frame is not usable.

Loops are short because LLVM does not vectorise a loop that needs more than eight checks for
overlapping arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ullayers.kernels.numba.compiling import compiled

Array = Any
STREAM, CLIP, SHARED = 0, 1, 2
ZERO = np.float32(0)
L1_COLUMNS = 256  # columns of a product at a time, so that they stay in the L1 cache


class Job(NamedTuple):
    """A call, shared by all threads; each thread writes only at its own positions."""

    frames: Array  # (F, C, P) float32
    clips: Array  # (F,) int64, the clip of each frame
    keeps: Array  # (2, frames + 1) float32: of the short- and long-term lag, by frames seen before
    mode: int  # STREAM, CLIP or SHARED
    largest: float
    steps: int  # of a block
    width: int  # of a tile
    centre: Array  # (clips or 1, C, P) float32; unused for STREAM
    lags: Array  # (2, blocks, C, P) float32 before each block
    latest: Array  # (blocks, C, P) float32, the latest usable frame before each block
    seen: Array  # (blocks, P) int64, usable frames of the stream before each block


class Room(NamedTuple):
    """Workspace of a thread."""

    within: Array  # (C', columns) float32, D; C' is a multiple of four, with zeros behind C
    between: Array  # (C', columns) float32, E
    back: Array  # (8, columns) float32
    usable: Array  # (steps, width) float32, 1 or 0
    keep: Array  # (2, steps, width) float32
    lag: Array  # (2, C, width) float32
    latest: Array  # (C, width) float32
    seen: Array  # (width,) int64


@compiled
def load(job: Job, room: Room, block: int, left: int, n: int) -> None:
    """Load the state of a tile before a block."""
    for c in range(job.frames.shape[1]):
        for p in range(n):
            room.lag[0, c, p] = job.lags[0, block, c, left + p]
            room.lag[1, c, p] = job.lags[1, block, c, left + p]
            room.latest[c, p] = job.latest[block, c, left + p]
    for p in range(n):
        room.seen[p] = job.seen[block, left + p]


@compiled
def store(job: Job, room: Room, block: int, left: int, n: int) -> None:
    """Store the state of a tile for the next block."""
    for c in range(job.frames.shape[1]):
        for p in range(n):
            job.lags[0, block, c, left + p] = room.lag[0, c, p]
            job.lags[1, block, c, left + p] = room.lag[1, c, p]
            job.latest[block, c, left + p] = room.latest[c, p]
    for p in range(n):
        job.seen[block, left + p] = room.seen[p]


@compiled
def find_usable(job: Job, room: Room, first: int, count: int, left: int, n: int) -> bool:
    """Find (step, position) pairs with usable values in all channels; return whether all are."""
    good = True
    for i in range(count):
        frame, row = job.frames[first + i], room.usable[i]
        odd = np.int32(0)
        for c in range(len(frame)):
            values = frame[c, left : left + n]
            for p in range(n):
                odd |= np.int32(not (abs(values[p]) <= job.largest))
        row[:n] = np.float32(1)
        if odd:
            good = False
            for c in range(len(frame)):
                for p in range(n):
                    if not (abs(frame[c, left + p]) <= job.largest):
                        row[p] = ZERO
    return good


@compiled
def find_keeps(job: Job, room: Room, first: int, count: int, n: int, good: bool) -> None:
    """Set the factors of the lags at each step and position, by the frames seen before."""
    for i in range(count):
        t = first + i
        if t == 0 or job.clips[t] != job.clips[t - 1]:
            room.seen[:n] = 0
        if good and room.seen[:n].min() == room.seen[:n].max():  # as nearly always
            room.keep[0, i, :n] = job.keeps[0, room.seen[0]]
            room.keep[1, i, :n] = job.keeps[1, room.seen[0]]
            room.seen[:n] += 1
            continue
        for p in range(n):
            if room.usable[i, p] > 0:
                room.keep[0, i, p] = job.keeps[0, room.seen[p]]
                room.keep[1, i, p] = job.keeps[1, room.seen[p]]
                room.seen[p] += 1
            else:
                room.keep[0, i, p] = room.keep[1, i, p] = np.float32(1)


@compiled
def find_deviations(
    job: Job, room: Room, first: int, count: int, left: int, n: int, good: bool, ends: Array
) -> None:
    """Compute D and E of a block, and means after a clip's last frame unless `ends` is empty."""
    for c in range(job.frames.shape[1]):
        lag, far, latest = room.lag[0, c, :n], room.lag[1, c, :n], room.latest[c, :n]
        for i in range(count):
            t = first + i
            now = job.frames[t, c, left : left + n]
            D = room.within[c, i * n : i * n + n]
            E = room.between[c, i * n : i * n + n]
            usable, keep, long_keep = room.usable[i, :n], room.keep[0, i, :n], room.keep[1, i, :n]
            if not good:
                for p in range(n):  # NaN * 0 is NaN, so unusable values are replaced
                    E[p] = now[p] if usable[p] > 0 else latest[p]
                now = E
            for p in range(n):
                D[p] = now[p] - latest[p]
                latest[p] = now[p]
            if job.mode == STREAM:
                for p in range(n):
                    far[p] = long_keep[p] * (far[p] + D[p])
            for p in range(n):
                lag[p] = keep[p] * (lag[p] + D[p])
                D[p] = lag[p]
            if job.mode == STREAM:
                for p in range(n):
                    E[p] = far[p] - D[p]
            else:
                centre = job.centre[job.clips[t] if job.mode == CLIP else 0, c, left : left + n]
                for p in range(n):
                    E[p] = latest[p] - centre[p] - D[p]
            if not good:
                for p in range(n):
                    D[p] *= usable[p]
                    E[p] *= usable[p]
            if ends.shape[1] and (t + 1 == len(job.clips) or job.clips[t + 1] != job.clips[t]):
                for p in range(n):
                    ends[0, job.clips[t], c, left + p] = latest[p] - lag[p]
                    ends[1, job.clips[t], c, left + p] = latest[p] - far[p]


@compiled
def add_gram(x: Array, columns: int, out: Array) -> None:
    """Add the products of every two channels, in squares of four on and above the diagonal."""
    for i in range(0, len(x), 4):
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        for j in range(i, len(x), 4):
            z0, z1, z2, z3 = x[j], x[j + 1], x[j + 2], x[j + 3]
            a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = ZERO
            a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = ZERO
            for p in range(columns):
                u0, u1, u2, u3 = x0[p], x1[p], x2[p], x3[p]
                v0, v1, v2, v3 = z0[p], z1[p], z2[p], z3[p]
                a00, a01, a02, a03 = a00 + u0 * v0, a01 + u0 * v1, a02 + u0 * v2, a03 + u0 * v3
                a10, a11, a12, a13 = a10 + u1 * v0, a11 + u1 * v1, a12 + u1 * v2, a13 + u1 * v3
                a20, a21, a22, a23 = a20 + u2 * v0, a21 + u2 * v1, a22 + u2 * v2, a23 + u2 * v3
                a30, a31, a32, a33 = a30 + u3 * v0, a31 + u3 * v1, a32 + u3 * v2, a33 + u3 * v3
            _put(out[i, j : j + 4], a00, a01, a02, a03)
            _put(out[i + 1, j : j + 4], a10, a11, a12, a13)
            _put(out[i + 2, j : j + 4], a20, a21, a22, a23)
            _put(out[i + 3, j : j + 4], a30, a31, a32, a33)


@compiled
def _put(out: Array, a: float, b: float, c: float, d: float) -> None:
    out[0] += a
    out[1] += b
    out[2] += c
    out[3] += d


@compiled
def set_product(rows: Array, matrix: Array, i: int, x: Array, columns: int) -> None:
    """Multiply four rows of a matrix with the channels of a block."""
    m0, m1, m2, m3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
    for begin in range(0, columns, L1_COLUMNS):
        n = min(L1_COLUMNS, columns - begin)
        r0, r1 = rows[0, begin : begin + n], rows[1, begin : begin + n]
        r2, r3 = rows[2, begin : begin + n], rows[3, begin : begin + n]
        for k in range(4):
            rows[k, begin : begin + n] = ZERO
        for j in range(0, len(x), 4):
            z0, z1 = x[j, begin : begin + n], x[j + 1, begin : begin + n]
            z2, z3 = x[j + 2, begin : begin + n], x[j + 3, begin : begin + n]
            m00, m01, m02, m03 = m0[j], m0[j + 1], m0[j + 2], m0[j + 3]
            m10, m11, m12, m13 = m1[j], m1[j + 1], m1[j + 2], m1[j + 3]
            m20, m21, m22, m23 = m2[j], m2[j + 1], m2[j + 2], m2[j + 3]
            m30, m31, m32, m33 = m3[j], m3[j + 1], m3[j + 2], m3[j + 3]
            for p in range(n):
                v0, v1, v2, v3 = z0[p], z1[p], z2[p], z3[p]
                r0[p] += m00 * v0 + m01 * v1 + m02 * v2 + m03 * v3
                r1[p] += m10 * v0 + m11 * v1 + m12 * v2 + m13 * v3
                r2[p] += m20 * v0 + m21 * v1 + m22 * v2 + m23 * v3
                r3[p] += m30 * v0 + m31 * v1 + m32 * v2 + m33 * v3


@compiled
def sum_frames(job: Job, room: Room, begin: int, end: int, sums: Array, steps: Array) -> None:
    """Sum (clips, C, P) and count (clips, P) usable frames, for long-term means."""
    for first in range(0, len(job.frames), job.steps):
        count = min(job.steps, len(job.frames) - first)
        for left in range(begin, end, job.width):
            n = min(job.width, end - left)
            good = find_usable(job, room, first, count, left, n)
            for i in range(count):
                clip, usable = job.clips[first + i], room.usable[i, :n]
                for p in range(n):
                    steps[clip, left + p] += np.int64(usable[p])
                for c in range(job.frames.shape[1]):
                    values = job.frames[first + i, c, left : left + n]
                    total = sums[clip, c, left : left + n]
                    for p in range(n):
                        total[p] += values[p] if good or usable[p] > 0 else ZERO


@compiled
def begin_block(job: Job, room: Room, block: int, left: int, n: int, ends: Array) -> None:
    """Compute D and E of a block of a tile."""
    first = block * job.steps
    count = min(job.steps, len(job.frames) - first)
    if block > 0:
        load(job, room, block, left, n)
    else:
        room.lag[:] = ZERO
        room.latest[:] = ZERO
        room.seen[:] = 0
    good = find_usable(job, room, first, count, left, n)
    find_keeps(job, room, first, count, n, good)
    find_deviations(job, room, first, count, left, n, good, ends)


@compiled
def measure(
    job: Job,
    room: Room,
    begin: int,
    end: int,
    grams: Array,
    between_sums: Array,
    ends: Array,
    steps: Array,
) -> None:
    """Sum over all frames at positions from `begin` to `end`.

    Args:
        job: The call.
        room: Workspace of the thread.
        begin: First position.
        end: One after the last position.
        grams: (2, C', C') float64, added to on and above the diagonal.
        between_sums: (clips or 1, C, P) sums of E, added to; unused for STREAM.
        ends: (2, clips, C, P) short- and long-term means after the last frame of each clip.
        steps: (clips, P) usable frames of each stream, added to.
    """
    for block in range(job.latest.shape[0]):
        first = block * job.steps
        count = min(job.steps, len(job.frames) - first)
        for left in range(begin, end, job.width):
            n = min(job.width, end - left)
            begin_block(job, room, block, left, n, ends)
            add_gram(room.within, count * n, grams[0])
            add_gram(room.between, count * n, grams[1])
            for i in range(count):
                clip = job.clips[first + i]
                for p in range(n):
                    steps[clip, left + p] += np.int64(room.usable[i, p])
                if job.mode != STREAM:
                    clip = clip if job.mode == CLIP else 0
                    for c in range(job.frames.shape[1]):
                        E = room.between[c, i * n : i * n + n]
                        total = between_sums[clip, c, left : left + n]
                        for p in range(n):
                            total[p] += E[p]
            if block + 1 < len(job.latest):
                store(job, room, block + 1, left, n)


@compiled
def write_gradient(
    job: Job,
    room: Room,
    begin: int,
    end: int,
    matrices: Array,
    shift: Array,
    carry: Array,
    above: Array,
    adds: bool,
    gradient: Array,
) -> None:
    """Write the gradient at positions from `begin` to `end`, from the last block to the first.

    Args:
        job: The call.
        room: Workspace of the thread.
        begin: First position.
        end: One after the last position.
        matrices: (2, C', C') float32: dJ/dD = matrices[0] D, dJ/dE = matrices[1] E.
        shift: (clips or 1, C, P), the mean of dJ/dE over the frames of the long-term mean.
        carry: (2, C, P) zeros, overwritten.
        above: (F, C, P) incoming gradient, added if `adds`.
        adds: Whether there is an incoming gradient.
        gradient: (F, C, P) output.
    """
    channels, nowhere = job.frames.shape[1], np.zeros((2, 0, 0, 0), np.float32)
    for block in range(len(job.latest) - 1, -1, -1):
        first = block * job.steps
        count = min(job.steps, len(job.frames) - first)
        for left in range(begin, end, job.width):
            n = min(job.width, end - left)
            begin_block(job, room, block, left, n, nowhere)
            for four in range(0, channels, 4):
                set_product(room.back[:4], matrices[0], four, room.within, count * n)
                set_product(room.back[4:], matrices[1], four, room.between, count * n)
                for k in range(min(4, channels - four)):
                    c = four + k
                    short, long = carry[0, c, left : left + n], carry[1, c, left : left + n]
                    for i in range(count - 1, -1, -1):
                        t = first + i
                        by_d = room.back[k, i * n : i * n + n]
                        by_e = room.back[4 + k, i * n : i * n + n]
                        pass_back(job, room, i, n, by_d, by_e, short, long)
                        if job.mode != STREAM:
                            mean = shift[
                                job.clips[t] if job.mode == CLIP else 0, c, left : left + n
                            ]
                            for p in range(n):
                                by_e[p] -= mean[p]
                        out, usable = gradient[t, c, left : left + n], room.usable[i, :n]
                        if adds:
                            more = above[t, c, left : left + n]
                            for p in range(n):
                                out[p] = usable[p] * (by_d[p] + by_e[p]) + more[p]
                        else:
                            for p in range(n):
                                out[p] = usable[p] * (by_d[p] + by_e[p])


@compiled
def pass_back(
    job: Job, room: Room, i: int, n: int, by_d: Array, by_e: Array, short: Array, long: Array
) -> None:
    """Turn dJ/dD and dJ/dE of a step into two parts of dJ/dy, in place.

    `short` and `long` carry the gradient of the lags to the step before.
    """
    keep, long_keep = room.keep[0, i, :n], room.keep[1, i, :n]
    for p in range(n):
        kept = keep[p] * (by_d[p] - by_e[p] + short[p])
        by_d[p] = kept - short[p]
        short[p] = kept
    if job.mode == STREAM:
        for p in range(n):
            kept = long_keep[p] * (by_e[p] + long[p])
            by_e[p] = kept - long[p]
            long[p] = kept
