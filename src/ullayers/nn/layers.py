"""UL1d and UL2d: layers that hand their input on and add a learning signal to its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ullayers.kernels.packing import Packing
from ullayers.nn.calls import ULBase


class UL1d(ULBase):
    """A UL layer for the output of a fully connected layer.

    In value it is the identity. In training it measures how the input varies within moments (W)
    and over the long run (B), and in the backward pass adds `weight * dJ/dy` to the gradient from
    above, where J = (log det W - log det B) / 2 is low for outputs that are slow and rich. As the
    last layer of a network it is the whole cost (see `backward`); after hidden layers it is a
    local signal.

    With fresh statistics W and B are those of the call's own frames, the gradient is the exact
    derivative of their J, and calls do not depend on each other. Give a call as much of the long
    run as fits. With running statistics W and B are moving averages over all calls (Eq. 6-11):
    frames of plain calls continue the streams of the call before, and the result does not depend
    on how a stream is cut into calls. But averages over past weights describe networks that no
    longer exist, and deep networks drift. `sequences` marks separate clips.

    Buffers hold the statistics of the last call, or the moving averages. In `eval()` nothing is
    learned and no gradient is added; under `no_grad` in `train()` statistics are updated, as those
    of batch normalisation are. To load a checkpoint that was made without UL layers use
    `load_state_dict(..., strict=False)`.

    Args:
        features: width d of the input.
        mu: short-term rate, 0 < eps <= mu < 1.
        eps: long-term rate.
        weight: factor of the added gradient.
        reduction: "mean" gives the gradient of J; "sum" multiplies it by the number of steps of
            the call, as if every step were a call.
        start: for running statistics. "warm" weights early frames properly and, in streams, takes
            the gradient's own moving average off, which keeps a network from drifting; "paper"
            starts means at 0 and W, B at the identity, uses no ridge, and is Eq. 6-11 to the
            letter.
        long_term: the mean that B is taken around. "stream": each stream's own moving average
            (Eq. 7). "clip": each clip's mean over all its frames; outside `sequences` every call
            is taken as a clip. "shared": one mean for all clips of a call, or with running
            statistics one moving average that outlives them. "auto": "clip" inside `sequences`,
            "stream" elsewhere.
        ridge: what is added to the diagonal of W, relative to its mean diagonal; that of B gets
            1e-4 times this, so that no output gains by vanishing. (Running statistics add it to
            both, within a factor of four.) Default 1e-4, or 0 for `start="paper"`.
        statistics: "fresh", "running", or "auto": fresh for calls of at least 32 frames (8 for
            codes of 32 features or more; in clips of two or more), running for shorter ones, which
            see too little of the long run. `start="paper"` is always running.

    Shape:
        (time, features) or (sequences, time, features), and the same out. Frames with a NaN, an
        infinite or a huge value (in float32 beyond 1e18, and less the more values a call has, so
        that sums of squares fit) are left out: they get no gradient here
        and change no statistic. (A NaN in the network's own input still makes the gradients of the
        layers below NaN, since 0 * NaN is NaN.)

    Example:
        >>> import torch, ullayers as ul
        >>> _ = torch.manual_seed(0)
        >>> angle = torch.linspace(0, 60, 600)
        >>> circle = torch.stack([angle.sin(), angle.cos()], 1)
        >>> x = circle @ torch.randn(2, 5) + 0.3 * torch.randn(600, 5)
        >>> net = torch.nn.Sequential(torch.nn.Linear(5, 2), ul.UL1d(2))
        >>> optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        >>> for step in range(100):
        ...     optimizer.zero_grad()
        ...     ul.backward(net(x))
        ...     optimizer.step()
        >>> code = net.eval()(x).detach()
        >>> left = circle - code @ torch.linalg.lstsq(code, circle).solution
        >>> bool(left.var() / circle.var() < 0.1)  # the code tells the angle
        True
    """

    def forward(self, y: Tensor, scatter: Tensor | None = None) -> Tensor:
        """Hand `y` on.

        Args:
            y: (time, features) or (sequences, time, features).
            scatter: optional (*y.shape, features), a covariance each frame brings along, such as
                the spread of a mask around its centroid (`mask_moments`). Its symmetric part is
                added to W, and its own gradient flows back.
        """
        return self._forward(y, scatter)

    def _check_shape(self, y: Tensor) -> None:
        if y.ndim not in (2, 3) or y.shape[-1] != self.features:
            raise ValueError(
                f"expected (time, {self.features}) or (sequences, time, {self.features}), "
                f"got {tuple(y.shape)}"
            )

    def _to_positions(self, y: Tensor) -> Tensor:
        return y.unsqueeze(-2)

    def _from_positions(self, y: Tensor, shape: torch.Size) -> Tensor:
        return y.reshape(shape)


class UL2d(ULBase):
    """A UL layer for the output of a convolutional layer.

    As `UL1d`, with every position of every sequence as a stream: moving averages are kept per
    position, the channels x channels covariances are pooled over positions and sequences.

    Args:
        channels: number of feature maps C.
        diagonal: keep one variance per channel instead of full covariances.
        mu, eps, weight, reduction, start, long_term, ridge, statistics: as in `UL1d`.

    Shape:
        (time, channels, height, width) or (sequences, time, channels, height, width).

    Example:
        >>> import torch, ullayers as ul
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), ul.UL2d(4, mu=0.7))
        >>> video = torch.rand(10, 1, 16, 16)
        >>> maps = net(video)
        >>> ul.backward(maps)
        >>> net[1].short_cov.shape
        torch.Size([4, 4])
        >>> bool(net[0].weight.grad.norm() > 0)
        True
    """

    def __init__(
        self,
        channels: int,
        mu: float = 0.5,
        eps: float = 1e-3,
        weight: float = 1.0,
        *,
        diagonal: bool = False,
        **choices: Any,
    ) -> None:
        super().__init__(channels, mu, eps, weight, **choices)
        self._diagonal = diagonal

    def forward(self, y: Tensor) -> Tensor:
        """Hand `y` on."""
        return self._forward(y, None)

    def _check_shape(self, y: Tensor) -> None:
        if y.ndim not in (4, 5) or y.shape[-3] != self.features:
            raise ValueError(
                f"expected (time, {self.features}, height, width) or (sequences, time, "
                f"{self.features}, height, width), got {tuple(y.shape)}"
            )

    def _to_positions(self, y: Tensor) -> Tensor:
        return y.flatten(-2).mT

    def _from_positions(self, y: Tensor, shape: torch.Size) -> Tensor:
        return y.mT.reshape(shape)


@contextmanager
def sequences(net: nn.Module, lengths: Sequence[int] | None = None) -> Iterator[nn.Module]:
    """Within this block, what passes through the UL layers of `net` are separate, whole clips.

    Nothing leaks from one clip into the next: each gets fresh means. With activation checkpointing,
    run the backward pass of a call before a call with other clips: recomputation takes the clips of
    the layer's last call.

    Args:
        net: any module that has UL layers in it.
        lengths: how many frames each clip has, for frames of clips one after the other. Without
            it, every sequence of a (sequences, time, ...) input is a clip, or a (time, ...) input
            is one clip.

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
    layers = ul_layers(net)
    before = [layer._clips for layer in layers]
    try:
        for layer in layers:
            layer._clips = packing
        yield net
    finally:
        for layer, clips in zip(layers, before, strict=True):
            layer._clips = clips


def backward(*outputs: Tensor) -> None:
    """Start a backward pass with no gradient from above: the UL layers are the only cost.

    Example:
        >>> import torch, ullayers as ul
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), ul.UL1d(2))
        >>> ul.backward(net(torch.randn(9, 3)))
        >>> net[0].weight.grad.shape
        torch.Size([2, 3])
    """
    for y in outputs:
        if not y.requires_grad:
            raise ValueError("expected the output of a network with gradients, got a constant")
    torch.autograd.backward(outputs, [torch.zeros_like(y) for y in outputs])


def mu_by_depth(net: nn.Module, nearest: float = 0.9, farthest: float = 0.5) -> dict[str, float]:
    """Set the mu of every UL layer in `net`: the nearer the input, the larger.

    Near the input a unit sees little of the picture and its signal changes fast. Layers are taken
    in the order in which they were put into the network.

    Args:
        net: the network.
        nearest: mu of the UL layer nearest to the input.
        farthest: mu of the last one, and of an only one.

    Returns:
        the name and new mu of each layer.

    Example:
        >>> import torch, ullayers as ul
        >>> net = torch.nn.Sequential(ul.UL2d(4), ul.UL2d(8), ul.UL1d(2))
        >>> ul.mu_by_depth(net)
        {'0': 0.9, '1': 0.7, '2': 0.5}
    """
    for name, mu in (("nearest", nearest), ("farthest", farthest)):
        if not 0 < mu < 1:
            raise ValueError(f"expected 0 < {name} < 1, got {mu}")
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
    """The UL layers of a network, from the input on.

    >>> import torch, ullayers as ul
    >>> ul.ul_layers(torch.nn.Sequential(torch.nn.Linear(3, 2), ul.UL1d(2)))
    [UL1d(2, mu=0.5, eps=0.001, weight=1.0, ...)]
    """
    return [module for module in net.modules() if isinstance(module, ULBase)]
