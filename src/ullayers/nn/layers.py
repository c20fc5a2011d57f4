"""UL1d and UL2d: identity layers that add the gradient of J in the backward pass."""

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

from ullayers.kernels.packing import Packing
from ullayers.nn.calls import ULBase
from ullayers.nn.distributed import process_count
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
_ENTERING = Lock()


class UL1d(ULBase):
    """UL layer for the output of a fully connected layer.

    **Dimension 0 is time.** The rows of a (time, features) input are consecutive frames of one
    video, not a shuffled batch; of a (sequences, time, features) input dimension 1 is time. A
    layer cannot detect shuffled frames: do not feed it from a `DataLoader` with `shuffle=True`
    over frames. Shuffle clips instead, and mark them with `sequences`.

    The output equals the input. In training the layer measures how the input varies within short
    moments (W) and over the long term (B), and in the backward pass adds `weight * dJ/dy` to the
    gradient, where J = (log det W - log det B) / 2 is low for outputs that change slowly but vary
    over the long term. As the last layer of a network it is the whole cost (see `backward`); after
    hidden layers it is a local learning signal.

    With fresh statistics, W and B are computed from the frames of the call alone, the gradient is
    the exact derivative of their J, and calls are independent. Each call should cover as much time
    as fits in memory. With running statistics, W and B are moving averages over all calls (Eq.
    6-11): each call continues the streams of the call before, and the result does not depend on how
    a stream is split into calls. However, averages over past weights do not describe the current
    network, and deep networks drift. `sequences` marks separate clips.

    The buffers hold the statistics of the last call, or the moving averages. In `eval()` nothing is
    learned and no gradient is added; in `train()` under `no_grad` the statistics are updated, as in
    batch normalisation. To load a checkpoint made without UL layers, use `load_state_dict(...,
    strict=False)`.

    Do not write to the input's memory through a numpy array before the backward pass. With fresh
    statistics the input is kept for it, so the gradient would silently be wrong; in-place PyTorch
    operations are detected. In `eval()`, under `no_grad`, and for an input that needs no gradient,
    the output is the input itself, as with `torch.nn.Identity`; otherwise it is a copy.

    Args:
        features: Number of features d of the input.
        mu: Short-term rate, 0 < eps <= mu < 1.
        eps: Long-term rate.
        weight: Factor of the added gradient.
        reduction: "mean" adds the gradient of J; "sum" multiplies it by the number of steps of the
            call, as if each step were a call.
        start: For running statistics. "warm" weights early frames correctly and, in streams,
            subtracts the moving average of the gradient, which prevents drift; "paper" starts
            means at 0 and W, B at the identity, uses no ridge, and is exactly Eq. 6-11.
        long_term: Reference mean for long-term variation (B). "stream": moving average of each
            stream (Eq. 7). "clip": mean over all frames of each clip; outside `sequences` each
            call is a clip. "shared": one mean for all clips of a call, or with running statistics
            one moving average for all clips of all calls. "auto": "clip" inside `sequences`,
            "stream" outside.
        ridge: Added to the diagonal of W, relative to its mean diagonal; B gets 1e-4 times as
            much, so that no output gains by vanishing. (Running statistics add it to both, within
            a factor of four.) Default 1e-4, or 0 for `start="paper"`.
        statistics: "fresh", "running" or "auto". "auto" is fresh for calls of at least 32 frames
            (8 for 32 features or more; frames of single-frame clips do not count) and running for
            shorter calls, which cover too little time. `start="paper"` is always running.
        synchronize: Whether processes of `torch.distributed` share W, B and J. Each process has its
            own clips; a process without any passes an empty input. Only for fresh statistics.

    Shape:
        Input and output: (time, features) or (sequences, time, features). Frames with a NaN, an
        infinite or a very large value (above 1e18 in float32, less for calls with many values, so
        that sums of squares fit) are skipped: they get no gradient from this layer and do not
        change the statistics. (A NaN in the network's own input still makes the gradients of the
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
        >>> bool(left.var() / circle.var() < 0.1)  # the code gives the angle
        True
    """

    def forward(self, y: Tensor, scatter: Tensor | None = None) -> Tensor:
        """Return `y`, and in training learn from it.

        Args:
            y: (time, features) or (sequences, time, features).
            scatter: Optional (*y.shape, features), a covariance for each frame, such as the spread
                of a mask around its centroid (`mask_moments`). Its symmetric part is added to W,
                and it receives its own gradient.
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
    """UL layer for the output of a convolutional layer.

    **Dimension 0 is time.** A (time, channels, height, width) input holds consecutive frames of one
    video, not a shuffled batch of pictures; of a (sequences, time, channels, height, width) input
    dimension 1 is time.

    Works like `UL1d`, with each position of each sequence as a stream: means are kept per position,
    and the channels x channels covariances are pooled over positions and sequences.

    Args:
        channels: Number of feature maps.
        mu: Short-term rate, as in `UL1d`.
        eps: Long-term rate, as in `UL1d`.
        weight: Factor of the added gradient.
        diagonal: Whether to keep one variance per channel instead of full covariances.
        **choices: `reduction`, `start`, `long_term`, `ridge`, `statistics` and `synchronize`, as in
            `UL1d`.

    Shape:
        Input and output: (time, channels, height, width) or (sequences, time, channels, height,
        width).

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
        """Return `y`, and in training learn from it."""
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
