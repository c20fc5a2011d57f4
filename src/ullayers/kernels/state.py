"""State and settings of the recurrence.

Two conventions preserve precision:

* Means are stored relative to an `anchor`, a value near them, so that an offset in the data
  costs no digits.
* Every average has an `evidence`, the total weight of the frames in it, from 0 (no frame yet) to
  1 (full memory). An average with evidence e and rate m is updated as
  (a e average + m new) / (a e + m) with a = 1 - m. Starting at e = 0 weights early frames
  correctly; starting at e = 1 is the plain moving average of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2**22  # numpy asks for huge pages from this size on
CACHE_LINE_BYTES = 64
LongTerm = Literal["stream", "clip", "shared"]


@dataclass(frozen=True)
class Covariance:
    """A moving covariance."""

    value: Tensor  # (d, d)
    evidence: Tensor  # ()
    ridge: Tensor  # () added to the diagonal of value * evidence


@dataclass(frozen=True)
class State:
    """State of the recurrence between two steps."""

    anchor: Tensor  # (S, d)
    short: Tensor  # (S, d) short-term mean minus anchor
    long: Tensor  # (S, d) long-term mean minus anchor
    short_evidence: Tensor  # (S,)
    long_evidence: Tensor  # (S,)
    pull: Tensor  # (1, d) moving average of the gradient, summed over streams
    W: Covariance
    B: Covariance
    steps: Tensor  # () int64, number of steps with a frame


@dataclass(frozen=True)
class Rates:
    """Settings of the recurrence."""

    mu: float
    eps: float
    ridge: float
    long_term: LongTerm = "stream"
    sequences: int = 1  # number of equal groups of streams; "shared" averages over them
    diagonal: bool = False  # keep variances only
    centred: bool = True  # subtract the pull from every gradient


class ClipMeans(NamedTuple):
    """For long_term="clip": the mean of each stream, and which streams have two frames or more."""

    mean: Tensor  # (S, d)
    long_enough: Tensor  # (S,) bool


@dataclass(frozen=True)
class Result:
    """Gradients of the pooled J and the end state."""

    gradient: Tensor  # (T, S, d) dJ/dy
    scatter_gradient: Tensor | None  # (T, S, d, d) dJ/dscatter, if there is a scatter
    state: State
    singular: Tensor  # () int64, number of times that W or B had no inverse


def scaled(result: Result, scale: float) -> Result:
    """Multiply all gradients by `scale`, in place."""
    for gradient in (result.gradient, result.scatter_gradient):
        if gradient is not None and scale != 1:
            gradient.mul_(scale)
    return result


def fitting(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a narrower dtype; values too large for it become zero instead of infinite."""
    if values.dtype == dtype:
        return values
    narrow = values.to(dtype)
    return torch.where(narrow.isinf(), 0, narrow)


def with_anchor(y: Tensor, state: State, active: Tensor) -> State:
    """Return the state with each stream's first frame as its anchor."""
    if is_full(active[0]):
        anchor = y[0].to(state.anchor.dtype, copy=True)
    else:
        first = active.to(torch.uint8).argmax(0)  # 0, and not used, if nothing is active
        frame = y.gather(0, first[None, :, None].expand(1, *y.shape[1:]))[0]
        anchor = torch.where(active.any(0)[:, None], frame.to(state.anchor.dtype), state.anchor)
    moved = state.anchor - anchor
    short = kept(state.short + moved, state.short_evidence > 0)
    long = kept(state.long + moved, state.long_evidence > 0)
    return replace(state, anchor=anchor, short=short, long=long)


def relative(y: Tensor, state: State, active: Tensor) -> Tensor:
    """Return the frames relative to their anchors, and zero where not active."""
    return kept(y - state.anchor, active)


def clip_mean(x: Tensor, active: Tensor) -> Tensor:
    """Return each stream's mean over its active steps."""
    return x.sum(0) / active.sum(0).clamp(min=1)[:, None]


def mean_scatter(scatter: Tensor, counted: Tensor) -> Tensor:
    """Return the mean (..., d, d) of (..., S, d, d) over the counted streams."""
    scatter = torch.where(counted[..., None, None], scatter, 0)
    return scatter.sum(-3) / counted.sum(-1).clamp(min=1)[..., None, None]


def kept(values: Tensor, mask: Tensor) -> Tensor:
    """Return the (..., d) values where the (...) mask is true, and zero elsewhere."""
    return values if is_full(mask) else torch.where(mask[..., None], values, 0)


def is_full(mask: Tensor) -> bool:
    """Return whether the mask is known to be true everywhere; never waits for a GPU."""
    if not on_host(mask):
        return False
    same = not any(mask.stride()) and mask.numel() > 0  # an expanded scalar
    return bool(mask[(0,) * mask.ndim] if same else mask.all())


def on_host(tensor: Tensor) -> bool:
    """Return whether values can be read at once: not on a GPU, nor in torch.compile."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def room_like(tensor: Tensor) -> Tensor:
    """Return an uninitialised tensor of the same shape, dtype and layout.

    Large numpy arrays lie in huge pages where the system has them; PyTorch tensors do not, and the
    first access to their memory can take longer than the arithmetic on it.
    """
    kind = {torch.float32: np.float32, torch.float64: np.float64}.get(tensor.dtype)
    size = tensor.numel() * tensor.element_size()
    if kind is None or size < HUGE_PAGE_BYTES or not on_host(tensor):
        return torch.empty_like(tensor)
    values = torch.from_numpy(np.empty(tensor.numel() + CACHE_LINE_BYTES, kind))
    begin = -values.data_ptr() % CACHE_LINE_BYTES // tensor.element_size()
    like = torch.empty_like(tensor, device="meta")  # dense, even if the tensor has gaps
    return values[begin : begin + tensor.numel()].as_strided(like.shape, like.stride(), begin)


def before_each(first: Tensor, values: Tensor) -> Tensor:
    """Return the value before each step, from that before the first and those after each."""
    # cat([first, values[:-1]]) would make torch.compile write `values` misaligned on a GPU.
    rolled = values.roll(1, 0)
    is_first = torch.arange(len(values), device=values.device) == 0
    return torch.where(is_first.view(-1, *[1] * (values.ndim - 1)), first, rolled)
