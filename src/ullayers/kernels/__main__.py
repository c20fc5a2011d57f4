"""Compile all CPU loops and cache them on disk, so that training does not wait for them."""

import logging
from itertools import product

import torch

from ullayers.kernels.dispatch import evaluate_fresh
from ullayers.kernels.moments import Request
from ullayers.kernels.numba.stream import PRECISIONS, prepare
from ullayers.kernels.schema import STATISTICS
from ullayers.kernels.state import Rates

LARGEST = 1e15


def compile_stream(frames: torch.dtype, statistics: torch.dtype) -> None:
    """Compile the loop for small frames that arrive one at a time.

    Args:
        frames: Precision of the frames.
        statistics: Precision of the layer's buffers.
    """
    sizes = {"d": 2, "streams": 1, "long": 1}
    buffers = {}
    for statistic in STATISTICS:
        shape = statistic.sized(sizes)
        buffers[statistic.name] = torch.empty(shape, dtype=statistic.dtype or statistics)
        statistic.fill(buffers[statistic.name], known=0.0)
    loop = prepare(buffers, Rates(mu=0.5, eps=1e-3, ridge=1e-3), 0.0, LARGEST, 1.0)
    loop.run(torch.randn(1, 1, 2, dtype=frames), None, carry_on=False)


def compile_fresh() -> None:
    """Compile the loops for fresh statistics of feature maps."""
    maps = torch.randn(32, 4, 32 * 32)
    request = Request((len(maps),), Rates(mu=0.5, eps=1e-3, ridge=1e-3), LARGEST)
    kernel, found = evaluate_fresh(maps, request, None)
    kernel.gradient(maps, request, found.weights, found.saved, torch.zeros_like(maps))


if __name__ == "__main__":
    logging.getLogger("ullayers").setLevel(logging.ERROR)
    for frames, statistics in product(PRECISIONS, PRECISIONS):
        compile_stream(frames, statistics)
    compile_fresh()
