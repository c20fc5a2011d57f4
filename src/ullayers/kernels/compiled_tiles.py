"""Maps on a CPU, tile by tile: moving averages, Gram matrices and gradients, compiled by numba.

A tile is some positions of all channels, as long as it stays in the nearest caches. It holds what
enters W, which is how far the short-term mean lags behind, and what enters B. Channels are taken
four at a time, which is what the registers hold; there are zeros where less are left.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ullayers.kernels.compiling import compiled

Array = Any
NONE = np.float32(0)


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
def follow(
    frame: Array, before: Array, begin: int, n: int, keep: float, long_keep: float, tile: Array,
    sums: Array,
) -> None:  # fmt: skip
    """One step of the moving averages, which keep these shares of their lags."""
    for c in range(len(frame)):
        now, then = frame[c, begin : begin + n], before[c, begin : begin + n]
        within, between = tile[0, c, :n], tile[1, c, :n]
        total = long_total = NONE
        for p in range(n):
            behind = within[p] + (now[p] - then[p])
            lag = keep * behind
            far = long_keep * (behind + between[p]) - lag
            within[p], between[p] = lag, far
            total += lag
            long_total += far
        sums[0, c] += total
        sums[1, c] += long_total


@compiled
def add_gram(x: Array, n: int, out: Array) -> None:
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
def add_product(
    four: Array, matrix: Array, i: int, x: Array, n: int
) -> None:
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
def make_tile(frames: Array, width: int) -> Array:
    """Room for a tile, with channels up to a multiple of four, and positions of sixteen."""
    return np.zeros((2, -(-frames.shape[1] // 4) * 4, -(-width // 16) * 16), np.float32)


@compiled
def add_grams(
    frames: Array, first: int, keeps: Array, lags: Array, begin: int, end: int, width: int,
    grams: Array, sums: Array,
) -> None:  # fmt: skip
    """What positions from `begin` to `end` bring to the Gram matrices of steps from `first` on.

    Args:
        frames: (T, C, P)
        first: the first step.
        keeps: (2, n) of the moving averages, at each step.
        lags: (2, C, P) before the first step: the latest frame less the means.
        begin: the first position.
        end: the last, and one.
        width: positions of a tile.
        grams: (n, 2, C', C') with C' a multiple of four, added to.
        sums: (n, 2, C) of what enters W and B, added to.
    """
    tile = make_tile(frames, width)
    for left in range(begin, end, width):
        n = min(width, end - left)
        load(lags, left, n, tile)
        for i in range(len(grams)):
            t = first + i
            frame, before = frames[t], frames[max(t - 1, 0)]
            follow(frame, before, left, n, keeps[0, i], keeps[1, i], tile, sums[i])
            for which in range(2):
                add_gram(tile[which], -(-n // 16) * 16, grams[i, which])


@compiled
def write_gradients(
    frames: Array, first: int, keeps: Array, lags: Array, begin: int, end: int, width: int,
    inverses: Array, pulls: Array, gradient: Array,
) -> None:  # fmt: skip
    """Eq. 11 for these positions and steps; `lags` are those after the last step then.

    Args:
        frames, first, keeps, lags, begin, end, width: as in `add_grams`.
        inverses: (2, n, C', C'), that of B with its sign.
        pulls: (n, C'), to be taken off.
        gradient: (T, C, P), written to.
    """
    tile = make_tile(frames, width)
    four, nothing = np.empty((4, width), np.float32), np.zeros((2, frames.shape[1]), np.float32)
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
                    add_product(four, inverses[which, i], c, tile[which], n)
                for k in range(c, min(c + 4, frames.shape[1])):
                    gradient[t, k, left : left + n] = four[k - c, :n]
        for c in range(frames.shape[1]):
            for p in range(n):
                lags[0, c, left + p] = tile[0, c, p]
                lags[1, c, left + p] = tile[0, c, p] + tile[1, c, p]


@compiled
def gather(parts: Array, out: Array) -> None:
    """Whole matrices (n, 2, C, C) from what each thread has found of their upper squares."""
    n, _, d, _ = out.shape
    for t in range(n):
        for which in range(2):
            for i in range(d):
                for j in range(i, d):
                    total = 0.0
                    for part in range(len(parts)):
                        total += parts[part, t, which, i, j]
                    out[t, which, i, j] = out[t, which, j, i] = total
