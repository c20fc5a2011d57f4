"""Maps of one video on a CPU, from the statistics of a layer to those after them.

A forward pass has to find W and B only. The gradient waits until there is one from above to add it
to: it is written once then, and until then the maps stay in the cache for the layers that follow.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ullayers.kernels.compiling import loops, run
from ullayers.kernels.covariance import noise_share, ridge_period
from ullayers.kernels.gapless import Path, Walk
from ullayers.kernels.low_rank import may_use_low_rank
from ullayers.kernels.state import (
    PER_STREAM,
    Rates,
    address,
    is_as_made,
    on_host,
    room_like,
    shared_clone,
)
from ullayers.kernels.tiles import SMALLEST_FRAME, Array, Part, Tiles, UnusableError, can_tile

# What may be kept until the backward pass, as a share of the maps, or bytes if that is more.
MOST_KEPT, FEW_BYTES = 1 / 4, 2**22
MEANS, EVIDENCES = PER_STREAM[:4], PER_STREAM[4:]
COVARIANCES = ("short_cov", "short_cov_rest", "long_cov", "long_cov_rest")


@dataclass(frozen=True)
class Postponed:
    """The gradient of maps, which is made when it is asked for."""

    maps: Tensor  # (T, C, H, W), a clone that shares the memory of the input until that is changed
    parts: list[Part]
    scale: float

    def added_to(self, above: Tensor | None) -> Tensor:
        """It and the gradient from above, if there is any, in memory of their own."""
        if above is not None and not _has_values(above):
            return self.added_to(None).add_(above)
        frames, gradient = _frames(self.maps), room_like(self.maps)
        tiles, out = Tiles.of(frames), gradient.numpy().reshape(frames.shape)
        tiles = tiles if self.parts[0].inverses.dtype == np.float64 else tiles.in_float32()
        more = None
        if above is not None:
            more = above.contiguous().resolve_neg().numpy().reshape(frames.shape)
        for part in self.parts:
            tiles.write(part, self.scale, more, out)
        return gradient


@dataclass(frozen=True)
class Given:
    """What a pass over maps has to know, beside them and the statistics."""

    rates: Rates
    scale: float  # of the gradient
    goes_on: bool  # whether the streams do. If not, nothing is known of them
    largest: float  # what a value may be at most
    careful: bool  # work in float64


def can_postpone(y: Tensor, rates: Rates) -> bool:
    """Whether `learn` takes such an input; its statistics may forbid it."""
    plain = rates.plain and rates.long_term == "stream"
    plain = plain and type(y) is Tensor and y.ndim == 4 and y.is_contiguous()
    if not (plain and len(y) > 1 and on_host(y)):
        return False
    frames = y.detach().flatten(2)
    fits = frames[0].numel() >= SMALLEST_FRAME and not may_use_low_rank(frames.mT)
    return fits and can_tile(frames)


def learn(
    y: Tensor, buffers: Mapping[str, Tensor], given: Given
) -> tuple[Postponed, dict[str, Tensor]] | None:
    """What `core.advance` does, with the gradient to come; None for what it does not take.

    Args:
        y: (T, C, H, W), without a gradient.
        buffers: the statistics; not changed.
        given: all else.

    Returns:
        the gradient, and all statistics by their names but for `continues`.
    """
    maps = shared_clone(y)  # whatever others do to the input, it stays where it is
    frames = _frames(maps)
    channels, positions = frames.shape[1:]
    if not _are_plain(buffers, positions if given.goes_on else None, channels):
        return None
    seen = _evidence(buffers) if given.goes_on else [0.0, 0.0]
    if seen is None:
        return None
    wide = Tiles.of(frames, given.largest)
    if _kept(wide) * (8 if given.careful else 4) > max(MOST_KEPT * frames.nbytes, FEW_BYTES):
        return None
    try:
        found = None if given.careful else _cover(wide.in_float32(), buffers, given, seen)
        if found is None:  # it may not do in float32
            wide.tiles[:] = 0
            found = _cover(wide, buffers, given, seen)
    except UnusableError:
        return None
    assert found is not None
    walk, parts = found
    new = {name: _room(positions, channels) for name in MEANS}
    _move_means(wide, loops("statistics").write_means, frames[-1], walk.lags.numpy(), new)
    for name, value in zip(EVIDENCES, walk.seen, strict=True):
        new[name] = buffers[name].new_full((positions,), value)
    left_out = buffers["left_out"].clone()
    left_out[1] += walk.singular
    steps = torch.full_like(buffers["steps"], walk.step)
    new |= {"pull": walk.pull, "steps": steps, "left_out": left_out, **_covariances(walk)}
    return Postponed(maps, parts, given.scale), new


def _kept(tiles: Tiles) -> int:
    """How many values: the inverses of all steps, and the lags before each group of them."""
    steps, frame = len(tiles.frames), tiles.frames[0].size
    return int(steps * tiles.matrices[0].size + -(-steps // tiles.steps) * 2 * frame)


def _cover(
    tiles: Tiles, buffers: Mapping[str, Tensor], given: Given, seen: list[float]
) -> tuple[Walk, list[Part]] | None:
    """W and B after all steps, and what the gradient is made of; None if in doubt."""
    frames, kind = tiles.frames, tiles.tiles.dtype
    lags = np.zeros((2, *frames.shape[1:]), kind)
    if seen[0] > 0:
        _move_means(tiles, loops("statistics").read_lags, frames[0], lags, buffers)
    W, B = _paths(buffers, given.rates)
    work = torch.float64 if given.careful else torch.float32
    walk = Walk(
        rates=given.rates, scale=given.scale, channels_first=True, streams=frames.shape[2],
        lags=torch.from_numpy(lags), own_mean=None, seen=seen, W=W, B=B,
        pull=buffers["pull"].to(work, copy=True), step=int(buffers["steps"]),
        noise=noise_share(work) / frames.shape[1],
    )  # fmt: skip
    inverses, parts = np.empty((len(frames), *tiles.matrices.shape[1:]), kind), []
    for begin in range(0, len(frames), tiles.steps):
        part = walk.cover(tiles, begin, inverses[begin:])
        if part is None:
            return None
        parts.append(part)
    return walk, parts


def _are_plain(buffers: Mapping[str, Tensor], positions: int | None, channels: int) -> bool:
    """Whether loops can take these statistics; those of streams only if there are positions."""
    shapes = dict.fromkeys(COVARIANCES, (channels, channels))
    if positions is not None:
        shapes |= dict.fromkeys(MEANS, (positions, channels))
    return all(is_as_made(buffers[name], shape, torch.float32) for name, shape in shapes.items())


def _evidence(buffers: Mapping[str, Tensor]) -> list[float] | None:
    """Of both means; None if streams differ in it."""
    short, long = (buffers[name].numpy() for name in EVIDENCES)
    alike = (short == short[0]).all() and (long == long[0]).all()
    same = bool(short[0] > 0) == bool(long[0] > 0)
    return [float(short[0]), float(long[0])] if alike and same else None


def _move_means(
    tiles: Tiles, move: Any, frame: Array, lags: Array, means: Mapping[str, Tensor]
) -> None:
    """Between means (P, C) in memory and their lags behind a frame."""
    known = frame, lags, tuple(means[name].numpy() for name in MEANS)
    tiles.on_all(lambda i: run(move, *known, *tiles.shares[i]))


def _paths(buffers: Mapping[str, Tensor], rates: Rates) -> list[Path]:
    """W and B."""
    values = tuple(buffers[name].numpy() for name in COVARIANCES)
    seen, ridges = (buffers[name].double() for name in ("cov_evidence", "ridge_level"))
    totals = np.empty((2, *values[0].shape))
    run(loops("statistics").read_covs, values, seen.numpy(), totals)
    each = zip(totals, seen.tolist(), ridges.tolist(), (rates.mu, rates.eps), strict=True)
    return [
        Path(torch.from_numpy(total), float(total.trace()), known, ridge, rate, ridge_period(rate))
        for total, known, ridge, rate in each
    ]


def _covariances(walk: Walk) -> dict[str, Tensor]:
    """The other way round."""
    paths, size = (walk.W, walk.B), walk.W.total.shape
    new = {name: _room(*size) for name in COVARIANCES}
    seen, ridges = (
        np.array([getattr(path, name) for path in paths]) for name in ("evidence", "ridge")
    )
    totals = np.stack([path.total.numpy() for path in paths])
    run(
        loops("statistics").write_covs, tuple(value.numpy() for value in new.values()), seen, totals
    )
    numbers = {"cov_evidence": seen, "ridge_level": ridges}
    return {**new, **{name: torch.from_numpy(value) for name, value in numbers.items()}}


def _room(*size: int) -> Tensor:
    """For a statistic, whatever the default device and precision are."""
    return torch.from_numpy(np.empty(size, "f"))


def _has_values(above: Tensor) -> bool:
    """Whether it is no more than them: in a row, and with no gradient of its own."""
    plain = above.layout == torch.strided and not above._is_zerotensor()
    return plain and not above.requires_grad


def _frames(maps: Tensor) -> Array:
    """(T, C, P): the values of maps, without asking torch, which would copy them if shared."""
    values = (ctypes.c_float * maps.numel()).from_address(address(maps))
    values.owner = maps  # type: ignore[attr-defined]  # whose memory it is, and stays
    return np.ctypeslib.as_array(values).reshape(*maps.shape[:2], -1)
