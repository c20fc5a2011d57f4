"""Base class of both UL layers: choice of statistics, and calls with fresh ones."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

import ullayers.kernels.custom_ops as fresh_ops
from ullayers.kernels.covariance import RIDGE_HIGH
from ullayers.kernels.dispatch import (
    Differentiable,
    choose_fresh,
    choose_pooled,
    evaluate_fresh,
    evaluate_pooled,
    listed,
)
from ullayers.kernels.moments import Evaluation, Request, covariance_evidence, on_device
from ullayers.kernels.packing import Packing
from ullayers.kernels.schema import WITH_REST
from ullayers.nn.added_gradient import (
    FreshCall,
    add_fresh_gradient,
    as_frames,
    refuse_gradient,
    refuse_transforms,
)
from ullayers.nn.base import layout_of, symmetric
from ullayers.nn.distributed import Pool, Share
from ullayers.nn.running import REENTRANT_LOSS, RunningCalls, wants_gradient
from ullayers.nn.statistics import is_recomputing, normal_tensors

# statistics="auto" is fresh for calls of at least this many frames; shorter calls contain too
# little long-term variation. Wide codes do not learn from running statistics (docs/maths.md,
# section 5).
FRESH_FROM = 32
WIDE = 32
FRESH_FROM_IF_WIDE = 8
ONLY_RUNNING = ("pull", *(f"{name}_rest" for name in WITH_REST))
NO_RUNNING = (
    "running statistics are not synchronised over processes, and there are {processes}: use "
    'statistics="fresh", or synchronize=False for statistics of each process alone'
)
NO_COMPILE = (
    "torch.compile does not support UL layers that synchronise statistics over processes: compile "
    "the parts of the network between them, or use synchronize=False"
)


class ULBase(RunningCalls):
    """A UL layer, except for the shape of its input."""

    _last_clips: Packing | None = None  # of the last forward pass

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
              not Triton kernels for single frames: the frames are on cpu, not on cuda
              not compiled CPU loop for small frames: 300 features, more than 208
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
            kernels = self._explain_running(y, scatter)
            return f"running statistics: {self._why_statistics(y)}\n{kernels}"
        request = self._request(y)
        frames = as_frames(y.detach(), self.features)
        if request.processes > 1:
            name, _, reasons = choose_pooled(frames, request, scatter)
            kernels = listed(name, reasons)
            return f"fresh statistics: those of {request.processes} processes\n{kernels}"
        kernel, reasons = choose_fresh(frames, request, scatter)
        return f"fresh statistics: {self._why_statistics(y)}\n{listed(kernel.NAME, reasons)}"

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
        missing = (clips - len(request.lengths)) * self._to_positions(y).shape[-2]
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


def _with_zeros(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows, *values.shape[1:])])
