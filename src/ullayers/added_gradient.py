"""The identity as a layer hands it on: with something to be added to its gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ullayers.kernels.fresh import gradient, scatter_gradient
from ullayers.kernels.maps import Postponed
from ullayers.kernels.moments import Request, Weights
from ullayers.kernels.state import shared_clone


class Signal(NamedTuple):
    """What a pass has found out for its input."""

    gradient: Tensor | Postponed
    scatter_gradient: Tensor | None = None
    output: Tensor | None = None  # memory for it, if there is any


class _AddGradient(torch.autograd.Function):
    """The identity, whose backward adds a gradient that the forward pass has found."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, scatter: Tensor | None, signal: Signal) -> Tensor:
        # Not save_for_backward: activation checkpointing drops what is saved there and would
        # have to learn from the same frames again to restore it.
        ctx.gradients = signal.gradient, signal.scatter_gradient
        return _handed_on(y, signal.output)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        if ctx.gradients is None:
            raise RuntimeError(
                "backward through a UL layer a second time: use backward(retain_graph=True) the "
                "first time"
            )
        gradient, scatter_gradient = ctx.gradients
        waits = type(gradient) is Postponed
        if _graph_is_kept() or _is_batched(above):
            gradient = gradient.added_to(None) if waits else gradient
            spread = None if scatter_gradient is None else scatter_gradient.clone()
            return above + gradient, spread, None
        added = gradient.added_to(above) if waits else gradient.add_(above)
        ctx.gradients = None
        return added, scatter_gradient, None


# What `_AddGradient.apply` ends in. Before it that looks for torch.func, as we have done already,
# and on a frame of a few numbers it takes a twentieth of the time.
_apply = super(torch.autograd.Function, _AddGradient).apply


def add_gradient(y: Tensor, scatter: Tensor | None, signal: Signal) -> Tensor:
    """`y`, with something to be added to its gradient, and to that of what is scattered."""
    apply = _AddGradient.apply if torch.compiler.is_compiling() else _apply
    added: Tensor = apply(y, scatter, signal)  # type: ignore[no-untyped-call]
    return added


def _handed_on(y: Tensor, output: Tensor | None) -> Tensor:
    """A copy, in memory of its own if there is any.

    On a CPU it is not made before one of the two is changed in place.

    A view would forbid in-place layers to follow, or let them change the input as well. On a GPU
    such a late copy would not know which stream it has to wait for.
    """
    if output is not None:
        return output.copy_(y)
    if not y.is_cpu or torch.compiler.is_compiling():
        return y.clone()
    return shared_clone(y)


def _graph_is_kept() -> bool:
    """Whether the running backward pass may come again, or be differentiated itself."""
    if torch.compiler.is_compiling():
        return True
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def _is_batched(above: Tensor) -> bool:
    """Whether this stands for many gradients at once, as in `is_grads_batched`."""
    functorch = torch._C._functorch
    return bool(functorch.is_batchedtensor(above) or functorch.is_legacy_batchedtensor(above))


class FreshCall(NamedTuple):
    """What the backward pass of a call with fresh statistics has to know, beside its input."""

    request: Request
    by_rows: bool
    features: int


class _AddFreshGradient(torch.autograd.Function):
    """The identity, whose backward adds the gradient of J of the call."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, scatter: Tensor | None, matrices: Tensor, call: FreshCall
    ) -> Tensor:
        ctx.save_for_backward(y, scatter, matrices)
        ctx.call = call
        return y.clone()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        y, scatter, matrices = ctx.saved_tensors
        request, by_rows, features = ctx.call
        weights = Weights(matrices, by_rows, matrices, matrices)
        with torch.no_grad():
            frames = as_frames(y, features)
            extra = None if scatter is None else scatter.reshape(-1, features, features)
            found = gradient(frames, request, weights, extra).view(y.shape)
            spread = None
            if scatter is not None and extra is not None and ctx.needs_input_grad[1]:
                spread = scatter_gradient(frames, request, weights, extra)
                spread = spread.reshape(scatter.shape).to(scatter.dtype)
        return above + found, spread, None, None


def as_frames(y: Tensor, features: int) -> Tensor:
    """(time, d), (clips, time, d) or maps as (frames, features, positions)."""
    if y.ndim < 4:
        return y.reshape(-1, features, 1)
    return y.reshape(-1, *y.shape[-3:]).flatten(2)


def add_fresh_gradient(
    y: Tensor, scatter: Tensor | None, matrices: Tensor, call: FreshCall
) -> Tensor:
    """`y`, whose gradient gets that of J added."""
    added: Tensor = _AddFreshGradient.apply(y, scatter, matrices, call)  # type: ignore[no-untyped-call]
    return added
