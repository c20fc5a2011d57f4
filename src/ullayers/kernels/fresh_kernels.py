"""The kernels of fresh statistics, fastest first, and which of them takes a call."""

from __future__ import annotations

from typing import Protocol, cast

from torch import Tensor

import ullayers.kernels.fresh as fresh
import ullayers.kernels.fresh_maps as fresh_maps
import ullayers.kernels.launch_fresh as launch_fresh
from ullayers.kernels.choose import first_to_take
from ullayers.kernels.moments import Evaluation, Moments, Request, Weights, weigh


class Kernel(Protocol):
    """One way to find the sums over a call's frames, and the gradient of J."""

    NAME: str

    def why_not(self, frames: Tensor, request: Request, scatter: Tensor | None) -> str | None:
        """Why it does not take a call, or None if it does."""

    def measure(self, frames: Tensor, request: Request, scatter: Tensor | None) -> Moments:
        """Sums over the frames; see `fresh.measure`."""

    def gradient(
        self,
        frames: Tensor,
        request: Request,
        weights: Weights,
        saved: tuple[Tensor, ...],
        above: Tensor | None,
    ) -> Tensor:
        """The gradient of J plus the one from above; see `fresh.gradient`."""


KERNELS = {
    kernel.NAME: kernel for kernel in cast("tuple[Kernel, ...]", (launch_fresh, fresh_maps, fresh))
}


def choose(
    frames: Tensor, request: Request, scatter: Tensor | None
) -> tuple[Kernel, dict[str, str]]:
    """The kernel for a call, and why faster ones do not take it, by their names."""
    name, reasons = first_to_take(
        (name, kernel.why_not(frames, request, scatter)) for name, kernel in KERNELS.items()
    )
    return KERNELS[name], reasons


def evaluate(frames: Tensor, request: Request, scatter: Tensor | None) -> tuple[Kernel, Evaluation]:
    """The statistics of a call and the derivatives of J, and the kernel for its gradient."""
    kernel, _ = choose(frames, request, scatter)
    moments = kernel.measure(frames, request, scatter)
    return kernel, weigh(moments, request.rates, fresh.working_precision(frames))
