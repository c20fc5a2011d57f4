"""What the recurrence remembers between two steps, and its fixed choices.

Two conventions keep the numbers honest:

* Means are stored relative to an `anchor`, a value near them, so that an offset in the data
  costs no digits.
* Every average carries its `evidence`, the total weight of what it has seen: 0 is nothing yet,
  1 a full memory. An average of evidence e that forgets at rate m continues as
  (a e average + m new) / (a e + m) with a = 1 - m. Started at 0 it weights early frames
  properly; started at 1 it is the paper's plain moving average.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

HUGE, LINE = 2**22, 64  # bytes: from where numpy asks for huge pages; what a cache reads at once
LongTerm = Literal["stream", "clip", "shared"]


@dataclass(frozen=True)
class Covariance:
    """A moving covariance: its value, how much it has seen, and the ridge that goes with it."""

    value: Tensor  # (d, d)
    evidence: Tensor  # ()
    ridge: Tensor  # () in units of value * evidence


@dataclass(frozen=True)
class State:
    """All that the recurrence remembers between two steps."""

    anchor: Tensor  # (S, d)
    short: Tensor  # (S, d) short-term mean, minus anchor
    long: Tensor  # (S, d) long-term mean, minus anchor
    short_evidence: Tensor  # (S,)
    long_evidence: Tensor  # (S,)
    pull: Tensor  # (1, d) moving average of the gradient of a shift of all outputs together
    W: Covariance
    B: Covariance
    steps: Tensor  # () int64, steps with a frame since the statistics began


@dataclass(frozen=True)
class Rates:
    """What does not change while the recurrence runs."""

    mu: float
    eps: float
    ridge: float
    long_term: LongTerm = "stream"
    sequences: int = 1  # streams come in this many equal groups; "shared" averages over them
    diagonal: bool = False
    centred: bool = True  # take the pull off every gradient


@dataclass(frozen=True)
class Result:
    """Gradients of the pooled J, the end state, and what went wrong on the way."""

    gradient: Tensor  # (T, S, d) dJ/dy
    scatter_gradient: Tensor | None  # (T, S, d, d) dJ/dscatter, if a scatter was given
    state: State
    singular: Tensor  # () int64, steps at which W or B could not be inverted


def scaled(result: Result, scale: float) -> Result:
    """With all gradients multiplied, in place."""
    for gradient in (result.gradient, result.scatter_gradient):
        if gradient is not None and scale != 1:
            gradient.mul_(scale)
    return result


def anchored(y: Tensor, state: State, active: Tensor) -> tuple[State, Tensor]:
    """Take each stream's first frame as its anchor, and express all else relative to it."""
    state = with_anchor(y, state, active)
    return state, relative(y, state, active)


def with_anchor(y: Tensor, state: State, active: Tensor) -> State:
    """The same state, with each stream's first frame as its anchor."""
    if is_full(active[0]):
        anchor = y[0].to(state.anchor.dtype, copy=True)
    else:
        first = active.to(torch.uint8).argmax(0)  # 0 where nothing is active: not used then
        frame = y.gather(0, first[None, :, None].expand(1, *y.shape[1:]))[0]
        anchor = torch.where(active.any(0)[:, None], frame.to(state.anchor.dtype), state.anchor)
    moved = state.anchor - anchor
    short = kept(state.short + moved, state.short_evidence > 0)
    long = kept(state.long + moved, state.long_evidence > 0)
    return replace(state, anchor=anchor, short=short, long=long)


def relative(y: Tensor, state: State, active: Tensor) -> Tensor:
    """Frames relative to their anchors; those that do not count may be NaN and become zero."""
    return kept(y - state.anchor, active)


def clip_mean(x: Tensor, active: Tensor) -> Tensor:
    """Each stream's mean over all its active steps."""
    return x.sum(0) / active.sum(0).clamp(min=1)[:, None]


def mean_scatter(scatter: Tensor, counted: Tensor) -> Tensor:
    """(..., S, d, d) to (..., d, d): the mean over the streams that count."""
    there = torch.where(counted[..., None, None], scatter, 0)
    return there.sum(-3) / counted.sum(-1).clamp(min=1)[..., None, None]


def kept(values: Tensor, mask: Tensor) -> Tensor:
    """(..., d) values where the (...) mask holds, and zero elsewhere."""
    return values if is_full(mask) else torch.where(mask[..., None], values, 0)


def is_full(mask: Tensor) -> bool:
    """Whether the mask is known to hold everywhere; only the CPU can be asked without waiting."""
    if not on_host(mask):
        return False
    same = not any(mask.stride()) and mask.numel() > 0  # one value, seen everywhere
    return bool(mask[(0,) * mask.ndim] if same else mask.all())


def on_host(tensor: Tensor) -> bool:
    """Whether values may be looked at: not on a GPU, which runs behind, nor while compiling."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def room_like(tensor: Tensor) -> Tensor:
    """Memory for as many values in the same layout, whatever they are.

    Large arrays of numpy lie in huge pages where the system has them. PyTorch's do not, and to
    touch them for the first time can take longer than all that is then computed in them.
    """
    kind = {torch.float32: np.float32, torch.float64: np.float64}.get(tensor.dtype)
    size = tensor.numel() * tensor.element_size()
    if kind is None or size < HUGE or not on_host(tensor):
        return torch.empty_like(tensor)
    values = torch.from_numpy(np.empty(tensor.numel() + LINE, kind))
    begin = -values.data_ptr() % LINE // tensor.element_size()
    like = torch.empty_like(tensor, device="meta")  # dense, also where the tensor has gaps
    return values[begin : begin + tensor.numel()].as_strided(like.shape, like.stride(), begin)


def before_each(first: Tensor, values: Tensor) -> Tensor:
    """What held before each step, given what held before the first and after each."""
    # Not cat([first, values[:-1]]): on a GPU the compiler would write `values` misaligned.
    rolled = values.roll(1, 0)
    is_first = torch.arange(len(values), device=values.device) == 0
    return torch.where(is_first.view(-1, *[1] * (values.ndim - 1)), first, rolled)
