"""Choose a kernel for a call: one table each for fresh and running statistics, fastest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

import ullayers.kernels.numba.fresh as numba_fresh
import ullayers.kernels.torch.fresh as torch_fresh
import ullayers.kernels.torch.pooled as torch_pooled
import ullayers.kernels.triton.fresh as triton_fresh
from ullayers.kernels.backends import has_numba, has_triton
from ullayers.kernels.moments import (
    REDUCED_PRECISION,
    Evaluation,
    Moments,
    Request,
    Weights,
    working_precision,
)
from ullayers.kernels.state import LongTerm
from ullayers.kernels.torch.pooled import Pool

WIDEST_ON_GPU, MAX_STEPS = 256, 32  # features, and frames of a call
# Above these sizes PyTorch is faster than the compiled loop, except for single frames of a single
# stream.
LARGEST_FRAME, WIDEST = 2**11, 208


class RunningRequest(NamedTuple):
    """Properties of a call with running statistics on which the choice of a kernel depends."""

    device: str
    frames: torch.dtype
    statistics: torch.dtype
    steps: int
    streams: int
    features: int
    long_term: LongTerm
    diagonal: bool
    clips: bool  # whether frames are separate clips, marked by `sequences`
    scatter: bool
    gradient: bool  # whether a gradient is needed
    replaced: str | None  # error message if a buffer does not match `schema`


@dataclass(frozen=True)
class Candidate:
    """A kernel, and a function that returns why it does not accept a call, or None if it does."""

    name: str
    why_not: Callable[[RunningRequest], str | None]


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


def _why_no_stream(call: RunningRequest) -> str | None:
    """Return a reason that holds for all kernels for single frames, if any."""
    return _first(
        (not call.gradient, "no gradient is needed"),
        (call.clips, "the frames are separate clips"),
        (call.long_term != "stream", f'long_term is "{call.long_term}", not "stream"'),
        (call.diagonal, "the covariances are diagonal"),
        (call.replaced is not None, str(call.replaced)),
    )


def _why_not_triton(call: RunningRequest) -> str | None:
    shape = f"{call.steps} frames of {call.streams} streams"
    return _first(
        (call.device != "cuda", f"the frames are on {call.device}, not on cuda"),
        (not has_triton(), "Triton is not installed"),
        (call.streams > 1, f"{call.streams} streams, not a single one"),
        (call.steps > MAX_STEPS, f"{shape}, more than {MAX_STEPS}"),
        (call.features > WIDEST_ON_GPU, f"{call.features} features, more than {WIDEST_ON_GPU}"),
        (call.frames not in REDUCED_PRECISION, f"the frames are {call.frames}"),
        (call.statistics != torch.float32, f"the statistics are {call.statistics}"),
        (call.scatter, "a scatter is given"),
    ) or _why_no_stream(call)


def _why_not_numba(call: RunningRequest) -> str | None:
    size = call.streams * call.features
    single = call.steps == call.streams == 1
    return _first(
        (call.device != "cpu", f"the frames are on {call.device}, not on cpu"),
        (not has_numba(), "numba is not installed, or NUMBA_DISABLE_JIT is set"),
        (
            not single and size > LARGEST_FRAME,
            f"{size} values in a frame, more than {LARGEST_FRAME}",
        ),
        (not single and call.features > WIDEST, f"{call.features} features, more than {WIDEST}"),
    ) or _why_no_stream(call)


def _first(*reasons: tuple[bool, str]) -> str | None:
    return next((reason for holds, reason in reasons if holds), None)


TRITON, NUMBA = "Triton kernels for single frames", "compiled CPU loop for small frames"
PYTORCH = "PyTorch operations"
RUNNING = (
    Candidate(TRITON, _why_not_triton),
    Candidate(NUMBA, _why_not_numba),
    Candidate(PYTORCH, lambda call: None),
)


def choose_running(call: RunningRequest) -> tuple[str, dict[str, str]]:
    """Return the kernel for a call with running statistics, and why faster ones reject it."""
    return first_to_take((each.name, each.why_not(call)) for each in RUNNING)


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
