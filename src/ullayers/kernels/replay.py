"""Kernels that are launched over and over: their arguments are put together once.

What PyTorch and Triton do around a launch takes longer than most of our kernels run. So the
first pass of a kind is recorded, and those that follow only put in where tensors lie now.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 256  # bytes, of everything inside the workspace
MOST_KEPT = 256  # rates that change at every call are not to fill the memory
NEVER = -(10**9)
OFTEN, MOST_SEEN = 3, 4096  # calls with all in the same place, from where a graph pays
SCALE = "scale"  # the one number that may change from pass to pass


@cache
def can_replay() -> bool:
    """Whether this is a Triton whose launcher is known: its arguments are no public interface."""
    return (3, 6) <= tuple(int(part) for part in version("triton").split(".")[:2]) <= (3, 8)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    here = device.index == torch.cuda.current_device()
    return nullcontext() if here else torch.cuda.device(device)


def carve(
    layout: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    device: torch.device,
    whole: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One allocation, and the tensors in it: every other call of the allocator costs as much.

    Args:
        layout: shapes and types.
        device: where.
        whole: an allocation that is there already and large enough, if there is one.
    """
    places, size = {}, 0
    for name, (shape, dtype) in layout.items():
        n = dtype.itemsize
        for extent in shape:
            n *= extent
        places[name] = (size, n)
        size += -(-n // ALIGNMENT) * ALIGNMENT
    if whole is None:
        whole = torch.empty(size, dtype=torch.uint8, device=device)
    parts = {}
    for name, (begin, n) in places.items():
        shape, dtype = layout[name]
        parts[name] = whole[begin : begin + n].view(dtype).view(shape)
    return whole, parts


@dataclass
class _Launch:
    run: Callable[..., None]
    grid: tuple[int, ...]
    kernel: tuple[Any, ...]  # what Triton's launcher wants to know of it, and no hooks
    arguments: list[Any]
    places: list[tuple[int, int, int]]  # argument, tensor, bytes from its begin
    scale: int | None  # which argument


@dataclass
class Recording:
    """A sequence of launches. `bases` are the tensors given anew each time, workspace first."""

    bases: Sequence[Tensor]
    launches: list[_Launch] = field(default_factory=list)

    def start(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Launch a kernel, and note how."""
        compiled = kernel[grid](*arguments, **options)
        if compiled is None:  # Triton's interpreter
            return
        places = [(i, *self._place(a)) for i, a in enumerate(arguments) if isinstance(a, Tensor)]
        scale = kernel.arg_names.index(SCALE) if SCALE in kernel.arg_names else None
        plain = [None if isinstance(a, Tensor) else a for a in arguments]
        known = (compiled.function, compiled.packed_metadata, None, None, None)
        whole = (*grid, 1, 1)[:3]
        self.launches.append(_Launch(compiled.run, whole, known, plain, places, scale))

    def _place(self, tensor: Tensor) -> tuple[int, int]:
        if tensor.numel() == 0:  # lies nowhere, and is not looked at
            return 0, 0
        for i, base in enumerate(self.bases):
            offset = tensor.data_ptr() - base.data_ptr()
            if 0 <= offset < base.numel() * base.element_size():
                return i, offset
        raise AssertionError("a kernel has to do with none of the tensors that are given anew")

    def done(self) -> Recording:
        """Without the tensors, which are not to be kept."""
        self.bases = ()
        return self

    def play(self, begins: Sequence[int], scale: float, stream: int) -> None:
        """All launches again, on other tensors of the same kind, given by their addresses."""
        for launch in self.launches:
            arguments = launch.arguments.copy()
            for i, base, offset in launch.places:
                arguments[i] = begins[base] + offset
            if launch.scale is not None:
                arguments[launch.scale] = scale
            launch.run(*launch.grid, stream, *launch.kernel, *arguments)


def _graph(recording: Recording, begins: Sequence[int], scale: float) -> torch.cuda.CUDAGraph:
    """The launches as one, which costs a tenth of them. Nothing waits, and nothing runs yet."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            recording.play(begins, scale, stream.cuda_stream)
        finally:
            graph.capture_end()
    return graph


@dataclass
class Recordings:
    """Recordings by what they depend on, each with the bytes of workspace it takes."""

    kept: dict[Hashable, tuple[Recording, int]] = field(default_factory=dict)
    seen: dict[Hashable, int] = field(default_factory=dict)  # how often, the very same calls
    graphs: dict[Hashable, torch.cuda.CUDAGraph] = field(default_factory=dict)

    def play(self, key: Hashable, tensors: Sequence[Tensor], scale: float) -> bool:
        """Play it on these tensors, if there is one."""
        found = self.kept.get(key)
        if found is None:
            return False
        begins = [tensor.data_ptr() for tensor in tensors]
        if any(begin % 16 for begin in begins):  # kernels are compiled for one or the other
            return False
        recording, size = found
        device = tensors[0].device
        workspace = torch.empty(size, dtype=torch.uint8, device=device)
        with on_device(device):
            self._start(key, recording, [workspace.data_ptr(), *begins], scale)
        return True

    def _start(
        self, key: Hashable, recording: Recording, begins: Sequence[int], scale: float
    ) -> None:
        """Where all lies as it did some calls ago, the launches have become a CUDA graph.

        In a training loop the allocator gives out the same memory over and over.
        """
        if torch.cuda.is_current_stream_capturing():  # into somebody's own graph
            recording.play(begins, scale, torch.cuda.current_stream().cuda_stream)
            return
        call = (key, scale, *begins)
        if (graph := self.graphs.get(call)) is not None:
            graph.replay()
            return
        recording.play(begins, scale, torch.cuda.current_stream().cuda_stream)
        if len(self.seen) >= MOST_SEEN:
            self.seen.clear()
        self.seen[call] = self.seen.get(call, 0) + 1
        if self.seen[call] >= OFTEN:
            if len(self.graphs) >= MOST_KEPT:
                self.graphs.clear()
            try:
                self.graphs[call] = _graph(recording, begins, scale)
            except RuntimeError:  # the launches have run already, and will do the next time
                self.seen[call] = NEVER

    def keep(self, key: Hashable, recording: Recording) -> None:
        """For calls to come, if they may be like this one. Its first base is the workspace."""
        workspace, *tensors = recording.bases
        if can_replay() and not any(tensor.data_ptr() % 16 for tensor in tensors):
            if len(self.kept) >= MOST_KEPT:
                self.kept.clear()
            self.kept[key] = recording.done(), workspace.numel()
