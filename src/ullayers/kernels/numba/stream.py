"""Small frames on a CPU: the compiled loop, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ullayers.kernels.covariance import RIDGE_HIGH, RIDGE_LOW, noise_share, ridge_period
from ullayers.kernels.numba.compiling import run
from ullayers.kernels.schema import NAMES
from ullayers.kernels.state import Rates

PRECISIONS = (torch.float32, torch.float64)  # what frames and buffers may be
NO_SCATTER = np.empty((0, 1, 1, 1))


@cache
def _loop() -> Any:
    """Imported when it is first needed: numba takes a while to load."""
    from ullayers.kernels.numba.state_loops import Choices, StatisticsTuple
    from ullayers.kernels.numba.stream_loops import advance

    return advance, StatisticsTuple, Choices


@dataclass(frozen=True)
class Loop:
    """The buffers of a layer as arrays, and the settings of a call: what many calls share."""

    buffers: list[Tensor]
    places: list[int]  # of the buffers in memory
    arrays: Any  # the same, as `compiled_state.StatisticsTuple`
    chosen: tuple[Any, Any]  # for streams that do not go on, and for those that do
    rooms: list[
        Any
    ]  # memory for W, B and their factors: to get it anew takes longer than to use it

    def is_in_place(self) -> bool:
        """Whether nobody has given the buffers other memory."""
        return self.places == list(map(Tensor.data_ptr, self.buffers))

    def run(
        self, frames: Tensor, scatter: Tensor | None, goes_on: bool
    ) -> tuple[Tensor, Tensor | None]:
        """What `core.advance` does, from the buffers of a layer to those after the frames.

        Args:
            frames: (T, S, d), contiguous, in one of PRECISIONS, without a gradient.
            scatter: (T, S, d, d), contiguous, in float64, if there is any.
            goes_on: whether the streams may go on with those of the call before.

        Returns:
            the gradients, scaled, as the frames and the scatter are.
        """
        gradient, spread = torch.empty(frames.shape, dtype=frames.dtype), None
        extra = below = NO_SCATTER
        if scatter is not None:
            spread = torch.empty_like(scatter)
            extra, below = scatter.numpy(), spread.numpy()
        try:
            room = self.rooms.pop()  # each thread has its own
        except IndexError:
            room = np.empty((2, 2, *self.arrays.short_cov.shape))
        run(
            _loop()[0], frames.numpy(force=True), gradient.numpy(), extra, below, self.arrays,
            self.chosen[goes_on], room,
        )  # fmt: skip
        self.rooms.append(room)
        increment_version(self.buffers)
        return gradient, spread


def prepare(
    buffers: Mapping[str, Tensor], rates: Rates, known: float, largest: float, scale: float
) -> Loop:
    """For calls to come with these settings.

    Args:
        buffers: the statistics of the layer, with as many rows as there are streams.
        rates: its rates and choices.
        known: evidence of means that nothing has been seen of.
        largest: frames with a larger value are left out.
        scale: of the gradients.
    """
    _, StatisticsTuple, Choices = _loop()
    d = len(buffers["short_cov"])
    ours, ridge = [buffers[name] for name in NAMES], float(rates.ridge / d)
    arrays = StatisticsTuple(*(b.numpy() if b.ndim else b.numpy().reshape(1) for b in ours))

    def choices(goes_on: bool) -> Any:
        return Choices(
            (float(rates.mu), float(rates.eps)), (ridge_period(rates.mu), ridge_period(rates.eps)),
            RIDGE_HIGH * ridge, RIDGE_LOW * ridge, noise_share(torch.float64) / d, rates.centred,
            goes_on, known, largest, float(scale),
        )  # fmt: skip

    return Loop(ours, [b.data_ptr() for b in ours], arrays, (choices(False), choices(True)), [])
