"""UL1d and UL2d: identity layers that add the gradient of J in the backward pass."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal, cast

import torch
from torch import Tensor

import ullayers.kernels.custom_ops as fresh_ops
from ullayers.kernels.dispatch import (
    Differentiable,
    choose_fresh,
    choose_pooled,
    evaluate_fresh,
    evaluate_pooled,
    listed,
)
from ullayers.kernels.frames import Packing, fitting, on_host
from ullayers.kernels.moments import (
    Evaluation,
    LongTerm,
    Rates,
    Request,
    covariance_evidence,
    on_device,
)
from ullayers.kernels.torch.fresh import NAME
from ullayers.kernels.torch.running import (
    ONE_FRAME,
    RIDGE_HIGH,
    Result,
    State,
    advance,
    advance_frame,
    why_no_frame,
)
from ullayers.nn.added_gradient import (
    FreshCall,
    LayerCall,
    OpenCalls,
    Signal,
    add_fresh_gradient,
    add_gradient,
    as_frames,
    refuse_gradient,
    refuse_transforms,
)
from ullayers.nn.distributed import Member, Pool, Share, process_count
from ullayers.nn.statistics import WITH_REST, Statistics, is_recomputing, normal_tensors

# statistics="auto" is fresh for calls of at least this many frames; shorter calls contain too
# little long-term variation. Wide codes do not learn from running statistics (docs/maths.md,
# section 5).
FRESH_FROM = 32
WIDE = 32
FRESH_FROM_IF_WIDE = 8
# Covariances of few streams are ill-conditioned. Calls with running statistics are computed in
# float64 for frames of at most SMALL_FRAME values, where it costs nothing, and for fewer than
# FEW_STREAMS streams per feature.
SMALL_FRAME, FEW_STREAMS = 4096, 2
ONLY_RUNNING = ("pull", *(f"{name}_rest" for name in WITH_REST))
NO_RUNNING = (
    "running statistics are not synchronised over processes, and there are {processes}: use "
    'statistics="fresh", or synchronize=False for statistics of each process alone'
)
NO_COMPILE = (
    "torch.compile does not support UL layers that synchronise statistics over processes: compile "
    "the parts of the network between them, or use synchronize=False"
)
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
    rates: Rates


class ULBase(Statistics):
    """A UL layer, except for the shape of its input."""

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
        statistics: Literal["auto", "fresh", "running"] = "auto",
        synchronize: bool = True,
    ) -> None:
        _check_choice("reduction", reduction, ("mean", "sum"))
        _check_choice("start", start, ("warm", "paper"))
        for name, value in (("mu", mu), ("eps", eps), ("weight", weight)):
            _check_number(name, value)
        super().__init__(features, start, ridge, long_term)
        self.mu = mu
        self.eps = eps
        self.weight = weight
        self.reduction = reduction
        self.statistics = statistics
        self.synchronize = synchronize
        self._member = Member()
        self._open_calls = OpenCalls()
        self._check_settings()
        self._clips: Packing | None = None  # set by sequences() within its block
        self._last_clips: Packing | None = None  # of the last forward pass
        self._clips_thread: int | None = None  # the thread that set them
        self._replay: _Pass | None = None  # the last pass, if it ran without gradients

    def __getstate__(self) -> dict[str, Any]:
        """Leave state of the last call out of copies and pickles."""
        return {**self.__dict__, "_replay": None}

    def extra_repr(self) -> str:
        """Return the settings, for print(net)."""
        return (
            f"{self.features}, mu={self.mu}, eps={self.eps}, weight={self.weight}, "
            f"reduction={self.reduction!r}, start={self.start!r}, long_term={self.long_term!r}, "
            f"statistics={self.statistics!r}, dim 0 is time"
        )

    @property
    def _processes(self) -> int:
        """Number of processes with which the statistics are shared."""
        return process_count() if self.synchronize else 1

    def _check_shape(self, y: Tensor) -> None:
        raise NotImplementedError

    def _carries_on(self, layout: torch.Size) -> bool:
        """Return whether frames of this layout may continue the streams of the last call."""
        same = self._layout is None or self._layout == layout
        return self._clips is None and same

    def _remember(self, layout: torch.Size) -> None:
        """Set the layout before the statistics are written.

        If writing them fails, the streams are reset in the next call.
        """
        if self._layout != layout:
            if self._layout is not None:
                self.continues.fill_(False)
            self._layout = layout

    def _largest(self) -> float:
        """Return the largest value whose square, and sums of it, fit the statistics."""
        return float(torch.finfo(self.short_cov.dtype).max ** 0.5 / 16)

    def _lengths(self, y: Tensor) -> tuple[int, ...]:
        """Return the number of frames of each clip or stream."""
        if y.numel() == 0:
            return ()
        if self._clips is not None and self._clips.lengths is not None:
            return tuple(self._clips.lengths)
        return (y.shape[0],) if y.ndim % 2 == 0 else (y.shape[1],) * y.shape[0]

    def _rates(self, sequences: int) -> Rates:
        as_clips = self._clips is not None and self.start == "warm"
        long_term: LongTerm = "clip" if as_clips else "stream"
        if self.long_term != "auto":
            long_term = self.long_term
        # A clip's own mean moves with the weights, so there is no drift to remove.
        centred = self.start == "warm" and long_term != "clip"
        return Rates(self.mu, self.eps, self.ridge, long_term, sequences, self._diagonal, centred)

    def _check(self, y: Tensor, scatter: Tensor | None) -> None:
        self._check_settings()
        if not isinstance(y, Tensor):
            raise ValueError(f"expected a tensor, got {type(y).__name__}")
        self._check_shape(y)
        if not y.is_floating_point():
            raise ValueError(f"expected a floating point tensor, got {y.dtype}")
        if y.numel() == 0 and self._processes == 1:
            raise ValueError(f"expected at least one frame, got {tuple(y.shape)}")
        if self._clips is not None:
            self._clips.check(
                tuple(as_frames(y, self.features).shape[:1])
                if y.ndim % 2 == 0
                else tuple(y.shape[:2])
            )
        if scatter is not None:
            self._check_scatter(y, scatter)

    def _check_scatter(self, y: Tensor, scatter: Tensor) -> None:
        expected, got = (*y.shape, self.features), tuple(scatter.shape)
        if got != expected:
            raise ValueError(f"expected scatter {expected}, got {got}")
        if scatter.device != y.device:
            raise ValueError(f"expected scatter on {y.device}, got it on {scatter.device}")

    def _check_settings(self) -> None:
        if not 0 < self.eps <= self.mu < 1:
            raise ValueError(f"expected 0 < eps <= mu < 1, got eps={self.eps} and mu={self.mu}")
        if not -inf < self.weight < inf:
            raise ValueError(f"expected a finite weight, got {self.weight}")
        _check_choice("long_term", self.long_term, ("auto", "clip", "stream", "shared"))
        _check_choice("statistics", self.statistics, ("auto", "fresh", "running"))
        if self.start == "paper" and self.statistics == "fresh":
            raise ValueError(
                'expected statistics="running" or "auto" with start="paper", got statistics="fresh"'
            )

    def _forward(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        clips = self._clips
        if is_recomputing():  # possibly after the block that marked the clips
            self._clips = self._last_clips
        elif self.training and self._last_clips is not clips:
            self._last_clips = clips
        try:
            return self._forward_checked(y, scatter)
        finally:
            if self._clips is not clips:
                self._clips = clips

    def _forward_checked(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        self._check(y, scatter)
        if self.training:
            refuse_transforms()
            if self._is_fresh(y):
                return self._forward_fresh(y, scatter)
        return self._forward_running(y, scatter)

    def explain(self, y: Tensor, scatter: Tensor | None = None) -> str:
        """Return which statistics and kernel an input would use, and why; nothing is learned.

        Example:
            >>> import torch, ullayers as ul
            >>> layer = ul.UL1d(300)
            >>> print(layer.explain(torch.randn(6, 300, requires_grad=True)))
            running statistics: 6 frames, fewer than 8
            PyTorch operations
              not NumPy and LAPACK for one frame: 6 frames
            >>> print(layer.explain(torch.randn(64, 300, requires_grad=True)))
            fresh statistics: 64 frames, at least 8
            PyTorch operations
              not Triton kernels: the frames are not on a GPU
              not compiled CPU loops for maps: these are codes, not maps
        """
        self._check(y, scatter)
        if not self.training:
            return "eval mode: the layer is the identity"
        if not self._is_fresh(y):
            return f"running statistics: {self._why_statistics(y)}\n{self._kernel(y, scatter)}"
        request = self._request(y)
        frames = as_frames(y.detach(), self.features)
        if request.processes > 1:
            name, _, reasons = choose_pooled(frames, request, scatter)
            kernels = listed(name, reasons)
            return f"fresh statistics: those of {request.processes} processes\n{kernels}"
        kernel, reasons = choose_fresh(frames, request, scatter)
        return f"fresh statistics: {self._why_statistics(y)}\n{listed(kernel.NAME, reasons)}"

    def _kernel(self, y: Tensor, scatter: Tensor | None) -> str:
        """Return the kernel of a call with running statistics, and why not a faster one."""
        reason = self._why_no_frame(y, scatter)
        if not wants_gradient(y, scatter):
            reason = "no gradient is needed"
        return ONE_FRAME if reason is None else listed(NAME, {ONE_FRAME: reason})

    def _why_statistics(self, y: Tensor) -> str:
        if self.start == "paper":
            return 'start="paper"'
        if self.statistics != "auto":
            return f'statistics="{self.statistics}"'
        lengths = self._lengths(y)
        frames = self._frames_with_company(y)
        if frames >= self._enough_frames:
            return f"{frames} frames, at least {self._enough_frames}"
        alone = ", those of clips of a single frame left out" if 1 in lengths[1:] else ""
        return f"{frames or sum(lengths)} frames, fewer than {self._enough_frames}{alone}"

    def _frames_with_company(self, y: Tensor) -> int:
        """Return the number of frames in clips of two frames or more."""
        return sum(n for n in self._lengths(y) if n > 1)

    @property
    def _enough_frames(self) -> int:
        """Least number of frames for which `statistics="auto"` is fresh."""
        return FRESH_FROM if self.features < WIDE else FRESH_FROM_IF_WIDE

    def _is_fresh(self, y: Tensor) -> bool:
        """Return whether this call uses fresh statistics."""
        if self._processes > 1:
            if self.start == "paper" or self.statistics == "running":
                raise ValueError(NO_RUNNING.format(processes=self._processes))
            return True  # if there are enough frames in all processes together
        if self.start == "paper" or self.statistics == "running":
            return False
        frames = self._frames_with_company(y)
        if self.statistics == "fresh" and not frames:
            raise ValueError(
                'expected at least two frames of a clip for statistics="fresh", got one; use '
                '"auto" or "running"'
            )
        return self.statistics == "fresh" or frames >= self._enough_frames

    def _forward_fresh(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        if self._open_calls.missed and is_recomputing():
            return refuse_gradient(y, REENTRANT_LOSS)
        call = self._begin_call(wants_gradient(y, scatter))
        with torch.no_grad(), torch.autocast(y.device.type, enabled=False), normal_tensors():
            frames, extra = as_frames(y.detach(), self.features), None
            if scatter is not None:
                extra = symmetric(scatter.detach()).reshape(-1, self.features, self.features)
            kernel, request, made, clips = self._evaluate(y, frames, extra)
        output = y
        if wants_gradient(y, scatter):
            fresh = FreshCall(kernel, request, made.weights.by_rows, scatter is not None)
            kept = made.weights.matrices, *made.saved
            output = add_fresh_gradient(fresh, y, scatter, kept, call)
        if not is_recomputing():
            with self._lock.held(), torch.no_grad(), normal_tensors():
                self._record(y, request, made, clips)
        return output

    def _evaluate(
        self, y: Tensor, frames: Tensor, scatter: Tensor | None
    ) -> tuple[Differentiable | None, Request, Evaluation, int]:
        """Return the kernel, its settings and results, and the clips for which to keep means."""
        request = self._request(y)
        if request.processes > 1:
            return self._evaluate_pooled(y, frames, request, scatter)
        if torch.compiler.is_compiling():
            made = fresh_ops.evaluate(frames, request, scatter)
            return None, request, made, len(request.lengths)
        kernel, made = evaluate_fresh(frames, request, scatter)
        return kernel, request, made, len(request.lengths)

    def _evaluate_pooled(
        self, y: Tensor, frames: Tensor, request: Request, scatter: Tensor | None
    ) -> tuple[Differentiable, Request, Evaluation, int]:
        """Do what `_evaluate` does, with the frames of all processes."""
        if torch.compiler.is_compiling():
            raise RuntimeError(NO_COMPILE)
        lengths = request.lengths
        moving = self._frames_with_company(y)
        count, _, positions = frames.shape
        share = Share(
            max(lengths, default=0), len(lengths), moving, count * positions, frames.numel()
        )
        shape = " x ".join(map(str, y.shape[-3:] if y.ndim > 3 else y.shape[-1:]))
        rates = request.rates
        description = (
            f"{type(self).__name__} on {y.dtype} frames of {shape} ({y.device.type}) with "
            f"mu={rates.mu}, eps={rates.eps}, ridge={rates.ridge}, long_term={rates.long_term!r}, "
            f"diagonal={rates.diagonal}, scatter={scatter is not None}, weight={self.weight}, "
            f"reduction={self.reduction!r}, statistics={self.statistics!r}"
        )
        pool = Pool(self._member, description, share, by_steps=self.reduction == "sum")
        kernel, whole, made = evaluate_pooled(frames, request, scatter, pool)
        self._check_enough(pool)
        return kernel, whole, made, pool.most_clips()

    def _check_enough(self, pool: Pool) -> None:
        if self.statistics == "fresh":
            if not pool.moving():
                raise ValueError(
                    "expected a clip of two frames or more in one process or more, got none in "
                    f"all {pool.processes} processes"
                )
        elif pool.moving() < self._enough_frames:
            raise ValueError(
                f"expected at least {self._enough_frames} frames in clips of two frames or more, "
                f"in all {pool.processes} processes together, got {pool.moving()}: running "
                'statistics are not synchronised; use more frames or statistics="fresh"'
            )

    def _request(self, y: Tensor) -> Request:
        lengths, processes = self._lengths(y), self._processes
        # The sum of the squares of all values must not overflow.
        widest = torch.finfo(torch.promote_types(y.dtype, torch.float32)).max
        largest = (widest / (16 * max(1, y.numel()))) ** 0.5
        # Gradients are averaged over processes, but this J is that of all processes together.
        scale = self.weight * processes
        if self.reduction == "sum" and processes == 1:
            scale *= max(lengths)
        rates = self._rates(len(lengths))
        return Request(lengths, rates, min(self._largest(), largest), float(scale), processes)

    def _record(self, y: Tensor, request: Request, made: Evaluation, clips: int) -> None:
        """Write the statistics of this call to the buffers.

        Args:
            y: The input.
            request: Settings of the call.
            made: Its results.
            clips: Number of clips for which to keep means. It is the same in all processes, whose
                buffers DDP may copy to each other; clips that a process does not have are zero.
        """
        self._remember(layout_of(y))
        ridge = RIDGE_HIGH * request.rates.ridge / self.features
        levels = tuple(ridge * seen for seen in covariance_evidence(request))
        W, B = made.covariances.unbind()
        buffers = cast("dict[str, Tensor]", self._buffers)
        new = {
            "short_mean": made.short_mean,
            "long_mean": made.long_mean,
            # Evidence, so that calls with running statistics can continue from these.
            "short_evidence": made.seen.short_evidence,
            "long_evidence": made.seen.long_evidence,
        }
        missing = (clips - len(request.lengths)) * _positions(y)
        if missing:
            shared = request.rates.long_term == "shared"
            new = {
                name: value if shared and name.startswith("long") else _with_zeros(value, missing)
                for name, value in new.items()
            }
        new |= {
            "short_cov": W,
            "long_cov": B,
            "cov_evidence": made.evidence,
            "ridge_level": made.traces * on_device(levels, made.traces.device),
            "steps": buffers["steps"] + request.steps,
            "left_out": buffers["left_out"] + made.left_out,
        }
        # Only running statistics have a pull, and digits beyond the precision of the buffers.
        torch._foreach_zero_([buffers[name] for name in ONLY_RUNNING])
        self._store(new, self._clips is None)

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
            signal = self._learn_frame(y, scatter) or self._learn(y, scatter)[1]
            assert signal is not None
        return add_gradient(y, scatter, signal, call)

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

    def _why_no_frame(self, y: Tensor, scatter: Tensor | None) -> str | None:
        """Return why `_learn_frame` does not accept a call, or None if it does."""
        if self._clips is not None or scatter is not None or self._diagonal:
            return "the frames are clips, have a scatter, or the covariances are diagonal"
        if not self._carries_on(layout_of(y)):
            return "the last call had another layout"
        return why_no_frame(y, cast("dict[str, Tensor]", self._buffers), self._rates(1))

    def _learn_frame(self, y: Tensor, scatter: Tensor | None) -> Signal | None:
        """Do what `_learn` does, faster, for one frame of a single stream on a CPU."""
        if y.shape[0] != 1 or self._why_no_frame(y, scatter) is not None:
            return None
        buffers = cast("dict[str, Tensor]", self._buffers)
        scale, largest = float(self.weight), min(self._largest(), torch.finfo(y.dtype).max)
        found = advance_frame(y, buffers, self._rates(1), scale, largest)
        if found is None:
            return None
        gradient, new = found
        self._layout = layout_of(y)
        torch._foreach_copy_([buffers[name] for name in new], list(new.values()))
        return Signal(fitting(gradient, y.dtype).view(y.shape))

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
        with torch.autocast(y.device.type, enabled=False), normal_tensors():
            lengths, positions = self._lengths(y), _positions(y)
            packing, clips = Packing(lengths), len(lengths)
            frames = _packed(y, self.features, packing)
            extra = None
            if scatter is not None:
                wide = symmetric(scatter).reshape(-1, self.features, self.features)
                extra = packing.pack(wide)
            streams = clips * positions
            work = torch.float64 if self._is_careful(streams) else frames.dtype
            active, skipped = self._active(frames, extra, packing, clips, work)
            begun = replay
            if begun is None:
                carry_on = self._carries_on(layout_of(y))
                before = self._read(streams, positions, carry_on, work)
                begun = _Pass(y.shape, before, self._rates(clips))
            scale = self.weight / (len(frames) if self.reduction == "mean" else 1)
            wide = frames.to(work)
            result = advance(wide, begun.before, begun.rates, active, extra, scale)
            if replay is None:
                self._remember(layout_of(y))
                zero = torch.zeros_like(self.steps)
                left_out = torch.stack([zero if skipped is None else skipped, result.singular])
                self._write(result.state, left_out, positions, self._clips is None)
            elif not torch.equal(
                result.state.covariances[0].to(self.short_cov.dtype), self.short_cov
            ):
                return begun, None  # other frames than those of the pass
            return begun, _signal(result, packing, clips, y, scatter)

    def _is_careful(self, streams: int) -> bool:
        """Return whether to compute in float64."""
        few = streams * self.features <= SMALL_FRAME or streams < FEW_STREAMS * self.features
        return few or self._shared

    def _active(
        self,
        frames: Tensor,
        scatter: Tensor | None,
        packing: Packing,
        clips: int,
        work: torch.dtype,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return (T, S) bool, where there is a usable frame, and the number of unusable ones.

        Both are None if frames are known to be everywhere and usable.
        """
        steps, d, streams = frames.shape
        in_sums = (torch.finfo(work).max / (16 * streams * d)) ** 0.5
        largest = min(self._largest(), in_sums, torch.finfo(frames.dtype).max)
        usable: Tensor | None = None
        if scatter is None and on_host(frames):  # usually one check of all frames is enough
            low, high = frames.aminmax()
            if low.item() >= -largest and high.item() <= largest:
                if not packing.ragged:
                    return None, None
                usable = torch.ones(steps, streams, dtype=torch.bool)
        if usable is None:
            usable = frames.abs().amax(1) <= largest  # false for NaN
        if scatter is not None:
            usable = usable & (scatter.abs().amax((-2, -1)) <= largest**2)
        if not packing.ragged:
            return usable, steps * streams - usable.count_nonzero()
        present = packing.active(steps, clips, frames.device)
        present = present.repeat_interleave(streams // clips, dim=1)
        usable = usable & present
        return usable, present.count_nonzero() - usable.count_nonzero()


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
        reduction: As in `UL1d`.
        start: As in `UL1d`.
        long_term: As in `UL1d`.
        ridge: As in `UL1d`.
        statistics: As in `UL1d`.
        synchronize: As in `UL1d`.

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
        reduction: Literal["mean", "sum"] = "mean",
        start: Literal["warm", "paper"] = "warm",
        long_term: Literal["auto", "clip", "stream", "shared"] = "auto",
        ridge: float | None = None,
        statistics: Literal["auto", "fresh", "running"] = "auto",
        synchronize: bool = True,
    ) -> None:
        super().__init__(
            channels,
            mu,
            eps,
            weight,
            reduction=reduction,
            start=start,
            long_term=long_term,
            ridge=ridge,
            statistics=statistics,
            synchronize=synchronize,
        )
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


def symmetric(scatter: Tensor) -> Tensor:
    """Return the symmetric part in float64: some kernels read only one triangle of a matrix."""
    wide = scatter.double()
    return (wide + wide.mT) / 2


def layout_of(y: Tensor) -> torch.Size:
    """Return the shape without time; streams continue only while it stays the same."""
    return y.shape[1:] if y.ndim % 2 == 0 else y.shape[:1] + y.shape[2:]


def _check_choice(name: str, got: str, choices: tuple[str, ...]) -> None:
    if got not in choices:
        raise ValueError(f"expected {name} to be one of {choices}, got {got!r}")


def _check_number(name: str, value: Any) -> None:
    try:
        isfinite(value)
    except TypeError:
        raise TypeError(f"expected {name} to be a number, got {value!r}") from None


def _with_zeros(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows, *values.shape[1:])])


def _positions(y: Tensor) -> int:
    """Return the number of positions of a map, one for a code."""
    return 1 if y.ndim < 4 else y.shape[-2] * y.shape[-1]


def _packed(y: Tensor, features: int, packing: Packing) -> Tensor:
    """Return the input as (time, features, streams) in float32 or wider."""
    frames = as_frames(y.detach(), features).to(torch.promote_types(y.dtype, torch.float32))
    if packing.lengths is not None and len(packing.lengths) > 1:
        frames = packing.pack(frames).transpose(1, 2).flatten(2)
    return frames


def _signal(
    result: Result, packing: Packing, clips: int, y: Tensor, scatter: Tensor | None
) -> Signal:
    """Return gradients of packed frames in the shape and dtype of the inputs."""
    gradient = fitting(result.gradient, torch.promote_types(y.dtype, torch.float32)).to(y.dtype)
    if clips > 1:
        gradient = packing.unpack(gradient.unflatten(2, (clips, -1)).transpose(1, 2))
    spread = None
    if scatter is not None and result.scatter_gradient is not None:
        spread = packing.unpack(result.scatter_gradient).reshape(scatter.shape)
        spread = fitting(spread, scatter.dtype)
    return Signal(gradient.reshape(y.shape), spread)


def wants_gradient(y: Tensor, scatter: Tensor | None) -> bool:
    """Return whether the backward pass will need a gradient of this input."""
    needs = y.requires_grad or (scatter is not None and scatter.requires_grad)
    return torch.is_grad_enabled() and needs
