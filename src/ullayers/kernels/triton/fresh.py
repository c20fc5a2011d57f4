"""Fresh statistics of maps on a GPU: which calls the Triton kernels take, and their launches.

Nothing here waits for the work on the GPU. Lengths and rates that were not seen before need tables,
which are copied to it; after one call of a kind, calls can be recorded in a CUDA graph.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ullayers.kernels.backends import has_triton
from ullayers.kernels.moments import (
    NOISE,
    REDUCED_PRECISION,
    Evaluation,
    Moments,
    Request,
    Seen,
    Weights,
    in_float32,
    is_by_rows,
    ridges,
    working_precision,
)
from ullayers.kernels.moments import weigh as weigh_by_torch

STEPS = 16  # most frames of a segment, which a program keeps in registers; at most 31
WORKSPACE = 5 * 2**20  # values of D, and as many of E: 40 MB, less than the cache of an H200
LARGEST_TENSOR = 2**31 - 1  # values
FINITE = torch.finfo(torch.float32).max
PLAIN, MOVING, FIXED = 0, 1, 2  # how a long-term mean moves, as in the kernels


@dataclass(frozen=True)
class Plan:
    """How much a program takes on."""

    seen_block: int  # positions at a time in `summarise`
    seen_warps: int
    seen_stages: int
    block: int  # values, where they are worked on one by one
    gram_block: int  # positions at a time
    gram_warps: int
    gram_stages: int
    gram_programs: int  # for each multiprocessor
    out_block: int  # positions at a time
    out_warps: int
    out_stages: int
    out_programs: int  # for each multiprocessor


PLANS = {  # by the number of channels that it serves
    16: Plan(64, 4, 3, 128, 64, 4, 3, 3, 128, 4, 2, 4),
    32: Plan(64, 4, 3, 128, 64, 4, 3, 3, 128, 4, 2, 3),
    64: Plan(32, 4, 3, 128, 64, 4, 3, 3, 64, 4, 2, 2),
    128: Plan(32, 8, 3, 128, 32, 8, 3, 1, 128, 8, 1, 1),
}
WIDTH = 64  # most channels of the gradient that a program writes
WIDEST_CODE = 1024  # features
WIDEST_INVERSE, PIVOT = 64, 16  # most features that one program inverts; how many at a time
INVERSE_WARPS = {16: 1, 32: 2, 64: 4}


NAME = "Triton kernels"


def why_not(frames: Tensor, request: Request, scatter: Tensor | None) -> str | None:
    """Why the kernels do not take a call; nothing that waits for the GPU is asked."""
    _, C, P = frames.shape
    if not frames.is_cuda:
        return "the frames are not on a GPU"
    if scatter is not None:
        return "a scatter is given"
    if is_by_rows(frames.shape, request, None):
        return "there are more features than frames"
    widest = WIDEST_CODE if P == 1 else max(PLANS)
    if not 2 <= C <= widest:
        return f"there are {C} channels, not 2 to {widest}"
    if frames.dtype not in REDUCED_PRECISION:
        return f"the frames are {frames.dtype}"
    if frames.numel() > LARGEST_TENSOR or STEPS * C * P > LARGEST_TENSOR:
        return "the maps have more than 2^31 values"
    if frames.stride() not in ((C * P, P, 1), (C * P, 1, C)):
        return "the maps are neither contiguous nor channels_last"
    if request.rates.diagonal:
        return "the covariances are diagonal"
    return None if has_triton() else "Triton is not installed"


def measure(frames: Tensor, request: Request, scatter: Tensor | None) -> Moments:
    """Sum over the frames (frames, C, P), with C or P contiguous; see `torch.fresh.measure`."""
    with _on(frames.device):
        return _Call.of(frames, request).measure()


def weigh(moments: Moments, request: Request, precision: torch.dtype) -> Evaluation:
    """Compute W, B and the derivatives of J in one kernel where it is fast; see `moments.weigh`."""
    C, sums = moments.sums.shape[-1], moments.sums
    if C > WIDEST_INVERSE:
        return weigh_by_torch(moments, request, precision)
    width = max(PIVOT, 1 << (C - 1).bit_length())
    of_w, of_b = ridges(request.rates.ridge, precision)
    noise = (NOISE * torch.finfo(precision).eps) ** 2
    covariances, matrices, scratch = sums.new_empty((3 * width * width + 2 * C * C * 2,)).split(
        [2 * C * C, 2 * C * C, 3 * width * width]
    )
    traces, left_out = sums.new_empty(2), sums.new_empty(2, dtype=torch.int64)
    with _on(sums.device):
        launch(
            _kernels().weigh, (1, 1), sums, moments.seen.counts, covariances, traces, left_out,
            matrices, scratch, of_w / C, of_b / C, noise / C, request.scale, C, width, PIVOT,
            num_warps=INVERSE_WARPS[width], num_stages=1,
        )  # fmt: skip
    return Evaluation(
        covariances.view(2, C, C), traces, left_out, moments.seen, moments.short_mean,
        moments.long_mean, Weights(matrices.view(2, C, C), False), moments.saved,
    )  # fmt: skip


def gradient(
    frames: Tensor,
    request: Request,
    weights: Weights,
    saved: tuple[Tensor, ...],
    above: Tensor | None,
) -> Tensor:
    """As `fresh.gradient`."""
    if above is not None and above.stride() != frames.stride():
        above = torch.empty_like(frames).copy_(above)
    # `weigh` has made sure that smaller matrices fit float32.
    narrow = frames.shape[2] > 1 and len(weights.matrices[0]) > WIDEST_INVERSE
    factors = in_float32(weights) if narrow else weights.matrices
    with _on(frames.device):
        return _Call.of(frames, request).gradient(saved, factors.contiguous(), above)


@cache
def _kernels() -> Any:
    """Triton is imported where the first frames on a GPU are seen, and nowhere else."""
    import ullayers.kernels.triton.fresh_kernels as fused_fresh

    return fused_fresh


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    here = not device.type == "cuda" or device.index == torch.cuda.current_device()
    return nullcontext() if here else torch.cuda.device(device)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _full_precision() -> bool:
    """Whether products keep all digits of float32, as PyTorch's own do unless told otherwise."""
    return not torch.backends.cuda.matmul.allow_tf32


@dataclass(frozen=True, eq=False)
class _Tables:
    """What depends on lengths and rates only."""

    segments: Tensor  # (S, 5) int32: begin, end, clip, whether first and last of the clip
    groups: Tensor  # (groups, 2) int32: segments that share a long-term mean
    # (3, frames + 1), by the number of frames seen: of the short-term mean, weights by which
    # long-term means are joined, and the evidence of the long-term mean.
    evidence: Tensor
    begins: tuple[int, ...]  # of the segments, and where the last ends


@dataclass(frozen=True)
class _Call:
    """One call's frames and how they are cut."""

    frames: Tensor
    request: Request
    tables: _Tables
    plan: Plan
    sizes: tuple[int, int, int]  # values of a frame, channels, positions
    channels: int  # padded to a power of two
    kind: torch.dtype  # of the deviations

    @classmethod
    def of(cls, frames: Tensor, request: Request) -> _Call:
        """The cuts of these frames."""
        (_, C, P), rates = frames.shape, request.rates
        kind = working_precision(frames) if P == 1 else torch.float32
        tables = _tables(request.lengths, rates.mu, rates.eps, rates.long_term, frames.device, kind)
        channels = max(16, 1 << (C - 1).bit_length())
        plan = PLANS[min(channels, max(PLANS))]
        return cls(frames, request, tables, plan, (C * P, C, P), channels, kind)

    @property
    def how(self) -> int:
        """How the long-term mean moves before it is known for the whole clip."""
        return MOVING if self.request.rates.long_term == "stream" else PLAIN

    @property
    def speeds(self) -> tuple[float, float]:
        """Rates of the short-term and the long-term mean, which is 1 for a plain mean."""
        rates = self.request.rates
        return rates.mu, rates.eps if self.how == MOVING else 1.0

    @property
    def strides(self) -> tuple[int, int]:
        """From channel to channel, and from position to position."""
        return self.frames.stride(1), self.frames.stride(2)

    @property
    def table(self) -> tuple[Tensor, int]:
        """Evidences, and how many for each mean."""
        return self.tables.evidence, self.tables.evidence.shape[1]

    @property
    def line(self) -> tuple[bool, int]:
        """Constants of kernels that work on single values: CHANNELS_LAST and BLOCK."""
        return self.frames.stride(1) == 1, self.plan.block

    @property
    def blocks(self) -> int:
        """Programs of such a kernel for each frame."""
        return -(-self.sizes[0] // self.plan.block)

    def chunks(self) -> list[tuple[int, int]]:
        """Ranges of segments whose D and E are kept at a time."""
        begins, most, first = self.tables.begins, WORKSPACE // self.sizes[0], 0
        ranges = []
        for s in range(1, len(begins)):
            if s == len(begins) - 1 or begins[s + 1] - begins[first] > most:
                ranges.append((first, s))
                first = s
        return ranges

    def workspace(self, chunks: list[tuple[int, int]]) -> Tensor:
        """For D and for E of a chunk."""
        begins = self.tables.begins
        most = max(begins[last] - begins[first] for first, last in chunks)
        return self.frames.new_empty((2, most * self.sizes[0]), dtype=self.kind)

    def measure(self) -> Moments:
        """The statistics."""
        plane, C, P = self.sizes
        segments, groups, kernels = self.tables.segments, self.tables.groups, _kernels()
        S, new = len(segments), self.frames.new_empty
        marks, count, before = new((3, S, P), dtype=torch.int32)
        tally, state = new(3, dtype=torch.int64), new((S, 6, plane), dtype=self.kind)
        clips, averages = len(self.request.lengths), len(groups)
        short_mean = new((clips, P, C), dtype=self.kind)
        long_mean = new((averages, P, C), dtype=self.kind)
        short_evidence = new(clips * P, dtype=self.kind)
        long_evidence = new(averages * P, dtype=self.kind)
        steps = new((clips, 1, P), dtype=torch.int64)
        seen_block = self.plan.seen_block if P > 1 else 1
        launch(
            kernels.summarise, (S, -(-P // seen_block)), self.frames, *self.strides, segments,
            state, marks, count, tally, *self.speeds, min(self.request.largest, FINITE),
            *self.sizes, self.how, self.channels, seen_block, self.plan.seen_stages,
            num_warps=self.plan.seen_warps,
        )  # fmt: skip
        launch(
            kernels.chain, (averages, self.blocks), state, count, before, segments, groups,
            *self.table, short_mean, long_mean, steps, short_evidence, long_evidence, tally,
            *self.sizes, self.how, *self.line, num_warps=self.plan.block // 32,
        )  # fmt: skip
        saved = (marks, before, state)
        sums = self.grams(saved) if P > 1 else self.products(saved)
        launch(
            kernels.unchain, (averages, self.blocks), state, count, before, segments, groups,
            *self.table, *self.sizes, self.how, *self.line, num_warps=self.plan.block // 32,
        )  # fmt: skip
        seen = Seen(steps, tally, short_evidence, long_evidence)
        return Moments(sums, seen, short_mean.mT, long_mean.mT, saved=saved)

    def grams(self, saved: tuple[Tensor, ...]) -> Tensor:
        """The sums of D D^T and of E E^T."""
        C, plan, chunks = self.sizes[1], self.plan, self.chunks()
        group, room = max(1, 64 // self.channels), self.workspace(chunks)
        parts = max(1, _multiprocessors(self.frames.device) * plan.gram_programs // 2)
        parts = min(parts, -(-len(room[0]) // (group * C * plan.gram_block)))
        partial = self.frames.new_zeros((2, parts * group, C, C), dtype=torch.float32)
        for chunk in chunks:
            count = self.through_means(_kernels().deviate, saved, room, chunk)
            launch(
                _kernels().gram, (parts, 2), *room, *self.strides, partial, count, *self.sizes,
                _full_precision(), self.channels, group, plan.gram_block,
                num_warps=plan.gram_warps, num_stages=plan.gram_stages,
            )  # fmt: skip
        return partial.sum(1, dtype=torch.float64)

    def products(self, saved: tuple[Tensor, ...]) -> Tensor:
        """As `grams`, for codes, in PyTorch."""
        C, chunks = self.sizes[1], self.chunks()
        room = self.workspace(chunks)
        sums = None
        for chunk in chunks:
            count = self.through_means(_kernels().deviate, saved, room, chunk)
            rows = room.view(2, -1, C)[:, :count]
            found = (rows.mT @ rows).double()
            sums = found if sums is None else sums + found
        assert sums is not None
        return sums

    def through_means(
        self, kernel: Any, saved: tuple[Tensor, ...], room: Tensor,
        chunk: tuple[int, int],
    ) -> int:  # fmt: skip
        """Run `deviate` or `adjoint` on some segments; how many frames they have."""
        (marks, before, state), (first, last) = saved, chunk
        segments, begins = self.tables.segments, self.tables.begins
        last_channel, block = self.line
        launch(
            kernel, (last - first, self.blocks), self.frames, marks, before, segments, *self.table,
            state, *room, first, *self.speeds, *self.sizes,
            MOVING if self.how == MOVING else FIXED, last_channel, STEPS, block,
            num_warps=block // 32,
        )  # fmt: skip
        return begins[last] - begins[first]

    def gradient(self, saved: tuple[Tensor, ...], factors: Tensor, above: Tensor | None) -> Tensor:
        """Return the gradient of the frames."""
        if self.sizes[2] == 1:
            return self.gradient_of_codes(saved, factors.to(self.kind), above)
        out, plan, chunks = torch.empty_like(self.frames), self.plan, self.chunks()
        room, width = self.workspace(chunks), min(WIDTH, self.channels)
        columns = self.channels // width
        programs = _multiprocessors(self.frames.device) * plan.out_programs // columns
        for chunk in chunks:
            count = self.through_means(_kernels().adjoint, saved, room, chunk)
            begin = self.tables.begins[chunk[0]]
            parts = min(programs, count * -(-self.sizes[2] // plan.out_block))
            more = None if above is None else above[begin:]
            launch(
                _kernels().product, (parts, columns), *room, *self.strides, factors, more,
                out[begin:], count, *self.sizes, _full_precision(), self.channels, width,
                plan.out_block, num_warps=plan.out_warps, num_stages=plan.out_stages,
            )  # fmt: skip
        return out

    def gradient_of_codes(
        self, saved: tuple[Tensor, ...], factors: Tensor, above: Tensor | None
    ) -> Tensor:
        """As `gradient`, with PyTorch's products."""
        chunks, C = self.chunks(), self.sizes[1]
        room = self.workspace(chunks)
        parts = []
        for chunk in chunks:
            count = self.through_means(_kernels().adjoint, saved, room, chunk)
            near, far = room.view(2, -1, C)[:, :count]
            parts.append(torch.addmm(near @ factors[0], far, factors[1]))
        found = parts[0] if len(parts) == 1 else torch.cat(parts)
        found = found.to(self.frames.dtype).view_as(self.frames)
        return found if above is None else found.add_(above)


_compiled: dict[tuple[Any, ...], Any] = {}
MOST_COMPILED = 4096


def launch(kernel: Any, grid: tuple[int, int], *arguments: Any, **options: int) -> None:
    """Start a kernel; the second time without Triton's look at each argument, which is slow.

    A compiled kernel may be used again for tensors of the same dtype and alignment and for equal
    numbers.
    """
    key = (kernel, arguments[0].device, *options.values(), *map(_kind_of, arguments))
    compiled = _compiled.get(key)
    if compiled is not None:
        compiled[(*grid, 1)](*arguments)
        return
    compiled = kernel[grid](*arguments, **options)
    if len(_compiled) >= MOST_COMPILED:
        _compiled.clear()
    if compiled is not None:  # Triton's interpreter compiles nothing
        _compiled[key] = compiled


def _kind_of(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument


_in_graphs: set[_Tables] = set()


def _tables(
    lengths: tuple[int, ...], mu: float, eps: float, long_term: str, device: torch.device,
    kind: torch.dtype,
) -> _Tables:  # fmt: skip
    """Tables for a call. Those that CUDA graphs read are kept for good."""
    tables = _make_tables(lengths, mu, eps, long_term, device, kind)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        _in_graphs.add(tables)
    return tables


@lru_cache(maxsize=1024)  # more calls than the GPU can be behind
def _make_tables(
    lengths: tuple[int, ...], mu: float, eps: float, long_term: str, device: torch.device,
    kind: torch.dtype,
) -> _Tables:  # fmt: skip
    segments: list[tuple[int, ...]] = []
    groups, begin = [], 0
    for clip, length in enumerate(lengths):
        count = -(-length // STEPS)
        cuts = [begin + length * k // count for k in range(count + 1)]
        groups.append((len(segments), len(segments) + count))
        segments += [(cuts[k], cuts[k + 1], clip, k == 0, k == count - 1) for k in range(count)]
        begin += length
    if long_term == "shared":
        groups = [(0, len(segments))]
    n = np.arange(begin + 1)
    short, long = (-np.expm1(n * np.log1p(-rate)) for rate in (mu, eps))
    evidence = np.stack([short, long if long_term == "stream" else n, long])
    # On a stream of their own there is nothing to wait for but the copies.
    own = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()
    with own:
        return _Tables(
            torch.tensor(segments, dtype=torch.int32, device=device),
            torch.tensor(groups, dtype=torch.int32, device=device),
            torch.tensor(evidence, dtype=kind, device=device),
            (*(segment[0] for segment in segments), begin),
        )
