"""Frames of a single stream on a GPU: kernel launches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ullayers.kernels.covariance import (
    JUMP,
    RIDGE_HIGH,
    RIDGE_LOW,
    SMALLEST_SHARE,
    noise_share,
    ridge_period,
)
from ullayers.kernels.state import Rates

PIVOT = 16  # features that are eliminated at a time
TILE = 64  # wider matrices are split into tiles
WARPS = {16: 1, 32: 2, 64: 4}  # by tile width


@cache
def _kernels() -> Any:
    """Import the kernels, and with them Triton, when they are first needed."""
    import ullayers.kernels.triton.stream_kernels as kernels

    return kernels


def advance_frames(
    y: Tensor,
    gradient: Tensor,
    buffers: Mapping[str, Tensor],
    rates: Rates,
    *,
    carry_on: bool,
    known: float,
    largest: float,
    scale: float,
) -> None:
    """Compute what `torch.advance.advance` does, and update the buffers.

    Args:
        y: (T, d), contiguous, without a gradient.
        gradient: (T, d), contiguous; the result is written to it.
        buffers: Statistics of the layer, in float32.
        rates: Settings of the layer.
        carry_on: Whether the stream may continue that of the call before.
        known: Evidence of means before the first frame.
        largest: Frames with a larger absolute value are skipped.
        scale: Factor of the gradient.
    """
    d = y.shape[1]
    width = max(PIVOT, 1 << (d - 1).bit_length())
    tile = min(width, TILE)
    arguments = {
        **buffers,
        **_workspace(width, tile, y.device),
        **_numbers(rates, d),
        "known": known,
        "largest": largest,
        "scale": scale,
        "CENTRED": rates.centred,
        "D": d,
        "TILE": tile,
        "WIDTH": width,
        "PIVOT": PIVOT,
    }
    with torch.cuda.device(y.device):  # Triton launches on the current device
        for t in range(len(y)):
            arguments |= {"y": y[t], "gradient": gradient[t], "CARRY": carry_on or t > 0}
            _launch_frame(arguments, width // tile)


def _numbers(rates: Rates, d: int) -> dict[str, float]:
    """Return the settings of the recurrence under the kernels' argument names."""
    ridge = rates.ridge / d
    return {
        "mu": rates.mu,
        "mu_keep": 1 - rates.mu,
        "eps": rates.eps,
        "eps_keep": 1 - rates.eps,
        "mu_period": ridge_period(rates.mu),
        "eps_period": ridge_period(rates.eps),
        "high": RIDGE_HIGH * ridge,
        "low": RIDGE_LOW * ridge,
        "noise": noise_share(torch.float64) / d,
        "jump": JUMP,
        "smallest_share": SMALLEST_SHARE,
    }


def _launch_frame(arguments: Mapping[str, Any], tiles: int) -> None:
    """Launch the kernels of one frame; only the last one changes the layer's buffers."""
    kernels = _kernels()
    _launch(kernels.frame_begin, (tiles * tiles, 2), arguments)
    for j in range(tiles - 1):
        _launch(kernels.frame_step, ((tiles - 1) * (tiles - 1 - j), 2), {**arguments, "j": j})
    _launch(kernels.frame_end, (tiles * tiles, 2), arguments)


def _launch(kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> None:
    """Launch a kernel with those of the arguments that it takes."""
    taken = {name: arguments[name] for name in kernel.arg_names}
    kernel[grid](**taken, num_warps=WARPS[arguments["TILE"]], num_stages=1)


def _workspace(width: int, tile: int, device: torch.device) -> dict[str, Tensor]:
    """Return the intermediate results of the kernels, in two allocations."""
    tiles = width // tile
    sizes = {
        "matrices": 2 * width * width,
        "scratch": 2 * tile * tile,
        "inverses": 2 * tiles * tile * tile,  # L^-1 of the tiles on the diagonal
        "roots": 2 * PIVOT * PIVOT,
        "vectors": 2 * 3 * width,  # right-hand side, its scale, deviation that enters W or B
        "halves": 2 * tiles * tile,  # L^-1 times the right-hand side
        "notes": 2 * 4 + 1,  # weights of old and new, ridge, the mean's evidence; pull's share
    }
    numbers = torch.empty(sum(sizes.values()), dtype=torch.float64, device=device)
    flags, bad = torch.empty(4 + 2 * tiles, dtype=torch.int32, device=device).split([4, 2 * tiles])
    parts = dict(zip(sizes, numbers.split(list(sizes.values())), strict=True))
    # flags: the frame is usable, it is counted, W has a trace, B has a trace
    return {**parts, "flags": flags, "bad": bad}
