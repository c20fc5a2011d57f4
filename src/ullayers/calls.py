"""The base of both UL layers: which statistics a call takes, and calls with fresh ones."""

from __future__ import annotations

import torch
from torch import Tensor

from ullayers.added_gradient import FreshCall, add_fresh_gradient, as_frames
from ullayers.base import layout_of, symmetric
from ullayers.kernels.covariance import RIDGE_HIGH
from ullayers.kernels.fresh import measure, working_precision
from ullayers.kernels.moments import Moments, Request, Weights, weigh
from ullayers.running import RunningCalls
from ullayers.statistics import is_recomputing, normal_tensors

# statistics="auto" takes fresh ones for calls of at least this many frames. On linear mixtures of
# slow and fast sources, shorter calls see too little of the long run (docs/results.md).
FRESH_FROM = 32


class ULBase(RunningCalls):
    """A UL layer but for the shape of its input."""

    def _forward(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        self._check(y, scatter)
        if self.training and self._is_fresh(y):
            return self._forward_fresh(y, scatter)
        return self._forward_running(y, scatter)

    def _is_fresh(self, y: Tensor) -> bool:
        """Whether the statistics are those of this call alone."""
        if self.start == "paper" or self.statistics == "running":
            return False
        lengths = self._lengths(y)
        enough = sum(n for n in lengths if n > 1) >= FRESH_FROM
        if self.statistics == "fresh" and max(lengths) < 2:
            raise ValueError(
                'expected at least two frames of a clip for statistics="fresh", got one; use '
                '"auto" or "running"'
            )
        return enough or self.statistics == "fresh"

    def _forward_fresh(self, y: Tensor, scatter: Tensor | None) -> Tensor:
        lengths, extra = self._lengths(y), None
        request = Request(lengths, self._rates(len(lengths)), self._largest())
        with torch.no_grad(), torch.autocast(y.device.type, enabled=False), normal_tensors():
            frames = as_frames(y.detach(), self.features)
            if scatter is not None:
                extra = symmetric(scatter.detach()).reshape(-1, self.features, self.features)
            moments = measure(frames, request, extra)
            weights = weigh(moments, request.rates, working_precision(frames))
            matrices = weights.matrices * (
                self.weight * (max(lengths) if self.reduction == "sum" else 1)
            )
        output = y
        if torch.is_grad_enabled() and (y.requires_grad or _requires_grad(scatter)):
            spread = None if scatter is None else (scatter + scatter.mT) / 2
            call = FreshCall(request, weights.by_rows, self.features)
            output = add_fresh_gradient(y, spread, matrices, call)
        if not is_recomputing():
            with torch.no_grad(), normal_tensors():
                self._record(y, request, moments, weights)
        return output

    def _record(self, y: Tensor, request: Request, moments: Moments, weights: Weights) -> None:
        """Leave the statistics of this call in the buffers."""
        self._remember(layout_of(y))
        lengths, rates = request.lengths, request.rates
        short, long = (
            m.mT.reshape(-1, self.features) for m in (moments.short_mean, moments.long_mean)
        )
        steps = moments.steps
        if steps is None:
            steps = torch.full_like(moments.short_mean[:, :1], max(lengths), dtype=torch.int64)
        long_steps = steps.sum(0, keepdim=True) if rates.long_term == "shared" else steps
        W, B = weights.covariances
        decays = torch.tensor([1 - rates.mu, 1 - rates.eps], dtype=torch.float64, device=W.device)
        seen = torch.where(moments.counts[:2] > 0, 1 - decays ** max(lengths), 0.0)
        traces = weights.covariances.diagonal(dim1=1, dim2=2).sum(1)
        zeros = torch.zeros_like(W)
        self._store(
            {
                **self._pair("short_mean", short, torch.zeros_like(short)),
                **self._pair("long_mean", long, torch.zeros_like(long)),
                **self._pair("short_cov", W, zeros),
                **self._pair("long_cov", B, zeros),
                "short_evidence": 1 - (1 - rates.mu) ** steps.flatten(),
                "long_evidence": 1 - (1 - rates.eps) ** long_steps.flatten(),
                "cov_evidence": seen,
                "ridge_level": RIDGE_HIGH * rates.ridge / self.features * traces * seen,
                "pull": torch.zeros_like(self.pull),
                "steps": self.steps + max(lengths),
                "left_out": self.left_out + torch.stack([moments.counts[2], weights.singular]),
            },
            continues=self._clips is None,
        )


def _requires_grad(scatter: Tensor | None) -> bool:
    return scatter is not None and scatter.requires_grad
