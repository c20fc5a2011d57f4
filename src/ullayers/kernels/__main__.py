"""Compile all CPU loops and cache them on disk, so that training does not wait for them."""

import logging

import torch

from ullayers.kernels.dispatch import evaluate_fresh
from ullayers.kernels.moments import Rates, Request

LARGEST = 1e15


def compile_loops() -> None:
    """Compile the loops for fresh statistics of feature maps."""
    maps = torch.randn(32, 4, 32 * 32)
    request = Request((len(maps),), Rates(mu=0.5, eps=1e-3, ridge=1e-3), LARGEST)
    kernel, found = evaluate_fresh(maps, request, None)
    kernel.gradient(maps, request, found.weights, found.saved, torch.zeros_like(maps))


if __name__ == "__main__":
    logging.getLogger("ullayers").setLevel(logging.ERROR)
    compile_loops()
