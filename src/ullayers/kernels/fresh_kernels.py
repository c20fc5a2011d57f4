"""The kernels of fresh statistics, fastest first, and which of them takes a call."""

from __future__ import annotations

from typing import Protocol, cast

from torch import Tensor

import ullayers.kernels.fresh as fresh
import ullayers.kernels.fresh_maps as fresh_maps
import ullayers.kernels.launch_fresh as launch_fresh
from ullayers.kernels.moments import Moments, Request, Weights


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


KERNELS = cast("tuple[Kernel, ...]", (launch_fresh, fresh_maps, fresh))


def choose(
    frames: Tensor, request: Request, scatter: Tensor | None
) -> tuple[Kernel, dict[str, str]]:
    """The kernel for a call, and why faster ones do not take it, by their names."""
    reasons: dict[str, str] = {}
    for kernel in KERNELS:
        reason = kernel.why_not(frames, request, scatter)
        if reason is None:
            return kernel, reasons
        reasons[kernel.NAME] = reason
    raise AssertionError("the last kernel takes any call")
