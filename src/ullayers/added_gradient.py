"""The identity as a layer hands it on: with something to be added to its gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ullayers.kernels.fresh import gradient, scatter_gradient
from ullayers.kernels.moments import Request, Weights


class Signal(NamedTuple):
    """What a pass has found out for its input."""

    gradient: Tensor
    scatter_gradient: Tensor | None = None


class _AddGradient(torch.autograd.Function):
    """The identity, whose backward adds a gradient that the forward pass has found."""

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
    """`y`, with something to be added to its gradient, and to that of what is scattered."""
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
    """`y`, through which no gradient can pass: the backward pass raises a RuntimeError."""
    refused: Tensor = _Refuse.apply(y, reason)  # type: ignore[no-untyped-call]
    return refused


class _Probe(torch.autograd.Function):
    """Does nothing; PyTorch itself refuses it inside a transform of torch.func."""

    @staticmethod
    def forward(ctx: Any) -> None:
        return None


def refuse_transforms() -> None:
    """Raise a RuntimeError inside torch.func.grad, vmap and their like."""
    if torch.compiler.is_compiling():
        return
    try:
        _Probe.apply()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise RuntimeError(
            "a UL layer that learns cannot be inside torch.func.grad, vmap or their like: use "
            "ul.backward or torch.autograd, or put the layer into eval(), where it is the identity"
        ) from error


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
