"""Fresh statistics of frames that are spread over several processes.

Every process has whole clips. W, B and J are those of all clips together, and each process computes
the gradient of that J for its own frames. A process without clips contributes sums of zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

import ullayers.kernels.torch.fresh as fresh
from ullayers.kernels.moments import (
    Evaluation,
    FrameCounts,
    Moments,
    Request,
    Weights,
    count_frames,
    weigh,
)
from ullayers.kernels.torch.fresh import SharedMean

NAME = "PyTorch operations for a mean that processes share"


class Pool(Protocol):
    """Communication between the processes."""

    def add_up(self, *tensors: Tensor) -> list[Tensor]:
        """Return float64 sums of the tensors over all processes."""

    def whole(self, request: Request) -> Request:
        """Return the settings of the call of all processes together; after `add_up`."""

    def precision(self, dtype: torch.dtype, features: int) -> torch.dtype:
        """Return the precision of that call; after `add_up`."""


class Measure(Protocol):
    """The function `measure` of a kernel."""

    def __call__(self, frames: Tensor, request: Request, scatter: Tensor | None) -> Moments:
        """Sum over the frames of this process."""


def evaluate(
    frames: Tensor,
    request: Request,
    scatter: Tensor | None,
    pool: Pool,
    measure: Measure,
) -> tuple[Request, Evaluation]:
    """Return the settings, the statistics and the derivatives of J of all processes together.

    Args:
        frames: (frames, features, positions) of this process, possibly none.
        request: Settings of the call of this process.
        scatter: As in `torch.fresh.measure`.
        pool: Communication with the other processes.
        measure: Sums over frames, if there are any and their long-term mean is not shared.
    """
    shared = None
    if request.rates.long_term == "shared":
        total, number = pool.add_up(*_frame_sums(frames, request, scatter))
        shared = SharedMean(total / number.clamp(min=1), number.long())
    if shared is None and frames.numel() > 0:
        moments = measure(frames, request, scatter)
    else:
        moments = _measure(frames, request, scatter, shared)
    sums, counts, *between = pool.add_up(
        moments.sums,
        moments.seen.counts,
        *([] if moments.between is None else [moments.between]),
    )
    saved = moments.saved
    if shared is not None:
        saved = shared.mean, shared.frames, between[0] / shared.frames.clamp(min=1), *saved
    seen = replace(moments.seen, counts=counts.long())
    whole = pool.whole(request)
    moments = replace(moments, sums=sums, seen=seen, saved=saved)
    return whole, weigh(moments, whole, pool.precision(frames.dtype, frames.shape[1]))


def gradient(
    frames: Tensor,
    request: Request,
    weights: Weights,
    saved: tuple[Tensor, ...],
    above: Tensor | None,
) -> Tensor:
    """Same as `torch.fresh.gradient`."""
    if frames.numel() == 0:
        return torch.zeros_like(frames)
    shared, saved = _split(request, saved)
    return fresh.gradient(frames, request, weights, saved, above, shared)


def scatter_gradient(
    frames: Tensor, request: Request, weights: Weights, saved: tuple[Tensor, ...]
) -> Tensor:
    """Same as `torch.fresh.scatter_gradient`."""
    if frames.numel() == 0:
        return frames.new_zeros(0, frames.shape[1], frames.shape[1])
    return fresh.scatter_gradient(frames, request, weights, _split(request, saved)[1])


def _split(
    request: Request, saved: tuple[Tensor, ...]
) -> tuple[SharedMean | None, tuple[Tensor, ...]]:
    """Return the shared mean, if any, and what `torch.fresh` saved."""
    if request.rates.long_term != "shared":
        return None, saved
    return SharedMean(*saved[:3]), saved[3:]


def _frame_sums(frames: Tensor, request: Request, scatter: Tensor | None) -> tuple[Tensor, Tensor]:
    if frames.numel() == 0:
        _, d, positions = frames.shape
        return _zeros(frames, 1, d, positions), _zeros(frames, 1, 1, positions)
    return fresh.sum_frames(frames, request, scatter)


def _measure(
    frames: Tensor, request: Request, scatter: Tensor | None, shared: SharedMean | None
) -> Moments:
    """Return the sums over the frames of this process."""
    if frames.numel() > 0:
        return fresh.measure(frames, request, scatter, shared)
    _, d, positions = frames.shape
    steps = _zeros(frames, 0, 1, positions).long()
    none = _zeros(frames, 0)
    long_mean = _zeros(frames, 0, d)
    long_evidence = none
    between = None
    if shared is not None:
        long_mean = shared.mean[0].mT
        between = torch.zeros_like(shared.mean)
        long_evidence = count_frames(steps, request, shared.frames).long_evidence
    seen = FrameCounts(steps, _zeros(frames, 3).long(), none, long_evidence)
    sums = _zeros(frames, 2, d, d)
    return Moments(sums, seen, _zeros(frames, 0, d), long_mean, between=between)


def _zeros(like: Tensor, *shape: int) -> Tensor:
    return like.new_zeros(shape, dtype=torch.float64)
