"""Maps on a CPU by compiled loops over tiles of positions, on all threads.

What enters W and B is computed twice, for the covariances and again for the gradient: that takes
less time than to write it to memory and to read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.kernels.compiling import has_numba, run

TILE_VALUES, WIDEST_TILE, NARROWEST_TILE = 2**15, 1024, 128
GRAM_VALUES, LONGEST_GROUP = 2**20, 64
WIDEST = 256  # channels
LINE = 16  # values that come together from memory
Array = NDArray[Any]


@cache
def _loops() -> Any:
    """To load them takes its time, and to compile them ten seconds, once on a machine."""
    import ullayers.kernels.compiled_tiles as compiled_tiles

    return compiled_tiles


@lru_cache(maxsize=1)
def _helpers(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads, which a process does not inherit."""
    return ThreadPoolExecutor(threads, thread_name_prefix="ullayers")


@dataclass(frozen=True)
class Tiles:
    """The frames of a call, and where their gradient goes, both (T, C, P)."""

    frames: Array
    gradient: Array
    width: int
    shares: list[tuple[int, int]]  # of the positions, one for each thread

    @classmethod
    def of(cls, frames: Tensor, gradient: Tensor) -> Tiles | None:
        """None if another way has to be taken, or is faster."""
        _, channels, positions = frames.shape
        here = frames.dtype == torch.float32 and frames.is_contiguous()
        if not (here and gradient.is_contiguous() and channels <= WIDEST and has_numba()):
            return None
        threads = max(1, min(torch.get_num_threads(), positions // NARROWEST_TILE))
        share = -(-positions // (threads * LINE)) * LINE
        shares = [(begin, min(begin + share, positions)) for begin in range(0, positions, share)]
        width = max(NARROWEST_TILE, min(TILE_VALUES // channels, WIDEST_TILE))
        return cls(frames.numpy(), gradient.numpy(), min(width, share), shares)

    @property
    def steps(self) -> int:
        """Of a group."""
        return max(1, min(GRAM_VALUES // self.frames.shape[1] ** 2, LONGEST_GROUP))

    def grams(self, begin: int, keeps: Tensor, lags: Tensor) -> tuple[Tensor, Tensor]:
        """(2, n, C, C) and (2, n, C): sums of squares of what enters W and B, and sums.

        Args:
            begin: the first step.
            keeps: (2, n), which share of its lag each mean keeps at each step.
            lags: (2, C, P) before it.
        """
        n, channels, wide = keeps.shape[1], self.frames.shape[1], _padded(self.frames.shape[1])
        parts = np.zeros((len(self.shares), n, 2, wide, wide))
        sums = np.zeros((len(self.shares), n, 2, channels))
        common = (self.frames, begin, keeps.numpy(), lags.numpy())

        def work(i: int) -> None:
            run(_loops().add_grams, *common, *self.shares[i], self.width, parts[i], sums[i])

        self._all(work)
        whole = np.empty((n, 2, channels, channels))
        run(_loops().gather, parts, whole)
        return torch.from_numpy(whole).transpose(0, 1), torch.from_numpy(sums.sum(0))

    def write(
        self, begin: int, keeps: Tensor, lags: Tensor, inverses: Tensor, pulls: Tensor
    ) -> None:
        """The gradients of a group; `lags` become those after it.

        Args:
            begin, keeps, lags: as in `grams`.
            inverses: (2, n, C, C), to multiply what enters W and B with.
            pulls: (n, C), to be taken off.
        """
        more = _padded(self.frames.shape[1]) - self.frames.shape[1]
        inverses = torch.nn.functional.pad(inverses, (0, more, 0, more)).contiguous()
        pulls = torch.nn.functional.pad(pulls, (0, more)).contiguous()
        common = (self.frames, begin, keeps.numpy(), lags.numpy())
        targets = inverses.numpy(), pulls.numpy(), self.gradient

        def work(i: int) -> None:
            run(_loops().write_gradients, *common, *self.shares[i], self.width, *targets)

        self._all(work)

    def _all(self, work: Callable[[int], None]) -> None:
        others = range(1, len(self.shares))
        if not others:
            return work(0)
        helpers = _helpers(os.getpid(), len(self.shares) - 1)
        waiting = [helpers.submit(work, i) for i in others]
        work(0)
        for future in waiting:
            future.result()
        return None


def _padded(channels: int) -> int:
    """As the loops take them: four at a time."""
    return -(-channels // 4) * 4
