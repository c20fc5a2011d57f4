"""Calls of a layer between their forward and backward pass, for `loss`."""

from __future__ import annotations

import weakref

from torch import Tensor

from ullayers.nn.loss_scaling import note_added_gradient


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
