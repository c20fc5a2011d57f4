"""Objectives of `ul reproduce laplacian`, whose optimum is the slowest eigenvectors.

Every objective trains several independent networks in parallel, one per seed. Its input are codes
of pairs of states a few steps apart and codes of single states.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ullayers.nn.layers import UL1d, backward, sequences

SLOW = 10  # number of eigenvectors that are scored
FRESH = "fresh statistics"
TRACE = "fresh statistics, trace form"
RUNNING = "running statistics"
PAPER = "the paper's rule"
UNTRAINED = "untrained networks"
GDO = "graph drawing"
GGDO = "graph drawing, triangular weights"
ALLO = "ALLO"
PENALTY = 1.0  # of the graph drawing objectives, for outputs that are not orthonormal
# Constants of ALLO.
BARRIER = 0.5
BARRIER_RATE = 0.01
DUAL_RATE = 1e-3
SMOOTHING = 0.1
CONSTANTS = (PENALTY, BARRIER, BARRIER_RATE, DUAL_RATE, SMOOTHING)


@dataclass(frozen=True)
class Batch:
    """Codes of one step.

    Attributes:
        clips: Pairs of a state and one that the walk reached soon after, (networks, clips, frames,
            outputs); for the paper's rule, the next frames of streams.
        alone: Two independent samples of states, (networks, 2, states, outputs).
    """

    clips: Tensor
    alone: Tensor


class Objective(nn.Module):
    """Computes gradients of the networks' weights from a batch."""

    outputs = SLOW

    def descend(self, batch: Batch) -> None:
        """Add the gradient of every network's objective."""
        self.loss(batch).sum().backward()

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of every network, (networks,)."""
        raise NotImplementedError


class ULObjective(Objective):
    """A `UL1d` for each network, on clips of two frames or, for the paper's rule, on streams."""

    def __init__(self, networks: int, row: str) -> None:
        super().__init__()
        options: dict[str, dict[str, Any]] = {
            FRESH: {"statistics": "fresh", "long_term": "shared"},
            RUNNING: {"statistics": "running", "long_term": "shared"},
            PAPER: {"reduction": "sum", "start": "paper"},
        }
        self.layers = nn.ModuleList(UL1d(SLOW, **options[row]) for _ in range(networks))
        self.streams = row == PAPER

    def descend(self, batch: Batch) -> None:
        """Add the gradient of every network's objective."""
        with nullcontext() if self.streams else sequences(self):
            backward(*(layer(y) for layer, y in zip(self.layers, batch.clips, strict=True)))


class Trace(Objective):
    """The trace of B^-1 W of the batch: the sum of its eigenvalues instead of their logarithms."""

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of every network, (networks,)."""
        steps = batch.clips[:, :, 1] - batch.clips[:, :, 0]
        frames = batch.clips.flatten(1, 2)
        centred = frames - frames.mean(1, keepdim=True)
        # No ridge: with one, an output that vanishes would cost nothing. cholesky_ex does not
        # synchronize with the device; dependent outputs give NaN, and a score of 0.
        factor = torch.linalg.cholesky_ex(_gram(centred)).L
        white: Tensor = torch.linalg.solve_triangular(factor, steps.mT, upper=False)
        return white.square().mean(-1).sum(-1)


class GraphDrawing(Objective):
    """Squared steps, and a penalty for outputs that are not orthonormal (Wu et al., 2019).

    With triangular weights (Wang et al., 2021) the objective is the sum of those of the first
    output, the first two outputs and so on, which distinguishes eigenvectors from rotations.
    """

    outputs = SLOW + 1  # the constant vector is one of them

    def __init__(self, triangular: bool) -> None:
        super().__init__()
        rank = torch.arange(self.outputs, 0, -1.0)
        weight = rank / rank.mean() if triangular else torch.ones(self.outputs)
        self.register_buffer("weight", weight)
        self.register_buffer("pair_weight", torch.minimum(weight[:, None], weight))
        self.weight: Tensor
        self.pair_weight: Tensor

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of every network, (networks,)."""
        first, second = _errors(batch.alone, batch.alone)
        steps = (_step_sizes(batch) * self.weight).sum(-1)
        # The product of two independent samples; the square of one would be biased.
        return steps + PENALTY * (self.pair_weight * first * second).sum((-2, -1))


class AugmentedLagrangian(Objective):
    """ALLO (Gomez, Bowling and Machado, 2024).

    Orthonormality is a constraint with dual variables and a quadratic barrier. The constraint on
    outputs k <= j gives a gradient to output j only, which orders the eigenvectors.
    """

    outputs = SLOW + 1

    def __init__(self, networks: int) -> None:
        super().__init__()
        self.register_buffer("duals", torch.zeros(networks, self.outputs, self.outputs))
        self.register_buffer("squares", torch.zeros(networks, self.outputs, self.outputs))
        self.register_buffer("barrier", torch.full((networks,), BARRIER))
        self.duals: Tensor
        self.squares: Tensor
        self.barrier: Tensor

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of every network, (networks,); update duals and barrier."""
        first, second = (e.tril() for e in _errors(batch.alone, batch.alone.detach()))
        linear = (self.duals.clone() * (first + second) / 2).sum((-2, -1))
        square = first * second
        loss = _step_sizes(batch).sum(-1) + linear + self.barrier.clone() * square.sum((-2, -1))
        with torch.no_grad():
            self.duals += DUAL_RATE * (first + second) / 2
            self.squares.lerp_(square, SMOOTHING)
            self.barrier += BARRIER_RATE * self.squares.clamp(min=0).mean((-2, -1))
        return loss


def make_objective(row: str, networks: int) -> Objective:
    """Return the objective of a row."""
    if row == UNTRAINED:
        return Objective()
    if row == TRACE:
        return Trace()
    if row in (GDO, GGDO):
        return GraphDrawing(triangular=row == GGDO)
    if row == ALLO:
        return AugmentedLagrangian(networks)
    return ULObjective(networks, row)


def _gram(vectors: Tensor) -> Tensor:
    """Return mean outer products (networks, d, d) of vectors (networks, n, d)."""
    return vectors.mT @ vectors / vectors.shape[1]


def _step_sizes(batch: Batch) -> Tensor:
    """Return the mean squared step, (networks, outputs)."""
    return (batch.clips[:, :, 1] - batch.clips[:, :, 0]).square().mean(1)


def _errors(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return second moments minus identity, (networks, d, d), of the two samples of states."""
    moments = left.mT @ right / left.shape[2]
    errors = moments - torch.eye(left.shape[-1], device=left.device)
    return errors[:, 0], errors[:, 1]
