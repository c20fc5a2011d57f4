"""Fresh statistics on a GPU: host code of the Triton kernels.

Nothing here waits for the GPU. The first call with some lengths and rates copies tables to the GPU;
later calls can be recorded in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ullayers.kernels.moments import (
    NOISE,
    REDUCED_PRECISION,
    Evaluation,
    FrameCounts,
    Moments,
    Request,
    Weights,
    covariance_evidence,
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
PLAIN, MOVING, FIXED = 0, 1, 2  # how a long-term mean moves; as in the kernels


@dataclass(frozen=True)
class Plan:
    """Sizes of tiles, and launch options."""

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
WARPS = {16: 1, 32: 2, 64: 4}  # for the inverse, by the features, padded to a power of two
MAX_COMPILED = 4096
_compiled: dict[Any, Any] = {}  # kernels of `weigh`

NAME = "Triton kernels"
__all__ = ["NAME", "gradient", "measure", "weigh", "why_not"]


def why_not(frames: Tensor, request: Request, scatter: Tensor | None) -> str | None:
    """Return why the kernels do not accept a call, or None; does not wait for the GPU."""
    _, C, P = frames.shape
    if not frames.is_cuda:
        return "the frames are not on a GPU"
    if scatter is not None:
        return "a scatter is given"
    if is_by_rows(frames, request, None):
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
    with on(frames.device):
        return _prepared(frames, request).measure(frames)


def gradient(
    frames: Tensor,
    request: Request,
    weights: Weights,
    saved: tuple[Tensor, ...],
    above: Tensor | None,
) -> Tensor:
    """Same as `torch.fresh.gradient`."""
    if above is not None and (above.stride() != frames.stride() or above.dtype != frames.dtype):
        above = torch.empty_like(frames).copy_(above)
    call = _prepared(frames, request)
    with on(frames.device):
        if frames.shape[2] == 1:
            return call.gradient_of_codes(frames, saved, weights.matrices.to(call.kind), above)
        # `weigh` has made sure that smaller matrices fit float32.
        wide = len(weights.matrices[0]) > WIDEST_INVERSE
        factors = in_float32(weights) if wide else weights.matrices
        return call.gradient(frames, saved, factors.contiguous(), above)


def weigh(moments: Moments, request: Request, precision: torch.dtype) -> Evaluation:
    """Compute W, B and the derivatives of J in one kernel where it is fast; see `moments.weigh`."""
    C, sums = moments.sums.shape[-1], moments.sums
    if C > WIDEST_INVERSE:
        return weigh_by_torch(moments, request, precision)
    width = max(PIVOT, 1 << (C - 1).bit_length())
    ridge_w, ridge_b = ridges(request.rates.ridge, precision)
    noise = (NOISE * torch.finfo(precision).eps) ** 2
    room = sums.new_empty(4 * C * C + 4 + 3 * width * width)
    covariances, matrices, traces, evidence, scratch = room.split(
        [2 * C * C, 2 * C * C, 2, 2, 3 * width * width]
    )
    left_out = sums.new_empty(2, dtype=torch.int64)
    with on(sums.device):
        launch(
            _compiled, (C, request.scale, sums.device), _weigh_kernel(), (1, 1), sums,
            moments.seen.counts, covariances, traces, evidence, left_out, matrices, scratch,
            ridge_w / C, ridge_b / C, noise / C, request.scale, *covariance_evidence(request), C,
            width, PIVOT, num_warps=WARPS[width], num_stages=1,
        )  # fmt: skip
    return Evaluation(
        covariances.view(2, C, C), traces, evidence, left_out, moments.seen, moments.short_mean,
        moments.long_mean, Weights(matrices.view(2, C, C), False), moments.saved,
    )  # fmt: skip


@cache
def _kernels() -> Any:
    """Import the kernels, and with them Triton, when they are first needed."""
    import ullayers.kernels.triton.fresh_kernels as fresh_kernels

    return fresh_kernels


@cache
def _weigh_kernel() -> Any:
    """Import the kernel of `weigh` when it is first needed."""
    import ullayers.kernels.triton.weigh_kernels as weigh_kernels

    return weigh_kernels.weigh


@dataclass(frozen=True, eq=False)
class _Tables:
    """Tables that depend on lengths and rates only."""

    segments: Tensor  # (S, 5) int32: begin, end, clip, whether first and last of the clip
    groups: Tensor  # (groups, 2) int32: segments that share a long-term mean
    # (3, frames + 1), by the number of frames seen: evidence of the short-term mean, weights by
    # which long-term means are joined, and evidence of the long-term mean.
    evidence: Tensor
    begins: tuple[int, ...]  # of the segments, and where the last ends


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Everything about calls of one kind that does not depend on the values of the frames."""

    request: Request
    tables: _Tables
    plan: Plan
    sizes: tuple[int, int, int]  # values of a frame, channels, positions
    strides: tuple[int, int]  # from channel to channel, and from position to position
    channels: int  # padded to a power of two
    kind: torch.dtype  # of the deviations
    chunks: tuple[tuple[int, int], ...]  # ranges of segments whose D and E are kept at a time
    full_precision: bool  # whether products keep all digits of float32
    device: torch.device
    compiled: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def moves(self) -> int:
        """How the long-term mean moves before it is known for the whole clip."""
        return MOVING if self.request.rates.long_term == "stream" else PLAIN

    @cached_property
    def speeds(self) -> tuple[float, float]:
        """Rates of the short-term and the long-term mean, which is 1 for a plain mean."""
        rates = self.request.rates
        return rates.mu, rates.eps if self.moves == MOVING else 1.0

    @cached_property
    def table(self) -> tuple[Tensor, int]:
        """Evidence, and how many entries there are for each mean."""
        return self.tables.evidence, self.tables.evidence.shape[1]

    @cached_property
    def line(self) -> tuple[bool, int]:
        """Constants of kernels that work on single values: CHANNELS_LAST and BLOCK."""
        return self.strides[0] == 1, self.plan.block

    @cached_property
    def blocks(self) -> int:
        """Programs per frame of such a kernel."""
        return -(-self.sizes[0] // self.plan.block)

    @cached_property
    def longest_chunk(self) -> int:
        """Number of frames."""
        begins = self.tables.begins
        return max(begins[last] - begins[first] for first, last in self.chunks)

    def launch(
        self, key: Any, kernel: Any, grid: tuple[int, int], *rest: Any, **options: int
    ) -> None:
        """Launch a kernel; see `launch`."""
        launch(self.compiled, key, kernel, grid, *rest, **options)

    def workspace(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return memory for D and E of a chunk, as a whole and separately."""
        both = frames.new_empty((2, self.longest_chunk * self.sizes[0]), dtype=self.kind)
        return both, both[0], both[1]

    def measure(self, frames: Tensor) -> Moments:
        """Compute the sums, the means and the counts."""
        plane, C, P = self.sizes
        segments, groups, kernels = self.tables.segments, self.tables.groups, _kernels()
        S, clips, averages = segments.shape[0], len(self.request.lengths), groups.shape[0]
        marks, count, before = frames.new_empty((3, S * P), dtype=torch.int32).unbind()
        tally, steps = frames.new_empty(3 + clips * P, dtype=torch.int64).split([3, clips * P])
        sizes = [clips * plane, averages * plane, clips * P, averages * P]
        found = frames.new_empty(sum(sizes), dtype=self.kind).split(sizes)
        short_mean, long_mean, short_evidence, long_evidence = found
        state = frames.new_empty(S * 6 * plane, dtype=self.kind)
        seen_block, warps = self.plan.seen_block if P > 1 else 1, self.plan.block // 32
        self.launch(
            is_aligned(frames), kernels.summarise, (S, -(-P // seen_block)), frames,
            *self.strides, segments, state, marks, count, tally, *self.speeds,
            min(self.request.largest, FINITE), *self.sizes, self.moves, self.channels, seen_block,
            self.plan.seen_stages, num_warps=self.plan.seen_warps,
        )  # fmt: skip
        self.launch(
            None, kernels.chain, (averages, self.blocks), state, count, before, segments, groups,
            *self.table, short_mean, long_mean, steps, short_evidence, long_evidence, tally,
            *self.sizes, self.moves, *self.line, num_warps=warps,
        )  # fmt: skip
        saved = (marks, before, state)
        sums = self.grams(frames, saved) if P > 1 else self.grams_of_codes(frames, saved)
        self.launch(
            None, kernels.unchain, (averages, self.blocks), state, count, before, segments, groups,
            *self.table, *self.sizes, self.moves, *self.line, num_warps=warps,
        )  # fmt: skip
        seen = FrameCounts(steps.view(clips, 1, P), tally, short_evidence, long_evidence)
        return Moments(sums, seen, short_mean.view(-1, C), long_mean.view(-1, C), saved=saved)

    def grams(self, frames: Tensor, saved: tuple[Tensor, ...]) -> Tensor:
        """Sum D D^T and E E^T."""
        C, plan = self.sizes[1], self.plan
        group = max(1, 64 // self.channels)
        room, D, E = self.workspace(frames)
        parts = max(1, multiprocessors(self.device) * plan.gram_programs // 2)
        parts = min(parts, -(-room.shape[1] // (group * C * plan.gram_block)))
        partial = frames.new_zeros((2, parts * group, C, C), dtype=torch.float32)
        for chunk in self.chunks:
            count = self.through_means(frames, _kernels().deviate, saved, (D, E), chunk)
            self.launch(
                count, _kernels().gram, (parts, 2), D, E, *self.strides, partial, count,
                *self.sizes, self.full_precision, self.channels, group, plan.gram_block,
                num_warps=plan.gram_warps, num_stages=plan.gram_stages,
            )  # fmt: skip
        return partial.sum(1).double()

    def grams_of_codes(self, frames: Tensor, saved: tuple[Tensor, ...]) -> Tensor:
        """Sum D D^T and E E^T with PyTorch's products."""
        room, D, E = self.workspace(frames)
        rows = room.view(2, -1, self.sizes[1])
        sums = []
        for chunk in self.chunks:
            count = self.through_means(frames, _kernels().deviate, saved, (D, E), chunk)
            part = rows[:, :count]
            sums.append((part.mT @ part).double())
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)

    def through_means(
        self,
        frames: Tensor,
        kernel: Any,
        saved: tuple[Tensor, ...],
        room: tuple[Tensor, Tensor],
        chunk: tuple[int, int],
    ) -> int:
        """Run `deviate` or `adjoint` on some segments, and return how many frames they have."""
        (marks, before, state), (first, last) = saved, chunk
        channels_last, block = self.line
        self.launch(
            is_aligned(frames), kernel, (last - first, self.blocks), frames, marks, before,
            self.tables.segments, *self.table, state, *room, first, *self.speeds, *self.sizes,
            MOVING if self.moves == MOVING else FIXED, channels_last, STEPS, block,
            num_warps=block // 32,
        )  # fmt: skip
        return self.tables.begins[last] - self.tables.begins[first]

    def gradient(
        self, frames: Tensor, saved: tuple[Tensor, ...], factors: Tensor, above: Tensor | None
    ) -> Tensor:
        """Return the gradient of maps."""
        out, plan, begins = torch.empty_like(frames), self.plan, self.tables.begins
        _, D, E = self.workspace(frames)
        width = min(WIDTH, self.channels)
        columns = self.channels // width
        programs = multiprocessors(self.device) * plan.out_programs // columns
        for chunk in self.chunks:
            count = self.through_means(frames, _kernels().adjoint, saved, (D, E), chunk)
            begin = begins[chunk[0]]
            parts = min(programs, count * -(-self.sizes[2] // plan.out_block))
            to, more = (out, above) if begin == 0 else (out[begin:], above)
            if above is not None and begin > 0:
                more = above[begin:]
            key = (is_aligned(to), None if more is None else is_aligned(more), factors.dtype)
            self.launch(
                key, _kernels().product, (parts, columns), D, E, *self.strides, factors, more, to,
                count, *self.sizes, self.full_precision, self.channels, width, plan.out_block,
                num_warps=plan.out_warps, num_stages=plan.out_stages,
            )  # fmt: skip
        return out

    def gradient_of_codes(
        self, frames: Tensor, saved: tuple[Tensor, ...], factors: Tensor, above: Tensor | None
    ) -> Tensor:
        """Return the gradient of codes, with PyTorch's products."""
        room, D, E = self.workspace(frames)
        rows = room.view(2, -1, self.sizes[1])
        parts = []
        for chunk in self.chunks:
            count = self.through_means(frames, _kernels().adjoint, saved, (D, E), chunk)
            parts.append(torch.bmm(rows[:, :count], factors).sum(0))
        found = parts[0] if len(parts) == 1 else torch.cat(parts)
        found = found.to(frames.dtype).view_as(frames)
        return found if above is None else found.add_(above)


_in_graphs: set[_Prepared] = set()


def _prepared(frames: Tensor, request: Request) -> _Prepared:
    """Return what calls of this kind share; tensors that CUDA graphs read are never freed."""
    call = _prepare(
        frames.shape, frames.stride(), working_precision(frames), frames.dtype, frames.device,
        request, PLANS[_padded(frames.shape[1])], WORKSPACE,
        not torch.backends.cuda.matmul.allow_tf32,
    )  # fmt: skip
    if call.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        _in_graphs.add(call)
    return call


def _padded(channels: int) -> int:
    """Return the number of channels, padded to that of a plan."""
    return min(max(16, 1 << (channels - 1).bit_length()), max(PLANS))


@lru_cache(maxsize=1024)  # more calls than the GPU can be behind
def _prepare(
    shape: torch.Size,
    stride: tuple[int, ...],
    precision: torch.dtype,
    dtype: torch.dtype,
    device: torch.device,
    request: Request,
    plan: Plan,
    workspace: int,
    full_precision: bool,
) -> _Prepared:
    _, C, P = shape
    kind = precision if P == 1 else torch.float32
    tables = _make_tables(request, device, kind)
    chunks = tuple(_chunks(tables.begins, workspace // (C * P)))
    channels = max(16, 1 << (C - 1).bit_length())
    return _Prepared(
        request, tables, plan, (C * P, C, P), (stride[1], stride[2]), channels, kind, chunks,
        full_precision, device,
    )  # fmt: skip


def _chunks(begins: tuple[int, ...], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of segments of at most so many frames, or of a single segment."""
    first = 0
    for s in range(1, len(begins)):
        if s == len(begins) - 1 or begins[s + 1] - begins[first] > most:
            yield first, s
            first = s


def _make_tables(request: Request, device: torch.device, kind: torch.dtype) -> _Tables:
    lengths, rates = request.lengths, request.rates
    segments: list[tuple[int, ...]] = []
    groups, begin = [], 0
    for clip, length in enumerate(lengths):
        count = -(-length // STEPS)
        cuts = [begin + length * k // count for k in range(count + 1)]
        groups.append((len(segments), len(segments) + count))
        segments += [(cuts[k], cuts[k + 1], clip, k == 0, k == count - 1) for k in range(count)]
        begin += length
    if rates.long_term == "shared":
        groups = [(0, len(segments))]
    n = np.arange(begin + 1)
    short, long = (-np.expm1(n * np.log1p(-rate)) for rate in (rates.mu, rates.eps))
    evidence = np.stack([short, long if rates.long_term == "stream" else n, long])
    # On a separate stream, only the copies have to be waited for.
    own = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()
    with own:
        return _Tables(
            torch.tensor(segments, dtype=torch.int32, device=device),
            torch.tensor(groups, dtype=torch.int32, device=device),
            torch.tensor(evidence, dtype=kind, device=device),
            (*(segment[0] for segment in segments), begin),
        )


@cache
def has_triton() -> bool:
    """Return whether Triton is installed; it comes with the CUDA builds of PyTorch."""
    return find_spec("triton") is not None


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
