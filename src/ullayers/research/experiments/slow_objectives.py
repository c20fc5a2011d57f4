"""What `ul reproduce laplacian` compares: objectives whose optimum is the slowest eigenvectors.

Every objective serves several networks side by side, one for each seed; nothing is shared between
them. It sees the codes of pairs of states a few steps apart and of states drawn on their own.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ullayers.nn.layers import UL1d, backward, sequences

SLOW = 10  # eigenvectors that are scored
FRESH, TRACE = "fresh statistics", "fresh statistics, trace form"
RUNNING, PAPER = "running statistics", "the paper's rule"
UNTRAINED = "untrained networks"
GDO, GGDO, ALLO = "graph drawing", "graph drawing, triangular weights", "ALLO"
PENALTY = 1.0  # of the graph drawing objectives, on outputs that are not orthonormal
BARRIER, BARRIER_RATE, DUAL_RATE, SMOOTHING = 0.5, 0.01, 1e-3, 0.1  # ALLO
CONSTANTS = (PENALTY, BARRIER, BARRIER_RATE, DUAL_RATE, SMOOTHING)


@dataclass(frozen=True)
class Batch:
    """What the networks give in one step.

    Attributes:
        clips: (networks, clips, frames, outputs), pairs of a state and one that the walk reached
            soon after; for the paper's rule, what comes next in streams.
        alone: (networks, 2, states, outputs), two samples of states, independent of each other.
    """

    clips: Tensor
    alone: Tensor


class Objective(nn.Module):
    """Turns a batch into gradients of the networks' weights."""

    outputs = SLOW

    def descend(self, batch: Batch) -> None:
        """Add the gradient of every network's objective."""
        self.loss(batch).sum().backward()

    def loss(self, batch: Batch) -> Tensor:
        """(networks,)."""
        raise NotImplementedError


class Layers(Objective):
    """A `UL1d` for each network, on clips of two frames or, for the paper's rule, on streams."""

    def __init__(self, networks: int, row: str) -> None:
        super().__init__()
        choices: dict[str, dict[str, Any]] = {
            FRESH: {"statistics": "fresh", "long_term": "shared"},
            RUNNING: {"statistics": "running", "long_term": "shared"},
            PAPER: {"reduction": "sum", "start": "paper"},
        }
        self.layers = nn.ModuleList(UL1d(SLOW, **choices[row]) for _ in range(networks))
        self.streams = row == PAPER

    def descend(self, batch: Batch) -> None:
        """Add the gradient of every network's objective."""
        with nullcontext() if self.streams else sequences(self):
            backward(*(layer(y) for layer, y in zip(self.layers, batch.clips, strict=True)))


class Trace(Objective):
    """The trace of B^-1 W of the batch: the sum of its eigenvalues, not that of their logs."""

    def loss(self, batch: Batch) -> Tensor:
        """(networks,)."""
        steps = batch.clips[:, :, 1] - batch.clips[:, :, 0]
        frames = batch.clips.flatten(1, 2)
        around = frames - frames.mean(1, keepdim=True)
        # No ridge: with one, an output that vanishes would cost nothing. cholesky_ex does not wait
        # for the device; outputs that have become dependent give NaN, and a score of 0.
        factor = torch.linalg.cholesky_ex(_gram(around)).L
        white: Tensor = torch.linalg.solve_triangular(factor, steps.mT, upper=False)
        return white.square().mean(-1).sum(-1)


class GraphDrawing(Objective):
    """Steps are short and outputs orthonormal, by a penalty (Wu, Tucker and Nachum, 2019).

    With triangular weights (Wang et al., 2021) the objective is the sum of those of the first
    output, the first two, and so on, which tells single eigenvectors from their rotations.
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
        """(networks,)."""
        first, second = _errors(batch.alone, batch.alone)
        drawn = (_step_sizes(batch) * self.weight).sum(-1)
        # The product of two independent samples, for the square of one would be biased.
        return drawn + PENALTY * (self.pair_weight * first * second).sum((-2, -1))


class AugmentedLagrangian(Objective):
    """ALLO (Gomez, Bowling and Machado, 2024).

    Orthonormality is a constraint with dual variables and a quadratic barrier. Output j answers
    only for its products with outputs k <= j, and the latter get no gradient, which puts the
    eigenvectors in order.
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
        """(networks,), and a step of the dual variables and of the barrier."""
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
    """The objective of a row."""
    if row == UNTRAINED:
        return Objective()
    if row == TRACE:
        return Trace()
    if row in (GDO, GGDO):
        return GraphDrawing(triangular=row == GGDO)
    if row == ALLO:
        return AugmentedLagrangian(networks)
    return Layers(networks, row)


def _gram(vectors: Tensor) -> Tensor:
    """(networks, d, d), the mean of the outer products of (networks, n, d)."""
    return vectors.mT @ vectors / vectors.shape[1]


def _step_sizes(batch: Batch) -> Tensor:
    """(networks, outputs), the mean squared step."""
    return (batch.clips[:, :, 1] - batch.clips[:, :, 0]).square().mean(1)


def _errors(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Second moments minus the identity, (networks, d, d), of the two samples of states."""
    moments = left.mT @ right / left.shape[2]
    errors = moments - torch.eye(left.shape[-1], device=left.device)
    return errors[:, 0], errors[:, 1]
