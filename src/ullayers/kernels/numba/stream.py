"""Small frames on a CPU: calls of the compiled loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ullayers.kernels.covariance import (
    JUMP,
    RIDGE_HIGH,
    RIDGE_LOW,
    SMALLEST_SHARE,
    noise_share,
    ridge_period,
)
from ullayers.kernels.numba.compiling import run
from ullayers.kernels.schema import NAMES
from ullayers.kernels.state import Rates

PRECISIONS = (torch.float32, torch.float64)  # of frames and buffers
NO_SCATTER = np.empty((0, 1, 1, 1))


@cache
def _loop() -> Any:
    """Import the loop on first use, because numba takes a while to load."""
    from ullayers.kernels.numba.state_loops import Settings, StatisticsTuple
    from ullayers.kernels.numba.stream_loops import advance

    return advance, StatisticsTuple, Settings


@dataclass(frozen=True)
class Loop:
    """The buffers of a layer as arrays, and the settings that several calls share."""

    buffers: list[Tensor]
    addresses: list[int]  # of the buffers
    arrays: Any  # the buffers as a StatisticsTuple of arrays
    settings: tuple[Any, Any]  # for streams that are not continued, and for those that are
    workspace: Any  # array for W, B and their factors, which is slow to allocate

    def is_in_place(self) -> bool:
        """Return whether the buffers are still where they were."""
        return self.addresses == list(map(Tensor.data_ptr, self.buffers))

    def run(
        self, frames: Tensor, scatter: Tensor | None, carry_on: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute what `torch.advance.advance` does, and update the buffers.

        Args:
            frames: (T, S, d), contiguous, in one of PRECISIONS, without a gradient.
            scatter: (T, S, d, d), contiguous, in float64.
            carry_on: Whether the streams may continue those of the call before.

        Returns:
            The scaled gradients of the frames and of the scatter.
        """
        gradient, scatter_gradient = torch.empty(frames.shape, dtype=frames.dtype), None
        extra = extra_gradient = NO_SCATTER
        if scatter is not None:
            scatter_gradient = torch.empty_like(scatter)
            extra, extra_gradient = scatter.numpy(), scatter_gradient.numpy()
        y, out = frames.numpy(force=True), gradient.numpy()
        settings = self.settings[carry_on]
        run(_loop()[0], y, out, extra, extra_gradient, self.arrays, settings, self.workspace)
        increment_version(self.buffers)
        return gradient, scatter_gradient


def prepare(
    buffers: Mapping[str, Tensor], rates: Rates, known: float, largest: float, scale: float
) -> Loop:
    """Return a loop for calls with these settings.

    Args:
        buffers: Statistics of the layer, with one row for each stream.
        rates: Settings of the layer.
        known: Evidence of means before the first frame.
        largest: Frames with a larger absolute value are skipped.
        scale: Factor of the gradients.
    """
    _, StatisticsTuple, Settings = _loop()
    ours = [buffers[name] for name in NAMES]
    arrays = StatisticsTuple(*(b.numpy() if b.ndim else b.numpy().reshape(1) for b in ours))
    d = len(buffers["short_cov"])
    ridge = float(rates.ridge / d)
    settings = Settings(
        rates=(float(rates.mu), float(rates.eps)),
        periods=(ridge_period(rates.mu), ridge_period(rates.eps)),
        ridge_high=RIDGE_HIGH * ridge,
        ridge_low=RIDGE_LOW * ridge,
        noise=noise_share(torch.float64) / d,
        jump=JUMP,
        smallest_share=SMALLEST_SHARE,
        centred=rates.centred,
        carry_on=False,
        known=known,
        largest=largest,
        scale=float(scale),
    )
    both = settings, settings._replace(carry_on=True)
    return Loop(ours, [b.data_ptr() for b in ours], arrays, both, np.empty((2, 2, d, d)))
