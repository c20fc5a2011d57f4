"""The recurrence on a GPU: which calls the Triton kernels take, and how they are put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ullayers.kernels.covariance import RIDGE_HIGH, RIDGE_LOW, noise_share, ridge_period
from ullayers.kernels.replay import Recording, Recordings, carve, on_device
from ullayers.kernels.state import PER_STREAM, Rates

# Fewer streams for every channel than this, or smaller frames, are left to float64.
STREAMS_PER_CHANNEL, SMALL_FRAME = 2, 4096
STARTS = (32, 32)  # runs and values at a time
LARGEST_TENSOR = 2**31 - 1  # elements; offsets inside a frame are of 32 bits
BUFFERS = {torch.float32, torch.int64, torch.bool}  # what kernels take them for
PART_VALUES, SHORTEST_PART = 2**24, 32  # of maps that take workspace at a time, and steps


@dataclass(frozen=True)
class Plan:
    """How much a program takes on, so that it fits the registers; found by trying on an H200."""

    run: int  # steps that a program follows a covariance
    gram_block: int  # streams at a time, for covariances
    gram_warps: int
    gram_stages: int
    programs: int  # that keep the GPU busy with them
    block: int  # streams at a time, for gradients
    slice: int  # channels at a time, for gradients
    warps: int
    stages: int
    flip: bool  # streams, not channels, are the rows of the product
    pivot: int  # channels at a time, for inverses; 0 for one by one in float64
    solve_warps: int


PLANS = {  # by the number of channels that it serves
    16: Plan(4, 32, 1, 1, 2048, 256, 16, 4, 1, False, 0, 2),
    32: Plan(4, 64, 4, 1, 1024, 128, 32, 4, 1, False, 0, 4),
    64: Plan(4, 64, 4, 1, 512, 128, 64, 4, 1, True, 16, 2),
    128: Plan(4, 32, 4, 1, 256, 128, 32, 4, 1, True, 16, 4),
}
WIDEST_SQUARE = 64  # wider matrices are cut into four


POOLED = (
    "short_cov", "short_cov_rest", "long_cov", "long_cov_rest", "cov_evidence", "ridge_level",
    "pull", "steps", "left_out", "continues",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """What a layer asks for."""

    maps: Callable[[Tensor], Tensor]  # views its input as (T, N, C, P), see `can_fuse`
    rates: Rates
    carry_on: bool  # whether the streams may go on, if the buffer `continues` says so too
    known: float  # evidence of means that nothing has been seen of
    largest: float  # frames with a larger value are left out
    continues: bool  # what the buffer `continues` is set to


_recordings = Recordings()


def advance_fused(
    key: Hashable,
    y: Tensor,
    gradient: Tensor,
    room: Tensor | None,
    buffers: Mapping[str, Tensor],
    scale: float,
    call: Callable[[], Call],
) -> bool:
    """What `core.advance` does, from the buffers of a layer to those after the frames.

    The last kernel of a part writes the statistics; a failure before it has changed nothing.

    Args:
        key: stands for all that the kernels depend on, but for tensors and scale.
        y: the input of the layer, without gaps in its memory.
        gradient: written to; with shape and strides of `y`.
        room: likewise, to work in, for float32; what is in it afterwards has no meaning.
        buffers: the layer's statistics.
        scale: of the gradient.
        call: asked where a key is new.

    Returns:
        whether the kernels take such frames.
    """
    tensors = [tensor for tensor in (y, gradient, room) if tensor is not None]
    tensors += [buffers[name] for name in POOLED + PER_STREAM]
    if _recordings.play(key, tensors, scale):
        return True
    asked = call()
    maps, below, run = asked.maps(y), asked.maps(gradient), None
    beside = None if room is None else asked.maps(room)
    if not can_fuse(maps, asked.rates, {b.dtype for b in buffers.values()}):
        return False
    with on_device(y.device):
        for part in _parts(maps, asked):
            more = None if beside is None else beside[part]
            run = _Run.of(maps[part], below[part], more, buffers, asked, run)
            run.recording.bases = run.recording.bases or (run.workspace, *tensors)
            run.all(asked.largest, scale)
            asked = replace(asked, carry_on=True)
    if run is not None:
        _recordings.keep(key, run.recording)
    return True


def _parts(maps: Tensor, asked: Call) -> list[slice]:
    """Stretches of time, one after the other in the same workspace.

    A clip has to be whole, and a stretch of many sequences has gaps.
    """
    steps, sequences = maps.shape[:2]
    whole = asked.rates.long_term == "clip" or not asked.continues or sequences > 1
    count = 1 if whole else min(-(-maps.numel() // PART_VALUES), -(-steps // SHORTEST_PART))
    length = -(-steps // count)
    return [slice(begin, min(begin + length, steps)) for begin in range(0, steps, length)]


def can_fuse(maps: Tensor, rates: Rates, statistics: set[torch.dtype]) -> bool:
    """Whether the kernels take these frames; nothing that waits for the GPU is asked.

    Args:
        maps: (T, N, C, P) as stored: steps, sequences, channels, positions.
        rates: the rates and choices of the layer.
        statistics: what the layer's buffers are.
    """
    T, N, C, P = maps.shape
    narrow = maps.dtype in (torch.float32, torch.bfloat16, torch.float16)
    plain = rates.long_term != "shared" and not rates.diagonal
    crowded = N * P >= STREAMS_PER_CHANNEL * C and N * P * C > SMALL_FRAME
    fits = T > 1 and C <= max(PLANS) and maps.numel() <= LARGEST_TENSOR
    simple = maps.is_cuda and narrow and statistics == BUFFERS and plain
    return simple and crowded and fits and has_triton()


@cache
def has_triton() -> bool:
    """It comes with PyTorch's CUDA builds."""
    return find_spec("triton") is not None


@cache
def _kernels() -> tuple[Any, Any, Any]:
    """Triton is imported where the first frames on a GPU are seen, and nowhere else."""
    import ullayers.kernels.fused as fused
    import ullayers.kernels.fused_books as fused_books
    import ullayers.kernels.fused_solve as fused_solve

    return fused, fused_books, fused_solve


@dataclass
class _Run:
    """One pass and its memory on the GPU, all of which is there before the first kernel runs."""

    maps: Tensor
    gradient: Tensor  # in shape and strides of the maps
    room: Tensor | None  # likewise, for float32
    buffers: Mapping[str, Tensor]
    call: Call
    plan: Plan
    parts: int
    workspace: Tensor
    memory: dict[str, Tensor]  # in the workspace
    recording: Recording

    @classmethod
    def of(
        cls, maps: Tensor, gradient: Tensor, room: Tensor | None, buffers: Mapping[str, Tensor],
        call: Call, before: _Run | None,
    ) -> _Run:  # fmt: skip
        """A pass over all frames or a part of them; `before`, no shorter, lends its workspace."""
        T, N, C, P = maps.shape
        plan = next(PLANS[width] for width in PLANS if width >= C)
        S = N * P
        runs = -(-T // plan.run)
        parts = max(1, min(plan.programs // (2 * runs), S // (8 * C)))
        parts = before.parts if before else parts
        f32, f64, i32 = torch.float32, torch.float64, torch.int32
        entering = T * S * C if room is None else 0  # W or B, stored as the maps are
        layout = {
            "active": ((T, S), torch.int8),
            "counts": ((3 * T,), i32),  # streams that are there, count in W, count in B
            "tally": ((3,), torch.int64),  # steps so far, unusable positions, without inverse
            "frames": ((S,), i32),  # of each stream
            "within": ((entering,), f32),
            "between": ((entering,), f32),
            "grams": ((parts, 2, T, C, C), f32),  # covariances, then in the first part inverses
            "diagonals": ((parts, 2, T, C), f32),
            "starts": ((2, runs, C, C), f32),
            "roots": ((2, T, plan.pivot, plan.pivot), f32),
            "sums": ((parts, 2, T, C), f32),
            "pushes": ((2, T, C), f32),
            "pulls": ((T, C), f32),
            "evidences": ((2, T), f64),
            "shares": ((2, T), f64),  # of a step's Gram matrix
            "decays": ((2, T), f64),  # what is left of a run's start
            "ages": ((2, T), i32),  # how often the ridge has faded since
            "renewals": ((2, T), i32),  # when it was renewed
            "end_means": ((4, S, C), f32),
            "end_seen": ((2, S), f32),
            "end_cov": ((4, C, C), f32),
            "end_evidence": ((2,), f32),
            "end_ridge": ((2,), f32),
            "end_pull": ((1, C), f32),
        }
        workspace, memory = carve(layout, maps.device, before.workspace if before else None)
        recording = before.recording if before else Recording(())
        return cls(
            maps, gradient, room, buffers, call, plan, parts, workspace, memory, recording
        )  # fmt: skip

    def all(self, largest: float, scale: float) -> None:
        """The whole pass."""
        self.find_usable(largest)
        self.walk()
        self.keep_books()
        self.follow_covariances()
        self.invert()
        self.follow_pull()
        self.write_gradient(scale)
        self.write_statistics()

    @property
    def rates(self) -> Rates:
        return self.call.rates

    @property
    def source(self) -> tuple[Any, ...]:
        stride_t, stride_n, stride_c, stride_p = self.maps.stride()
        return self.maps, stride_t, stride_n, stride_p, stride_c, self.maps.shape[3]

    @property
    def within(self) -> Tensor:
        """What enters W: where the gradient will be, if that is wide enough."""
        return self.memory["within"] if self.room is None else self.gradient

    @property
    def between(self) -> Tensor:
        """What enters B: in the room that was given, if there is any."""
        return self.memory["between"] if self.room is None else self.room

    @property
    def sizes(self) -> tuple[int, int, int]:
        T, N, C, P = self.maps.shape
        return T, N * P, C

    @property
    def steps(self) -> int:
        """At a time, where a kernel scans along time."""
        return max(16, min(512, 1 << (self.maps.shape[0] - 1).bit_length()))

    @property
    def weights(self) -> tuple[float, float, float, float]:
        mu, eps = self.rates.mu, self.rates.eps
        return mu, 1 - mu, eps, 1 - eps

    @property
    def clip(self) -> bool:
        return self.rates.long_term == "clip"

    @property
    def channels(self) -> int:
        """Channels as the kernels hold them: a power of two that the matrix units take."""
        return max(16, 1 << (self.maps.shape[2] - 1).bit_length())

    @property
    def square(self) -> int:
        """As many channels of a covariance as a kernel holds at once."""
        return min(self.channels, WIDEST_SQUARE)

    @property
    def covariances(self) -> list[Tensor]:
        names = ("short_cov", "short_cov_rest", "long_cov", "long_cov_rest")
        return [self.buffers[name] for name in names]

    def find_usable(self, largest: float) -> None:
        """Which positions of which frames count, and how many."""
        T, S, C = self.sizes
        b, m, kernels = self.buffers, self.memory, _kernels()[0]
        block = 8 if S <= 1024 else 32
        self.recording.start(
            kernels.usable_positions, (T, -(-S // 64)),
            *self.source, m["active"], m["counts"], m["tally"], T, S, C, largest, self.channels, 64,
        )  # fmt: skip
        self.recording.start(
            kernels.count_streams, (-(-S // block),),
            m["active"], b["short_evidence"], b["continues"], self.call.known,
            m["counts"], m["frames"], m["tally"], T, S, self.call.carry_on, self.clip,
            self.steps, block,
        )  # fmt: skip

    def walk(self) -> None:
        """The moving averages, with their marks."""
        T, S, C = self.sizes
        b, m = self.buffers, self.memory
        ahead, block = (32, 64) if S * C < 2**16 else (16, 128)
        self.recording.start(
            _kernels()[0].walk, (-(-S // block), C),
            *self.source, m["active"], b["continues"],
            b["short_mean"], b["short_mean_rest"], b["short_evidence"],
            b["long_mean"], b["long_mean_rest"], b["long_evidence"], self.call.known,
            self.within, self.between, m["end_means"], m["end_seen"],
            T, S, C, *self.weights, self.call.carry_on, self.clip, ahead, block,
            num_warps=block // 32,
        )  # fmt: skip

    def keep_books(self) -> None:
        """What every step's ridge and evidence are made of."""
        b, m, rates = self.buffers, self.memory, self.rates
        self.recording.start(
            _kernels()[1].books, (2,),
            m["counts"], b["cov_evidence"], b["steps"], m["evidences"], m["shares"], m["ages"],
            m["renewals"], m["end_evidence"], m["tally"], self.sizes[0], *self.weights,
            ridge_period(rates.mu), ridge_period(rates.eps), self.steps,
        )  # fmt: skip

    def follow_covariances(self) -> None:
        """What every run of steps brings to the covariances, and where each run starts."""
        T, S, C = self.sizes
        plan, m = self.plan, self.memory
        runs, halves = -(-T // plan.run), self.channels > WIDEST_SQUARE
        self.recording.start(
            _kernels()[0].covariance_paths, (runs, self.parts, 2),
            self.within, self.between, *self.source[1:], m["shares"], m["grams"],
            m["diagonals"], m["sums"], m["decays"], T, S, *self.weights, C, self.square, halves,
            plan.run, plan.gram_block, num_warps=plan.gram_warps, num_stages=plan.gram_stages,
        )  # fmt: skip
        self.recording.start(
            _kernels()[1].run_starts, (-(-C * C // STARTS[1]), 2),
            m["grams"], m["decays"], m["evidences"], *self.covariances,
            self.buffers["cov_evidence"], m["starts"], m["end_cov"], self.parts, T, C, self.square,
            plan.run, *STARTS, num_warps=STARTS[1] // 32,
        )  # fmt: skip

    def invert(self) -> None:
        """The inverses after every step."""
        T, _, C = self.sizes
        b, m, rates, kernels = self.buffers, self.memory, self.rates, _kernels()[2]
        wide = self.channels > WIDEST_SQUARE
        self.recording.start(
            kernels.wide_inverse_matrices if wide else kernels.inverse_matrices, (T, 2),
            m["grams"], m["diagonals"], m["starts"], m["decays"], m["counts"], m["evidences"],
            m["ages"], m["renewals"], b["ridge_level"], m["sums"], m["roots"], m["pushes"],
            m["end_ridge"], m["tally"], self.parts, T, C,
            math.log1p(-rates.mu), math.log1p(-rates.eps), RIDGE_HIGH * rates.ridge / C,
            RIDGE_LOW * rates.ridge / C, noise_share(torch.float32) / C,
            self.plan.run, self.plan.pivot, self.square,
            num_warps=self.plan.solve_warps, num_stages=1,
        )  # fmt: skip

    def follow_pull(self) -> None:
        """What is to be taken off every gradient."""
        (T, _, C), m = self.sizes, self.memory
        if self.rates.centred:
            self.recording.start(
                _kernels()[1].pull_path, (-(-C // 4),),
                m["pushes"], m["counts"], self.buffers["pull"], m["pulls"], m["end_pull"], T, C,
                *self.weights[2:], self.steps, 4,
            )  # fmt: skip

    def write_gradient(self, scale: float) -> None:
        """Eq. 11 for all steps."""
        T, S, C = self.sizes
        plan, m = self.plan, self.memory
        self.recording.start(
            _kernels()[0].gradients, (T, -(-S // plan.block)),
            self.within, self.between, *self.source[1:], m["active"], m["grams"], m["pulls"],
            m["counts"], self.gradient, T, S, C, scale,
            self.rates.centred, self.channels, min(plan.slice, self.channels), plan.block,
            plan.flip, num_warps=plan.warps, num_stages=plan.stages,
        )  # fmt: skip

    def write_statistics(self) -> None:
        """All buffers at once, when all is computed."""
        _, S, C = self.sizes
        b, m = self.buffers, self.memory
        self.recording.start(
            _kernels()[1].commit, (-(-S * C // 1024),),
            m["end_means"], m["end_seen"], m["end_cov"], m["end_evidence"], m["end_ridge"],
            m["end_pull"], m["tally"], *(b[name] for name in PER_STREAM), *self.covariances,
            b["cov_evidence"], b["ridge_level"], b["pull"], b["steps"], b["left_out"],
            b["continues"], S, C, self.rates.centred, self.call.continues, 1024,
        )  # fmt: skip
