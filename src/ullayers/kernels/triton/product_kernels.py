"""The products of fresh statistics on a GPU, on its matrix units, in Triton.

`gram` sums D D^T and E E^T over all frames, and `product` multiplies the output of `adjoint` by the
two factors. The matrix units compute in tf32, so numbers are rounded to it first; in full precision
a number is the sum of two of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
