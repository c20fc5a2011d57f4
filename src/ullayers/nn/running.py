"""Calls with running statistics: W and B reach back over earlier calls (Eq. 6-11)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from operator import is_
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ullayers.kernels.dispatch import (
    NUMBA,
    PYTORCH,
    TRITON,
    RunningRequest,
    choose_running,
    listed,
)
from ullayers.kernels.numba.stream import PRECISIONS, Loop, prepare
from ullayers.kernels.packing import Packing
from ullayers.kernels.schema import why_not_as_described
from ullayers.kernels.state import Rates, State, on_host
from ullayers.kernels.torch.advance import advance
from ullayers.kernels.triton.stream import advance_frames
from ullayers.nn.added_gradient import Signal, add_gradient, refuse_gradient
from ullayers.nn.base import LayerBase, layout_of, symmetric
from ullayers.nn.statistics import is_recomputing, normal_tensors

# Covariances of few streams are ill-conditioned, so these are computed in float64: small frames,
# where it costs nothing, and those with fewer streams than this for every feature.
SMALL_FRAME, FEW_STREAMS = 4096, 2
OTHER_FRAMES = (
    "checkpointing recomputed other frames than those of the layer's last forward pass; use "
    "checkpoint(..., use_reentrant=False)"
)


@dataclass(frozen=True)
class _Pass:
    """What a forward pass began with, to be run again by reentrant checkpointing."""

    shape: torch.Size
    before: State
    clips: Packing | None
    rates: Rates


@dataclass(frozen=True)
class _Chosen:
    """The kernel for calls like the last one: to choose and prepare it takes longer than most."""

    key: Hashable
    kernel: str
    buffers: tuple[Tensor | None, ...] = ()  # of the layer, when it was chosen
    loop: Loop | None = None  # for the compiled loop

    def holds(self, key: Hashable, buffers: Iterable[Tensor | None]) -> bool:
        """Whether it is the choice for another call."""
        same = self.key == key and all(map(is_, self.buffers, buffers))
        return same and (self.loop is None or self.loop.is_in_place())


class RunningCalls(LayerBase):
    """The way of a call through the recurrence."""

    _replay: _Pass | None = None  # the last pass, if it ran without gradients
    _chosen: _Chosen | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: what was prepared knows where this layer's memory is."""
        return {**self.__dict__, "_chosen": None}

    def _forward_running(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        if is_recomputing():
            return self._recompute(y, scatter)
        if not self.training:
            return y
        if self._replay is not None:
            self._replay = None
        if not wants_gradient(y, scatter):
            self._replay, _ = self._learn(y, scatter)
            return y
        chosen = self._choose(y, scatter)
        if chosen.kernel == TRITON:
            signal: Signal | None = self._learn_frames(y)
        elif chosen.loop is not None:
            signal = self._learn_small(y, scatter, chosen.loop)
        else:
            _, signal = self._learn(y, scatter)
        assert signal is not None
        return add_gradient(y, scatter, signal)

    def _recompute(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        """The second forward pass of activation checkpointing: same gradient, nothing learned.

        With use_reentrant=True the first pass ran without gradients, so the gradient is computed
        again from the state that pass began with. With use_reentrant=False the first pass's graph
        is the one that is walked and already holds the gradient; the graph made here is not, so
        it does no harm that its backward pass would raise.
        """
        if not (self.training and y.requires_grad):
            return y
        if self._replay is not None and self._replay.shape == y.shape:
            _, signal = self._learn(y, scatter, replay=self._replay)
            if signal is not None:
                return add_gradient(y, scatter, signal)
        return refuse_gradient(y, OTHER_FRAMES)

    def _explain_running(self, y: Tensor, scatter: Tensor | None) -> str:
        return listed(*choose_running(self._call(y, scatter)))

    def _choose(self, y: Tensor, scatter: Tensor | None) -> _Chosen:
        """The kernel for a call, and what it needs."""
        if torch.compiler.is_compiling():
            return _Chosen(None, PYTORCH)
        key = (
            y.shape, y.dtype, y.device, self._clips, scatter is None, self.mu, self.eps,
            self.weight, self.reduction, self.long_term, self.ridge,
        )  # fmt: skip
        last = self._chosen
        if last is not None and last.holds(key, self._buffers.values()):
            return last
        call, loop = self._call(y, scatter), None
        kernel, _ = choose_running(call)
        if kernel != PYTORCH:
            self._make_room(call.streams, call.streams)
        buffers = cast("dict[str, Tensor]", dict(self._buffers))
        if kernel == NUMBA:
            rates, scale = self._rates(1), self._scale(call.steps)
            loop = prepare(buffers, rates, self._known, self._largest(), scale)
        made = _Chosen(key, kernel, tuple(buffers.values()), loop)
        self._chosen = made  # not to be read again: another thread may have set another
        return made

    def _call(self, y: Tensor, scatter: Tensor | None) -> RunningRequest:
        frames = self._to_positions(y)
        steps, sequences = (self._clips or Packing()).size(frames)
        buffers = cast("dict[str, Tensor]", self._buffers)
        return RunningRequest(
            y.device.type, y.dtype, self.short_cov.dtype, steps, sequences * frames.shape[-2],
            self.features, self._rates(sequences).long_term, self._diagonal,
            self._clips is not None, scatter is not None, wants_gradient(y, scatter),
            why_not_as_described(buffers),
        )  # fmt: skip

    def _scale(self, steps: int) -> float:
        return self.weight / (steps if self.reduction == "mean" else 1)

    @torch.no_grad()
    def _learn_frames(self, y: Tensor) -> Signal:
        """As `_learn`, for the frames of a single stream on a GPU."""
        rows = y.detach().reshape(-1, self.features).contiguous()
        below = torch.empty_like(rows)
        advance_frames(
            rows, below, cast("dict[str, Tensor]", self._buffers), self._rates(1),
            goes_on=self._carries_on(layout_of(y)), known=self._known, largest=self._largest(),
            scale=self._scale(len(rows)),
        )  # fmt: skip
        self._layout = layout_of(y)
        increment_version(list(self.buffers()))
        return Signal(below.view(y.shape))

    def _learn_small(self, y: Tensor, scatter: Tensor | None, loop: Loop) -> Signal:
        """As `_learn`, in one compiled call."""
        layout, single, extra = layout_of(y), y.ndim == 2, None
        frames = y.detach()
        if single:
            frames = frames.unsqueeze(1)
        else:
            frames = Packing().pack(self._to_positions(frames)).flatten(1, 2)
        if y.dtype not in PRECISIONS:
            frames = frames.float()
        if scatter is not None:
            extra = Packing().pack(symmetric(scatter.detach())).contiguous()
        goes_on = self._carries_on(layout)
        self._remember(layout)
        gradient, spread = loop.run(frames.contiguous(), extra, goes_on)
        if single:
            gradient = gradient.squeeze(1)
        else:
            gradient = gradient.unflatten(1, (len(y) if y.ndim % 2 else 1, -1))
            gradient = self._from_positions(Packing().unpack(gradient), y.shape)
        if y.dtype not in PRECISIONS:
            gradient = gradient.to(y.dtype)
        if scatter is None or spread is None:
            return Signal(gradient)
        return Signal(gradient, Packing().unpack(spread).reshape(scatter.shape).to(scatter))

    @torch.no_grad()
    def _learn(
        self, y: Tensor, scatter: Tensor | None, replay: _Pass | None = None
    ) -> tuple[_Pass, Signal | None]:
        """Move the statistics on by the frames of `y`; what it began with, and the gradients.

        With `replay` nothing is learned, and the gradients are None unless `y` are the frames of
        that pass.
        """
        packing = (replay.clips if replay else self._clips) or Packing()
        with torch.autocast(y.device.type, enabled=False), normal_tensors():
            frames, sequences, positions = self._packed(y, packing)
            steps, streams, _ = frames.shape
            extra = None if scatter is None else packing.pack(symmetric(scatter))
            active, missing = self._usable(frames, extra), 0
            if packing.ragged:
                present = packing.active(steps, sequences, frames.device)
                active = active & present.repeat_interleave(positions, dim=1)
                missing = positions * (steps * sequences - sum(packing.lengths or ()))
            work = torch.float64 if self._is_careful(streams) else frames.dtype
            made = replay or self._begin(y, sequences, positions, work)
            result = advance(frames, made.before, made.rates, active, extra, self._scale(steps))
            if replay is None:
                skipped = active.numel() - missing - active.count_nonzero()
                left_out = torch.stack([skipped, result.singular])
                self._remember(layout_of(y))
                self._write(result.state, left_out, positions, self._clips is None)
            elif not self._ends_in(result.state):
                return made, None
            gradient = result.gradient.unflatten(1, (sequences, positions))
            gradient = self._from_positions(packing.unpack(gradient), y.shape).to(y.dtype)
            if scatter is None or result.scatter_gradient is None:
                return made, Signal(gradient)
            spread = packing.unpack(result.scatter_gradient).reshape(scatter.shape)
            return made, Signal(gradient, spread.to(scatter.dtype))

    def _packed(self, y: Tensor, packing: Packing) -> tuple[Tensor, int, int]:
        """The input as (T, S, d) in float32 or wider; sequences and positions that make up S."""
        frames = packing.pack(self._to_positions(y))
        steps, sequences, positions, d = frames.shape
        if positions > 1:  # maps: channel by channel, as they are stored
            frames = frames.permute(0, 3, 1, 2).reshape(steps, d, -1).mT
        else:
            frames = frames.reshape(steps, sequences, d)
        return frames.to(torch.promote_types(y.dtype, torch.float32)), sequences, positions

    def _ends_in(self, state: State) -> bool:
        """Whether the layer's statistics are those of this state."""
        return torch.equal(state.W.value.to(self.short_cov.dtype), self.short_cov)

    def _begin(self, y: Tensor, sequences: int, positions: int, work: torch.dtype) -> _Pass:
        before = self._read(sequences, positions, self._carries_on(layout_of(y)), work)
        return _Pass(y.shape, before, self._clips, self._rates(sequences))

    def _is_careful(self, streams: int) -> bool:
        """Whether to work in float64."""
        return streams * self.features <= SMALL_FRAME or streams < FEW_STREAMS * self.features

    def _usable(self, frames: Tensor, scatter: Tensor | None) -> Tensor:
        """(T, S): where every value is a number whose square fits the statistics."""
        largest = min(self._largest(), torch.finfo(frames.dtype).max)
        if scatter is None and on_host(frames):  # one look at all, with no copy, tells most often
            low, high = (frames.mT if frames.mT.is_contiguous() else frames).aminmax()
            if bool((low >= -largest) & (high <= largest)):
                return frames.new_ones((), dtype=torch.bool).expand(frames.shape[:2])
        usable: Tensor = frames.abs().amax(-1) <= largest  # a NaN compares as false
        if scatter is not None:
            usable = usable & (scatter.abs().amax((-2, -1)) <= largest**2)
        return usable


def wants_gradient(y: Tensor, scatter: Tensor | None) -> bool:
    """Whether the backward pass will ask for a gradient of this input."""
    needs = y.requires_grad or (scatter is not None and scatter.requires_grad)
    return torch.is_grad_enabled() and needs
