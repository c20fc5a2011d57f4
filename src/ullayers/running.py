"""Calls with running statistics: W and B reach back over earlier calls (Eq. 6-11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ullayers.added_gradient import Signal, add_gradient
from ullayers.base import LayerBase, layout_of, symmetric
from ullayers.core import advance
from ullayers.kernels.frame import advance_frames
from ullayers.kernels.launch import Call, advance_fused
from ullayers.kernels.maps import Given, can_postpone, learn
from ullayers.kernels.small import LARGEST_FRAME, PRECISIONS, Plan, plan
from ullayers.kernels.state import PER_STREAM, Rates, Result, State, on_host
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
    """What a forward pass began with."""

    before: State
    clips: Packing | None
    rates: Rates


class RunningCalls(LayerBase):
    """The way of a call through the recurrence."""

    _replay: _Pass | None = None  # the last pass without gradients
    _plan: Plan | None = None  # made when small frames come

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: the plan knows where this layer's memory is."""
        return {**self.__dict__, "_plan": None}

    def _forward_running(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        if is_recomputing():
            return self._recompute(y, scatter)
        if not self.training:
            return y
        if self._replay is not None:
            self._replay = None
        _check_no_transform()
        needs = y.requires_grad or (scatter is not None and scatter.requires_grad)
        wants_gradient = torch.is_grad_enabled() and needs
        if wants_gradient:
            signal = self._learn_small(y, scatter) if y.is_cpu else self._learn_fused(y, scatter)
            if signal is None and y.ndim == 4:
                signal = self._learn_maps(y, scatter)
            if signal is not None:
                return add_gradient(y, scatter, signal)
        made, signal = self._learn(y, scatter)
        if not wants_gradient:
            self._replay = made
            return y
        return add_gradient(y, scatter, signal)

    def _recompute(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        """The second forward pass of activation checkpointing: same gradient, nothing learned.

        With use_reentrant=False the first pass's graph is the one that is walked and already
        holds the gradient. With use_reentrant=True it ran without one, so the gradient is
        computed again from the state the first pass began with.
        """
        if not (self.training and y.requires_grad) or _hooks_save_tensors():
            return y
        if self._replay is None:
            raise RuntimeError(OTHER_FRAMES)
        _, signal = self._learn(y, scatter, replay=self._replay)
        return add_gradient(y, scatter, signal)

    @torch.no_grad()
    def _learn(
        self, y: Tensor, scatter: Tensor | None, replay: _Pass | None = None
    ) -> tuple[_Pass, Signal]:
        """Move the statistics on by the frames of `y`; what it began with, and the gradients."""
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
            scale = self.weight / (steps if self.reduction == "mean" else 1)
            result = advance(frames, made.before, made.rates, active, extra, scale)
            if replay is None:
                skipped = active.numel() - missing - active.count_nonzero()
                left_out = torch.stack([skipped, result.singular])
                self._remember(layout_of(y))
                self._write(result.state, left_out, positions, self._clips is None)
            else:
                self._check_replay(result)
            gradient = result.gradient.unflatten(1, (sequences, positions))
            gradient = self._from_positions(packing.unpack(gradient), y.shape).to(y.dtype)
            if scatter is None or result.scatter_gradient is None:
                return made, Signal(gradient)
            spread = packing.unpack(result.scatter_gradient).reshape(scatter.shape)
            return made, Signal(gradient, spread.to(scatter.dtype))

    def _learn_small(self, y: Tensor, scatter: Tensor | None) -> Signal | None:
        """As `_learn`, in one compiled call; None for what that does not take."""
        large = y.ndim == 4 and y.numel() > len(y) * LARGEST_FRAME  # as most maps are
        if large or type(y) is not Tensor or torch.compiler.is_compiling():
            return None
        plan, frames = self._plan_small(y), y
        if plan is None:
            return None
        packing, extra, layout = plan.packing, None, layout_of(y)
        single = y.ndim == 2 and self._clips is None
        if not (single and y.is_contiguous() and not y.is_neg() and y.dtype in PRECISIONS):
            frames = packing.pack(self._to_positions(y.detach().resolve_neg())).flatten(1)
            frames = frames.to(y.dtype if y.dtype in PRECISIONS else torch.float32).contiguous()
        if scatter is not None:
            extra = packing.pack(symmetric(scatter.detach())).contiguous()
        carries_on = self._carries_on(layout)
        self._remember(layout)
        learned = plan.run(frames, extra, carries_on)
        if learned is None:
            return None
        gradient, spread = learned
        if not single:
            unpacked = packing.unpack(gradient.view(plan.shape))
            gradient = self._from_positions(unpacked, y.shape)
        gradient = gradient if y.dtype in PRECISIONS else gradient.to(y.dtype)
        if scatter is None or spread is None:
            return Signal(gradient)
        return Signal(gradient, packing.unpack(spread).reshape(scatter.shape).to(scatter))

    @torch.no_grad()
    def _learn_maps(self, y: Tensor, scatter: Tensor | None) -> Signal | None:
        """As `_learn`, for the maps of one video on a CPU; None for what that does not take."""
        rates, layout, streams = self._rates(1), layout_of(y), y.shape[-1] * y.shape[-2]
        fits = y.is_cpu and scatter is None and self._clips is None
        if not (fits and can_postpone(y, rates)):
            return None
        goes_on = self._carries_on(layout) and len(self.short_mean) == streams
        goes_on = goes_on and bool(self.continues)
        if self.start == "paper" and not goes_on:  # whose means begin with zeros
            return None
        scale = self.weight / (len(y) if self.reduction == "mean" else 1)
        given = Given(rates, scale, goes_on, self._largest(), self._is_careful(streams))
        buffers = dict(cast("dict[str, Tensor]", self._buffers))  # another thread may set others
        learned = learn(y.detach(), buffers, given)
        if learned is None:
            return None
        self._remember(layout)
        gradient, statistics = learned
        self._store(statistics, continues=True)
        return Signal(gradient)

    def _plan_small(self, y: Tensor) -> Plan | None:
        clips, buffers = self._clips, cast("dict[str, Tensor]", self._buffers)
        key = (
            y.shape, clips, self.mu, self.eps, self.weight, self.reduction, self.long_term,
            self.ridge, self.start, self._diagonal,
        )  # fmt: skip
        last = self._plan
        if last is not None and last.is_of(key, buffers):
            return last
        packing, positions = clips or Packing(), self._to_positions(y.detach())
        steps, sequences = packing.size(positions)
        scale = self.weight / (steps if self.reduction == "mean" else 1)
        scalars = (clips is None, self._known, self._largest(), scale)
        size, rates = (steps, sequences, positions.shape[-2]), self._rates(sequences)
        made = plan(key, packing, size, rates, buffers, self._make_room, scalars)
        self._plan = made  # not to be read again: another thread may have set another
        return made

    @torch.no_grad()
    def _learn_fused(self, y: Tensor, scatter: Tensor | None) -> Signal | None:
        """As `_learn`, in a few kernels on a GPU; None for what they do not take."""
        clips, buffers = self._clips, cast(dict[str, Tensor], self._buffers)
        lengths = None if clips is None else clips.lengths
        ragged = clips is not None and clips.ragged
        odd = scatter is not None or ragged or self._shared
        if odd or not y.is_cuda or torch.compiler.is_compiling():
            return None
        gradient, output = torch.empty_like(y), None
        if gradient.stride() != y.stride() or not _rows_follow(y):
            y = y.clone(memory_format=torch.contiguous_format)
            gradient = torch.empty_like(y)
        steps = lengths[0] if lengths else y.shape[y.ndim % 2]
        streams = y.numel() // (steps * self.features)
        carry_on = self._carries_on(layout_of(y))
        self._make_room(dict.fromkeys(PER_STREAM, streams))
        key = (
            type(self), y.shape, y.stride(), y.dtype, y.device, carry_on, clips is None, steps,
            self.mu, self.eps, self.ridge, self.start, self.long_term, self._diagonal,
            frozenset(buffer.dtype for buffer in buffers.values()),
        )  # fmt: skip
        scale = self.weight / (steps if self.reduction == "mean" else 1)

        def call() -> Call:
            packing = clips or Packing()
            sequences = packing.pack(self._to_positions(y)).shape[1]
            return Call(
                lambda t: packing.pack(self._to_positions(t)).mT,
                self._rates(sequences), carry_on, self._known, self._largest(), clips is None,
            )  # fmt: skip

        if streams == 1:
            if not y.is_contiguous():
                return None
            rows, below = (tensor.view(steps, self.features) for tensor in (y, gradient))
            if not advance_frames(key, rows, below, buffers, scale, call):
                return None
        else:
            if y.dtype == torch.float32:  # the kernels may work where the output will be
                output = torch.empty_like(y)
            if not advance_fused(key, y, gradient, output, buffers, scale, call):
                return None
        if self._layout != layout_of(y):  # a module takes its time to set what is the same
            self._layout = layout_of(y)
        increment_version([buffer for buffer in buffers.values() if not buffer.is_inference()])
        return Signal(gradient, None, output)

    def _begin(self, y: Tensor, sequences: int, positions: int, work: torch.dtype) -> _Pass:
        before = self._read(sequences, positions, self._carries_on(layout_of(y)), work)
        return _Pass(before, self._clips, self._rates(sequences))

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

    def _check_replay(self, result: Result) -> None:
        if not torch.equal(result.state.W.value.to(self.short_cov.dtype), self.short_cov):
            raise RuntimeError(OTHER_FRAMES)


def _rows_follow(y: Tensor) -> bool:
    """Whether the positions of a map lie one row after the other."""
    return y.ndim < 4 or y.stride(-2) == y.shape[-1] * y.stride(-1)


def _hooks_save_tensors() -> bool:
    """Whether activation checkpointing of the other kind, use_reentrant=False, is at work."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _check_no_transform() -> None:
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return
    raise RuntimeError(
        "a UL layer that learns cannot be inside torch.func.grad, vmap or their like: use "
        "ul.backward or torch.autograd, or put the layer into eval(), where it is the identity"
    )
