"""Frames of one stream on a GPU, one after the other: how the kernels are started."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ullayers.kernels.covariance import RIDGE_HIGH, RIDGE_LOW, noise_share, ridge_period
from ullayers.kernels.state import Rates

PIVOT = 16  # features at a time, for inverses
TILE = 64  # wider matrices are cut into tiles
WARPS = {16: 1, 32: 2, 64: 4}  # by the tile


@cache
def _kernels() -> Any:
    """Triton is imported where the first frame on a GPU is seen, and nowhere else."""
    import ullayers.kernels.triton.stream_kernels as fused_frame

    return fused_frame


def advance_frames(
    y: Tensor,
    gradient: Tensor,
    buffers: Mapping[str, Tensor],
    rates: Rates,
    *,
    goes_on: bool,
    known: float,
    largest: float,
    scale: float,
) -> None:
    """What `core.advance` does, from the buffers of a layer to those after the frames.

    Args:
        y: (T, d), contiguous, without a gradient.
        gradient: likewise; written to.
        buffers: the statistics of the layer, in float32.
        rates: its rates and choices.
        goes_on: whether the stream may go on with that of the call before.
        known: evidence of means that nothing has been seen of.
        largest: frames with a larger value are left out.
        scale: of the gradient.
    """
    d = y.shape[1]
    width = max(PIVOT, 1 << (d - 1).bit_length())
    tile, ridge = min(width, TILE), rates.ridge / d
    given = {
        **buffers, **_workspace(width, tile, y.device),
        "mu": rates.mu, "mu_keep": 1 - rates.mu, "eps": rates.eps, "eps_keep": 1 - rates.eps,
        "mu_period": ridge_period(rates.mu), "eps_period": ridge_period(rates.eps),
        "high": RIDGE_HIGH * ridge, "low": RIDGE_LOW * ridge,
        "noise": noise_share(torch.float64) / d, "known": known, "largest": largest,
        "scale": scale, "CENTRED": rates.centred, "D": d, "TILE": tile, "WIDTH": width,
        "PIVOT": PIVOT,
    }  # fmt: skip
    with torch.cuda.device(y.device):  # Triton launches on the current device
        for t in range(len(y)):
            given |= {"y": y[t], "gradient": gradient[t], "CARRY": goes_on or t > 0}
            _start_frame(given, width // tile)


def _start_frame(given: Mapping[str, Any], tiles: int) -> None:
    """The kernels of one frame; a failure before the last has changed nothing."""
    kernels = _kernels()
    _start(kernels.frame_begin, (tiles * tiles, 2), given)
    for j in range(tiles - 1):
        _start(kernels.frame_step, ((tiles - 1) * (tiles - 1 - j), 2), {**given, "j": j})
    _start(kernels.frame_end, (tiles * tiles, 2), given)


def _start(kernel: Any, grid: tuple[int, ...], given: Mapping[str, Any]) -> None:
    """With those of the arguments that it asks for, by name."""
    arguments = {name: given[name] for name in kernel.arg_names}
    kernel[grid](**arguments, num_warps=WARPS[given["TILE"]], num_stages=1)


def _workspace(width: int, tile: int, device: torch.device) -> dict[str, Tensor]:
    """What the kernels hand on to each other, in two allocations."""
    tiles = width // tile
    sizes = {
        "matrices": 2 * width * width,
        "scratch": 2 * tile * tile,
        "inverses": 2 * tiles * tile * tile,  # of the roots of tiles on the diagonal
        "roots": 2 * PIVOT * PIVOT,
        "vectors": 2 * 3 * width,  # to be solved, its scale, and what enters W or B
        "halves": 2 * tiles * tile,  # the vector times those
        "notes": 2 * 4,  # shares of old and new, the ridge, the mean's evidence
    }
    numbers = torch.empty(sum(sizes.values()), dtype=torch.float64, device=device)
    flags, bad = torch.empty(4 + 2 * tiles, dtype=torch.int32, device=device).split([4, 2 * tiles])
    parts = dict(zip(sizes, numbers.split(list(sizes.values())), strict=True))
    return {**parts, "flags": flags, "bad": bad}  # flags: usable, counted, W, B have a trace
