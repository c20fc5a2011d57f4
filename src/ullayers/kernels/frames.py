"""Frames of a call: clips in time order, precision and memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2**22  # numpy asks for huge pages from this size on
CACHE_LINE_BYTES = 64


class Packing:
    """Convert frames to (time, sequence, ...), the order of the recurrence, and back.

    Without lengths, (time, ...) is one sequence and (sequences, time, ...) are many.

    Args:
        lengths: Number of frames of each clip, if the clips are concatenated.
    """

    def __init__(self, lengths: Sequence[int] | None = None) -> None:
        if lengths is not None:
            if isinstance(lengths, (int, float, str)):
                raise TypeError(f"expected lengths of clips, such as [25, 30], got {lengths!r}")
            given = list(lengths)
            try:
                lengths = [int(n) for n in given]
            except (TypeError, ValueError, OverflowError):  # None, NaN, infinity
                lengths = []
            if lengths != given or any(n < 1 for n in lengths):
                raise ValueError(f"expected lengths to be integers >= 1, got {given}")
        self.lengths = lengths
        self.ragged = lengths is not None and len(set(lengths)) > 1

    def check(self, lead: tuple[int, ...]) -> None:
        """Raise ValueError unless the leading dimensions fit the lengths."""
        if self.lengths is not None and lead != (sum(self.lengths),):
            raise ValueError(
                f"expected (time, ...) with {sum(self.lengths)} frames, the sum of lengths, "
                f"got leading dimensions {lead}"
            )

    def size(self, frames: Tensor) -> tuple[int, int]:
        """Return the number of steps and sequences of (..., positions, features) once packed."""
        if self.lengths is not None:
            return max(self.lengths), len(self.lengths)
        return (frames.shape[1], frames.shape[0]) if frames.ndim == 4 else (frames.shape[0], 1)

    def pack(self, frames: Tensor) -> Tensor:
        """Convert (..., positions, features) to (time, sequences, positions, features)."""
        if self.lengths is not None and not self.ragged:
            frames = frames.unflatten(0, (len(self.lengths), self.lengths[0]))
        if self.ragged:
            assert self.lengths is not None
            sequence, step = self._indices(frames.device)
            packed = frames.new_zeros(max(self.lengths), len(self.lengths), *frames.shape[-2:])
            packed[step, sequence] = frames
            return packed
        return frames.transpose(0, 1) if frames.ndim == 4 else frames.unsqueeze(1)

    def unpack(self, packed: Tensor) -> Tensor:
        """Undo `pack`, or return (sequences, time, positions, features) without lengths."""
        if self.ragged:
            sequence, step = self._indices(packed.device)
            return packed[step, sequence]
        packed = packed.transpose(0, 1)
        return packed if self.lengths is None else packed.flatten(0, 1)

    def active(self, steps: int, sequences: int, device: torch.device) -> Tensor:
        """Return (time, sequences) bool: where there is a frame."""
        if not self.ragged:
            return torch.ones(steps, sequences, dtype=torch.bool, device=device)
        lengths = torch.tensor(self.lengths, device=device)
        return torch.arange(steps, device=device)[:, None] < lengths

    def _indices(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the sequence and the step of each concatenated frame."""
        assert self.lengths is not None
        lengths = torch.tensor(self.lengths, device="cpu")
        sequence = torch.arange(len(lengths), device="cpu").repeat_interleave(lengths)
        begin = (lengths.cumsum(0) - lengths)[sequence]
        return sequence.to(device), (torch.arange(len(sequence), device="cpu") - begin).to(device)


@lru_cache(maxsize=64)
def packing_of(lengths: tuple[int, ...]) -> Packing:
    """Return the packing of concatenated clips; cached, since it checks all lengths."""
    return Packing(lengths)


def fitting(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a narrower dtype; values too large for it become zero instead of infinite."""
    if values.dtype == dtype:
        return values
    return values.to(dtype).nan_to_num_(torch.nan, 0.0, 0.0)


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
