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
LINE = 16  # values that come together from memory


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
def read_lags(frame: Array, value: Array, rest: Array, begin: int, end: int, lags: Array) -> None:
    """How far means (P, C) are behind a frame (C, P), at positions from `begin` to `end`.

    In float64, in which the order does not matter. A rest is void once someone has set the value.
    """
    for left in range(begin, end, LINE):
        for c in range(len(frame)):
            for p in range(left, min(left + LINE, end)):
                known, more = np.float64(value[p, c]), np.float64(rest[p, c])
                holds = value[p, c] + rest[p, c] == value[p, c]
                lags[c, p] = frame[c, p] - known - (more if holds else 0.0)


@compiled
def write_means(frame: Array, value: Array, rest: Array, begin: int, end: int, lags: Array) -> None:
    """The other way round."""
    for left in range(begin, end, LINE):
        for c in range(len(frame)):
            for p in range(left, min(left + LINE, end)):
                mean = np.float64(frame[c, p]) - lags[c, p]
                value[p, c] = mean
                rest[p, c] = mean - value[p, c]


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
    grams: Array, sums: Array, after: Array, largest: float,
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
        grams: (n, 2, C', C'), written to on and above the diagonal.
        sums: (n, 2, C) of what enters W and B, written to.
        after: (2, C, P), lags after the last step, written to.
        largest: what a value may be at most.
    """
    tile, usable = tile_of(room), True
    sums[:] = 0.0
    for left in range(begin, end, width):
        n = min(width, end - left)
        load(lags, left, n, tile)
        for i in range(len(grams)):
            t = first + i
            frame, before = frames[t], frames[max(t - 1, 0)]
            follow(frame, before, left, n, keeps[0, i], keeps[1, i], tile, sums[i])
            usable &= are_usable(frame, left, n, largest)
            for which in range(2):
                add_gram(tile[which], -(-n // 16) * 16, grams[i, which], left == begin)
        store(tile, left, n, after)
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
def inverse_root(pivot: Array, out: Array) -> float:
    """L^-1 of a matrix L L^T of four by four, of which the upper part counts; its least pivot."""
    least = np.inf
    for i in range(4):
        for j in range(4):
            out[i, j] = i == j
    for k in range(4):
        value = pivot[k, k]
        least = min(least, value) if value > 0 else -1.0  # so it is for a NaN
        root = 1 / np.sqrt(value if value > 0 else 1.0)
        for j in range(4):
            out[k, j] *= root
            if j >= k:
                pivot[k, j] *= root
        for i in range(k + 1, 4):
            for j in range(4):
                out[i, j] -= pivot[k, i] * out[k, j]
                if j >= i:
                    pivot[i, j] -= pivot[k, i] * pivot[k, j]
    return least


@compiled
def sweep(a: Array, x: Array) -> float:
    """Minus the inverse of a symmetric matrix, on and above the diagonal; the least pivot.

    Four pivots P = L L^T at a time: what is left of the matrix is a - x^T x with x = L^-1 times
    their rows. The error grows with the condition as that of Cholesky's method does.

    Args:
        a: C' x C', inverted in place.
        x: (4, C'), to work in.
    """
    width, least = len(a), np.inf
    pivot, root, left = np.empty((4, 4), a.dtype), np.empty((4, 4), a.dtype), a[:4].copy()
    for k in range(0, width, 4):
        for j in range(k):  # what is swept lies above
            for r in range(4):
                left[r, j] = a[j, k + r]
        for r in range(4):
            left[r, k:] = a[k + r, k:]
            pivot[r] = left[r, k : k + 4]
        least = min(least, inverse_root(pivot, root))
        mix(root, left, x)
        for i in range(0, width, 4):
            if i != k:
                take_off(a, x, i)
        x[:, k : k + 4] = -root
        mix(root.T, x, left)
        for r in range(4):
            a[k + r, k:] = left[r, k:]
        for j in range(k):
            for r in range(4):
                a[j, k + r] = left[r, j]
    return least


@compiled
def mix(four: Array, x: Array, out: Array) -> None:
    """A matrix of four by four times four rows."""
    for r in range(4):
        m0, m1, m2, m3 = four[r, 0], four[r, 1], four[r, 2], four[r, 3]
        x0, x1, x2, x3, row = x[0], x[1], x[2], x[3], out[r]
        for j in range(len(row)):
            row[j] = m0 * x0[j] + m1 * x1[j] + m2 * x2[j] + m3 * x3[j]


@compiled
def take_off(a: Array, x: Array, i: int) -> None:
    """Four rows of a - x^T x."""
    width = len(a)
    r0, r1, r2, r3 = a[i, i:], a[i + 1, i:], a[i + 2, i:], a[i + 3, i:]
    z0, z1, z2, z3 = x[0, i:], x[1, i:], x[2, i:], x[3, i:]
    m00, m01, m02, m03 = z0[0], z1[0], z2[0], z3[0]
    m10, m11, m12, m13 = z0[1], z1[1], z2[1], z3[1]
    m20, m21, m22, m23 = z0[2], z1[2], z2[2], z3[2]
    m30, m31, m32, m33 = z0[3], z1[3], z2[3], z3[3]
    for p in range(width - i):
        v0, v1, v2, v3 = z0[p], z1[p], z2[p], z3[p]
        r0[p] -= m00 * v0 + m01 * v1 + m02 * v2 + m03 * v3
        r1[p] -= m10 * v0 + m11 * v1 + m12 * v2 + m13 * v3
        r2[p] -= m20 * v0 + m21 * v1 + m22 * v2 + m23 * v3
        r3[p] -= m30 * v0 + m31 * v1 + m32 * v2 + m33 * v3


@compiled
def invert(
    matrices: Array, levels: Array, scales: Array, sums: Array, pushes: Array, inflations: Array,
    first: int, every: int,
) -> None:  # fmt: skip
    """Scaled inverses in place of matrices, that of B with its sign.

    Args:
        matrices: (n, 2, C', C'), of which the part above the diagonal counts.
        levels: (n, 2), what is added to their diagonals.
        scales: (n, 2), what their inverses are multiplied with.
        sums: (threads, n, 2, C), what `find_grams` has found.
        pushes: (n, 2, C), the products of inverses and sums, written to.
        inflations: (n, 2), the largest product of entries on the diagonals of a matrix and of its
            inverse; -1 if it has none.
        first: the first matrix.
        every: from one to the next.
    """
    d, width = sums.shape[3], matrices.shape[3]
    x, before = np.empty((4, width), matrices.dtype), np.empty(d, matrices.dtype)
    for m in range(first, 2 * len(matrices), every):
        t, which = m // 2, m % 2
        a = matrices[t, which]
        for i in range(width):
            if i < d:
                a[i, i] += levels[t, which]
                before[i] = a[i, i]
            for j in range(max(i, d), width):
                a[i, j] = i == j
        least, most = sweep(a, x), 0.0
        scale = scales[t, which] * (1.0 if which else -1.0)
        for i in range(d):
            most = max(most, -a[i, i] * before[i])
            for j in range(i, d):
                a[i, j] = a[j, i] = a[i, j] * scale if least > 0 else 0.0
        for i in range(width):
            for j in range(max(i, d), width):
                a[i, j] = a[j, i] = NONE
        inflations[t, which] = most if least > 0 else -1.0
        for i in range(d):
            push = 0.0
            for part in range(len(sums)):
                for j in range(d):
                    push += a[i, j] * sums[part, t, which, j]
            pushes[t, which, i] = push


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
