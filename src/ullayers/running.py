"""Calls with running statistics: W and B reach back over earlier calls (Eq. 6-11)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ullayers.added_gradient import Signal, add_gradient, refuse_gradient
from ullayers.base import LayerBase, layout_of, symmetric
from ullayers.core import advance
from ullayers.kernels.choose import NUMBA, PYTORCH, RUNNING, TRITON, Call, choose, listed
from ullayers.kernels.frame import advance_frames
from ullayers.kernels.schema import why_not_as_described
from ullayers.kernels.small import PRECISIONS, Loop, prepare
from ullayers.kernels.state import Rates, State, on_host
from ullayers.packing import Packing
from ullayers.statistics import is_recomputing, normal_tensors

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
    loop: Loop | None = None  # for the compiled loop


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
        if not _wants_gradient(y, scatter):
            self._replay, _ = self._learn(y, scatter)
            return y
        chosen = self._choose(y, scatter)
        if chosen.kernel == TRITON:
            signal = self._learn_frames(y)
        elif chosen.loop is not None:
            signal = self._learn_small(y, scatter, chosen.loop)
        else:
            _, signal = self._learn(y, scatter)
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
        return listed(*choose(RUNNING, self._call(y, scatter)))

    def _choose(self, y: Tensor, scatter: Tensor | None) -> _Chosen:
        """The kernel for a call, and what it needs."""
        if torch.compiler.is_compiling():
            return _Chosen(None, PYTORCH)
        key = (
            y.shape, y.dtype, y.device, self._clips, scatter is None, self.mu, self.eps,
            self.weight, self.reduction, self.long_term, self.ridge,
        )  # fmt: skip
        last, buffers = self._chosen, cast("dict[str, Tensor]", self._buffers)
        if last is not None and last.key == key and (last.loop is None or last.loop.is_of(buffers)):
            return last
        call = self._call(y, scatter)
        made = _Chosen(key, choose(RUNNING, call)[0])
        if made.kernel == NUMBA:
            self._make_room(call.streams, call.streams)
            rates, scale = self._rates(1), self._scale(call.steps)
            loop = prepare(dict(buffers), rates, self._known, self._largest(), scale)
            made = _Chosen(key, NUMBA, loop)
        self._chosen = made if made.loop is not None else None
        return made

    def _call(self, y: Tensor, scatter: Tensor | None) -> Call:
        frames = self._to_positions(y)
        steps, sequences = (self._clips or Packing()).size(frames)
        buffers = cast("dict[str, Tensor]", self._buffers)
        return Call(
            y.device.type, y.dtype, self.short_cov.dtype, steps, sequences * frames.shape[-2],
            self.features, self._rates(sequences).long_term, self._diagonal,
            self._clips is not None, scatter is not None, _wants_gradient(y, scatter),
            why_not_as_described(buffers),
        )  # fmt: skip

    def _scale(self, steps: int) -> float:
        return self.weight / (steps if self.reduction == "mean" else 1)

    @torch.no_grad()
    def _learn_frames(self, y: Tensor) -> Signal:
        """As `_learn`, for the frames of a single stream on a GPU."""
        rows = y.detach().reshape(-1, self.features).contiguous()
        below = torch.empty_like(rows)
        self._make_room(1, 1)
        advance_frames(
            rows, below, cast("dict[str, Tensor]", self._buffers), self._rates(1),
            goes_on=self._carries_on(layout_of(y)), known=self._known, largest=self._largest(),
            scale=self._scale(len(rows)),
        )  # fmt: skip
        if self._layout != layout_of(y):
            self._layout = layout_of(y)
        increment_version(list(self.buffers()))
        return Signal(below.view(y.shape))

    def _learn_small(self, y: Tensor, scatter: Tensor | None, loop: Loop) -> Signal:
        """As `_learn`, in one compiled call."""
        frames, layout, packing = y.detach(), layout_of(y), Packing()
        single = y.ndim == 2
        frames = frames[:, None] if single else packing.pack(self._to_positions(frames))
        if y.dtype not in PRECISIONS:
            frames = frames.float()
        frames, extra = frames.flatten(1, -2).contiguous(), None
        if scatter is not None:
            extra = packing.pack(symmetric(scatter.detach())).contiguous()
        goes_on = self._carries_on(layout)
        self._remember(layout)
        gradient, spread = loop.run(frames, extra, goes_on)
        if single:
            gradient = gradient[:, 0]
        else:
            sequences = len(y) if y.ndim % 2 else 1
            unpacked = packing.unpack(gradient.unflatten(1, (sequences, -1)))
            gradient = self._from_positions(unpacked, y.shape)
        gradient = gradient if y.dtype in PRECISIONS else gradient.to(y.dtype)
        if scatter is None or spread is None:
            return Signal(gradient)
        return Signal(gradient, packing.unpack(spread).reshape(scatter.shape).to(scatter))

    @torch.no_grad()
    def _learn(
        self, y: Tensor, scatter: Tensor | None, replay: _Pass | None = None
    ) -> tuple[_Pass, Any]:
        """Move the statistics on by the frames of `y`; what it began with, and the gradients.

        With `replay` nothing is learned, and the gradients are None unless `y` are the frames of
        that pass.
        """
        packing = (replay.clips if replay else self._clips) or Packing()
        with torch.autocast(y.device.type, enabled=False), normal_tensors():
            frames = packing.pack(self._to_positions(y))
            steps, sequences, positions, d = frames.shape
            streams = sequences * positions
            wide = torch.promote_types(y.dtype, torch.float32)
            work = torch.float64 if self._is_careful(streams) else wide
            if positions > 1:  # maps: channel by channel, as they are stored
                frames = frames.permute(0, 3, 1, 2).reshape(steps, d, streams).mT
            else:
                frames = frames.reshape(steps, streams, d)
            frames = frames.to(wide)
            extra = None if scatter is None else packing.pack(symmetric(scatter))
            active, missing = self._usable(frames, extra), 0
            if packing.ragged:
                present = packing.active(steps, sequences, frames.device)
                active = active & present.repeat_interleave(positions, dim=1)
                missing = positions * (steps * sequences - sum(packing.lengths or ()))
            made = replay or self._begin(y, sequences, positions, work)
            result = advance(frames, made.before, made.rates, active, extra, self._scale(steps))
            if replay is None:
                skipped = active.numel() - missing - active.count_nonzero()
                left_out = torch.stack([skipped, result.singular])
                self._remember(layout_of(y))
                self._write(result.state, left_out, positions, self._clips is None)
            elif not torch.equal(
                result.state.W.value.to(self.short_cov.dtype), self.short_cov
            ):  # other frames
                return made, None
            gradient = result.gradient.unflatten(1, (sequences, positions))
            gradient = self._from_positions(packing.unpack(gradient), y.shape).to(y.dtype)
            if scatter is None or result.scatter_gradient is None:
                return made, Signal(gradient)
            spread = packing.unpack(result.scatter_gradient).reshape(scatter.shape)
            return made, Signal(gradient, spread.to(scatter.dtype))

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


def _wants_gradient(y: Tensor, scatter: Tensor | None) -> bool:
    needs = y.requires_grad or (scatter is not None and scatter.requires_grad)
    return torch.is_grad_enabled() and needs
