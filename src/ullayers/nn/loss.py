"""`loss`: the gradient of the UL layers as a scalar to add to a loss."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from ullayers.nn.layers import ul_layers
from ullayers.nn.loss_scaling import forget_added_gradients

NOTHING_TO_LEARN = (
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
        warnings.warn(EVAL_MODE if present and not layers else NOTHING_TO_LEARN, stacklevel=2)
        return torch.zeros(())
    return torch.stack([part.to(parts[0].device) for part in parts]).sum()


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return "a tensor; call the network first, then ul.loss(net)"
    return type(value).__name__
