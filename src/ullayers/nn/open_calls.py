"""Calls of a layer between their forward and backward pass, for `loss`."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from ullayers.nn.loss_scaling import note_added_gradient
from ullayers.nn.statistics import is_recomputing


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
