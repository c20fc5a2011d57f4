"""Products of matrices on the matrix units, inside a Triton kernel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def nearest(x):
    """What tf32 holds of a float32, rounded; the matrix units would cut off."""
    return ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def split(x):
    """A float32 in two parts of tf32: 23 of its 24 bits."""
    high = nearest(x)
    return high, nearest(x - high)


@triton.jit
def plus_product(total, x, y, APART: tl.constexpr = True):
    """`total` and x y^T: float64 as it is, and float32 in all but its last bits.

    That takes three products. What Triton calls tf32x3 does the same, but does not round, and
    looks for values that are not finite; here there are none.

    Args:
        total: what the product is added to.
        x: rows.
        y: columns, as rows.
        APART: the products are summed before they meet the total, which the matrix units would cut
            off at its last digit each time, always downwards. It takes registers for a second
            total, and matters where a matrix is to be inverted.
    """
    if x.dtype == tl.float64:
        total = tl.dot(x, tl.trans(y), total, out_dtype=tl.float64, input_precision="ieee")
    else:
        x_high, x_low = split(x)
        y_high, y_low = split(y)
        more = tl.zeros_like(total) if APART else total
        more = tl.dot(x_low, tl.trans(y_high), more, input_precision="tf32")
        more = tl.dot(x_high, tl.trans(y_low), more, input_precision="tf32")
        more = tl.dot(x_high, tl.trans(y_high), more, input_precision="tf32")
        total = total + more if APART else more
    return total
