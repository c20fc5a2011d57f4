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

from ullayers.kernels.compiling import run
from ullayers.kernels.covariance import noise_share
from ullayers.kernels.gapless import Path, Walk
from ullayers.kernels.state import Covariance, Rates, on_host, room_like
from ullayers.kernels.tiles import Array, Part, Tiles, can_tile, loops

# What is kept until the backward pass, as a share of the maps, or bytes if that is more.
MOST_KEPT, FEW_BYTES = 1 / 8, 2**22
MEANS = ("short_mean", "short_mean_rest", "long_mean", "long_mean_rest")
EVIDENCES = ("short_evidence", "long_evidence")


@dataclass(frozen=True)
class Postponed:
    """The gradient of maps, which is made when it is asked for."""

    maps: Tensor  # (T, C, H, W), a clone with the memory of the input until that is changed
    place: int  # of that memory: to ask the clone for it would make it a copy
    parts: list[Part]
    scale: float

    def added_to(self, above: Tensor | None) -> Tensor:
        """It, and what comes from above."""
        shape = (len(self.maps), self.maps.shape[1], -1)
        count = self.maps.numel()
        frames = np.ctypeslib.as_array((ctypes.c_float * count).from_address(self.place))
        tiles, gradient = Tiles.of(frames.reshape(shape)).in_float32(), room_like(self.maps)
        out = gradient.numpy().reshape(shape)
        more = None if above is None else above.contiguous().resolve_neg().numpy().reshape(shape)
        for part in self.parts:
            tiles.write(part, self.scale, more, out)
        return gradient


@dataclass(frozen=True)
class Learned:
    """What is known after the maps."""

    gradient: Postponed
    per_stream: dict[str, Tensor]  # statistics by name
    covs: tuple[Covariance, Covariance]  # W and B
    common: dict[str, Tensor]  # other statistics


def can_postpone(y: Tensor, rates: Rates) -> bool:
    """Whether `learn` takes such an input; its statistics may forbid it."""
    plain = rates.long_term == "stream" and not rates.diagonal and rates.eps < rates.mu
    if not (plain and type(y) is Tensor and y.ndim == 4 and len(y) > 1 and on_host(y)):
        return False
    steps, channels = y.shape[:2]
    kept = 2 * steps * channels**2 * y.element_size()
    fits = kept <= max(MOST_KEPT * y.numel() * y.element_size(), FEW_BYTES)
    return fits and can_tile(y.detach().flatten(2))


def learn(
    y: Tensor,
    buffers: Mapping[str, Tensor],
    covs: tuple[Covariance, Covariance],
    rates: Rates,
    scale: float,
    goes_on: bool,
    largest: float,
) -> Learned | None:
    """What `core.advance` does, with the gradient to come; None where float32 may not do.

    Args:
        y: (T, C, H, W), without a gradient.
        buffers: the statistics, of which all but W and B are looked at.
        covs: W and B.
        rates: the rates and choices of the layer.
        scale: of the gradient.
        goes_on: whether the streams do. If not, nothing is known of them.
        largest: what a value may be at most.
    """
    frames = y.flatten(2).numpy()
    channels, positions = frames.shape[1:]
    tiles, lags = Tiles.of(frames, largest).in_float32(), np.zeros((2, *frames.shape[1:]), "f")
    seen = _evidence(buffers, positions, channels) if goes_on else [0.0, 0.0]
    if seen is None:
        return None
    if seen[0] > 0:
        _move_means(tiles, loops().read_lags, frames[0], buffers, lags)
    walk = Walk(
        rates, scale, True, positions, torch.from_numpy(lags), None, seen,
        Path.of(covs[0], rates.mu), Path.of(covs[1], rates.eps),
        buffers["pull"].clone(), int(buffers["steps"]), noise_share(torch.float32) / channels,
    )  # fmt: skip
    inverses, parts = np.empty((len(frames), *tiles.matrices.shape[1:]), "f"), []
    for begin in range(0, len(frames), tiles.steps):
        part = walk.cover(tiles, begin, inverses[begin:])
        if part is None:
            return None
        parts.append(part)
    means = {name: torch.empty(positions, channels) for name in MEANS}
    _move_means(tiles, loops().write_means, frames[-1], means, walk.lags.numpy())
    for name, value in zip(EVIDENCES, walk.seen, strict=True):
        means[name] = torch.full((positions,), value)
    common = {
        "pull": walk.pull,
        "steps": torch.tensor(walk.step),
        "left_out": buffers["left_out"] + torch.tensor([0, walk.singular]),
    }
    gradient = Postponed(*_held(y), parts, scale)
    return Learned(gradient, means, (walk.W.done(), walk.B.done()), common)


def _evidence(buffers: Mapping[str, Tensor], positions: int, channels: int) -> list[float] | None:
    """Of both means; None if streams differ in it, or statistics are none that loops can take."""
    for name in (*MEANS, *EVIDENCES):
        buffer, shape = buffers[name], (positions, channels)[: 2 if name in MEANS else 1]
        plain = on_host(buffer) and buffer.dtype == torch.float32 and not buffer.is_neg()
        if not plain or buffer.shape != shape or not buffer.is_contiguous():
            return None
    short, long = (buffers[name].numpy() for name in EVIDENCES)
    alike = (short == short[0]).all() and (long == long[0]).all()
    same = bool(short[0] > 0) == bool(long[0] > 0)
    return [float(short[0]), float(long[0])] if alike and same else None


def _move_means(
    tiles: Tiles, move: Any, frame: Array, means: Mapping[str, Tensor], lags: Array
) -> None:
    """Between means (P, C) in memory and their lags behind a frame."""
    arrays = [means[name].numpy() for name in MEANS]

    def work(i: int) -> None:
        for which in range(2):
            run(move, frame, *arrays[2 * which :][:2], *tiles.shares[i], lags[which])

    tiles.on_all(work)


def _held(y: Tensor) -> tuple[Tensor, int]:
    """A clone, which is no copy before one of the two is changed, and where its memory is."""
    place = y.data_ptr()
    try:
        return torch._lazy_clone(y), place
    except RuntimeError:  # the memory is not torch's own
        clone = y.clone()
        return clone, clone.data_ptr()
