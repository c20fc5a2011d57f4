"""Identity functions that add to the gradient in the backward pass, and the calls they belong to.

A layer's call is open from the forward pass until a backward pass or `loss` takes its gradient.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.autograd.function import once_differentiable
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

import ullayers.kernels.custom_ops as fresh_ops
import ullayers.kernels.torch.fresh as fresh
import ullayers.kernels.torch.pooled as pooled
from ullayers.kernels.dispatch import Differentiable
from ullayers.kernels.frames import room_like
from ullayers.kernels.moments import Request, Weights
from ullayers.nn.statistics import is_recomputing

SCALED = (
    "a GradScaler divides all gradients by its scale, but UL layers added theirs without it, so "
    "they hardly learn: use scaler.scale(loss + ul.loss(net)).backward()"
)


class Signal(NamedTuple):
    """Gradients that a forward pass has computed for its input."""

    gradient: Tensor
    scatter_gradient: Tensor | None = None


class _AddGradient(torch.autograd.Function):
    """The identity, whose backward pass adds a gradient computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, scatter: Tensor | None, signal: Signal, switch: Switch | None
    ) -> Tensor:
        # Not save_for_backward: activation checkpointing drops saved tensors and would have to
        # learn from the same frames again to restore them.
        ctx.gradients = signal.gradient, signal.scatter_gradient
        ctx.switch = switch
        # A view would prevent in-place layers from following, or let them change the input.
        return y.clone()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        if not adds_now(ctx.switch):
            return above, None, None, None
        gradient, scatter_gradient = ctx.gradients
        spread = None if scatter_gradient is None else scatter_gradient.clone()
        return above + gradient, spread, None, None


class _Carry(torch.autograd.Function):
    """A scalar zero; its backward pass sends the gradient of a forward pass, times a factor."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, scatter: Tensor | None, signal: Signal) -> Tensor:
        ctx.gradients = signal.gradient, signal.scatter_gradient
        return _zero(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> Any:
        gradient, scatter_gradient = ctx.gradients
        spread = None if scatter_gradient is None else _times(scatter_gradient, factor)
        return _times(gradient, factor), spread, None


def add_gradient(
    y: Tensor, scatter: Tensor | None, signal: Signal, call: LayerCall | None
) -> Tensor:
    """Return `y`, with a gradient to be added to its own and to that of the scatter.

    Args:
        y: Input of the layer.
        scatter: Second input, if any.
        signal: The gradients.
        call: The call, for `loss`; None in a compiled graph.
    """
    if call is not None:
        call.carrier = _Carry.apply(y, scatter, signal)  # type: ignore[no-untyped-call]
    switch = None if call is None else call.new_switch()
    added: Tensor = _AddGradient.apply(y, scatter, signal, switch)  # type: ignore[no-untyped-call]
    return added


def _zero(y: Tensor) -> Tensor:
    return y.new_zeros((), dtype=torch.promote_types(y.dtype, torch.float32))


def _times(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply in float32 or wider: float16 cannot hold the factor of a GradScaler."""
    return (gradient.to(factor.dtype) * factor).to(gradient.dtype)


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
    """State for the backward pass of a call with fresh statistics, besides tensors."""

    kernel: Differentiable | None  # None: custom operators, in a compiled graph
    request: Request
    by_rows: bool
    scattered: bool


class _AddFreshGradient(torch.autograd.Function):
    """The identity, whose backward pass adds the gradient of J of the call."""

    @staticmethod
    def forward(
        ctx: Any, call: FreshCall, switch: Switch | None, y: Tensor, scatter: Any, *kept: Tensor
    ) -> Tensor:
        ctx.call, ctx.switch = call, switch
        ctx.save_for_backward(y, *kept)
        return room_like(y).copy_(y)  # not a view: later layers may change it in place

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        saved = ctx.saved_tensors
        gradient, spread = above, None
        if adds_now(ctx.switch):
            # PyTorch adds gradients that are differentiated themselves, or are a batch.
            plain = not torch.is_grad_enabled() and _has_storage(above)
            scattered = ctx.needs_input_grad[3]
            found, spread = _fresh_gradient(ctx.call, saved, above if plain else None, scattered)
            gradient = found if plain else above + found
        return None, None, gradient, spread, *(None for _ in saved[1:])


class _CarryFresh(torch.autograd.Function):
    """A scalar zero; its backward pass sends the gradient of J of the call, times a factor."""

    @staticmethod
    def forward(ctx: Any, call: FreshCall, y: Tensor, scatter: Any, *kept: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(y, *kept)
        return _zero(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> Any:
        saved = ctx.saved_tensors
        gradient, spread = _fresh_gradient(ctx.call, saved, None, ctx.needs_input_grad[2])
        spread = None if spread is None else _times(spread, factor)
        return None, _times(gradient, factor), spread, *(None for _ in saved[1:])


@torch.no_grad()
def _fresh_gradient(
    call: FreshCall, kept: tuple[Tensor, ...], above: Tensor | None, scattered: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of J plus the incoming one, and that of the scatter."""
    y, matrices, *saved = kept
    features = len(matrices[0]) if not call.by_rows else y.shape[-1]
    weights = Weights(matrices, call.by_rows)
    frames, spread = as_frames(y, features), None
    more = None if above is None else as_frames(above, features)
    kernel = fresh_ops if call.kernel is None else call.kernel
    found = kernel.gradient(frames, call.request, weights, tuple(saved), more)
    if call.scattered and scattered:
        owner = kernel if kernel in (fresh_ops, pooled) else fresh
        spread = owner.scatter_gradient(frames, call.request, weights, tuple(saved))
        spread = spread.reshape(*y.shape, features).to(y.dtype)
    return found.view(y.shape), spread


def as_frames(y: Tensor, features: int) -> Tensor:
    """Return (time, d), (clips, time, d) or maps as (frames, features, positions)."""
    if y.ndim < 4:
        return y.reshape(-1, features, 1)
    return y.reshape(-1, *y.shape[-3:]).flatten(2)


def add_fresh_gradient(
    fresh_call: FreshCall,
    y: Tensor,
    scatter: Tensor | None,
    kept: tuple[Tensor, ...],
    call: LayerCall | None,
) -> Tensor:
    """Return `y`, with the gradient of J to be added to its own; see `add_gradient`."""
    if call is not None:
        call.carrier = _CarryFresh.apply(fresh_call, y, scatter, *kept)  # type: ignore[no-untyped-call]
    switch = None if call is None else call.new_switch()
    added: Tensor = _AddFreshGradient.apply(fresh_call, switch, y, scatter, *kept)  # type: ignore[no-untyped-call]
    return added


def _has_storage(tensor: Tensor) -> bool:
    """Return False for a batch of gradients, as in `is_grads_batched`."""
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


class Switch:
    """Whether the backward pass of a call adds the gradient of J, or leaves it to `loss`.

    It belongs to the graph of the call's output and lives as long as that graph.
    """

    __slots__ = ("__weakref__", "adds", "call")

    def __init__(self, call: LayerCall) -> None:
        self.adds = True
        self.call = weakref.ref(call)


class LayerCall:
    """A call of a layer, until `loss` or the backward pass takes its gradient.

    Attributes:
        weight: Factor of J.
        value: weight * J, once it is known.
        carrier: Scalar zero of the call's graph, through which `loss` sends its gradient. None
            after the backward pass, so that the graph can be freed.
    """

    __slots__ = ("__weakref__", "_switch", "carrier", "value", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.value: Tensor | None = None
        self.carrier: Tensor | None = None
        self._switch: weakref.ref[Switch] | None = None

    def new_switch(self) -> Switch:
        """Return the switch for the graph of the output."""
        switch = Switch(self)
        self._switch = weakref.ref(switch)
        return switch

    @property
    def in_use(self) -> bool:
        """Whether the graph of the output is alive, in a variable or in the graph of a loss."""
        return self._switch is not None and self._switch() is not None

    def take(self) -> None:
        """Leave the gradient to `loss`."""
        switch = None if self._switch is None else self._switch()
        if switch is not None:
            switch.adds = False


def adds_now(switch: Switch | None) -> bool:
    """Return whether a backward pass that runs now adds the gradient; None: a compiled graph."""
    if switch is None:
        return True
    call = switch.call()
    if call is not None:
        call.carrier = None
    if switch.adds:
        note_added_gradient()
    return switch.adds


class OpenCalls:
    """The calls of a layer whose gradient neither `loss` nor a backward pass has taken.

    Attributes:
        compiled: Whether the last call was in a graph of `torch.compile`.
        missed: Whether `loss` was taken after a call without gradients.
    """

    def __init__(self) -> None:
        self.compiled = self.missed = False
        self._blind = False  # whether the last call was without gradients
        self._calls: tuple[LayerCall, ...] = ()

    def __reduce__(self) -> tuple[type[OpenCalls], tuple[()]]:
        return OpenCalls, ()  # the graphs belong to the original, not to its copies

    def begin(
        self, weight: float, gradient: bool, objective: Callable[[], Tensor]
    ) -> LayerCall | None:
        """Return a new call, before the statistics change; None in a compiled graph.

        Args:
            weight: Factor of J.
            gradient: Whether the call needs a gradient.
            objective: Returns J of the previous call.
        """
        if torch.compiler.is_compiling():
            self.compiled = True
            return None
        call = LayerCall(weight)
        if is_recomputing():
            return call
        self.compiled = self.missed = False
        self._blind = not gradient
        if self._calls:
            self._evaluate(objective)
            self._calls = tuple(each for each in self._calls if each.in_use)
        if gradient:
            self._calls = (*self._calls, call)
        return call

    def drop_unused(self) -> bool:
        """Drop earlier calls whose outputs are not in use; return whether there were any.

        If the output of the last call is not in use either, all belong to one forward pass whose
        result was not kept: their outputs were in use when the last call was made.
        """
        calls = self._calls
        if calls and calls[-1].in_use:
            self._calls = tuple(call for call in calls if call.in_use)
        return len(self._calls) < len(calls)

    def take(self, objective: Callable[[], Tensor]) -> list[Tensor]:
        """Return weight * J of each call, with its gradient, which the layer no longer adds."""
        self._evaluate(objective)
        calls, self._calls = self._calls, ()
        parts = []
        for call in calls:
            assert call.carrier is not None
            assert call.value is not None
            parts.append(call.carrier + call.value.to(call.carrier))
            call.take()
        self.missed = self._blind and not calls
        return parts

    def values(self, objective: Callable[[], Tensor]) -> list[Tensor]:
        """Return weight * J of each call; the layer still adds their gradients."""
        self._evaluate(objective)
        return [call.value for call in self._calls if call.value is not None]

    def _evaluate(self, objective: Callable[[], Tensor]) -> None:
        """Drop calls whose backward pass has run, and compute weight * J of the others."""
        self._calls = tuple(call for call in self._calls if call.carrier is not None)
        for call in self._calls:
            if call.value is None:
                value = call.weight * objective()
                call.value = torch.where(value.isfinite(), value, 0)  # 0: nothing varies


class _Watch:
    """Whether UL layers have added gradients since the last optimizer step or `loss`."""

    registered = False
    added = False


def note_added_gradient() -> None:
    """Record that a backward pass has added a gradient that no loss scale multiplies."""
    if not _Watch.registered:
        _Watch.registered = True
        register_optimizer_step_pre_hook(_warn_if_scaled)
    _Watch.added = True


def forget_added_gradients() -> None:
    """Record that `loss` is in use from here on."""
    _Watch.added = False


def _warn_if_scaled(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Warn if a GradScaler has called this optimizer step."""
    if torch.compiler.is_compiling() or not _Watch.added:
        return
    _Watch.added = False
    frame: FrameType | None = sys._getframe(1)
    depth = 2
    while frame is not None and frame.f_code is not GradScaler.step.__code__:
        frame, depth = frame.f_back, depth + 1
    if frame is not None and frame.f_locals["self"].is_enabled():
        warnings.warn(SCALED, stacklevel=depth + 1)
