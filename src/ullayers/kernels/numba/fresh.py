"""Fresh statistics of maps on a CPU: host code and threads of the compiled loops."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.kernels.frames import room_like
from ullayers.kernels.moments import (
    REDUCED_PRECISION,
    Moments,
    Request,
    Weights,
    averaged_frames,
    by_stream,
    count_frames,
    in_float32,
    weigh,
)
from ullayers.kernels.numba.compiling import has_numba, loops, run

Array = NDArray[Any]
STEPS = 8  # frames of a block
BLOCK_VALUES = 2**16  # values of a block, so that D and E stay in the cache
SMALLEST_MAP, SMALLEST_CALL, WIDEST = 16, 2**14, 256  # positions, values, channels
NAME = "compiled CPU loops for maps"

__all__ = ["NAME", "gradient", "measure", "weigh", "why_not"]


def why_not(frames: Tensor, request: Request, scatter: Tensor | None) -> str | None:
    """Return why these loops do not accept a call, or None if they do."""
    if scatter is not None or frames.shape[2] == 1:
        return "these are codes, not maps"
    _, channels, positions = frames.shape
    if not has_numba():
        return "numba is not installed, or NUMBA_DISABLE_JIT is set"
    if not frames.is_cpu:
        return "the frames are not on a CPU"
    if frames.dtype not in REDUCED_PRECISION:
        return f"the frames are {frames.dtype}"
    if request.rates.diagonal:
        return "the covariances are diagonal"
    if positions < SMALLEST_MAP or channels > WIDEST or frames.numel() < SMALLEST_CALL:
        return "the maps are small or have many channels"
    return None


def measure(frames: Tensor, request: Request, scatter: Tensor | None) -> Moments:
    """Same as `torch.fresh.measure`."""
    y = _plain(frames)
    channels, positions = y.shape[1:]
    clips, shared = len(request.lengths), request.rates.long_term == "shared"
    job, rooms = _job(y, request), _rooms(y)
    steps = np.zeros((clips, positions), np.int64)
    if request.rates.long_term != "stream":
        job = job._replace(centre=_centre(job, rooms, steps, shared))
        steps[:] = 0
    padded = rooms[0].within.shape[0]
    grams = np.zeros((len(rooms), 2, padded, padded))
    sums = np.zeros((1 if shared else clips, channels, positions))
    ends = np.zeros((2, clips, channels, positions), np.float32)

    def work(thread: int, begin: int, end: int) -> None:
        output = (grams[thread], sums, ends, steps)
        run(loops("fresh").measure, job, rooms[thread], begin, end, *output)

    _share(rooms, positions, work)
    upper = np.triu(grams.sum(0)[:, :channels, :channels])
    whole = torch.from_numpy(upper + np.triu(upper, 1).swapaxes(1, 2))
    long_mean = ends[1] if request.rates.long_term == "stream" else job.centre
    frames_seen = torch.from_numpy(steps)[:, None]
    saved = (job.lags, job.latest, job.seen, job.centre, sums)
    return Moments(
        whole,
        count_frames(frames_seen, request),
        by_stream(torch.from_numpy(ends[0])),
        by_stream(torch.from_numpy(long_mean)),
        saved=(*map(torch.from_numpy, saved), frames_seen),
    )


def gradient(
    frames: Tensor,
    request: Request,
    weights: Weights,
    saved: tuple[Tensor, ...],
    above: Tensor | None,
) -> Tensor:
    """Same as `torch.fresh.gradient`."""
    y = _plain(frames)
    channels, positions = y.shape[1:]
    steps = saved[-1]
    lags, latest, seen, centre, sums = (tensor.numpy() for tensor in saved[:-1])
    job = _job(y, request)._replace(lags=lags, latest=latest, seen=seen, centre=centre)
    rooms = _rooms(y)
    padded = rooms[0].within.shape[0]
    matrices = np.zeros((2, padded, padded), np.float32)
    narrow = in_float32(weights)
    matrices[:, :channels, :channels] = narrow.numpy()
    mean = torch.from_numpy(sums) / averaged_frames(steps, request.rates).clamp(min=1)
    shift = (narrow[1].double() @ mean).float().numpy()
    carry = np.zeros((2, channels, positions), np.float32)
    result = room_like(frames) if frames.dtype == torch.float32 else torch.empty_like(frames)
    out = result.numpy() if _is_plain(result) else np.empty(y.shape, np.float32)
    more = y if above is None else _plain(above)

    def work(thread: int, begin: int, end: int) -> None:
        rest = (matrices, shift, carry, more, above is not None, out)
        run(loops("fresh").write_gradient, job, rooms[thread], begin, end, *rest)

    _share(rooms, positions, work)
    return result if _is_plain(result) else result.copy_(torch.from_numpy(out))


def _is_plain(maps: Tensor) -> bool:
    return maps.dtype == torch.float32 and maps.is_contiguous()


def _plain(maps: Tensor) -> Array:
    """Return maps as a contiguous float32 array."""
    array: Array = maps.detach().to(torch.float32).contiguous().resolve_neg().numpy()
    return array


def _centre(job: Any, rooms: list[Any], steps: Array, shared: bool) -> Array:
    """Average over the usable frames of each stream, or of all clips at a position."""
    sums = np.zeros((len(steps), *job.frames.shape[1:]))

    def work(thread: int, begin: int, end: int) -> None:
        run(loops("fresh").sum_frames, job, rooms[thread], begin, end, sums, steps)

    _share(rooms, sums.shape[2], work)
    number = steps
    if shared:
        sums, number = sums.sum(0, keepdims=True), steps.sum(0, keepdims=True)
    return (sums / np.maximum(number, 1)[:, None]).astype(np.float32)


def _job(y: Array, request: Request) -> Any:
    """Describe a call; `measure` fills in the state before each block."""
    frames, channels, positions = y.shape
    blocks, rates = -(-frames // STEPS), request.rates
    seen = np.arange(max(request.lengths) + 1)
    keeps = []
    for rate in (rates.mu, rates.eps):
        evidence = -np.expm1(seen * np.log1p(-rate))
        keeps.append((1 - rate) * evidence / ((1 - rate) * evidence + rate))
    return loops("fresh").Job(
        frames=y,
        clips=np.repeat(np.arange(len(request.lengths)), request.lengths),
        keeps=np.array(keeps, np.float32),
        mode=getattr(loops("fresh"), rates.long_term.upper()),
        largest=request.largest,
        steps=STEPS,
        width=_width(channels, positions),
        centre=np.zeros((1, channels, positions), np.float32),
        lags=np.empty((2, blocks, channels, positions), np.float32),
        latest=np.empty((blocks, channels, positions), np.float32),
        seen=np.empty((blocks, positions), np.int64),
    )


def _width(channels: int, positions: int) -> int:
    """Return the number of positions of a tile, a multiple of 16."""
    share = -(-positions // torch.get_num_threads())
    most = max(64, BLOCK_VALUES // (STEPS * channels))
    return min(most, -(-share // 16) * 16)


def _rooms(y: Array) -> list[Any]:
    """Allocate the workspace of each thread."""
    channels, positions = y.shape[1:]
    width, padded = _width(channels, positions), -(-channels // 4) * 4
    columns = STEPS * width
    threads = max(1, min(torch.get_num_threads(), -(-positions // width)))
    return [
        loops("fresh").Room(
            _aligned(padded, columns),
            _aligned(padded, columns),
            _aligned(8, columns),
            _aligned(STEPS, width),
            _aligned(2, STEPS, width),
            _aligned(2, channels, width),
            _aligned(channels, width),
            np.zeros(width, np.int64),
        )
        for _ in range(threads)
    ]


def _aligned(*shape: int) -> Array:
    """Return zeros aligned to cache lines, so that no load crosses two of them."""
    line = 64
    room = np.zeros(math.prod(shape) * 4 + line, np.uint8)
    begin = -room.ctypes.data % line
    return room[begin : begin + math.prod(shape) * 4].view(np.float32).reshape(shape)


def _share(rooms: list[Any], positions: int, work: Callable[[int, int, int], Any]) -> None:
    """Split the positions among threads, in whole tiles; the first part runs on this thread."""
    width, count = rooms[0].usable.shape[1], len(rooms)
    tiles = -(-positions // width)
    edges = [min(positions, width * (tiles * i // count)) for i in range(count + 1)]
    waiting = [_pool().submit(work, i, edges[i], edges[i + 1]) for i in range(1, count)]
    try:
        work(0, edges[0], edges[1])
    finally:
        for other in waiting:
            other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ullayers")
    if hasattr(os, "register_at_fork"):  # threads do not survive a fork
        os.register_at_fork(after_in_child=_pool.cache_clear)
    return pool
