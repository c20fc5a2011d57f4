"""Quantiles, the same as NumPy's but faster.

NumPy selects one value of an array with vector instructions, but several values without them.
"""

from __future__ import annotations

import numpy as np

from ullayers.locate.flow import Floats


def quantiles(values: Floats, share: float) -> Floats:
    """Return a quantile along the last axis, interpolated linearly.

    >>> quantiles(np.array([[4, 1, 3, 2], [8, 8, 8, 9]], np.float32), 0.5).tolist()
    [2.5, 8.0]
    """
    count = values.shape[-1]
    place = share * (count - 1)
    first = int(place)
    ordered = np.partition(values, first, axis=-1)
    low: Floats = ordered[..., first]
    if first + 1 == count:
        return low
    high = ordered[..., first + 1 :].min(axis=-1)
    between: Floats = low + (high - low) * (place - first)
    return between


def medians(values: Floats) -> Floats:
    """Return the medians along the last axis, of values without NaN.

    >>> medians(np.array([[1, 4, 2], [8, 6, 7]], np.float32)).tolist()
    [2.0, 7.0]
    """
    count = values.shape[-1]
    ordered = np.partition(values, count // 2, axis=-1)
    high: Floats = ordered[..., count // 2]
    if count % 2:
        return high
    low = ordered[..., : count // 2].max(axis=-1)
    middle: Floats = np.asarray((low + high) / 2, values.dtype)
    return middle
