"""Launch Triton kernels with little overhead on the host."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

MAX_COMPILED = 4096


def launch(
    compiled: dict[Any, Any],
    key: Any,
    kernel: Any,
    grid: tuple[int, int],
    *arguments: Any,
    **options: int,
) -> None:
    """Launch a kernel; after the first launch, Triton no longer inspects the arguments.

    Args:
        compiled: Compiled kernels by their keys.
        key: Everything that determines scalars, dtypes and alignments of the arguments.
        kernel: The kernel.
        grid: Number of programs.
        arguments: All parameters of the kernel, in order.
        options: Triton's options.
    """
    ready = compiled.get((kernel, key))
    if ready is not None:
        ready[(*grid, 1)](*arguments)
        return
    ready = kernel[grid](*arguments, **options)
    if len(compiled) >= MAX_COMPILED:
        compiled.clear()
    if ready is not None:  # Triton's interpreter compiles nothing
        compiled[kernel, key] = ready


def is_aligned(tensor: Tensor) -> bool:
    """Return whether Triton loads 16 bytes at once from this tensor."""
    return tensor.data_ptr() % 16 == 0


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device current, since Triton launches on the current one."""
    here = not device.type == "cuda" or device.index == torch.cuda.current_device()
    return nullcontext() if here else torch.cuda.device(device)


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count
