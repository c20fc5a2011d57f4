"""Maps on a CPU by compiled loops over tiles of positions, on all threads.

What enters W and B is computed twice, for the covariances and again for the gradient: that takes
less time than to write it to memory and to read it.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.kernels.compiling import has_numba, loops, run

TILE_VALUES, WIDEST_TILE = 2**15, 2048
SMALLEST_SHARE = 128  # positions for a thread
FEW_POSITIONS = 8  # for each channel; if there are more, threads share them for W and B alike
GROUP_VALUES, LONGEST_GROUP = 2**18, 64  # of a covariance of all steps, and steps
ROOM_VALUES, SHORTEST_GROUP = 2**21, 8  # of all threads together; many have shorter groups
WIDEST, SMALLEST_FRAME = 256, 2**9  # channels, and values of a frame
LINE = 16  # values that come together from memory; a tile has a multiple of it
Array = NDArray[Any]
Work = Callable[[int], None]  # on a share
Reports = SimpleQueue[BaseException | None]
_kept = threading.local()


class _Helpers:
    """Threads that wait for work. They are as they were wherever an interrupt comes.

    Those of `concurrent.futures` are not: one that comes while work is handed to them leaves a lock
    behind that nobody opens.
    """

    def __init__(self) -> None:
        self.jobs: SimpleQueue[tuple[Work, int, Reports]] = SimpleQueue()
        self.count = 0

    def are(self, count: int) -> bool:
        """Start so many of them; whether there are any: none works at the end of a program."""
        try:
            while self.count < count and not sys.is_finalizing():
                threading.Thread(target=self._wait, name="ullayers", daemon=True).start()
                self.count += 1
        except RuntimeError:
            pass
        return self.count > 0 and not sys.is_finalizing()

    def _wait(self) -> None:
        while True:
            work, share, reports = self.jobs.get()
            try:
                work(share)
            except BaseException as error:
                reports.put(error)
            else:
                reports.put(None)
            del work, reports  # and all the memory that they know of


@lru_cache(maxsize=1)
def _helpers(process: int) -> _Helpers:
    """A process does not inherit threads."""
    return _Helpers()


@cache
def _openmp() -> Any:
    """The library whose threads torch works with, if it can be told to let them go."""
    for name in ("libgomp.so.1", "libiomp5.so", "libomp.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            library = ctypes.CDLL(str(path))
            return library if hasattr(library, "omp_pause_resource_all") else None
    return None


def _stop_waiting() -> None:
    """Let torch's threads go: they wait by running, for milliseconds, in the way of ours."""
    library = _openmp()
    if library is not None:
        library.omp_pause_resource_all(1)  # softly: the next that are needed are made anew


def _room(size: int) -> Array:
    """As many float64, which each thread keeps: to touch new memory takes longer than to use it.

    It begins where a line of the cache does: vectors that lie across two take twice as long.
    """
    room: Array | None = getattr(_kept, "room", None)
    if room is None or len(room) < size:
        whole = np.empty(size + LINE // 2)
        _kept.room = room = whole[-whole.ctypes.data % (4 * LINE) // 8 :]
    return room[:size]


def can_tile(frames: Tensor) -> bool:
    """Whether the loops take such frames (T, C, P)."""
    narrow = frames.dtype == torch.float32 and frames.shape[1] <= WIDEST
    plain = frames.is_contiguous() and not frames.is_neg() and not frames._is_zerotensor()
    return narrow and plain and has_numba()


class UnusableError(ValueError):
    """A value is too large, or not a number."""


class Part(NamedTuple):
    """What the gradient of a group of n steps is made of."""

    begin: int  # the first step
    keeps: Array  # (2, n), which share of its lag each mean keeps at each step
    lags: Array  # (2, C, P) before it: the latest frame less the means
    inverses: Array  # (n, 2, C', C') of W and B
    pulls: Array  # (n, C')


@dataclass(frozen=True)
class Tiles:
    """The frames of a call, and room for a group of steps.

    A multiple of four stands for the channels wherever it says C'.
    """

    frames: Array  # (T, C, P)
    width: int  # of a tile
    tiles: Array  # (threads, 2 C' + 4, width or more) to work in, in the precision of the work
    shares: list[tuple[int, int]]  # of the positions, one for each thread
    apart: bool  # whether threads in pairs find W and B, of all positions of both
    parts: Array  # (threads or pairs, n, 2, C', C') Gram matrices
    sums: Array  # (threads or pairs, n, 2, C)
    matrices: Array  # (n, 2, C', C') W and B times their evidence, then their inverses
    diagonals: Array  # (n, 2, C)
    pushes: Array  # likewise
    largest: float  # what a value may be at most

    @classmethod
    def of(cls, frames: Array, largest: float = math.inf) -> Tiles:
        """To work in float64."""
        steps, channels, positions = frames.shape
        threads = max(1, min(torch.get_num_threads(), positions // SMALLEST_SHARE))
        share = _parts(positions, -(-positions // threads))
        shares = [(begin, min(begin + share, positions)) for begin in range(0, positions, share)]
        wide, threads = -(-channels // 4) * 4, len(shares)
        apart = threads % 2 == 0 and positions <= FEW_POSITIONS * threads // 2 * channels
        found = threads // 2 if apart else threads
        width = _parts(share * threads // found, min(TILE_VALUES // channels, WIDEST_TILE))
        row = width + (5 * LINE if width % (2 * LINE) == 0 else 0)  # rows that compete for no cache
        few = max(SHORTEST_GROUP, ROOM_VALUES // ((threads + 1) * wide**2))
        n = max(1, min(GROUP_VALUES // wide**2, few, LONGEST_GROUP, steps))
        if threads > 1:
            _stop_waiting()
        sizes = (threads, 2 * wide + 4, row), (found + 1, n, 2, wide, wide)
        room = _room(sum(map(math.prod, sizes)))
        tiles, parts = room[: math.prod(sizes[0])], room[math.prod(sizes[0]) :].reshape(sizes[1])
        if wide > channels:  # all else is written to before it is read
            tiles[:] = 0
        return cls(
            frames, width, tiles.reshape(sizes[0]), shares, apart, parts[:found],
            np.empty((found, n, 2, channels)), parts[found],
            np.empty((n, 2, channels)), np.empty((n, 2, channels)), largest,
        )  # fmt: skip

    @property
    def precision(self) -> torch.dtype:
        """What is worked in."""
        return torch.float32 if self.tiles.dtype == np.float32 else torch.float64

    def in_float32(self) -> Tiles:
        """The same, in half the precision, and of the memory the first half."""
        tiles, matrices = (
            array.reshape(-1).view(np.float32)[: array.size].reshape(array.shape)
            for array in (self.tiles, self.matrices)
        )
        return replace(self, tiles=tiles, matrices=matrices)

    @property
    def steps(self) -> int:
        """Of a group."""
        return len(self.matrices)

    def covariances(
        self, begin: int, keeps: Array, lags: Array, cov_keeps: Array, brings: Array,
        totals: Array, matrices: Array,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Find W and B after each step of a group; their diagonals (n, 2, C), and lags after it.

        Args:
            begin: the first step.
            keeps: (2, n), as in `Part`.
            lags: (2, C, P), likewise.
            cov_keeps: (2, n), what each step leaves of W and B.
            brings: (2, n), what it multiplies sums of squares with.
            totals: (2, C, C) W and B before, times their evidence; become those after.
            matrices: (n, 2, C', C'), W and B times their evidence, written to.
        """
        n, after, usable = keeps.shape[1], np.empty_like(lags), [False] * len(self.shares)
        parts, sums = _front(self.parts, n), _front(self.sums, n)

        def find(i: int) -> None:
            at, ends, which = i, self.shares[i], (0, 2)
            if self.apart:
                at, ends, which = (
                    i // 2,
                    (self.shares[i - i % 2][0], self.shares[i | 1][1]),
                    (i % 2, 1),
                )
            known = self.frames, begin, keeps, lags, *ends, self.width, self.tiles[i]
            found = *which, parts[at], sums[at], after, np.float32(self.largest)
            usable[i] = run(loops("tiles").find_grams, *known, *found)

        def move(i: int) -> None:
            brought = cov_keeps, brings, totals
            out = matrices, self.diagonals[:n]
            run(loops("tiles").add_to_totals, parts, *brought, *out, i, len(self.shares))

        self.on_all(find)
        if not all(usable):
            raise UnusableError
        self.on_all(move)
        return self.diagonals[:n], after

    def invert(self, matrices: Array, levels: Array, scales: Array) -> Array:
        """Invert W and B after each step; what rounding errors grow by, at most (-1: no inverse).

        Args:
            matrices: (n, 2, C', C'), as `covariances` has found them.
            levels: (n, 2), what is added to their diagonals.
            scales: (n, 2), what the inverses are multiplied with.
        """
        n = len(levels)
        grown = np.empty((n, 2))
        known = matrices, levels, scales, _front(self.sums, n), self.pushes[:n], grown
        self.on_all(lambda i: run(loops("inverse").invert, *known, i, len(self.shares)))
        return grown

    def pulls(self, pull: Array, taking: Array, rate: float, streams: int) -> Array:
        """(n, C'): what each stream's gradient takes off, so that all have a mean of nothing.

        Args:
            pull: (C,) their mean before the group; becomes that after it.
            taking: (n,) which steps count.
            rate: of the mean, which moves.
            streams: how many there are.
        """
        n = len(taking)
        pulls = np.zeros((n, self.matrices.shape[2]), self.tiles.dtype)
        run(loops("tiles").follow_pull, pull, self.pushes[:n], taking, rate, streams, pulls)
        return pulls

    def write(self, part: Part, scale: float, above: Array | None, gradient: Array) -> None:
        """The scaled gradients of a group, added to those from above if there are any."""
        known, factor, adds = (
            (self.frames, *part[:3]),
            self.tiles.dtype.type(scale),
            above is not None,
        )
        made = *part[3:], factor, above if adds else self.frames, adds, gradient

        def work(i: int) -> None:
            share = *self.shares[i], self.width, self.tiles[i]
            run(loops("tiles").write_gradients, *known, *share, *made)

        self.on_all(work)

    def on_all(self, work: Work) -> None:
        """Every thread has its share, this one the first."""
        others, reports = range(1, len(self.shares)), Reports()
        try:
            if others and _helpers(os.getpid()).are(len(others)):
                for i in others:
                    _helpers(os.getpid()).jobs.put((work, i, reports))
                work(0)
                errors = [reports.get() for _ in others]
            else:
                for i in range(len(self.shares)):
                    work(i)
                errors = []
        except BaseException:
            _kept.room = None  # some may be at work there still
            raise
        for error in errors:
            if error is not None:
                raise error


def _front(array: Array, n: int) -> Array:
    """Room for n steps in an array (threads, steps, ...), without gaps: loops are compiled so."""
    shape = (len(array), n, *array.shape[2:])
    return array.reshape(-1)[: np.prod(shape)].reshape(shape)


def _parts(positions: int, most: int) -> int:
    """The size of equal parts, whole lines each, about `most` at the most."""
    count = -(-positions // most)
    return -(-positions // (count * LINE)) * LINE
