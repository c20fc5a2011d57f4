"""W, B and the derivatives of J on a GPU: host code of the Triton kernel."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ullayers.kernels.moments import (
    NOISE,
    Evaluation,
    Moments,
    Request,
    Weights,
    covariance_evidence,
    ridges,
)
from ullayers.kernels.moments import weigh as weigh_by_torch
from ullayers.kernels.triton.launch import launch, on

WIDEST_INVERSE, PIVOT = 64, 16  # most features that one program inverts; how many at a time
WARPS = {16: 1, 32: 2, 64: 4}  # by the features, padded to a power of two
_compiled: dict[Any, Any] = {}


@cache
def _kernel() -> Any:
    """Import the kernel, and with it Triton, when it is first needed."""
    import ullayers.kernels.triton.weigh_kernels as kernels

    return kernels.weigh


def weigh(moments: Moments, request: Request, precision: torch.dtype) -> Evaluation:
    """Compute W, B and the derivatives of J in one kernel where it is fast; see `moments.weigh`."""
    C, sums = moments.sums.shape[-1], moments.sums
    if C > WIDEST_INVERSE:
        return weigh_by_torch(moments, request, precision)
    width = max(PIVOT, 1 << (C - 1).bit_length())
    ridge_w, ridge_b = ridges(request.rates.ridge, precision)
    noise = (NOISE * torch.finfo(precision).eps) ** 2
    room = sums.new_empty(4 * C * C + 4 + 3 * width * width)
    covariances, matrices, traces, evidence, scratch = room.split(
        [2 * C * C, 2 * C * C, 2, 2, 3 * width * width]
    )
    left_out = sums.new_empty(2, dtype=torch.int64)
    with on(sums.device):
        launch(
            _compiled, (C, request.scale, sums.device), _kernel(), (1, 1), sums,
            moments.seen.counts, covariances, traces, evidence, left_out, matrices, scratch,
            ridge_w / C, ridge_b / C, noise / C, request.scale, *covariance_evidence(request), C,
            width, PIVOT, num_warps=WARPS[width], num_stages=1,
        )  # fmt: skip
    return Evaluation(
        covariances.view(2, C, C), traces, evidence, left_out, moments.seen, moments.short_mean,
        moments.long_mean, Weights(matrices.view(2, C, C), False), moments.saved,
    )  # fmt: skip
