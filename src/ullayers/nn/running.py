"""Calls with running statistics: W and B are moving averages over calls (Eq. 6-11)."""

from __future__ import annotations

import warnings
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
from ullayers.kernels.state import Rates, Result, State, fitting, on_host
from ullayers.kernels.torch.advance import advance
from ullayers.kernels.triton.stream import advance_frames
from ullayers.nn.added_gradient import Signal, add_gradient, refuse_gradient
from ullayers.nn.base import LayerBase, layout_of, symmetric
from ullayers.nn.open_calls import LayerCall
from ullayers.nn.statistics import is_recomputing, normal_tensors

# Covariances of few streams are ill-conditioned. These calls are computed in float64: frames of at
# most SMALL_FRAME values, where it costs nothing, and fewer than FEW_STREAMS streams per feature.
SMALL_FRAME, FEW_STREAMS = 4096, 2
OTHER_FRAMES = (
    "checkpointing recomputed other frames than those of the layer's last forward pass; use "
    "checkpoint(..., use_reentrant=False)"
)
REENTRANT_LOSS = (
    "ul.loss found nothing, because checkpoint(..., use_reentrant=True) runs the forward pass "
    "without gradients; use checkpoint(..., use_reentrant=False)"
)
SINGLE_FRAME_CLIPS = (
    "all clips of this call have a single frame: a UL layer learns how outputs change over time, "
    "so it learns nothing from them. Give clips of two frames or more to `sequences`, or call the "
    "network outside of it to continue a stream"
)


@dataclass(frozen=True)
class _Pass:
    """Initial state of a forward pass, so that reentrant checkpointing can repeat it."""

    shape: torch.Size
    before: State
    clips: Packing | None
    rates: Rates


@dataclass(frozen=True)
class _Chosen:
    """The kernel of the last call, kept because choosing and preparing it takes time."""

    key: Hashable
    kernel: str
    buffers: tuple[Tensor | None, ...] = ()  # of the layer, when it was chosen
    loop: Loop | None = None  # for the compiled loop

    def holds(self, key: Hashable, buffers: Iterable[Tensor | None]) -> bool:
        """Return whether a call with this key and these buffers can use the kernel again."""
        same = self.key == key and all(map(is_, self.buffers, buffers))
        return same and (self.loop is None or self.loop.is_in_place())


class RunningCalls(LayerBase):
    """Forward passes with running statistics."""

    _replay: _Pass | None = None  # the last pass, if it ran without gradients
    _chosen: _Chosen | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave state of the last call out of copies and pickles."""
        return {**self.__dict__, "_chosen": None, "_replay": None}

    def _forward_running(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        if is_recomputing():
            return self._recompute(y, scatter)
        if not self.training:
            return y
        call = self._begin_call(wants_gradient(y, scatter))
        self._warn_of_single_frames(y)
        with self._lock.held():  # no other thread may resize or write the statistics
            if self._replay is not None:
                self._replay = None
            if not wants_gradient(y, scatter):
                self._replay, _ = self._learn(y, scatter)
                return y
            signal = self._learn_with_gradient(y, scatter)
        return add_gradient(y, scatter, signal, call)

    def _learn_with_gradient(self, y: Tensor, scatter: Tensor | None) -> Signal:
        chosen = self._choose(y, scatter)
        if chosen.kernel == TRITON:
            return self._learn_on_gpu(y)
        if chosen.loop is not None:
            return self._learn_in_loop(y, scatter, chosen.loop)
        _, signal = self._learn(y, scatter)
        assert signal is not None
        return signal

    def _begin_call(self, gradient: bool) -> LayerCall | None:
        return self._open_calls.begin(self.weight, gradient, lambda: self.objective)

    def _take_loss(self) -> list[Tensor]:
        """Return the terms of `loss`; under no_grad, leave their gradients to the layer."""
        calls = self._open_calls
        return (calls.take if torch.is_grad_enabled() else calls.values)(lambda: self.objective)

    def _warn_of_single_frames(self, y: Tensor) -> None:
        """Warn if all clips have one frame: without a past there is no gradient."""
        if self._clips is None or torch.compiler.is_compiling():
            return
        has_past = self.start == "paper" or self.long_term == "shared"
        if not has_past and max(self._lengths(y)) == 1:
            warnings.warn(SINGLE_FRAME_CLIPS, stacklevel=2)

    def _recompute(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        """Run the second forward pass of activation checkpointing: nothing is learned again.

        With use_reentrant=True the first pass ran without gradients, so the gradient is computed
        from the state before that pass. With use_reentrant=False the backward pass uses the graph
        of the first pass, which has the gradient; the backward pass of the graph made here would
        raise an error, but never runs.
        """
        if not (self.training and y.requires_grad):
            return y
        if self._open_calls.missed:
            return refuse_gradient(y, REENTRANT_LOSS)
        if self._replay is not None and self._replay.shape == y.shape:
            _, signal = self._learn(y, scatter, replay=self._replay)
            if signal is not None:
                return add_gradient(y, scatter, signal, self._begin_call(True))
        return refuse_gradient(y, OTHER_FRAMES)

    def _explain_running(self, y: Tensor, scatter: Tensor | None) -> str:
        return listed(*choose_running(self._running_request(y, scatter)))

    def _choose(self, y: Tensor, scatter: Tensor | None) -> _Chosen:
        """Return the kernel for a call, prepared."""
        if torch.compiler.is_compiling():
            return _Chosen(None, PYTORCH)
        settings = self.mu, self.eps, self.weight, self.reduction, self.long_term, self.ridge
        key = (y.shape, y.dtype, y.device, self._clips, scatter is None, settings)
        last = self._chosen
        if last is not None and last.holds(key, self._buffers.values()):
            return last
        request = self._running_request(y, scatter)
        kernel, _ = choose_running(request)
        if kernel != PYTORCH:
            self._make_room(request.streams, request.streams)
        buffers = cast("dict[str, Tensor]", dict(self._buffers))
        loop = None
        if kernel == NUMBA:
            rates, scale = self._rates(1), self._scale(request.steps)
            loop = prepare(buffers, rates, self._known, self._largest(), scale)
        self._chosen = _Chosen(key, kernel, tuple(buffers.values()), loop)
        return self._chosen

    def _running_request(self, y: Tensor, scatter: Tensor | None) -> RunningRequest:
        frames = self._to_positions(y)
        steps, sequences = (self._clips or Packing()).size(frames)
        return RunningRequest(
            device=y.device.type,
            frames=y.dtype,
            statistics=self.short_cov.dtype,
            steps=steps,
            streams=sequences * frames.shape[-2],
            features=self.features,
            long_term=self._rates(sequences).long_term,
            diagonal=self._diagonal,
            clips=self._clips is not None,
            scatter=scatter is not None,
            gradient=wants_gradient(y, scatter),
            replaced=why_not_as_described(cast("dict[str, Tensor]", self._buffers)),
        )

    def _scale(self, steps: int) -> float:
        return self.weight / (steps if self.reduction == "mean" else 1)

    @torch.no_grad()
    def _learn_on_gpu(self, y: Tensor) -> Signal:
        """Do what `_learn` does, for frames of a single stream on a GPU."""
        rows = y.detach().reshape(-1, self.features).contiguous()
        gradient = torch.empty_like(rows)
        advance_frames(
            rows,
            gradient,
            cast("dict[str, Tensor]", self._buffers),
            self._rates(1),
            carry_on=self._carries_on(layout_of(y)),
            known=self._known,
            largest=self._largest(),
            scale=self._scale(len(rows)),
        )
        self._layout = layout_of(y)
        increment_version(list(self.buffers()))
        return Signal(gradient.view(y.shape))

    def _learn_in_loop(self, y: Tensor, scatter: Tensor | None, loop: Loop) -> Signal:
        """Do what `_learn` does, in one compiled call."""
        packing = Packing()
        frames = y.detach()
        if y.ndim == 2:  # the common case, without the cost of packing
            frames = frames.unsqueeze(1)
        else:
            frames = packing.pack(self._to_positions(frames)).flatten(1, 2)
        if y.dtype not in PRECISIONS:
            frames = frames.float()
        extra = None
        if scatter is not None:
            extra = packing.pack(symmetric(scatter.detach())).contiguous()
        layout = layout_of(y)
        carry_on = self._carries_on(layout)
        self._remember(layout)
        gradient, extra_gradient = loop.run(frames.contiguous(), extra, carry_on)
        if y.ndim == 2:
            gradient = gradient.squeeze(1)
        else:
            gradient = self._unpacked(gradient, packing, len(y) if y.ndim % 2 else 1, y.shape)
        if y.dtype not in PRECISIONS:
            gradient = gradient.to(y.dtype)
        return Signal(gradient, _scatter_gradient(extra_gradient, packing, scatter))

    @torch.no_grad()
    def _learn(
        self, y: Tensor, scatter: Tensor | None, replay: _Pass | None = None
    ) -> tuple[_Pass, Signal | None]:
        """Update the statistics with the frames of `y`.

        With `replay` nothing is learned, and the gradients are None unless `y` are the frames of
        that pass.

        Returns:
            The initial state of the pass, and the gradients.
        """
        packing = (replay.clips if replay else self._clips) or Packing()
        with torch.autocast(y.device.type, enabled=False), normal_tensors():
            frames, sequences, positions = self._packed(y, packing)
            steps, streams, _ = frames.shape
            work = torch.float64 if self._is_careful(streams) else frames.dtype
            extra = None if scatter is None else packing.pack(symmetric(scatter))
            active, skipped = self._active(frames, extra, packing, sequences, work)
            begun = replay or self._begin(y, sequences, positions, work)
            result = advance(frames, begun.before, begun.rates, active, extra, self._scale(steps))
            if replay is None:
                self._remember(layout_of(y))
                left_out = torch.stack([skipped, result.singular])
                self._write(result.state, left_out, positions, self._clips is None)
            elif not self._ends_in(result.state):
                return begun, None
            return begun, self._signal(result, packing, sequences, y, scatter)

    def _signal(
        self, result: Result, packing: Packing, sequences: int, y: Tensor, scatter: Tensor | None
    ) -> Signal:
        """Return the gradients in the shape and dtype of the inputs."""
        at_least_float32 = torch.promote_types(y.dtype, torch.float32)
        gradient = fitting(result.gradient, at_least_float32).to(y.dtype)
        gradient = self._unpacked(gradient, packing, sequences, y.shape)
        return Signal(gradient, _scatter_gradient(result.scatter_gradient, packing, scatter))

    def _packed(self, y: Tensor, packing: Packing) -> tuple[Tensor, int, int]:
        """Return the input as (T, S, d) in float32 or wider, and the sequences and positions."""
        frames = packing.pack(self._to_positions(y))
        steps, sequences, positions, d = frames.shape
        if positions > 1:  # maps: channel by channel, as they are stored
            frames = frames.permute(0, 3, 1, 2).reshape(steps, d, -1).mT
        else:
            frames = frames.reshape(steps, sequences, d)
        return frames.to(torch.promote_types(y.dtype, torch.float32)), sequences, positions

    def _unpacked(
        self, gradient: Tensor, packing: Packing, sequences: int, shape: torch.Size
    ) -> Tensor:
        """Return a gradient (T, S, d) in the shape of the input."""
        return self._from_positions(packing.unpack(gradient.unflatten(1, (sequences, -1))), shape)

    def _ends_in(self, state: State) -> bool:
        """Return whether the layer's statistics are those of this state."""
        return torch.equal(state.W.value.to(self.short_cov.dtype), self.short_cov)

    def _begin(self, y: Tensor, sequences: int, positions: int, work: torch.dtype) -> _Pass:
        before = self._read(sequences, positions, self._carries_on(layout_of(y)), work)
        return _Pass(y.shape, before, self._clips, self._rates(sequences))

    def _is_careful(self, streams: int) -> bool:
        """Return whether to compute in float64."""
        return streams * self.features <= SMALL_FRAME or streams < FEW_STREAMS * self.features

    def _active(
        self,
        frames: Tensor,
        scatter: Tensor | None,
        packing: Packing,
        sequences: int,
        work: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Return (T, S) bool, where there is a usable frame, and the number of unusable ones."""
        active = self._usable(frames, scatter, work)
        steps, streams = active.shape
        positions = streams // sequences
        padding = 0
        if packing.ragged:
            present = packing.active(steps, sequences, frames.device)
            active = active & present.repeat_interleave(positions, dim=1)
            padding = positions * (steps * sequences - sum(packing.lengths or ()))
        return active, active.numel() - padding - active.count_nonzero()

    def _usable(self, frames: Tensor, scatter: Tensor | None, work: torch.dtype) -> Tensor:
        """Return (T, S) bool: where all values are finite and sums of their squares fit."""
        _, streams, d = frames.shape
        in_sums = (torch.finfo(work).max / (16 * streams * d)) ** 0.5
        largest = min(self._largest(), in_sums, torch.finfo(frames.dtype).max)
        if scatter is None and on_host(frames):  # usually one check of all frames is enough
            low, high = (frames.mT if frames.mT.is_contiguous() else frames).aminmax()
            if bool((low >= -largest) & (high <= largest)):
                return frames.new_ones((), dtype=torch.bool).expand(frames.shape[:2])
        usable: Tensor = frames.abs().amax(-1) <= largest  # false for NaN
        if scatter is not None:
            usable = usable & (scatter.abs().amax((-2, -1)) <= largest**2)
        return usable


def _scatter_gradient(
    gradient: Tensor | None, packing: Packing, scatter: Tensor | None
) -> Tensor | None:
    """Return the gradient (T, S, d, d) of the scatter in the scatter's shape and dtype."""
    if gradient is None or scatter is None:
        return None
    return fitting(packing.unpack(gradient).reshape(scatter.shape), scatter.dtype)


def wants_gradient(y: Tensor, scatter: Tensor | None) -> bool:
    """Return whether the backward pass will need a gradient of this input."""
    needs = y.requires_grad or (scatter is not None and scatter.requires_grad)
    return torch.is_grad_enabled() and needs
