"""Frames of one stream on a GPU, one after the other: which calls are taken, and the launches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ullayers.kernels.covariance import RIDGE_HIGH, RIDGE_LOW, noise_share, ridge_period
from ullayers.kernels.launch import BUFFERS, POOLED, Call, has_triton
from ullayers.kernels.replay import Recording, Recordings, carve, on_device
from ullayers.kernels.state import PER_STREAM

WIDEST = 256
LONGEST = 64  # frames whose launches are recorded together
NARROW, LONGEST_CHUNK = 32, 2**12  # features of which a chunk is taken as one, and frames
PIVOT = 16  # features at a time, for inverses
TILE = 64  # wider matrices are cut into tiles
WARPS = {16: 1, 32: 2, 64: 4}  # by the tile
COVARIANCES = (
    "short_cov", "short_cov_rest", "long_cov", "long_cov_rest", "cov_evidence", "ridge_level",
)  # fmt: skip
_recordings = Recordings()


@cache
def _kernels() -> Any:
    import ullayers.kernels.fused_frame as fused_frame

    return fused_frame


@cache
def _chunk_kernels() -> Any:
    import ullayers.kernels.fused_chunk as fused_chunk

    return fused_chunk


def advance_frames(
    key: Hashable,
    y: Tensor,
    gradient: Tensor,
    buffers: Mapping[str, Tensor],
    scale: float,
    call: Callable[[], Call],
) -> bool:
    """As `launch.advance_fused`, for frames (T, d) of a single stream."""

    def later() -> Call:
        return replace(call(), carry_on=True)

    longest = LONGEST_CHUNK if _is_chunk(y) else LONGEST
    for begin in range(0, len(y), longest):
        part = slice(begin, begin + longest)
        kind, asked = (key, len(y[part]), begin > 0), later if begin else call
        if not _advance(kind, y[part], gradient[part], buffers, scale, asked):
            return False  # of the first already
    return True


def _advance(
    key: Hashable,
    y: Tensor,
    gradient: Tensor,
    buffers: Mapping[str, Tensor],
    scale: float,
    call: Callable[[], Call],
) -> bool:
    tensors = [y, gradient, *(buffers[name] for name in PER_STREAM + POOLED)]
    if _recordings.play(key, tensors, scale):
        return True
    asked = call()
    rates, statistics = asked.rates, {buffer.dtype for buffer in buffers.values()}
    narrow = y.dtype in (torch.float32, torch.bfloat16, torch.float16)
    plain = rates.long_term == "stream" and not rates.diagonal and statistics == BUFFERS
    if not (narrow and plain and asked.continues and y.shape[1] <= WIDEST and has_triton()):
        return False
    with on_device(y.device):
        _recordings.keep(key, _launch(y, gradient, buffers, scale, asked))
    return True


def _launch(
    y: Tensor, gradient: Tensor, buffers: Mapping[str, Tensor], scale: float, asked: Call
) -> Recording:
    """All kernels; their recording."""
    if _is_chunk(y):
        return _launch_chunk(y, gradient, buffers, scale, asked)
    d, b = y.shape[1], buffers
    width = max(PIVOT, 1 << (d - 1).bit_length())
    tile = min(width, TILE)
    tiles, f64 = width // tile, torch.float64
    layout = {
        "matrices": ((2, width, width), f64),
        "scratch": ((2, tile, tile), f64),
        "inverses": ((2, tiles, tile, tile), f64),  # of the roots of tiles on the diagonal
        "roots": ((2, PIVOT, PIVOT), f64),
        "vectors": ((2, 3, width), f64),  # to be solved, its scale, and what enters W or B
        "halves": ((2, tiles, tile), f64),  # the vector times those
        "notes": ((2, 4), f64),  # shares of old and new, the ridge, the mean's evidence
        "flags": ((4,), torch.int32),  # usable, counted, and whether W, B have a trace
        "bad": ((2, tiles), torch.int32),
    }
    workspace, m = carve(layout, y.device)
    bases = (workspace, y, gradient, *(b[name] for name in PER_STREAM + POOLED))
    recording = Recording(bases)
    for t in range(len(y)):
        now = asked if t == 0 else replace(asked, carry_on=True)
        _launch_frame(recording, y[t], gradient[t], b, m, (tile, width), scale, now)
    return recording


def _is_chunk(y: Tensor) -> bool:
    """Many frames, and narrow."""
    return len(y) > 1 and y.shape[1] <= NARROW


def _launch_chunk(
    y: Tensor, gradient: Tensor, b: Mapping[str, Tensor], scale: float, asked: Call
) -> Recording:
    """All kernels of a chunk; their recording."""
    (T, d), rates, f64 = y.shape, asked.rates, torch.float64
    width = max(PIVOT, 1 << (d - 1).bit_length())
    layout = {
        "totals": ((T, 2, width, width), f64),  # W and B times their evidence
        "deviations": ((T, 2, width), f64),  # what enters them, and then what is solved
        "notes": ((T, 2, 3), f64),  # trace, evidence, ridge
        "flags": ((T, 2), torch.int32),  # usable, counted
        "failures": ((T, 2), torch.int32),
        "ends": ((2 * width + 2,), f64),  # means and their evidences
    }
    workspace, m = carve(layout, y.device)
    bases = (workspace, y, gradient, *(b[name] for name in PER_STREAM + POOLED))
    recording, kernels, ridge = Recording(bases), _chunk_kernels(), rates.ridge / d
    weights = rates.mu, 1 - rates.mu, rates.eps, 1 - rates.eps
    recording.start(
        kernels.chunk_path, (2,), y, *(b[name] for name in PER_STREAM + COVARIANCES), b["steps"],
        b["continues"], m["totals"], m["deviations"], m["notes"], m["flags"], m["ends"], T,
        asked.largest, asked.known, *weights, ridge_period(rates.mu), ridge_period(rates.eps),
        RIDGE_HIGH * ridge, asked.carry_on, d, width, num_warps=WARPS[width], num_stages=1,
    )  # fmt: skip
    recording.start(
        kernels.chunk_solve, (T, 2), m["totals"], m["deviations"], m["notes"], m["flags"],
        m["failures"], RIDGE_LOW * ridge, noise_share(f64) / d, d, width,
        num_warps=WARPS[width], num_stages=1,
    )  # fmt: skip
    recording.start(
        kernels.chunk_end, (1,), gradient, *(b[name] for name in PER_STREAM + COVARIANCES),
        b["pull"], b["steps"], b["left_out"], b["continues"], m["totals"], m["deviations"],
        m["notes"], m["flags"], m["failures"], m["ends"], T, *weights[2:], scale, rates.centred,
        d, width, max(16, min(64, 1 << (T - 1).bit_length())),
    )  # fmt: skip
    return recording


def _launch_frame(
    recording: Recording,
    y: Tensor,
    gradient: Tensor,
    b: Mapping[str, Tensor],
    m: Mapping[str, Tensor],
    sizes: tuple[int, int],
    scale: float,
    asked: Call,
) -> None:
    """The kernels of one frame, from buffers `b` to buffers `b` by way of the workspace `m`."""
    d, rates, kernels, f64 = len(y), asked.rates, _kernels(), torch.float64
    tile, width = sizes
    tiles, options = width // tile, {"num_warps": WARPS[tile], "num_stages": 1}
    ridge = rates.ridge / d
    recording.start(
        kernels.frame_begin, (tiles * tiles, 2), y, *(b[name] for name in PER_STREAM + COVARIANCES),
        b["steps"], b["continues"], m["matrices"], m["scratch"], m["inverses"], m["roots"],
        m["vectors"], m["halves"], m["notes"], m["flags"], m["bad"], asked.largest, asked.known,
        rates.mu, 1 - rates.mu, rates.eps, 1 - rates.eps,
        ridge_period(rates.mu), ridge_period(rates.eps),
        RIDGE_HIGH * ridge, RIDGE_LOW * ridge, noise_share(f64) / d,
        asked.carry_on, d, *sizes, PIVOT, **options,
    )  # fmt: skip
    for j in range(tiles - 1):
        recording.start(
            kernels.frame_step, ((tiles - 1) * (tiles - 1 - j), 2),
            m["matrices"], m["scratch"], m["inverses"], m["roots"], m["vectors"], m["halves"],
            m["bad"], j, *sizes, PIVOT, **options,
        )  # fmt: skip
    recording.start(
        kernels.frame_end, (tiles * tiles, 2), y, gradient,
        *(b[name] for name in PER_STREAM + COVARIANCES), b["pull"], b["steps"], b["left_out"],
        b["continues"], m["matrices"], m["inverses"], m["vectors"], m["halves"], m["notes"],
        m["flags"], m["bad"], rates.eps, 1 - rates.eps, scale, rates.centred, d, *sizes, **options,
    )  # fmt: skip
