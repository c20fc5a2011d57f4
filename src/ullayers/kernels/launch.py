"""The recurrence on a GPU: which calls the Triton kernels take, and how they are put together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ullayers.kernels.covariance import RIDGE_HIGH, RIDGE_LOW, noise_share, ridge_period
from ullayers.kernels.state import Rates

PRECISION = "tf32x3"  # three products on the matrix units: float32 in all but its last digit
# Fewer streams for every channel than this, or smaller frames, are left to float64.
STREAMS_PER_CHANNEL, SMALL_FRAME = 2, 4096
LARGEST_TENSOR = 2**31 - 1  # elements; offsets inside a frame are of 32 bits


@dataclass(frozen=True)
class Plan:
    """How much a program takes on, so that it fits the registers; found by trying on an H200."""

    group: int  # steps between two marks
    gram_block: int  # streams at a time, for Gram matrices
    gram_warps: int
    block: int  # streams at a time, for gradients
    warps: int
    solve_warps: int


PLANS = {  # by the number of channels that it serves
    16: Plan(4, 64, 4, 128, 4, 2),
    32: Plan(4, 32, 4, 64, 4, 4),
    64: Plan(4, 32, 8, 32, 4, 4),
    128: Plan(2, 32, 8, 32, 8, 8),
}


@dataclass(frozen=True)
class Fused:
    """What a fused pass gives: the gradient, and all that is to be written to the buffers."""

    gradient: Tensor  # in shape and layout of the frames
    ends: dict[str, Tensor]  # by the name of the buffer
    tally: Tensor  # (3,) int64: steps so far, unusable positions, steps without an inverse


_compiled: dict[tuple[Any, ...], Any] = {}
# How many of each kernel's arguments, the last ones, are part of what is compiled.
CONSTANTS = {
    "usable_positions": 2, "count_streams": 4, "walk": 5, "gram_matrices": 6, "gradients": 6,
    "covariance_path": 2, "books": 1, "inverse_matrices": 2, "pull_path": 2,
}  # fmt: skip


def can_fuse(maps: Tensor, rates: Rates, statistics: torch.dtype) -> bool:
    """Whether the kernels take these frames; nothing that waits for the GPU is asked.

    Args:
        maps: (T, N, C, P) as stored: steps, sequences, channels, positions.
        rates: the rates and choices of the layer.
        statistics: the precision of the layer's buffers.
    """
    T, N, C, P = maps.shape
    narrow = maps.dtype in (torch.float32, torch.bfloat16, torch.float16)
    plain = rates.long_term != "shared" and not rates.diagonal
    crowded = N * P >= STREAMS_PER_CHANNEL * C and N * P * C > SMALL_FRAME
    fits = T > 1 and C <= max(PLANS) and maps.numel() <= LARGEST_TENSOR
    simple = maps.is_cuda and narrow and statistics == torch.float32 and plain
    return simple and crowded and fits and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def _kernels() -> tuple[Any, Any]:
    """Triton is imported where the first frames on a GPU are seen, and nowhere else."""
    import ullayers.kernels.fused as fused
    import ullayers.kernels.fused_solve as fused_solve

    return fused, fused_solve


@cache
def _starts_directly() -> bool:
    """Whether a compiled kernel of this Triton takes the arguments as they were declared."""
    return tuple(int(part) for part in version("triton").split(".")[:2]) >= (3, 4)


def advance_fused(
    maps: Tensor,
    buffers: Mapping[str, Tensor],
    rates: Rates,
    carry_on: bool,
    known: float,
    largest: float,
    scale: float,
) -> Fused:
    """What `core.advance` does, from the buffers of a layer to those after the frames.

    Args:
        maps: (T, N, C, P) as stored.
        buffers: the layer's statistics; not changed.
        rates: the rates and choices of the layer.
        carry_on: whether the streams may go on, if the buffer `continues` says so too.
        known: evidence of means that nothing has been seen of.
        largest: frames with a larger value are left out.
        scale: of the gradient.
    """
    run = _Run.of(maps, buffers, rates, carry_on, known)
    gradient = torch.empty_like(maps)
    with torch.cuda.device(maps.device):
        run.find_usable(largest)
        run.walk()
        run.sum_squares()
        run.keep_books()
        run.follow_covariances()
        run.invert()
        run.follow_pull()
        run.write_gradient(gradient, scale)
    return Fused(gradient, run.ends(), run.tally)


@dataclass
class _Run:
    """One pass and its memory on the GPU, all of which is there before the first kernel runs."""

    maps: Tensor
    buffers: Mapping[str, Tensor]
    rates: Rates
    carry: bool
    known: float
    plan: Plan
    parts: int
    active: Tensor  # (T, S)
    counts: Tensor  # (3 * T,) streams that are there, that count in W, that count in B
    frames: Tensor  # (S,) of each stream
    marks: Tensor  # (3, groups, C, S)
    seen_marks: Tensor  # (2, groups, S)
    own: Tensor  # (2, C, S) each clip's mean
    grams: Tensor  # (parts, 2, T, C, C)
    inverses: Tensor  # (2, T, C, C)
    sums: Tensor  # (parts, 2, T, C)
    pushes: Tensor  # (2, T, C)
    pulls: Tensor  # (T, C)
    evidences: Tensor  # (2, T)
    ages: Tensor  # (2, T) how often the ridge has faded since
    renewals: Tensor  # (2, T) when it was renewed
    end_means: Tensor  # (4, S, C)
    end_seen: Tensor  # (2, S)
    end_cov: Tensor  # (4, C, C)
    end_evidence: Tensor  # (2,)
    end_ridge: Tensor  # (2,)
    end_pull: Tensor  # (1, C)
    tally: Tensor  # (3,)

    @classmethod
    def of(
        cls, maps: Tensor, buffers: Mapping[str, Tensor], rates: Rates, carry: bool, known: float
    ) -> _Run:
        T, N, C, P = maps.shape
        plan = next(PLANS[width] for width in PLANS if width >= C)
        S, groups = N * P, -(-T // plan.group)
        parts = max(1, min(1024 // T, S // (8 * C)))
        clip = rates.long_term == "clip"

        def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=maps.device)

        zeros = torch.zeros(6 + 3 * T, dtype=torch.int32, device=maps.device)
        return cls(
            maps, buffers, rates, carry, known, plan, parts,
            active=new(T, S, dtype=torch.int8), counts=zeros[6:],
            frames=new(S, dtype=torch.int32), marks=new(3, groups, C, S),
            seen_marks=new(2, groups, S), own=new(2, C, S) if clip else maps,
            grams=new(parts, 2, T, C, C), inverses=new(2, T, C, C), sums=new(parts, 2, T, C),
            pushes=new(2, T, C), pulls=new(T, C), evidences=new(2, T, dtype=torch.float64),
            ages=new(2, T, dtype=torch.int32),
            renewals=new(2, T, dtype=torch.int32), end_means=new(4, S, C), end_seen=new(2, S),
            end_cov=new(4, C, C), end_evidence=new(2), end_ridge=new(2), end_pull=new(1, C),
            tally=zeros[:6].view(torch.int64),
        )  # fmt: skip

    @property
    def source(self) -> tuple[Any, ...]:
        stride_t, stride_n, stride_c, stride_p = self.maps.stride()
        return self.maps, stride_t, stride_n, stride_p, stride_c, self.maps.shape[3]

    @property
    def sizes(self) -> tuple[int, int, int]:
        T, N, C, P = self.maps.shape
        return T, N * P, C

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
    def covariances(self) -> list[Tensor]:
        names = ("short_cov", "short_cov_rest", "long_cov", "long_cov_rest")
        return [self.buffers[name] for name in names]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """All that Triton looks at to choose a compiled kernel."""
        maps, rates = self.maps, self.rates
        tensors = (maps, *self.buffers.values())
        aligned = all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
        return maps.shape, maps.stride(), maps.dtype, maps.device, aligned, self.carry, rates

    def start(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: int) -> None:
        """Launch a kernel. Its constants come last.

        The second time it goes without Triton's own look at every argument, which takes longer
        than most of these kernels run.
        """
        key = (kernel.__name__, arguments[-CONSTANTS[kernel.__name__] :], *self.key)
        compiled = _compiled.get(key)
        if compiled is None:
            compiled = kernel[grid](*arguments, **options)
            if compiled is not None and _starts_directly():
                _compiled[key] = compiled
        else:
            compiled[(*grid, 1, 1)[:3]](*arguments)

    def find_usable(self, largest: float) -> None:
        """Which positions of which frames count, and how many."""
        T, S, C = self.sizes
        b, kernels = self.buffers, _kernels()[0]
        self.start(
            kernels.usable_positions, (T, -(-S // 64)),
            *self.source, self.active, S, C, largest, self.channels, 64,
        )  # fmt: skip
        self.start(
            kernels.count_streams, (-(-S // 32),),
            self.active, b["short_evidence"], b["continues"], self.known, self.counts, self.frames,
            self.tally, T, S, self.carry, self.clip, 128, 32,
        )  # fmt: skip

    def walk(self) -> None:
        """The moving averages, with their marks."""
        T, S, C = self.sizes
        b = self.buffers
        self.start(
            _kernels()[0].walk, (-(-S // 128), C),
            *self.source, self.active, b["continues"],
            b["short_mean"], b["short_mean_rest"], b["short_evidence"],
            b["long_mean"], b["long_mean_rest"], b["long_evidence"], self.known,
            self.marks, self.seen_marks, self.own, self.end_means, self.end_seen,
            T, S, C, *self.weights, self.carry, self.clip, self.plan.group, 16, 128,
        )  # fmt: skip

    def sum_squares(self) -> None:
        """The Gram matrices of all steps."""
        T, S, C = self.sizes
        plan = self.plan
        for far in (False, True):
            self.start(
                _kernels()[0].gram_matrices, (self.marks.shape[1], self.parts),
                *self.source, self.active, self.marks, self.seen_marks, self.own, self.frames,
                self.grams, self.sums, T, S, C, *self.weights,
                self.clip, far, plan.group, self.channels, plan.gram_block, PRECISION,
                num_warps=plan.gram_warps, num_stages=1,
            )  # fmt: skip

    def keep_books(self) -> None:
        """What every step's ridge and evidence are made of."""
        b, rates = self.buffers, self.rates
        self.start(
            _kernels()[1].books, (2,),
            self.counts, b["cov_evidence"], b["steps"], self.evidences, self.ages, self.renewals,
            self.end_evidence, self.tally, self.sizes[0], *self.weights,
            ridge_period(rates.mu), ridge_period(rates.eps), 128,
        )  # fmt: skip

    def follow_covariances(self) -> None:
        """Covariances after every step."""
        T, _, C = self.sizes
        self.start(
            _kernels()[1].covariance_path, (-(-C * C // 32), 2),
            self.grams, self.counts, *self.covariances, self.buffers["cov_evidence"],
            self.end_cov, self.parts, T, C, *self.weights, 64, 32,
        )  # fmt: skip

    def invert(self) -> None:
        """The inverses after every step."""
        T, _, C = self.sizes
        b, rates = self.buffers, self.rates
        self.start(
            _kernels()[1].inverse_matrices, (T, 2),
            self.grams, self.counts, self.evidences, self.ages, self.renewals,
            b["ridge_level"], *self.covariances, b["cov_evidence"], self.sums, self.inverses,
            self.pushes, self.end_ridge, self.tally, self.parts, T, C,
            math.log1p(-rates.mu), math.log1p(-rates.eps), RIDGE_HIGH * rates.ridge / C,
            RIDGE_LOW * rates.ridge / C, noise_share(torch.float32) / C,
            C <= 64, self.channels, num_warps=self.plan.solve_warps,
        )  # fmt: skip

    def follow_pull(self) -> None:
        """What is to be taken off every gradient."""
        T, _, C = self.sizes
        if self.rates.centred:
            self.start(
                _kernels()[1].pull_path, (-(-C // 16),),
                self.pushes, self.counts, self.buffers["pull"], self.pulls, self.end_pull, T, C,
                *self.weights[2:], 128, 16,
            )  # fmt: skip

    def write_gradient(self, gradient: Tensor, scale: float) -> None:
        """Eq. 11 for all steps."""
        T, S, C = self.sizes
        plan = self.plan
        self.start(
            _kernels()[0].gradients, (self.marks.shape[1], -(-S // plan.block)),
            *self.source, self.active, self.marks, self.seen_marks, self.own, self.frames,
            self.inverses, self.pulls, self.counts, gradient, T, S, C, *self.weights, scale,
            self.clip, self.rates.centred, plan.group, self.channels, plan.block, PRECISION,
            num_warps=plan.warps, num_stages=1,
        )  # fmt: skip

    def ends(self) -> dict[str, Tensor]:
        """The statistics after the frames, by buffer."""
        means, covs = self.end_means, self.end_cov
        return {
            "short_mean": means[0], "short_mean_rest": means[1],
            "long_mean": means[2], "long_mean_rest": means[3],
            "short_cov": covs[0], "short_cov_rest": covs[1],
            "long_cov": covs[2], "long_cov_rest": covs[3],
            "short_evidence": self.end_seen[0], "long_evidence": self.end_seen[1],
            "cov_evidence": self.end_evidence, "ridge_level": self.end_ridge,
            "pull": self.end_pull if self.rates.centred else self.buffers["pull"],
        }  # fmt: skip
