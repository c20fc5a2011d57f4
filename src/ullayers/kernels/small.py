"""Small frames on a CPU: which of them the compiled loop takes, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from operator import is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import increment_version

from ullayers.kernels.compiling import has_numba, run
from ullayers.kernels.covariance import RIDGE_HIGH, RIDGE_LOW, noise_share, ridge_period
from ullayers.kernels.state import PER_STREAM, Rates, address, is_as_made
from ullayers.kernels.tiles import SMALLEST_FRAME
from ullayers.packing import Packing

# Larger or wider frames are faster in other ways, unless they come one by one.
LARGEST_FRAME, WIDEST = 2**11, 208
FEW_VALUES = 2**15  # of all frames; more of them are faster tile by tile
MODES = {"stream": 0, "clip": 1, "shared": 2}
Array = NDArray[Any]
KINDS: dict[torch.dtype, Array] = {  # what frames and buffers may be
    torch.float32: np.empty(0, np.float32),
    torch.float64: np.empty(0, np.float64),
}
PRECISIONS = tuple(KINDS)


@cache
def _loop() -> Any:
    """To load it takes its time, and to compile it fifteen seconds, once on a machine."""
    from ullayers.kernels.compiled import advance
    from ullayers.kernels.compiled_state import Buffers, Choices

    return advance, Buffers, Choices


def takes(size: tuple[int, int, int], d: int, rates: Rates, may_tile: bool) -> bool:
    """Whether the loop is the fastest way for frames of a size (T, N, P).

    Args:
        size: steps, sequences, positions.
        d: features.
        rates: the rates and choices of the layer.
        may_tile: whether they could go through `tiles`, but for those.
    """
    steps, sequences, positions = size
    streams = sequences * positions
    small = streams * d <= LARGEST_FRAME and d <= WIDEST
    large = positions > 1 and streams >= 2 * d and streams * d >= SMALLEST_FRAME
    tiled = may_tile and rates.plain and large and steps * streams * d > FEW_VALUES
    return has_numba() and ((small and not tiled) or steps * streams == 1)


@dataclass(frozen=True)
class Plan:
    """All that calls of one kind share: to put it together takes longer than most of them."""

    key: Hashable  # stands for what it depends on, beside the buffers
    packing: Packing
    buffers: list[Tensor]  # of the layer
    places: list[int]  # of the buffers in memory
    layout: Array  # what the loop has to know: sizes and places, as `compiled_state.unpacked` says
    kind: Array  # what the buffers are
    lengths: Array
    shape: tuple[int, ...]  # (T, N, P, d)
    no_scatter: Array
    rooms: list[Array]  # for W, B and their factors: new memory takes longer than what is computed
    chosen: tuple[Array, Array]  # for streams that do not go on, and for those that do

    def is_of(self, key: Hashable, buffers: Mapping[str, Tensor]) -> bool:
        """Whether it still holds: these are the buffers, in their old place."""
        same = self.key == key and all(map(is_, self.buffers, buffers.values()))
        return same and self.places == list(map(Tensor.data_ptr, self.buffers))

    def run(
        self, frames: Tensor, scatter: Tensor | None, carries_on: bool
    ) -> tuple[Tensor, Tensor | None] | None:
        """What `core.advance` does, from the buffers of a layer to those after the frames.

        Args:
            frames: (T, N * P * d), contiguous, in one of PRECISIONS.
            scatter: (T, N * P, d, d), contiguous, in float64, if there is any.
            carries_on: whether the streams may go on with those of the call before.

        Returns:
            the gradients, scaled, as the frames and the scatter are; None if frames have no memory.
        """
        gradient, chosen = torch.empty_like(frames), self.chosen[carries_on]
        places = address(frames), gradient.data_ptr()
        if not all(places):
            return None
        spread = None if scatter is None else torch.empty_like(scatter)
        extra = self.no_scatter if scatter is None else scatter.numpy()
        below = self.no_scatter if spread is None else spread.numpy()
        try:
            room = self.rooms.pop()  # each thread has its own
        except IndexError:
            room = np.empty((2, 2, self.shape[-1], self.shape[-1]))
        run(
            _loop()[0], *places, KINDS[frames.dtype], self.layout, self.kind, chosen, self.lengths,
            extra, below, room,
        )  # fmt: skip
        self.rooms.append(room)
        increment_version(self.buffers)
        return gradient, spread


def plan(
    key: Hashable,
    packing: Packing,
    size: tuple[int, int, int],
    rates: Rates,
    buffers: Mapping[str, Tensor],
    make_room: Callable[[Mapping[str, int]], None],
    scalars: tuple[float, ...],
) -> Plan | None:
    """Of calls with frames of the size (T, N, P); None if another way is better.

    Args:
        key: see `Plan`.
        packing: how sequences lie in the input.
        size: steps, sequences, positions.
        rates: the rates and choices of the layer.
        buffers: its statistics.
        make_room: gives those of streams as many rows as it is told, by name.
        scalars: the last of `Choices`, from `continues` on.
    """
    (steps, sequences, positions), cov = size, buffers["short_cov"]
    streams, d = sequences * positions, len(cov)
    may_tile = cov.dtype == torch.float32 and not packing.ragged
    if not (takes(size, d, rates, may_tile) and _are_as_made(buffers)):
        return None
    shared = rates.long_term == "shared"
    rows = {n: positions if shared and n.startswith("long") else streams for n in PER_STREAM}
    make_room(rows)
    names = _loop()[1]._fields
    now = dict(islice(buffers.items(), len(names)))  # then come those of others
    if any(len(now[name]) != rows[name] for name in rows):  # another thread is at work
        return None
    addresses = [now[name].data_ptr() for name in names]
    layout = np.array([steps, streams, d, rows["long_mean"], *addresses], dtype=np.int64)
    lengths = np.array(packing.lengths or [steps] * sequences, dtype=np.int64)
    chosen = tuple(_choices(rates, d, scalars, goes_on) for goes_on in (False, True))
    ours = list(now.values())
    return Plan(
        key, packing, ours, list(map(Tensor.data_ptr, ours)), layout, KINDS[cov.dtype], lengths,
        (*size, d), np.zeros((0, 1, d, d)), [], (chosen[0], chosen[1]),
    )  # fmt: skip


def _are_as_made(buffers: Mapping[str, Tensor]) -> bool:
    """Whether nobody has put in statistics of another kind: their addresses would not tell."""
    cov = buffers["short_cov"]
    d, kinds = len(cov), {"steps": torch.int64, "left_out": torch.int64, "continues": torch.bool}
    shapes: dict[str, tuple[int, ...]] = {"steps": (), "continues": (), "pull": (1, d)}
    for name in _loop()[1]._fields:
        buffer = buffers[name]
        shape = shapes.get(name, (d, d) if "_cov" in name else (2,))
        if name in PER_STREAM:
            shape = (len(buffer), d) if "_mean" in name else (len(buffer),)
        if not is_as_made(buffer, shape, kinds.get(name, cov.dtype)):
            return False
    return cov.dtype in PRECISIONS


def _choices(rates: Rates, d: int, scalars: tuple[float, ...], goes_on: bool) -> Array:
    ridge, periods = rates.ridge / d, [ridge_period(rates.mu), ridge_period(rates.eps)]
    chosen = _loop()[2](
        [rates.mu, rates.eps], periods, RIDGE_HIGH * ridge, RIDGE_LOW * ridge,
        noise_share(torch.float64) / d, MODES[rates.long_term], rates.diagonal, rates.centred,
        goes_on, *scalars,
    )  # fmt: skip
    return np.hstack(chosen)  # one number after the other
