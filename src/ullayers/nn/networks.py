"""Functions of networks with UL layers: `sequences`, `backward`, `loss`, `mu_by_depth`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from ullayers.kernels.frames import Packing
from ullayers.nn.added_gradient import forget_added_gradients
from ullayers.nn.distributed import process_count
from ullayers.nn.layers import ULBase
from ullayers.nn.statistics import is_recomputing

NOTHING_TO_LEARN = (
    "ul.backward found no UL layer in train mode behind these outputs, so nothing is learned: "
    "add UL1d or UL2d layers to the network, or call net.train() before the forward pass"
)
NO_LAYERS = (
    "ul.sequences found no UL layer in this network, so it has no effect: add UL1d or UL2d "
    "layers to the network, or pass the network that contains them"
)
OTHER_THREAD = (
    "another thread is inside ul.sequences with this network: give each thread a copy of the "
    "network (copy.deepcopy), or let one thread at a time enter"
)
NO_LOSS = (
    "ul.loss found no call of a UL layer in train mode since the last backward pass or ul.loss, so "
    "it is 0: add UL1d or UL2d layers to the network, call net.train(), and take ul.loss "
    "between the forward and the backward pass, not under torch.no_grad()"
)
EVAL_MODE = (
    "ul.loss is 0, because all UL layers of this network are in eval mode, in which nothing is "
    "learned: call net.train() before the forward pass, and take ul.loss before net.eval()"
)
COMPILED = (
    "ul.loss does not support UL layers in a graph of torch.compile: call ul.backward or "
    "loss.backward() without it, or compile the parts of the network between the UL layers"
)
_ENTERING = Lock()


@contextmanager
def sequences(net: nn.Module, lengths: Sequence[int] | None = None) -> Iterator[nn.Module]:
    """Treat the input of the UL layers of `net` as separate, complete clips within this block.

    Each clip has its own means, so that nothing leaks from one clip into the next. Clips need two
    frames or more to learn from. With activation checkpointing, run the backward pass of a call
    before a call with other clips, since recomputation uses the clips of the layer's last call.
    Warns if `net` has no UL layers, since the block has no effect then. Threads that share `net`
    cannot be inside at the same time; the second one gets a RuntimeError.

    Args:
        net: Module with UL layers in it.
        lengths: Number of frames of each clip, for concatenated clips. Without it, each sequence of
            a (sequences, time, ...) input is a clip, and a (time, ...) input is one clip. Pass an
            empty list in a process without clips.

    Example:
        >>> import torch, ullayers as ul
        >>> net = torch.nn.Sequential(torch.nn.Linear(6, 2), ul.UL1d(2))
        >>> frames = torch.randn(67, 6)
        >>> with ul.sequences(net, lengths=[25, 30, 12]):
        ...     y = net(frames)
        >>> ul.backward(y)
        >>> net[1].short_mean.shape
        torch.Size([3, 2])
    """
    packing = Packing(lengths)
    if packing.lengths == [] and process_count() == 1:
        raise ValueError("expected lengths of one clip or more, got none")
    layers = ul_layers(net)
    if not layers and not torch.compiler.is_compiling():
        warnings.warn(NO_LAYERS, stacklevel=3)  # the caller of contextlib's __enter__
    if torch.compiler.is_compiling():
        before = _mark(layers, packing)
    else:
        with _ENTERING:
            _refuse_other_threads(layers)
            before = _mark(layers, packing)
    try:
        yield net
    finally:
        for layer, clips in zip(layers, before, strict=True):
            layer._clips = clips


def _mark(layers: Sequence[ULBase], packing: Packing) -> list[Packing | None]:
    """Set the clips of the layers; return the previous ones."""
    before = [layer._clips for layer in layers]
    for layer in layers:
        layer._clips = packing
    return before


def _refuse_other_threads(layers: Sequence[ULBase]) -> None:
    """Raise RuntimeError if another thread has marked clips; otherwise, this thread may.

    A backward pass that recomputes activations may run in a separate thread.
    """
    here = get_ident()
    if is_recomputing():
        return
    if any(layer._clips is not None and layer._clips_thread != here for layer in layers):
        raise RuntimeError(OTHER_THREAD)
    for layer in layers:
        layer._clips_thread = here


def backward(*outputs: Tensor) -> None:
    """Run a backward pass in which the UL layers are the only cost.

    Warns if there is no UL layer in train mode behind the outputs, since nothing is learned then.

    Args:
        *outputs: Outputs of a network with UL layers.

    Example:
        >>> import torch, ullayers as ul
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), ul.UL1d(2))
        >>> ul.backward(net(torch.randn(9, 3)))
        >>> net[0].weight.grad.shape
        torch.Size([2, 3])
    """
    for y in outputs:
        if not isinstance(y, Tensor):
            raise TypeError(
                "expected the outputs of a network as tensors, ul.backward(y1, y2, ...), got "
                f"{type(y).__name__}"
            )
        if not y.requires_grad:
            raise ValueError(
                "expected outputs that require gradients, got one that does not: were they "
                "computed under torch.no_grad()?"
            )
    if not torch.compiler.is_compiling() and not _may_have_ul_layers(outputs):
        warnings.warn(NOTHING_TO_LEARN, stacklevel=2)
    torch.autograd.backward(outputs, [torch.zeros_like(y) for y in outputs])


def _may_have_ul_layers(outputs: Sequence[Tensor]) -> bool:
    """Return whether a custom autograd function took part in computing the outputs.

    The layers add their gradient with such functions. Other custom functions, such as those of
    checkpointing or torch.compile, may contain a layer, so they count as well.
    """
    waiting: list[Any] = [y.grad_fn for y in outputs]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, BackwardCFunction):
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return False


def loss(net: nn.Module) -> Tensor:
    """Return the cost of the UL layers of `net` as a scalar, to be added to other costs.

    Its value is the sum of weight * J over the calls of the layers. Its gradient is the one that
    the layers would otherwise add in the backward pass; after this call they do not add it, so
    nothing is counted twice. Anything that scales or divides the loss also scales this gradient: a
    `GradScaler`, `loss / k` in gradient accumulation, Lightning, Accelerate. Under
    `torch.no_grad()` it returns the value alone, and the layers still add their gradient.

    For each layer that is currently in train mode, it covers the last call in train mode and
    earlier calls whose outputs are still in use and whose gradient neither `loss` nor a backward
    pass has taken. Calls whose input needs no gradient, such as those of a layer behind frozen
    layers only, are left out. In `eval()` it returns 0 and warns, whatever was called before.

    With fresh statistics the gradient is the derivative of the value. With running statistics
    (`statistics="running"`, or calls of fewer than 32 frames) it is not: it is Eq. 11 of the paper,
    which treats the averages of earlier frames as constants. Do not compare it with finite
    differences. A call whose input does not vary has no J and adds 0. With `reduction="sum"` the
    gradient is that of J times the number of steps. Warns and returns 0 if there is no call to
    cover.

    Args:
        net: Module with UL layers in it, after a forward pass in train mode.

    Raises:
        TypeError: If `net` is not a module.
        RuntimeError: If the layers ran in a graph of `torch.compile`.

    Example:
        >>> import torch, ullayers as ul
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), ul.UL1d(2, weight=0.1))
        >>> x, target = torch.randn(50, 3), torch.randn(50, 2)
        >>> task = torch.nn.functional.mse_loss(net(x), target)
        >>> (task + ul.loss(net)).backward()
        >>> net[0].weight.grad.shape
        torch.Size([2, 3])
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"ul.loss expected the network, a torch.nn.Module, got {_describe(net)}")
    present = ul_layers(net)
    layers = [layer for layer in present if layer.training]
    if any(layer._open_calls.compiled for layer in layers):
        raise RuntimeError(COMPILED)
    if torch.is_grad_enabled():
        forget_added_gradients()
    # A call keeps its graph alive, and with it the calls of other layers.
    while any([layer._open_calls.drop_unused() for layer in layers]):
        pass
    parts = [part for layer in layers for part in layer._take_loss()]
    if not parts:
        warnings.warn(EVAL_MODE if present and not layers else NO_LOSS, stacklevel=2)
        return torch.zeros(())
    return torch.stack([part.to(parts[0].device) for part in parts]).sum()


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return "a tensor; call the network first, then ul.loss(net)"
    return type(value).__name__


def mu_by_depth(net: nn.Module, nearest: float = 0.9, farthest: float = 0.5) -> dict[str, float]:
    """Set `mu` of each UL layer in `net`, larger for layers nearer to the input.

    Units near the input have small receptive fields, so their signal changes fast. Layers are taken
    in the order in which they were added to the network.

    Args:
        net: The network.
        nearest: `mu` of the UL layer nearest to the input.
        farthest: `mu` of the last UL layer, even if it is the only one.

    Returns:
        Name and new `mu` of each layer.

    Example:
        >>> import torch, ullayers as ul
        >>> net = torch.nn.Sequential(ul.UL2d(4), ul.UL2d(8), ul.UL1d(2))
        >>> ul.mu_by_depth(net)
        {'0': 0.9, '1': 0.7, '2': 0.5}
    """
    for name, mu in (("nearest", nearest), ("farthest", farthest)):
        if not 0 < mu < 1:
            raise ValueError(f"expected 0 < {name} < 1, got {mu}")
    ul_layers(net)  # refuses anything but a network
    named = {name: m for name, m in net.named_modules() if isinstance(m, ULBase)}
    last = max(1, len(named) - 1)
    chosen = {}
    for i, (name, layer) in enumerate(named.items()):
        share = i / last if len(named) > 1 else 1.0
        chosen[name] = round(nearest + share * (farthest - nearest), 12)
        if chosen[name] < layer.eps:
            raise ValueError(f"expected mu >= eps, got mu={chosen[name]} and eps={layer.eps}")
    for name, layer in named.items():
        layer.mu = chosen[name]
    return chosen


def ul_layers(net: nn.Module) -> list[ULBase]:
    """Return the UL layers of a network, in the order in which they were added.

    >>> import torch, ullayers as ul
    >>> ul.ul_layers(torch.nn.Sequential(torch.nn.Linear(3, 2), ul.UL1d(2)))
    [UL1d(2, mu=0.5, eps=0.001, weight=1.0, ...)]
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"expected a network, a torch.nn.Module, got {type(net).__name__}")
    return [module for module in net.modules() if isinstance(module, ULBase)]
