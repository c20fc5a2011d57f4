"""UL1d and UL2d: layers that hand their input on and add a learning signal to its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ullayers.core import advance
from ullayers.kernels.state import LongTerm, Rates, Result, State
from ullayers.packing import Packing
from ullayers.statistics import Statistics

# Streams whose frames together are smaller than this are computed in float64: it costs nothing
# there, and few streams are where covariances are ill-conditioned.
SMALL_FRAME = 4096


class _AddGradient(torch.autograd.Function):
    """The identity, whose backward adds a gradient that was computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, scatter: Tensor | None, gradient: Tensor, scatter_gradient: Any
    ) -> Tensor:
        # Not save_for_backward: activation checkpointing drops what is saved there and would
        # have to learn from the same frames again to restore it.
        ctx.gradient, ctx.scatter_gradient = gradient, scatter_gradient
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        return above + ctx.gradient, ctx.scatter_gradient, None, None


class _UL(Statistics):
    """What both layers share: the way of a call through the recurrence."""

    _diagonal = False

    def __init__(
        self,
        features: int,
        mu: float = 0.5,
        eps: float = 1e-3,
        weight: float = 1.0,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        start: Literal["warm", "paper"] = "warm",
        long_term: Literal["auto", "clip", "stream", "shared"] = "auto",
        ridge: float | None = None,
    ) -> None:
        _check_choice("reduction", reduction, ("mean", "sum"))
        _check_choice("start", start, ("warm", "paper"))
        _check_choice("long_term", long_term, ("auto", "clip", "stream", "shared"))
        super().__init__(features, start, ridge, shared=long_term == "shared")
        self.mu, self.eps, self.weight = mu, eps, weight
        self.reduction, self.long_term = reduction, long_term
        self._check_rates()
        self._clips: Packing | None = None  # set by sequences(), for the time of its block
        self._replay: State | None = None  # where the last pass without gradients began

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return (
            f"{self.features}, mu={self.mu}, eps={self.eps}, weight={self.weight}, "
            f"reduction={self.reduction!r}, start={self.start!r}, long_term={self.long_term!r}"
        )

    def _to_positions(self, y: Tensor) -> Tensor:
        """The input as (time, positions, features), with sequences ahead if there are many."""
        raise NotImplementedError

    def _from_positions(self, frames: Tensor, shape: torch.Size) -> Tensor:
        raise NotImplementedError

    def _check_shape(self, y: Tensor) -> None:
        raise NotImplementedError

    def _forward(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        self._check(y, scatter)
        if not self.training:
            return y
        if _is_recomputing():
            return self._recompute(y, scatter)
        needs = y.requires_grad or (scatter is not None and scatter.requires_grad)
        wants_gradient = torch.is_grad_enabled() and needs
        before, gradients = self._learn(y, scatter)
        self._replay = None if wants_gradient else before
        return _add_gradient(y, scatter, *gradients) if wants_gradient else y

    def _recompute(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        """The second forward pass of activation checkpointing: same gradient, nothing learned.

        With use_reentrant=False the first pass's graph is the one that is walked and already
        holds the gradient. With use_reentrant=True it ran without one, so the gradient is
        computed again from the state the first pass began with.
        """
        if self._replay is None or not y.requires_grad:
            return y
        _, gradients = self._learn(y, scatter, replay=self._replay)
        return _add_gradient(y, scatter, *gradients)

    @torch.no_grad()
    def _learn(
        self, y: Tensor, scatter: Tensor | None, replay: State | None = None
    ) -> tuple[State, tuple[Tensor, Tensor | None]]:
        """Move the statistics on by the frames of `y`; the state before, and the gradients."""
        packing = self._clips or Packing()
        with torch.autocast(y.device.type, enabled=False):
            frames = packing.pack(self._to_positions(y))
            steps, sequences, positions, d = frames.shape
            small = sequences * positions * d <= SMALL_FRAME
            work = torch.float64 if small else torch.promote_types(y.dtype, torch.float32)
            frames = frames.reshape(steps, sequences * positions, d).to(work)
            present = packing.active(steps, sequences, frames.device)
            present = present.repeat_interleave(positions, dim=1)
            active = present & torch.isfinite(frames.sum(-1))
            before = replay or self._read(sequences, positions, self._clips is None, work)
            extra = None if scatter is None else packing.pack(scatter.double())
            result = advance(frames, before, self._rates(sequences), active, extra)
            if replay is None:
                skipped = (present & ~active).sum()
                self._write(result.state, torch.stack([skipped, result.singular]), positions)
            else:
                self._check_replay(result)
            scale = self.weight / (steps if self.reduction == "mean" else 1)
            gradient = (result.gradient * scale).view(steps, sequences, positions, d)
            gradient = self._from_positions(packing.unpack(gradient), y.shape).to(y.dtype)
            if scatter is None or result.scatter_gradient is None:
                return before, (gradient, None)
            spread = packing.unpack(result.scatter_gradient * scale).reshape(scatter.shape)
            return before, (gradient, spread.to(scatter.dtype))

    def _check_replay(self, result: Result) -> None:
        if not torch.equal(result.state.W.value.to(self.short_cov.dtype), self.short_cov):
            raise RuntimeError(
                "checkpointing recomputed other frames than those of the layer's last forward "
                "pass; use checkpoint(..., use_reentrant=False)"
            )

    def _rates(self, sequences: int) -> Rates:
        as_clips = self._clips is not None and self.start == "warm"
        long_term: LongTerm = "clip" if as_clips else "stream"
        if self.long_term != "auto":
            long_term = self.long_term
        return Rates(self.mu, self.eps, self.ridge, long_term, sequences, self._diagonal)

    def _check(self, y: Tensor, scatter: Tensor | None) -> None:
        self._check_rates()
        self._check_shape(y)
        if not y.is_floating_point():
            raise ValueError(f"expected a floating point tensor, got {y.dtype}")
        if y.numel() == 0:
            raise ValueError(f"expected at least one frame, got {tuple(y.shape)}")
        if self._clips is not None:
            self._clips.check(tuple(self._to_positions(y).shape[:-2]))
        if scatter is not None and scatter.shape != (*y.shape, self.features):
            raise ValueError(
                f"expected scatter {(*y.shape, self.features)}, got {tuple(scatter.shape)}"
            )

    def _check_rates(self) -> None:
        if not 0 < self.eps <= self.mu < 1:
            raise ValueError(f"expected 0 < eps <= mu < 1, got eps={self.eps} and mu={self.mu}")


class UL1d(_UL):
    """A UL layer for the output of a fully connected layer.

    In value it is the identity. While training it keeps the short-term and long-term mean and
    covariance of what passes through (Eq. 6-9) and, in the backward pass, adds
    `weight * dJ/dy` (Eq. 11) to the gradient from above, where J = (log det W - log det B) / 2
    is low for outputs that are slow within moments and rich over the long run. As the last layer
    of a network it is the whole cost (see `backward`); after hidden layers it is a local signal.

    Frames of plain calls continue the streams of the call before, in any portions: the result
    does not depend on how a stream is cut into calls. `sequences` marks separate clips. A call
    with another number of sequences than the last begins new streams. W and B go on in any case;
    `reset()` forgets them too. In `eval()` nothing is learned and no gradient is added.

    Args:
        features: width d of the input.
        mu: short-term rate, 0 < eps <= mu < 1.
        eps: long-term rate.
        weight: factor of the added gradient.
        reduction: "mean" divides the gradient by the number of steps of the call, so that one
            learning rate serves any chunk; "sum" does not.
        start: "warm" weights early frames properly; "paper" starts means at 0 and W, B at the
            identity, uses no ridge, and is Eq. 6-11 to the letter.
        long_term: the mean that B is taken around. "stream": each stream's own moving average
            (Eq. 7). "clip": each clip's mean over all its frames. "shared": one moving average
            for all sequences, which outlives them. "auto": "clip" inside `sequences`, "stream"
            elsewhere.
        ridge: what is added to the diagonals of W and B, relative to their mean diagonal: within
            a factor of four of this. Default 1e-4, or 0 for `start="paper"`.

    Shape:
        (time, features) or (sequences, time, features), and the same out. Frames with a NaN or
        an infinite value are left out: they get no gradient and change no statistic.

    Example:
        >>> import torch, ullayers as ul
        >>> _ = torch.manual_seed(0)
        >>> angle = torch.linspace(0, 60, 600)
        >>> x = torch.stack([angle.sin(), angle.cos()], 1) @ torch.randn(2, 5)
        >>> x = x + 0.3 * torch.randn(600, 5)
        >>> net = torch.nn.Sequential(torch.nn.Linear(5, 2), ul.UL1d(2, mu=0.3))
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> for step in range(20):
        ...     for frames in x.split(30):
        ...         optimizer.zero_grad()
        ...         ul.backward(net(frames))
        ...         optimizer.step()
        >>> net[1].health().collapsed
        False
    """

    def forward(self, y: Tensor, scatter: Tensor | None = None) -> Tensor:
        """Hand `y` on.

        Args:
            y: (time, features) or (sequences, time, features).
            scatter: optional (*y.shape, features), a covariance each frame brings along, such as
                the spread of a mask around its centroid (`mask_moments`). It is added to W, and
                its own gradient flows back.
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


class UL2d(_UL):
    """A UL layer for the output of a convolutional layer.

    As `UL1d`, with every position of every sequence as a stream: moving averages are kept per
    position, the channels x channels covariances are pooled over positions and sequences.

    Args:
        channels: number of feature maps C.
        diagonal: keep one variance per channel instead of full covariances.
        mu, eps, weight, reduction, start, long_term, ridge: as in `UL1d`.

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

    Nothing leaks from one clip into the next: each gets fresh means, while W and B go on.

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
    for layer in layers:
        layer._clips = packing
    try:
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
    named = [(name, m) for name, m in net.named_modules() if isinstance(m, _UL)]
    last = max(1, len(named) - 1)
    chosen = {}
    for i, (name, layer) in enumerate(named):
        share = i / last if len(named) > 1 else 1.0
        layer.mu = chosen[name] = round(nearest + share * (farthest - nearest), 12)
        layer._check_rates()
    return chosen


def ul_layers(net: nn.Module) -> list[_UL]:
    """The UL layers of a network, from the input on.

    >>> import torch, ullayers as ul
    >>> ul.ul_layers(torch.nn.Sequential(torch.nn.Linear(3, 2), ul.UL1d(2)))
    [UL1d(2, mu=0.5, eps=0.001, weight=1.0, reduction='mean', start='warm', long_term='auto')]
    """
    return [module for module in net.modules() if isinstance(module, _UL)]


def _add_gradient(
    y: Tensor, scatter: Tensor | None, gradient: Tensor, scatter_gradient: Tensor | None
) -> Tensor:
    added: Tensor = _AddGradient.apply(y, scatter, gradient, scatter_gradient)  # type: ignore[no-untyped-call]
    return added


def _check_choice(name: str, got: str, choices: tuple[str, ...]) -> None:
    if got not in choices:
        raise ValueError(f"expected {name} to be one of {choices}, got {got!r}")


def _is_recomputing() -> bool:
    """Whether this forward pass runs inside a backward pass, as activation checkpointing does."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() >= 0
