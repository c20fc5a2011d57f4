"""One frame of one stream on a GPU: which calls the kernel takes, and its launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ullayers.kernels.covariance import RIDGE_HIGH, RIDGE_LOW, noise_share, ridge_period
from ullayers.kernels.launch import (
    MOST_MADE,
    POOLED,
    Call,
    has_triton,
    on_device,
)
from ullayers.kernels.replay import Recording, can_replay
from ullayers.kernels.state import PER_STREAM

WIDEST = 64  # the matrices of wider frames do not fit the registers
_made: dict[Hashable, Recording] = {}


@cache
def _kernel() -> Any:
    from ullayers.kernels.fused_frame import one_frame

    return one_frame


def advance_frame(
    key: Hashable,
    y: Tensor,
    gradient: Tensor,
    buffers: Mapping[str, Tensor],
    scale: float,
    call: Callable[[], Call],
) -> bool:
    """As `launch.advance_fused`, for a single frame of a single stream."""
    tensors = [y, gradient, *(buffers[name] for name in PER_STREAM + POOLED)]
    begins = [tensor.data_ptr() for tensor in tensors]
    aligned = not any(begin % 16 for begin in begins)
    made = _made.get(key) if aligned else None
    if made is not None:
        with on_device(y.device):
            made.play(begins, scale, torch.cuda.current_stream().cuda_stream)
        return True
    asked, d = call(), y.numel()
    rates, statistics = asked.rates, buffers["short_cov"].dtype
    narrow = y.dtype in (torch.float32, torch.bfloat16, torch.float16)
    plain = rates.long_term == "stream" and not rates.diagonal and statistics == torch.float32
    if not (narrow and plain and asked.continues and d <= WIDEST and has_triton()):
        return False
    recording, width = Recording(tensors), max(4, 1 << (d - 1).bit_length())
    ridge = rates.ridge / d
    with on_device(y.device):
        recording.start(
            _kernel(), (1,), *tensors, asked.largest, asked.known,
            rates.mu, 1 - rates.mu, rates.eps, 1 - rates.eps,
            ridge_period(rates.mu), ridge_period(rates.eps),
            RIDGE_HIGH * ridge, RIDGE_LOW * ridge, noise_share(torch.float64) / d, scale,
            asked.carry_on, rates.centred, d, width, num_warps=1 if d <= 16 else width // 8,
        )  # fmt: skip
    if aligned and can_replay():
        if len(_made) >= MOST_MADE:
            _made.clear()
        _made[key] = recording.done()
    return True
