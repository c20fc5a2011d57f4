"""The identity as a layer hands it on: with something to be added to its gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import ullayers.kernels.fresh as fresh
import ullayers.kernels.fresh_ops as fresh_ops
from ullayers.kernels.fresh_kernels import Kernel
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
    """What the backward pass of a call with fresh statistics has to know, beside tensors."""

    kernel: Kernel | None  # None: operators, in a compiled graph
    request: Request
    by_rows: bool
    scattered: bool


class _AddFreshGradient(torch.autograd.Function):
    """The identity, whose backward adds the gradient of J of the call."""

    @staticmethod
    def forward(ctx: Any, call: FreshCall, y: Tensor, scatter: Any, *kept: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(y, *kept)
        return y.clone()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        call: FreshCall = ctx.call
        y, matrices, *saved = ctx.saved_tensors
        features = len(matrices[0]) if not call.by_rows else y.shape[-1]
        weights = Weights(matrices, call.by_rows, matrices, matrices)
        frames, spread = as_frames(y, features), None
        # A gradient that is differentiated itself, or stands for many at once, is added by torch.
        plain = not torch.is_grad_enabled() and _has_storage(above)
        with torch.no_grad():
            more = as_frames(above, features) if plain else None
            kernel = fresh_ops if call.kernel is None else call.kernel
            found = kernel.gradient(frames, call.request, weights, tuple(saved), more)
            if call.scattered and ctx.needs_input_grad[2]:
                owner = fresh_ops if call.kernel is None else fresh
                spread = owner.scatter_gradient(frames, call.request, weights, tuple(saved))
                spread = spread.reshape(*y.shape, features).to(y.dtype)
        gradient = found.view(y.shape) if plain else above + found.view(y.shape)
        return None, gradient, spread, *(None for _ in (matrices, *saved))


def as_frames(y: Tensor, features: int) -> Tensor:
    """(time, d), (clips, time, d) or maps as (frames, features, positions)."""
    if y.ndim < 4:
        return y.reshape(-1, features, 1)
    return y.reshape(-1, *y.shape[-3:]).flatten(2)


def add_fresh_gradient(
    call: FreshCall, y: Tensor, scatter: Tensor | None, kept: tuple[Tensor, ...]
) -> Tensor:
    """`y`, whose gradient gets that of J added."""
    added: Tensor = _AddFreshGradient.apply(call, y, scatter, *kept)  # type: ignore[no-untyped-call]
    return added


def _has_storage(tensor: Tensor) -> bool:
    """Not so where a tensor stands for a batch of them, as in `is_grads_batched`."""
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True
