"""Sums over the frames of one call and the gradient of J, for any shape and device.

Frames have the shape (frames, features, positions), with the clips concatenated. Every position of
every clip is a stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ullayers.kernels.frames import on_host, packing_of
from ullayers.kernels.moments import (
    FrameCounts,
    Moments,
    Rates,
    Request,
    Weights,
    averaged_frames,
    by_stream,
    count_all_frames,
    count_frames,
    is_by_rows,
    weigh,
    working_precision,
)

TILE_VALUES = 2**20  # larger maps are processed some positions at a time
DENSE_PRODUCTS = 2**18  # up to this many, one product with a matrix is faster than block filters
BLOCK_FRAMES = 32  # longer inputs are filtered in blocks of this many frames
LONGEST_SINGLE = 64  # up to this many frames one triangular matrix is cheaper
NAME = "PyTorch operations"

__all__ = ["NAME", "gradient", "measure", "scatter_gradient", "weigh", "why_not"]


def why_not(frames: Tensor, request: Request, scatter: Tensor | None) -> str | None:
    """Return None: this kernel accepts every call."""
    return None


class SharedMean(NamedTuple):
    """Long-term mean of each position over the frames of several processes."""

    mean: Tensor  # (1, features, positions)
    frames: Tensor  # (1, 1, positions) int64, number of frames
    deviation: Tensor | None = None  # (1, features, positions) mean of E, for the gradient

    def at(self, positions: slice) -> SharedMean:
        """Return the mean of some positions."""
        return SharedMean(*(None if each is None else each[..., positions] for each in self))  # type: ignore[arg-type]


def measure(
    frames: Tensor, request: Request, scatter: Tensor | None, shared: SharedMean | None = None
) -> Moments:
    """Sum over the frames of a call.

    Args:
        frames: (frames, features, positions), detached.
        request: Settings of the call.
        scatter: (frames, features, features) to be added to W; for a single position only.
        shared: Long-term mean, if processes share it.
    """
    parts = [
        to_batch(frames[..., part], request, scatter, shared and shared.at(part)).moments()
        for part in tiles(frames)
    ]
    if len(parts) == 1:
        return parts[0]
    clips = len(request.lengths)
    averages = 1 if request.rates.long_term == "shared" else clips
    steps = torch.cat([part.seen.steps for part in parts], -1)
    return Moments(
        torch.stack([part.sums for part in parts]).sum(0),
        count_frames(steps, request, shared and shared.frames),
        _joined([part.short_mean for part in parts], clips),
        _joined([part.long_mean for part in parts], averages),
        between=_beside([part.between for part in parts]),
    )


def gradient(
    frames: Tensor,
    request: Request,
    weights: Weights,
    saved: tuple[Tensor, ...],
    above: Tensor | None,
    shared: SharedMean | None = None,
) -> Tensor:
    """Return dJ/dframes plus the incoming gradient, in the dtype and layout of the frames.

    Args:
        frames: As in `measure`.
        request: As in `measure`.
        weights: Derivatives of J.
        saved: Tensors from `measure`; deviations that it did not keep are computed again.
        above: Incoming gradient with the shape of the frames, if any.
        shared: Long-term mean, if processes share it.
    """
    packing = packing_of(request.lengths)
    if saved:
        found = packing.unpack(Batch.of_saved(saved, request, shared).gradient(weights, saved[0]))
        return found.to(frames.dtype) if above is None else above + found.to(frames.dtype)
    result = torch.empty_like(frames)
    for part in tiles(frames):
        batch = to_batch(frames[..., part], request, shared=shared and shared.at(part))
        result[..., part] = packing.unpack(batch.gradient(weights, batch.deviations()))
    return result if above is None else result.add_(above)


def scatter_gradient(
    frames: Tensor, request: Request, weights: Weights, saved: tuple[Tensor, ...]
) -> Tensor:
    """Return dJ/dscatter: half of the derivative of J by W, for every frame that counts."""
    batch, D = Batch.of_saved(saved, request), saved[0][0]
    half = (weights.matrices[0] / 2).to(D.dtype)
    result = torch.where(batch.counted()[0], half, 0)
    moved = batch.in_place(result.expand(*D.shape[:3], len(half)))
    return packing_of(request.lengths).unpack(moved)


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
    shared: SharedMean | None = None  # if processes share the long-term mean

    @classmethod
    def of_saved(
        cls, saved: tuple[Tensor, ...], request: Request, shared: SharedMean | None = None
    ) -> Batch:
        """Return a batch whose deviations are known, for its gradient."""
        deviations, *gaps = saved
        steps = gaps[0] if gaps else None
        order = gaps[1] if len(gaps) > 1 else None
        return cls(deviations[0], deviations[0], steps, order, request, shared=shared)

    @property
    def rates(self) -> Rates:
        """mu, eps and the kind of long-term mean."""
        return self.request.rates

    @property
    def eps(self) -> float | None:
        """Rate of the long-term mean, or None if the centre is the long-term mean."""
        return self.rates.eps if self.rates.long_term == "stream" else None

    def counted(self) -> Tensor:
        """Return where D and E count: (2, time, clips, 1, positions) or broadcast to it."""
        clock = _clock(self.x)
        active = clock >= 0 if self.steps is None else clock < self.steps
        past = active & (clock >= 1)
        if self.rates.long_term == "stream":
            return torch.stack([past, past])
        averaged = _averaged(self.x, self.steps, self.rates)
        with_others = active & ((averaged if self.shared is None else self.shared.frames) > 1)
        return torch.stack([past, with_others.expand_as(past)])

    def deviations(self) -> Tensor:
        """Return D and E as (2, time, clips, features, positions), zero where they do not count."""
        flat = self.x.flatten(1)
        if self._is_dense(flat):
            both = deviation_matrix(len(flat), self.rates.mu, self.eps, flat) @ flat
        else:
            both = self._filtered(flat)
        both = both.view(2, *self.x.shape)
        return both if self.steps is None else torch.where(self.counted(), both, 0)

    def _filtered(self, flat: Tensor) -> Tensor:
        """Return D and E of (time, K) values."""
        both = flat.new_empty(2, *flat.shape)
        short = moving_average(len(flat), self.rates.mu, flat)(flat)
        torch.sub(flat, short, out=both[0])
        both[0, 0] = 0.0  # a first frame is its own short-term mean, up to rounding
        if self.eps is None:
            both[1] = short
        else:
            torch.sub(short, moving_average(len(flat), self.eps, flat)(flat), out=both[1])
        return both

    def _is_dense(self, flat: Tensor) -> bool:
        return len(flat) * flat.numel() <= DENSE_PRODUCTS

    def moments(self) -> Moments:
        """Sum over all frames."""
        both = self.deviations()
        x, D, E = (self._at_end(values) for values in (self.x, both[0], both[1]))
        short_mean = x - D + self.centre
        long_mean = self.centre if self.eps is None else short_mean - E
        sums, rows = _gram(both), None
        if self.scatter is not None:
            sums[0] += torch.where(self.counted()[0], self.scatter, 0).sum((0, 1))
        elif is_by_rows(self.x, self.request, None):
            rows = _rows(both) @ _rows(both).mT
        saved: tuple[Tensor, ...] = ()
        if self.x.shape[3] == 1:  # codes are small enough to be kept
            saved = (both, *(t for t in (self.steps, self.order) if t is not None))
        between = None if self.shared is None else both[1].sum((0, 1), dtype=torch.float64)[None]
        means = by_stream(short_mean), by_stream(long_mean)
        return Moments(sums, self._seen(), *means, rows, saved, between)

    def _seen(self) -> FrameCounts:
        if self.steps is None and self.shared is None:
            return count_all_frames(self.request, self.x.shape[3], self.x.device)
        steps = self.steps
        if steps is None:
            steps = count_all_frames(self.request, self.x.shape[3], self.x.device).steps
        return count_frames(steps, self.request, self.shared and self.shared.frames)

    def gradient(self, weights: Weights, both: Tensor) -> Tensor:
        """Return (time, clips, features, positions), each frame at its original step."""
        by = _product(weights, both).view(2, len(self.x), -1)
        if self._is_dense(by[0]):
            filters = deviation_matrix(by.shape[1], self.rates.mu, self.eps, by)
            result = filters.T @ by.flatten(0, 1)
        else:
            by_d, by_e = by
            result = by_d + moving_average(len(by_d), self.rates.mu, by).transposed(by_e - by_d)
            if self.eps is not None:
                result -= moving_average(len(by_d), self.eps, by).transposed(by_e)
        # Frames are relative to their mean, so the gradient has its own mean removed.
        result = self._active(result.view_as(self.x))
        result -= self._mean_gradient(result, weights)
        return self.in_place(self._active(result))

    def _mean_gradient(self, result: Tensor, weights: Weights) -> Tensor:
        """Return the mean of the gradient; only that of E has one."""
        if self.shared is None:
            return _mean(result, self.steps, self.rates)
        assert self.shared.deviation is not None
        return (weights.matrices[1] @ self.shared.deviation).to(result.dtype)

    def in_place(self, values: Tensor) -> Tensor:
        """Move values back to where the frames came from."""
        if self.order is None:
            return values
        return torch.zeros_like(values).scatter_(0, self.order.expand_as(values), values)

    def _active(self, values: Tensor) -> Tensor:
        """Return the values, with zeros where a stream is not active."""
        return values if self.steps is None else torch.where(_clock(values) < self.steps, values, 0)

    def _at_end(self, values: Tensor) -> Tensor:
        """Return (clips, d, positions): values at the last active step of each stream."""
        if self.steps is None:
            return values[-1]
        last = (self.steps - 1).clamp(min=0).expand_as(values[0])
        return values.gather(0, last[None])[0]


def to_batch(
    frames: Tensor,
    request: Request,
    scatter: Tensor | None = None,
    shared: SharedMean | None = None,
) -> Batch:
    """Align the frames of a call in time, relative to their mean."""
    y, extra, steps, order = _aligned(frames, request, scatter)
    centre = _mean(y, steps, request.rates) if shared is None else shared.mean.to(y.dtype)
    batch = Batch(y - centre, centre, steps, order, request, extra, shared)
    return replace(batch, x=batch._active(batch.x))


def sum_frames(frames: Tensor, request: Request, scatter: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (1, features, positions) sums of usable frames, and their (1, 1, positions) number."""
    totals, numbers = [], []
    for part in tiles(frames):
        y, _, steps, _ = _aligned(frames[..., part], request, scatter)
        totals.append(y.sum((0, 1), dtype=torch.float64)[None])
        if steps is None:
            steps = count_all_frames(request, y.shape[3], y.device).steps
        numbers.append(steps.sum(0, keepdim=True))
    return torch.cat(totals, -1), torch.cat(numbers, -1)


def _aligned(
    frames: Tensor, request: Request, scatter: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return frames and scatter as in `Batch`, but not centred, with its `steps` and `order`."""
    packing = packing_of(request.lengths)
    y = packing.pack(frames.to(working_precision(frames)))
    extra = None if scatter is None else packing.pack(scatter.to(y.dtype))
    there = None
    order = None
    steps = None
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
    return y, extra, steps, order


def tiles(frames: Tensor) -> Iterator[slice]:
    """Yield some positions at a time, to bound the memory of intermediate results."""
    count, d, positions = frames.shape
    width = max(1, TILE_VALUES // (count * d))
    for begin in range(0, positions, width):
        yield slice(begin, begin + width)


def _beside(parts: list[Tensor | None]) -> Tensor | None:
    """Join values of some positions at a time, if there are any."""
    there = [part for part in parts if part is not None]
    return torch.cat(there, -1) if there else None


def _joined(means: list[Tensor], clips: int) -> Tensor:
    """Return (clips * positions, d) means of all positions, given those of some at a time."""
    whole = torch.cat([part.unflatten(0, (clips, -1)) for part in means], 1)
    return whole.flatten(0, 1)


def _usable(y: Tensor, scatter: Tensor | None, largest: float) -> Tensor | None:
    """Return where all values are finite and not too large, (time, clips, 1, positions).

    Returns None if that is known to hold everywhere.
    """
    if scatter is None and on_host(y):
        low, high = y.aminmax()
        if low.item() >= -largest and high.item() <= largest:
            return None
    usable: Tensor = y.abs().amax(2, keepdim=True) <= largest  # a NaN compares as false
    if scatter is not None:
        usable = usable & (scatter.abs().amax((2, 3)) <= largest**2)[:, :, None, None]
    return usable


def _mean(values: Tensor, steps: Tensor | None, rates: Rates) -> Tensor:
    """Average over active frames of each stream, or of all clips at a position; others are zero."""
    total = values.sum(0)
    if rates.long_term == "shared":
        total = total.sum(0, keepdim=True)
    number = _averaged(values, steps, rates)
    return total / (number if isinstance(number, int) else number.clamp(min=1))


def _averaged(values: Tensor, steps: Tensor | None, rates: Rates) -> Tensor | int:
    """Return the number of frames per long-term mean of (time, clips, ...) values."""
    if steps is not None:
        return averaged_frames(steps, rates)
    return len(values) * (values.shape[1] if rates.long_term == "shared" else 1)


def _product(weights: Weights, both: Tensor) -> Tensor:
    """Return dJ/dD and dJ/dE, with the shape of D and E."""
    matrices = weights.matrices.to(both.dtype)
    if weights.by_rows:
        return matrices @ _rows(both)
    if both.shape[-1] == 1:
        return _rows(both) @ matrices
    return matrices[:, None, None] @ both


def _gram(both: Tensor) -> Tensor:
    """Return (2, d, d) float64 sums of the products of D, and of E."""
    if both.shape[-1] == 1:
        rows = _rows(both)
        return (rows.mT @ rows).double()
    maps = both.flatten(1, 2)
    return (maps @ maps.mT).sum(1, dtype=torch.float64)


def _rows(both: Tensor) -> Tensor:
    """Return (2, time, clips, d, 1) values as (2, time * clips, d)."""
    return both.reshape(2, -1, both.shape[3])


def _clock(like: Tensor) -> Tensor:
    return torch.arange(len(like), device=like.device).view(-1, 1, 1, 1)


@dataclass(frozen=True)
class Filter:
    """m_t = sum_s a^(t-s) x_s / sum_s a^(t-s) over s <= t: Eq. 6 without earlier frames.

    Time is cut into K blocks of n frames. Inside a block the average is a triangular product; the
    contribution of earlier blocks is carried from block to block.
    """

    steps: int
    local: Tensor  # (K, n, n)
    gain: Tensor  # (K, n, 1), factor of the carry
    tail: Tensor  # (1, n), weights of a block's own frames in the carry it passes on
    chain: Tensor  # (K, K), strictly triangular: carry into each block from earlier ones

    def __call__(self, x: Tensor) -> Tensor:
        """Return the averages of (T, K) values after each step."""
        if len(self.local) == 1:
            return self.local[0] @ x
        blocks = self._blocks(x)
        averages = torch.bmm(self.local, blocks)
        carry = self.chain @ (self.tail @ blocks).squeeze(1)
        averages.addcmul_(self.gain, carry[:, None])
        return averages.flatten(0, 1)[: self.steps]

    def transposed(self, g: Tensor) -> Tensor:
        """Return the gradient with respect to the values, given that of the averages."""
        if len(self.local) == 1:
            return self.local[0].T @ g
        blocks = self._blocks(g)
        values = torch.bmm(self.local.mT, blocks)
        carry = self.chain.T @ (self.gain.mT @ blocks).squeeze(1)
        values.addcmul_(self.tail.mT, carry[:, None])
        return values.flatten(0, 1)[: self.steps]

    def _blocks(self, x: Tensor) -> Tensor:
        count, n, _ = self.local.shape
        missing = count * n - self.steps
        if missing:
            x = torch.cat([x, x.new_zeros(missing, x.shape[1])])
        return x.view(count, n, -1)


def moving_average(steps: int, rate: float, like: Tensor) -> Filter:
    """Return the filter for `steps` frames, in the dtype and on the device of `like`."""
    return _build(steps, rate, like.dtype, like.device)


def deviation_matrix(steps: int, mu: float, eps: float | None, like: Tensor) -> Tensor:
    """Return (2 T, T): D of every frame, then E, as a product with the frames of a stream.

    Args:
        steps: Number of frames T.
        mu: Rate of the short-term mean.
        eps: Rate of the long-term mean; None if frames are relative to it already.
        like: Tensor with the dtype and device of the result.
    """
    return _build_deviations(steps, mu, eps, like.dtype, like.device)


@lru_cache(maxsize=64)
def _build_deviations(
    steps: int, mu: float, eps: float | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    short = _single(steps, mu, device)
    within = torch.eye(steps, dtype=torch.float64, device=device) - short
    between = short if eps is None else short - _single(steps, eps, device)
    within[0] = 0.0  # a first frame is its own short-term mean, up to rounding
    if eps is not None:
        between[0] = 0.0
    return torch.cat([within, between]).to(dtype)


def _single(steps: int, rate: float, device: torch.device) -> Tensor:
    """Return a moving average as one (T, T) matrix."""
    identity = torch.eye(steps, dtype=torch.float64, device=device)
    return _build(steps, rate, torch.float64, device)(identity)


@lru_cache(maxsize=64)
def _build(steps: int, rate: float, dtype: torch.dtype, device: torch.device) -> Filter:
    n = steps if steps <= LONGEST_SINGLE else BLOCK_FRAMES
    count = -(-steps // n)
    time = torch.arange(n, dtype=torch.float64, device=device)
    block = torch.arange(count, dtype=torch.float64, device=device)
    keep = 1.0 - rate
    raw = (rate * keep ** (time[:, None] - time).clamp(min=0)).tril()
    # The total weight so far is 1 - keep^t; expm1 keeps it above zero for tiny rates.
    weight = -torch.expm1((block[:, None] * n + time + 1.0) * math.log1p(-rate))
    apart = block[:, None] - block - 1.0
    chain = torch.where(apart >= 0, keep ** (n * apart.clamp(min=0)), 0.0)
    tensors = (
        raw / weight[:, :, None],
        (keep ** (time + 1.0) / weight)[:, :, None],
        raw[-1:],
        chain,
    )
    return Filter(steps, *(tensor.to(dtype) for tensor in tensors))
