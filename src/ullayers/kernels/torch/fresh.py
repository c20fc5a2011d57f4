"""Sums over the frames of one call and the gradient of J, for any shape and device.

Frames come as (frames, features, positions), clips one after the other. Every position of every
clip is a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from ullayers.kernels.moments import (
    Moments,
    Request,
    Weights,
    averaged_frames,
    counts_of,
    is_by_rows,
)
from ullayers.kernels.packing import Packing
from ullayers.kernels.state import Rates, on_host
from ullayers.kernels.torch.filters import moving_average

# Few frames for each feature give ill-conditioned covariances; these are computed in float64.
CAREFUL_VALUES, CAREFUL_FRAMES = 2**18, 8
TILE_VALUES = 2**20  # larger maps are taken some positions at a time
NAME = "PyTorch operations"


def why_not(frames: Tensor, request: Request, scatter: Tensor | None) -> str | None:
    """Any call is taken."""
    return None


def measure(frames: Tensor, request: Request, scatter: Tensor | None) -> Moments:
    """Sums over the frames of a call.

    Args:
        frames: (frames, features, positions), without a gradient.
        request: what is asked.
        scatter: (frames, features, features) to be added to W, where there is a single position.
    """
    parts = [to_batch(part, request, scatter).moments() for part in _tiles(frames)]
    if len(parts) == 1:
        return parts[0]
    return Moments(
        torch.stack([part.within for part in parts]).sum(0),
        torch.stack([part.between for part in parts]).sum(0),
        torch.stack([part.counts for part in parts]).sum(0),
        torch.cat([part.short_mean for part in parts], -1),
        torch.cat([part.long_mean for part in parts], -1),
        torch.cat([part.steps for part in parts], -1),
    )


def gradient(
    frames: Tensor,
    request: Request,
    weights: Weights,
    saved: tuple[Tensor, ...],
    above: Tensor | None,
) -> Tensor:
    """dJ/dframes plus the gradient from above, in the dtype and layout of the frames.

    Args:
        frames: as in `measure`.
        request: as in `measure`.
        weights: the derivatives of J.
        saved: from `measure`; what is not there is computed again.
        above: like the frames, if there is any.
    """
    packing = _packing(request.lengths)
    if saved:
        found = packing.unpack(Batch.of_saved(saved, request).gradient(weights, *saved[:2]))
        return found.to(frames.dtype) if above is None else above + found.to(frames.dtype)
    result = torch.empty_like(frames)
    for part, out in zip(_tiles(frames), _tiles(result), strict=True):
        batch = to_batch(part, request)
        D, E, _ = batch.deviations()
        out.copy_(packing.unpack(batch.gradient(weights, D, E)))
    return result if above is None else result.add_(above)


def scatter_gradient(
    frames: Tensor, request: Request, weights: Weights, saved: tuple[Tensor, ...]
) -> Tensor:
    """dJ/dscatter: half of the derivative of J by W, for every frame that counts."""
    batch, D = Batch.of_saved(saved, request), saved[0]
    half = (weights.matrices[0] / 2).to(D.dtype)
    result = torch.where(batch.counted()[0], half, 0)
    moved = batch.in_place(result.expand(*D.shape[:3], len(half)))
    return _packing(request.lengths).unpack(moved)


def working_precision(frames: Tensor) -> torch.dtype:
    """What the arithmetic is done in, whatever the precision of the network."""
    count, d, positions = frames.shape
    small = frames.numel() <= CAREFUL_VALUES or count * positions < CAREFUL_FRAMES * d
    return torch.float64 if small else torch.promote_types(frames.dtype, torch.float32)


@dataclass(frozen=True)
class Batch:
    """Frames as (time, clips, features, positions), padded to the longest clip.

    Streams with gaps are moved up to close them: a stream is active from step 0 to its last.
    """

    x: Tensor  # relative to `centre`, and zero where not active
    centre: Tensor  # mean over active frames: (clips, d, positions), or (1, d, positions) if shared
    steps: Tensor | None  # (clips, 1, positions) active steps of each stream; None: all
    order: Tensor | None  # (time, clips, 1, positions): the step a frame was moved from
    request: Request
    scatter: Tensor | None = None  # (time, clips, d, d), zero where not active

    @classmethod
    def of_saved(cls, saved: tuple[Tensor, ...], request: Request) -> Batch:
        """A batch whose deviations are known, for its gradient."""
        D, _, *gaps = saved
        steps = gaps[0] if gaps else None
        order = gaps[1] if len(gaps) > 1 else None
        return cls(D, D, steps, order, request)

    @property
    def rates(self) -> Rates:
        """mu, eps and the kind of long-term mean."""
        return self.request.rates

    def counted(self) -> tuple[Tensor, Tensor]:
        """Where D and E count; both broadcast to (time, clips, 1, positions)."""
        clock = _clock(self.x)
        active = clock >= 0 if self.steps is None else clock < self.steps
        past = active & (clock >= 1)
        if self.rates.long_term == "stream":
            return past, past
        return past, active & (_averaged(self.x, self.steps, self.rates) > 1)

    def deviations(self) -> tuple[Tensor, Tensor, Tensor]:
        """D and E, zero where they do not count, and the short-term mean less the centre."""
        flat = self.x.flatten(1)
        short = moving_average(len(flat), self.rates.mu, flat)(flat)
        D, E = flat - short, short
        if self.rates.long_term == "stream":
            E = short - moving_average(len(flat), self.rates.eps, flat)(flat)
        D, E, short = (values.view_as(self.x) for values in (D, E, short))
        if self.steps is None:  # a first frame is its own short-term mean, up to rounding
            D[0].zero_()
            return D, E, short
        in_w, in_b = self.counted()
        return torch.where(in_w, D, 0), torch.where(in_b, E, 0), short

    def moments(self) -> Moments:
        """Sums over all frames."""
        D, E, short = self.deviations()
        long_mean = self.centre
        if self.rates.long_term == "stream":
            long_mean = self._at_end(short - E) + self.centre
        rows = scatter = None
        if self.scatter is not None:
            scatter = torch.where(self.counted()[0], self.scatter, 0).sum((0, 1))
        elif is_by_rows(self.x.shape, self.request, None):
            rows = torch.stack([_rows(v) @ _rows(v).T for v in (D, E)])
        saved: tuple[Tensor, ...] = ()
        if self.x.shape[3] == 1:  # codes are small enough to be kept
            saved = (D, E, *(t for t in (self.steps, self.order) if t is not None))
        steps = self.steps
        if steps is None:
            steps = torch.full_like(short[0, :, :1], len(self.x), dtype=torch.int64)
        return Moments(
            _gram(D), _gram(E), counts_of(steps, self.request), self._at_end(short) + self.centre,
            long_mean, steps, rows, scatter, saved,
        )  # fmt: skip

    def gradient(self, weights: Weights, D: Tensor, E: Tensor) -> Tensor:
        """(time, clips, features, positions), each frame where it came from."""
        by_d, by_e = (_product(weights, i, v) for i, v in enumerate((D, E)))
        back = moving_average(len(D), self.rates.mu, D)
        result = by_d + back.transposed((by_e - by_d).flatten(1)).view_as(D)
        if self.rates.long_term == "stream":
            back = moving_average(len(D), self.rates.eps, D)
            result -= back.transposed(by_e.flatten(1)).view_as(D)
        # Frames are taken relative to their mean, so the gradient has its own mean removed.
        result = self._active(result)
        result -= _mean(result, self.steps, self.rates)
        return self.in_place(self._active(result))

    def in_place(self, values: Tensor) -> Tensor:
        """Values of frames that were moved up, back where the frames came from."""
        if self.order is None:
            return values
        return torch.zeros_like(values).scatter_(0, self.order.expand_as(values), values)

    def _active(self, values: Tensor) -> Tensor:
        """Values, with zeros where a stream is not active."""
        return values if self.steps is None else torch.where(_clock(values) < self.steps, values, 0)

    def _at_end(self, values: Tensor) -> Tensor:
        """(clips, d, positions): after the last active step of each stream."""
        if self.steps is None:
            return values[-1]
        last = (self.steps - 1).clamp(min=0).expand_as(values[0])
        return values.gather(0, last[None])[0]


def to_batch(frames: Tensor, request: Request, scatter: Tensor | None = None) -> Batch:
    """The frames of a call, aligned in time and relative to their mean."""
    packing = _packing(request.lengths)
    y = packing.pack(frames.to(working_precision(frames)))
    extra = None if scatter is None else packing.pack(scatter.to(y.dtype))
    there, order, steps = None, None, None
    if packing.ragged:
        there = packing.active(len(y), y.shape[1], y.device)[:, :, None, None]
    usable = _usable(y, extra, request.largest)
    if usable is not None:
        there = usable if there is None else usable & there
        order = (~there).to(torch.uint8).argsort(dim=0, stable=True)
        y = torch.where(there, y, 0).gather(0, order.expand_as(y))
        if extra is not None:
            extra = torch.where(there, extra, 0).gather(0, order.expand_as(extra))
    if there is not None:
        steps = there.expand_as(y[:, :, :1]).sum(0)
    centre = _mean(y, steps, request.rates)
    batch = Batch(y - centre, centre, steps, order, request, extra)
    return replace(batch, x=batch._active(batch.x))


@lru_cache(maxsize=64)
def _packing(lengths: tuple[int, ...]) -> Packing:
    """How clips lie in (time, clips, ...). Kept: to check many lengths takes its time."""
    return Packing(lengths)


def _tiles(frames: Tensor) -> Iterator[Tensor]:
    """Some positions at a time, so that what is computed from them stays small."""
    count, d, positions = frames.shape
    width = max(1, TILE_VALUES // (count * d))
    for begin in range(0, positions, width):
        yield frames[..., begin : begin + width]


def _usable(y: Tensor, scatter: Tensor | None, largest: float) -> Tensor | None:
    """(time, clips, 1, positions): where all values are finite and not too large; None: all."""
    if scatter is None and on_host(y):
        low, high = y.aminmax()
        if bool((low >= -largest) & (high <= largest)):
            return None
    usable: Tensor = y.abs().amax(2, keepdim=True) <= largest  # a NaN compares as false
    if scatter is not None:
        usable = usable & (scatter.abs().amax((2, 3)) <= largest**2)[:, :, None, None]
    return usable


def _mean(values: Tensor, steps: Tensor | None, rates: Rates) -> Tensor:
    """Over the active frames of each stream, or of all clips at a position; others are zero."""
    total = values.sum(0)
    if rates.long_term == "shared":
        total = total.sum(0, keepdim=True)
    number = _averaged(values, steps, rates)
    return total / (number if isinstance(number, int) else number.clamp(min=1))


def _averaged(values: Tensor, steps: Tensor | None, rates: Rates) -> Tensor | int:
    """How many frames of (time, clips, ...) values the long-term mean of a stream is over."""
    if steps is not None:
        return averaged_frames(steps, rates)
    return len(values) * (values.shape[1] if rates.long_term == "shared" else 1)


def _product(weights: Weights, which: int, values: Tensor) -> Tensor:
    matrix = weights.matrices[which].to(values.dtype)
    if weights.by_rows:
        return (matrix @ _rows(values)).view_as(values)
    if values.shape[3] == 1:
        return (_rows(values) @ matrix).view_as(values)
    return matrix @ values


def _gram(values: Tensor) -> Tensor:
    """(time, clips, d, positions) to (d, d) in float64."""
    if values.shape[3] == 1:
        rows = _rows(values)
        return (rows.T @ rows).double()
    maps = values.flatten(0, 1)
    return torch.bmm(maps, maps.mT).sum(0, dtype=torch.float64)


def _rows(values: Tensor) -> Tensor:
    """(time, clips, d, 1) to (time * clips, d)."""
    return values.reshape(-1, values.shape[2])


def _clock(like: Tensor) -> Tensor:
    return torch.arange(len(like), device=like.device).view(-1, 1, 1, 1)
