"""Identity functions that add something to the gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import ullayers.kernels.custom_ops as fresh_ops
import ullayers.kernels.torch.fresh as fresh
from ullayers.kernels.dispatch import FreshKernel
from ullayers.kernels.moments import Request, Weights
from ullayers.kernels.state import room_like


class Signal(NamedTuple):
    """Gradients that a forward pass has computed for its input."""

    gradient: Tensor
    scatter_gradient: Tensor | None = None


class _AddGradient(torch.autograd.Function):
    """The identity, whose backward pass adds a gradient computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, scatter: Tensor | None, signal: Signal) -> Tensor:
        # Not save_for_backward: activation checkpointing drops what is saved there and would
        # have to learn from the same frames again to restore it.
        ctx.gradients = signal.gradient, signal.scatter_gradient
        # A view would forbid in-place layers to follow, or let them change the input as well.
        return y.clone()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        gradient, scatter_gradient = ctx.gradients
        spread = None if scatter_gradient is None else scatter_gradient.clone()
        return above + gradient, spread, None


def add_gradient(y: Tensor, scatter: Tensor | None, signal: Signal) -> Tensor:
    """Return `y`, with a gradient to be added to its own and to that of the scatter."""
    added: Tensor = _AddGradient.apply(y, scatter, signal)  # type: ignore[no-untyped-call]
    return added


class _Refuse(torch.autograd.Function):
    """The identity, whose backward pass raises an error."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, reason: str) -> Tensor:
        ctx.reason = reason
        return y.clone()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        raise RuntimeError(ctx.reason)


def refuse_gradient(y: Tensor, reason: str) -> Tensor:
    """Return `y`, with a backward pass that raises a RuntimeError."""
    refused: Tensor = _Refuse.apply(y, reason)  # type: ignore[no-untyped-call]
    return refused


class _Probe(torch.autograd.Function):
    """Do nothing; PyTorch itself raises an error inside a transform of torch.func."""

    @staticmethod
    def forward(ctx: Any) -> None:
        return None


def refuse_transforms() -> None:
    """Raise a RuntimeError inside torch.func.grad, vmap and similar transforms."""
    if torch.compiler.is_compiling():
        return
    try:
        _Probe.apply()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise RuntimeError(
            "a UL layer in training mode cannot run inside torch.func.grad, vmap or similar "
            "transforms: use ul.backward or torch.autograd, or call eval() on the layer"
        ) from error


class FreshCall(NamedTuple):
    """What the backward pass of a call with fresh statistics needs, apart from tensors."""

    kernel: FreshKernel | None  # None: custom operators, in a compiled graph
    request: Request
    by_rows: bool
    scattered: bool


class _AddFreshGradient(torch.autograd.Function):
    """The identity, whose backward pass adds the gradient of J of the call."""

    @staticmethod
    def forward(ctx: Any, call: FreshCall, y: Tensor, scatter: Any, *kept: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(y, *kept)
        return room_like(y).copy_(y)  # not a view: later layers may change it in place

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        call: FreshCall = ctx.call
        y, matrices, *saved = ctx.saved_tensors
        features = len(matrices[0]) if not call.by_rows else y.shape[-1]
        weights = Weights(matrices, call.by_rows)
        frames, spread = as_frames(y, features), None
        # PyTorch adds gradients that are differentiated themselves, or are a batch of gradients.
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
    """Return (time, d), (clips, time, d) or maps as (frames, features, positions)."""
    if y.ndim < 4:
        return y.reshape(-1, features, 1)
    return y.reshape(-1, *y.shape[-3:]).flatten(2)


def add_fresh_gradient(
    call: FreshCall, y: Tensor, scatter: Tensor | None, kept: tuple[Tensor, ...]
) -> Tensor:
    """Return `y`, with the gradient of J to be added to its own."""
    added: Tensor = _AddFreshGradient.apply(call, y, scatter, *kept)  # type: ignore[no-untyped-call]
    return added


def _has_storage(tensor: Tensor) -> bool:
    """Return False for a batch of gradients, as in `is_grads_batched`."""
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True
