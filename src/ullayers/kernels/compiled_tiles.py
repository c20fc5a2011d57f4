"""Maps on a CPU, tile by tile: moving averages, Gram matrices and gradients, compiled by numba.

A tile is some positions of all channels, as long as it stays in the nearest caches. It holds what
enters W, which is how far the short-term mean lags behind, and what enters B. Channels are taken
four at a time, which is what the registers hold; there are zeros where less are left. All is
computed in the precision of the tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ullayers.kernels.compiling import compiled

Array = Any
NONE = np.float32(0)


@compiled
def tile_of(room: Array) -> Array:
    """(2, C', width): all but the last four rows."""
    return room[: len(room) - 4].reshape((2, len(room) // 2 - 2, room.shape[1]))


@compiled
def load(lags: Array, begin: int, n: int, tile: Array) -> None:
    """A tile as the frames before have left it."""
    for c in range(lags.shape[1]):
        for p in range(n):
            tile[0, c, p] = lags[0, c, begin + p]
            tile[1, c, p] = lags[1, c, begin + p] - lags[0, c, begin + p]
        for p in range(n, tile.shape[2]):
            tile[0, c, p] = tile[1, c, p] = NONE


@compiled
def store(tile: Array, begin: int, n: int, lags: Array) -> None:
    """The other way round."""
    for c in range(lags.shape[1]):
        for p in range(n):
            lags[0, c, begin + p] = tile[0, c, p]
            lags[1, c, begin + p] = tile[0, c, p] + tile[1, c, p]


@compiled
def follow(
    frame: Array, before: Array, begin: int, n: int, keep: float, long_keep: float, tile: Array,
    sums: Array,
) -> None:  # fmt: skip
    """One step of the moving averages, which keep these shares of their lags."""
    kind = tile.dtype.type  # of what is subtracted, too
    for c in range(len(frame)):
        now, then = frame[c, begin : begin + n], before[c, begin : begin + n]
        within, between = tile[0, c, :n], tile[1, c, :n]
        total = long_total = NONE
        for p in range(n):
            behind = within[p] + (kind(now[p]) - kind(then[p]))
            lag = keep * behind
            far = long_keep * (behind + between[p]) - lag
            within[p], between[p] = lag, far
            total += lag
            long_total += far
        sums[0, c] += total
        sums[1, c] += long_total


@compiled
def are_usable(frame: Array, begin: int, n: int, largest: float) -> bool:
    """Whether all are numbers, and none is larger."""
    odd = np.int32(0)
    for c in range(len(frame)):
        row = frame[c, begin : begin + n]
        for p in range(n):
            odd |= np.int32(not (abs(row[p]) <= largest))
    return bool(odd == 0)


@compiled
def add_gram(x: Array, n: int, out: Array, anew: bool) -> None:
    """Sums of products of every two channels, in the squares of four on and above the diagonal."""
    for i in range(0, len(x), 4):
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        for j in range(i, len(x), 4):
            z0, z1, z2, z3 = x[j], x[j + 1], x[j + 2], x[j + 3]
            a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = NONE
            a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = NONE
            for p in range(n):
                u0, u1, u2, u3 = x0[p], x1[p], x2[p], x3[p]
                v0, v1, v2, v3 = z0[p], z1[p], z2[p], z3[p]
                a00, a01, a02, a03 = a00 + u0 * v0, a01 + u0 * v1, a02 + u0 * v2, a03 + u0 * v3
                a10, a11, a12, a13 = a10 + u1 * v0, a11 + u1 * v1, a12 + u1 * v2, a13 + u1 * v3
                a20, a21, a22, a23 = a20 + u2 * v0, a21 + u2 * v1, a22 + u2 * v2, a23 + u2 * v3
                a30, a31, a32, a33 = a30 + u3 * v0, a31 + u3 * v1, a32 + u3 * v2, a33 + u3 * v3
            if anew:
                for k in range(4):
                    out[i + k, j : j + 4] = NONE
            put(out[i, j : j + 4], a00, a01, a02, a03)
            put(out[i + 1, j : j + 4], a10, a11, a12, a13)
            put(out[i + 2, j : j + 4], a20, a21, a22, a23)
            put(out[i + 3, j : j + 4], a30, a31, a32, a33)


@compiled
def put(out: Array, a: float, b: float, c: float, d: float) -> None:
    """Add four numbers."""
    out[0] += a
    out[1] += b
    out[2] += c
    out[3] += d


@compiled
def add_product(four: Array, matrix: Array, i: int, x: Array, n: int) -> None:
    """Four rows of a matrix times the channels of a tile."""
    r0, r1, r2, r3 = four[0], four[1], four[2], four[3]
    m0, m1, m2, m3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
    for j in range(0, len(x), 4):
        z0, z1, z2, z3 = x[j], x[j + 1], x[j + 2], x[j + 3]
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
def find_grams(
    frames: Array, first: int, keeps: Array, lags: Array, begin: int, end: int, width: int,
    room: Array,
    which: int, count: int, grams: Array, sums: Array, after: Array, largest: float,
) -> bool:  # fmt: skip
    """What positions from `begin` to `end` bring to the Gram matrices of steps from `first` on.

    Returns whether all values were usable.

    Args:
        frames: (T, C, P)
        first: the first step.
        keeps: (2, n) of the moving averages, at each step.
        lags: (2, C, P) before the first step: the latest frame less the means.
        begin: the first position.
        end: the last, and one.
        width: positions of a tile.
        room: (2 C' + 4, width or more) to work in, with C' a multiple of four and zeros behind C.
        which: 0 to begin with W, 1 with B.
        count: of these two.
        grams: (n, 2, C', C'), written to on and above the diagonal.
        sums: (n, 2, C) of what enters W and B, written to.
        after: (2, C, P), lags after the last step, written to.
        largest: what a value may be at most.
    """
    tile, usable, found = tile_of(room), True, np.zeros(sums.shape)
    for left in range(begin, end, width):
        n = min(width, end - left)
        load(lags, left, n, tile)
        for i in range(len(grams)):
            t = first + i
            frame, before = frames[t], frames[max(t - 1, 0)]
            follow(frame, before, left, n, keeps[0, i], keeps[1, i], tile, found[i])
            usable &= are_usable(frame, left, n, largest)
            for k in range(which, which + count):
                add_gram(tile[k], -(-n // 16) * 16, grams[i, k], left == begin)
        if which == 0:
            store(tile, left, n, after)
    sums[:, which : which + count] = found[:, which : which + count]
    return usable


@compiled
def write_gradients(
    frames: Array, first: int, keeps: Array, lags: Array, begin: int, end: int, width: int,
    room: Array,
    inverses: Array, pulls: Array, scale: float, above: Array, adds: bool, gradient: Array,
) -> None:  # fmt: skip
    """Eq. 11 for positions and steps as in `find_grams`, scaled and added to what is above.

    The inverses are (n, 2, C', C'), that of B with its sign; the pulls (n, C') are taken off; the
    gradient (T, C, P) is written to. If nothing is to be added, `above` is any such array.
    """
    tile, four, nothing = tile_of(room), room[len(room) - 4 :], np.zeros((2, frames.shape[1]))
    for left in range(begin, end, width):
        n = min(width, end - left)
        load(lags, left, n, tile)
        for i in range(len(pulls)):
            t = first + i
            frame, before = frames[t], frames[max(t - 1, 0)]
            follow(frame, before, left, n, keeps[0, i], keeps[1, i], tile, nothing)
            for c in range(0, tile.shape[1], 4):
                for k in range(4):
                    four[k, :n] = -pulls[i, c + k]
                for which in range(2):
                    add_product(four, inverses[i, which], c, tile[which], n)
                for k in range(c, min(c + 4, frames.shape[1])):
                    out, row = gradient[t, k, left : left + n], four[k - c]
                    more = above[t, k, left : left + n]
                    for p in range(n):
                        out[p] = scale * row[p] + (more[p] if adds else NONE)


@compiled
def add_to_totals(
    parts: Array, keeps: Array, brings: Array, totals: Array, matrices: Array, diagonals: Array,
    first: int, every: int,
) -> None:  # fmt: skip
    """Some rows of W and B after each step, times their evidence, on and above the diagonal.

    Args:
        parts: (threads, n, 2, C', C'), what `find_grams` has found.
        keeps: (2, n), what is left of a covariance at each step.
        brings: (2, n), what a Gram matrix is multiplied with.
        totals: (2, C, C) before the first step, and then after the last.
        matrices: (n, 2, C', C'), written to.
        diagonals: (n, 2, C), likewise.
        first: the first row.
        every: from one row to the next.
    """
    d = totals.shape[1]
    for which in range(2):
        for i in range(first, d, every):
            total = totals[which, i]
            for t in range(len(matrices)):
                keep, bring, row = keeps[which, t], brings[which, t], matrices[t, which, i]
                for j in range(i, d):
                    total[j] *= keep
                for part in range(len(parts)):
                    brought = parts[part, t, which, i]
                    for j in range(i, d):
                        total[j] += bring * brought[j]
                for j in range(i, d):
                    row[j] = total[j]
                diagonals[t, which, i] = total[i]
            for j in range(i, d):
                totals[which, j, i] = total[j]


@compiled
def follow_pull(
    pull: Array, pushes: Array, taking: Array, rate: float, streams: int, pulls: Array
) -> None:
    """The moving average of what moves all streams alike, and what each has to take off.

    Args:
        pull: (C,) before the first step, and then after the last.
        pushes: (n, 2, C)
        taking: (n,) whether a step has any streams that take part.
        rate: of the average.
        streams: how many there are.
        pulls: (n, C'), written to.
    """
    for t in range(len(pulls)):
        for c in range(len(pull)):
            if taking[t]:
                pull[c] = (1.0 - rate) * pull[c] + rate * (pushes[t, 0, c] + pushes[t, 1, c])
            pulls[t, c] = pull[c] / streams if taking[t] else 0.0
