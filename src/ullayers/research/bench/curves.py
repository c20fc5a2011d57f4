"""Steps whose time and memory are measured against their size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from ullayers.exact.markov import closed_form
from ullayers.exact.slow_features import SlowFeatures
from ullayers.nn.layers import UL1d, UL2d
from ullayers.research.bench.timing import Step, forward_backward


@dataclass(frozen=True)
class Curve:
    """A step that is measured at several sizes.

    Attributes:
        title: What is measured, and the sizes that stay fixed.
        axis: Name of the size that grows.
        sizes: Sizes, ascending.
        make: Prepares the input of a size and returns the step.
    """

    title: str
    axis: str
    sizes: tuple[int, ...]
    make: Callable[[int], Step]

    def chosen(self, quick: bool) -> tuple[int, ...]:
        """Return the sizes to measure."""
        return self.sizes[:2] if quick else self.sizes


def _layer_step(layer: nn.Module, *shape: int) -> Step:
    torch.manual_seed(0)
    return forward_backward(layer, [torch.randn(*shape)])


def _frames_1d(frames: int) -> Step:
    return _layer_step(UL1d(16), frames, 16)


def _frames_2d(frames: int) -> Step:
    return _layer_step(UL2d(16), frames, 16, 32, 32)


def _streams(streams: int) -> Step:
    return _layer_step(UL1d(16), streams, 32, 16)


def _features(features: int) -> Step:
    return _layer_step(UL1d(features), 128, features)


def _positions(positions: int) -> Step:
    side = round(positions**0.5)
    return _layer_step(UL2d(16), 32, 16, side, side)


def _states(states: int) -> Step:
    counts = grid(states)
    return lambda: closed_form(counts, 4)


def _inputs(features: int) -> Step:
    rows = np.random.default_rng(0).standard_normal((10_000, features))
    return lambda: SlowFeatures(3).fit(rows)


def grid(states: int) -> Any:
    """Return pair counts of neighbours on a square grid: one plus a random count, six per state."""
    side = round(states**0.5)
    at = np.arange(side * side).reshape(side, side)
    i = np.concatenate([at[:, 1:].ravel(), at[1:].ravel()])
    j = np.concatenate([at[:, :-1].ravel(), at[:-1].ravel()])
    counts = 1 + np.random.default_rng(0).poisson(2, i.size)
    return sp.coo_array((counts, (i, j)), shape=(at.size, at.size)).tocsr()


def _powers(base: int, first: int, last: int) -> tuple[int, ...]:
    return tuple(base**i for i in range(first, last + 1))


CURVES = {
    "frames-1d": Curve("UL1d, one stream, d = 16", "frames T", _powers(4, 2, 7), _frames_1d),
    "frames-2d": Curve("UL2d, C = 16, 32 x 32", "frames T", _powers(2, 2, 8), _frames_2d),
    "streams": Curve("UL1d, T = 32, d = 16", "streams S", _powers(4, 1, 6), _streams),
    "features": Curve("UL1d, T = 128", "features d", _powers(2, 1, 10), _features),
    "positions": Curve("UL2d, T = 32, C = 16", "positions H x W", _powers(4, 3, 7), _positions),
    "states": Curve(
        "closed form, grid, d = 4",
        "states n",
        (1_024, 4_096, 16_384, 65_536, 262_144, 1_000_000),
        _states,
    ),
    "inputs": Curve(
        "SlowFeatures.fit, 10,000 rows",
        "features",
        (10, 20, 50, 100, 200, 500, 1_000, 2_000),
        _inputs,
    ),
}
