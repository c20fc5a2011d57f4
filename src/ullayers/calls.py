"""The base of both UL layers: which statistics a call takes, and calls with fresh ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import ullayers.kernels.fresh_ops as fresh_ops
from ullayers.added_gradient import FreshCall, add_fresh_gradient, as_frames, refuse_transforms
from ullayers.base import layout_of, symmetric
from ullayers.kernels.choose import listed
from ullayers.kernels.covariance import RIDGE_HIGH
from ullayers.kernels.fresh import working_precision
from ullayers.kernels.fresh_kernels import Kernel, choose
from ullayers.kernels.moments import Moments, Request, Weights, on_device, weigh
from ullayers.kernels.state import Rates
from ullayers.packing import Packing
from ullayers.running import RunningCalls
from ullayers.statistics import is_recomputing, normal_tensors

# statistics="auto" takes fresh ones for calls of at least so many frames; shorter calls see too
# little of the long run. Wide codes do not learn from running ones (docs/maths.md, section 5).
FRESH_FROM, WIDE, FRESH_FROM_IF_WIDE = 32, 32, 8
# What running statistics alone need: digits beyond the buffers' precision, the gradient's mean.
NOT_KEPT = ("short_mean_rest", "long_mean_rest", "short_cov_rest", "long_cov_rest", "pull")


class ULBase(RunningCalls):
    """A UL layer but for the shape of its input."""

    _last_clips: Packing | None = None  # of the last forward pass

    def _forward(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        clips = self._clips
        if is_recomputing():  # maybe after the block that marked the clips
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
        """Which statistics and which kernel such an input would take, and why; nothing is learned.

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
              not Triton kernels for maps: the frames are not on a GPU
              not compiled CPU loops for maps: these are codes, not maps
        """
        self._check(y, scatter)
        if not self.training:
            return "eval mode: the input is handed on, and nothing is learned"
        if not self._is_fresh(y):
            kernels = self._explain_running(y, scatter)
            return f"running statistics: {self._why_statistics(y)}\n{kernels}"
        kernel, reasons = choose(as_frames(y.detach(), self.features), self._request(y), scatter)
        return f"fresh statistics: {self._why_statistics(y)}\n{listed(kernel.NAME, reasons)}"

    def _why_statistics(self, y: Tensor) -> str:
        if self.start == "paper":
            return 'start="paper"'
        if self.statistics != "auto":
            return f'statistics="{self.statistics}"'
        lengths = self._lengths(y)
        frames = sum(n for n in lengths if n > 1)
        if frames >= self._enough_frames:
            return f"{frames} frames, at least {self._enough_frames}"
        alone = ", those of clips of a single frame left out" if 1 in lengths[1:] else ""
        return f"{frames or sum(lengths)} frames, fewer than {self._enough_frames}{alone}"

    @property
    def _enough_frames(self) -> int:
        """From how many on `statistics="auto"` is fresh."""
        return FRESH_FROM if self.features < WIDE else FRESH_FROM_IF_WIDE

    def _is_fresh(self, y: Tensor) -> bool:
        """Whether the statistics are those of this call alone."""
        if self.start == "paper" or self.statistics == "running":
            return False
        lengths = self._lengths(y)
        enough = sum(n for n in lengths if n > 1) >= self._enough_frames
        if self.statistics == "fresh" and max(lengths) < 2:
            raise ValueError(
                'expected at least two frames of a clip for statistics="fresh", got one; use '
                '"auto" or "running"'
            )
        return enough or self.statistics == "fresh"

    def _forward_fresh(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        lengths, request = self._lengths(y), self._request(y)
        with torch.no_grad(), torch.autocast(y.device.type, enabled=False), normal_tensors():
            frames, extra = as_frames(y.detach(), self.features), None
            if scatter is not None:
                extra = symmetric(scatter.detach()).reshape(-1, self.features, self.features)
            kernel, moments, weights = _evaluate(frames, request, extra)
            factor = self.weight * (max(lengths) if self.reduction == "sum" else 1)
            kept = (weights.matrices * factor, *moments.saved)
        output = y
        if torch.is_grad_enabled() and (y.requires_grad or _requires_grad(scatter)):
            call = FreshCall(kernel, request, weights.by_rows, scatter is not None)
            output = add_fresh_gradient(call, y, scatter, kept)
        if not is_recomputing():
            with torch.no_grad(), normal_tensors():
                self._record(y, request, moments, weights)
        return output

    def _request(self, y: Tensor) -> Request:
        lengths = self._lengths(y)
        # Squares of so many values must fit the precision in which they are summed.
        widest = torch.finfo(torch.promote_types(y.dtype, torch.float32)).max
        largest = (widest / (16 * y.numel())) ** 0.5
        return Request(lengths, self._rates(len(lengths)), min(self._largest(), largest))

    def _record(self, y: Tensor, request: Request, moments: Moments, weights: Weights) -> None:
        """Leave the statistics of this call in the buffers."""
        self._remember(layout_of(y))
        rates, steps = request.rates, max(request.lengths)
        W, B = weights.covariances
        logs = on_device((math.log1p(-rates.mu), math.log1p(-rates.eps)), W.device)
        seen = -torch.expm1(steps * logs)
        traces = weights.covariances.diagonal(dim1=1, dim2=2).sum(1)
        new = {
            "short_mean": moments.short_mean.mT.reshape(-1, self.features),
            "long_mean": moments.long_mean.mT.reshape(-1, self.features),
            "short_cov": W,
            "long_cov": B,
            "cov_evidence": torch.where(moments.counts[:2] > 0, seen, 0),
            "ridge_level": RIDGE_HIGH * rates.ridge / self.features * traces * seen,
            "steps": self.steps + steps,
            "left_out": self.left_out + torch.stack([moments.counts[2], weights.singular]),
            **self._evidence(moments, rates, steps),
        }
        self._store(new, self._clips is None)
        torch._foreach_zero_([getattr(self, name) for name in NOT_KEPT])

    def _evidence(self, moments: Moments, rates: Rates, longest: int) -> dict[str, Tensor]:
        """How much the means have seen, so that running calls can go on with them."""
        steps = moments.steps
        if steps is None:
            steps = torch.full_like(moments.short_mean[:, :1], longest)
        frames = steps.sum(0, keepdim=True) if rates.long_term == "shared" else steps
        return {
            "short_evidence": -torch.expm1(steps.flatten().double() * math.log1p(-rates.mu)),
            "long_evidence": -torch.expm1(frames.flatten().double() * math.log1p(-rates.eps)),
        }


def _evaluate(
    frames: Tensor, request: Request, scatter: Tensor | None
) -> tuple[Kernel | None, Moments, Weights]:
    """Sums and derivatives; the kernel is None where a compiled graph calls operators instead."""
    if torch.compiler.is_compiling():
        return None, *fresh_ops.evaluate(frames, request, scatter)
    kernel, _ = choose(frames, request, scatter)
    moments = kernel.measure(frames, request, scatter)
    return kernel, moments, weigh(moments, request.rates, working_precision(frames))


def _requires_grad(scatter: Tensor | None) -> bool:
    return scatter is not None and scatter.requires_grad
