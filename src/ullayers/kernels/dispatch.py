"""Choose a kernel for a call with fresh statistics: one table, fastest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, cast

import torch
from torch import Tensor

import ullayers.kernels.numba.fresh as numba_fresh
import ullayers.kernels.torch.fresh as torch_fresh
import ullayers.kernels.torch.pooled as torch_pooled
import ullayers.kernels.triton.fresh as triton_fresh
from ullayers.kernels.moments import (
    Evaluation,
    Moments,
    Request,
    Weights,
    working_precision,
)
from ullayers.kernels.torch.pooled import Pool


def first_to_take(verdicts: Iterable[tuple[str, str | None]]) -> tuple[str, dict[str, str]]:
    """Return the first kernel that accepts a call, and why those before it do not, by name.

    Args:
        verdicts: Name of each kernel, and why it does not accept the call or None.
    """
    reasons: dict[str, str] = {}
    for name, reason in verdicts:
        if reason is None:
            return name, reasons
        reasons[name] = reason
    raise AssertionError("the last kernel accepts every call")


def listed(name: str, reasons: Mapping[str, str]) -> str:
    """Format the result of `first_to_take` for users."""
    return "\n".join([name, *(f"  not {other}: {why}" for other, why in reasons.items())])


class Differentiable(Protocol):
    """A module that computes the gradient of J."""

    def gradient(
        self,
        frames: Tensor,
        request: Request,
        weights: Weights,
        saved: tuple[Tensor, ...],
        above: Tensor | None,
    ) -> Tensor:
        """Return the gradient of J plus the incoming one; see `torch.fresh.gradient`."""


class FreshKernel(Differentiable, Protocol):
    """A module that computes the sums over a call's frames, and the gradient of J."""

    NAME: str

    def why_not(self, frames: Tensor, request: Request, scatter: Tensor | None) -> str | None:
        """Return why it does not accept a call, or None if it does."""

    def measure(self, frames: Tensor, request: Request, scatter: Tensor | None) -> Moments:
        """Sum over the frames; see `torch.fresh.measure`."""

    def weigh(self, moments: Moments, request: Request, precision: torch.dtype) -> Evaluation:
        """Compute W, B and the derivatives of J; see `moments.weigh`."""


FRESH = {
    kernel.NAME: kernel
    for kernel in cast("tuple[FreshKernel, ...]", (triton_fresh, numba_fresh, torch_fresh))
}


def choose_fresh(
    frames: Tensor, request: Request, scatter: Tensor | None
) -> tuple[FreshKernel, dict[str, str]]:
    """Return the kernel for a call, and why faster ones do not accept it, by name."""
    name, reasons = first_to_take(
        (name, kernel.why_not(frames, request, scatter)) for name, kernel in FRESH.items()
    )
    return FRESH[name], reasons


def choose_pooled(
    frames: Tensor, request: Request, scatter: Tensor | None
) -> tuple[str, Differentiable, dict[str, str]]:
    """Return the kernel for a call of several processes, its name, and why faster ones do not."""
    shared = request.rates.long_term == "shared"
    if shared or frames.numel() == 0:
        why = "processes share the long-term mean" if shared else "this process has no frames"
        reasons = {name: why for name in FRESH if name != torch_fresh.NAME}
        return torch_pooled.NAME, cast("Differentiable", torch_pooled), reasons
    kernel, reasons = choose_fresh(frames, request, scatter)
    return kernel.NAME, kernel, reasons


def evaluate_pooled(
    frames: Tensor, request: Request, scatter: Tensor | None, pool: Pool
) -> tuple[Differentiable, Request, Evaluation]:
    """Return the kernel for a call of several processes, its settings and its statistics."""
    name, kernel, _ = choose_pooled(frames, request, scatter)
    measure = FRESH[name].measure if name in FRESH else torch_fresh.measure
    whole, made = torch_pooled.evaluate(frames, request, scatter, pool, measure)
    return kernel, whole, made


def evaluate_fresh(
    frames: Tensor, request: Request, scatter: Tensor | None
) -> tuple[FreshKernel, Evaluation]:
    """Return the kernel for a call, and its statistics with the derivatives of J."""
    kernel, _ = choose_fresh(frames, request, scatter)
    moments = kernel.measure(frames, request, scatter)
    return kernel, kernel.weigh(moments, request, working_precision(frames))
