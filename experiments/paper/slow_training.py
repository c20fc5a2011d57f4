"""Objectives of the experiment `laplacian`, and the training of its networks on a CPU or a GPU.

Needs torch and numpy only. The optimum of every objective is the slowest eigenvectors. Its input
are codes of pairs of states a few steps apart and codes of single states. The networks of all seeds
are trained in parallel. A gridworld has few states, so a step evaluates the network once on every
state and gathers the codes of the batch: the gradient is the same as that of the batch itself, for
less work.

    python -m experiments.paper.slow_training --device cuda --out FOLDER --workers 8

Finished runs are stored in FOLDER/runs.json and are not repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.common import worker_pool
from experiments.paper.gridworlds import (
    EPISODE,
    NAMES,
    Gridworld,
    Ints,
    cosines,
    gridworld,
    overlap,
    slowest,
    step_counts,
    truth,
    walk,
)
from ullayers.files import replacing
from ullayers.nn.layers import UL1d
from ullayers.nn.networks import backward, sequences

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


HIDDEN = 256  # units per hidden layer
RATE = 1e-3  # learning rate
PAIRS = 1024  # per step
DISCOUNT = 0.9  # of the geometric distribution of steps between the states of a pair
STREAMS = 50  # of the paper's rule, which sees the walk in order
STEPS_PER_DRAW = 100  # steps whose samples are drawn at once
ROWS = (FRESH, TRACE, RUNNING, PAPER, GDO, GGDO, ALLO)
PIXEL_ROWS = (FRESH, RUNNING, ALLO)
PIXEL_WORLDS = ("GridRoom-16", "GridMaze-19")
EXPENSIVE = (RUNNING, PAPER)  # many times the work of other rows on a GPU
EXPENSIVE_WORLDS = ("GridRoom-16", "GridMaze-19")
DRAWN = ("GridRoom-16", "GridMaze-19")  # worlds whose vectors are stored for the figures
RUNS_FILE = "runs.json"


@dataclass(frozen=True)
class Run:
    """One row in one world, with a network per seed.

    Attributes:
        world: One of `NAMES`.
        row: One of `ROWS`, or `UNTRAINED` with no steps.
        seeds: Seeds of the walks and of the networks.
        pixels: Whether the network sees pictures instead of x and y.
        steps: Number of optimiser steps.
        samples: Number of samples of the random walk.
    """

    world: str
    row: str
    seeds: tuple[int, ...]
    pixels: bool = False
    steps: int = 10_000
    samples: int = 200_000

    @property
    def label(self) -> str:
        """Description, unique among runs of the same size and seeds."""
        return f"{self.world}{' pixels' * self.pixels}, {self.row}"

    @property
    def key(self) -> str:
        """Hash of everything that the result depends on, except for the code."""
        constants = [HIDDEN, RATE, PAIRS, DISCOUNT, STREAMS, SLOW, EPISODE, *CONSTANTS]
        plan = gridworld(self.world).walls.astype(int).tolist()
        text = json.dumps([asdict(self), constants, plan])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Found:
    """Result of a run.

    Attributes:
        run: The run.
        cosines: Cosines with the true eigenvectors, (seeds, `SLOW`).
        overlaps: Overlaps with the true space, (seeds,).
        seconds: Time it took, or its share if worlds were trained together.
        device: Device that it was trained on.
        vectors: Eigenvectors (states, `SLOW`) of the first seed, if the world is in `DRAWN`.
    """

    run: Run
    cosines: list[list[float]]
    overlaps: list[float]
    seconds: float
    device: str
    vectors: list[list[float]]


class Perceptrons(nn.Module):
    """Networks of equal shape evaluated in parallel: three hidden layers of 256 units with ReLU."""

    def __init__(self, seeds: Sequence[int], outputs: int) -> None:
        super().__init__()
        sizes = [2, HIDDEN, HIDDEN, HIDDEN, outputs]
        initial = [_initial_layers(seed, sizes) for seed in seeds]
        self.weights = nn.ParameterList(torch.stack(layer) for layer in zip(*initial, strict=True))

    def forward(self, states: Tensor) -> Tensor:
        """Map (networks, states, inputs) to (networks, states, outputs)."""
        y = states
        for i, weight in enumerate(self.weights):
            y = torch.baddbmm(weight[:, -1:], y.relu() if i else y, weight[:, :-1])
        return y


def _initial_layers(seed: int, sizes: list[int]) -> list[Tensor]:
    """Draw weights (inputs + 1, outputs), with the bias last, as `nn.Linear` does."""
    random = torch.Generator().manual_seed(seed)
    return [
        (2 * torch.rand(inputs + 1, outputs, generator=random) - 1) / math.sqrt(inputs)
        for inputs, outputs in itertools.pairwise(sizes)
    ]


class Convolutions(nn.Module):
    """One small convolutional network per seed."""

    def __init__(self, seeds: Sequence[int], outputs: int, size: tuple[int, int]) -> None:
        super().__init__()
        width = 32 * math.ceil(size[0] / 4) * math.ceil(size[1] / 4)
        self.networks = nn.ModuleList()
        for seed in seeds:
            torch.manual_seed(seed)
            self.networks.append(
                nn.Sequential(
                    nn.Conv2d(2, 16, 3, stride=2, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(16, 32, 3, stride=2, padding=1),
                    nn.ReLU(),
                    nn.Flatten(),
                    nn.Linear(width, HIDDEN),
                    nn.ReLU(),
                    nn.Linear(HIDDEN, outputs),
                )
            )

    def forward(self, states: Tensor) -> Tensor:
        """Map (states, 2, height, width) to (networks, states, outputs)."""
        return torch.stack([network(states) for network in self.networks])


class Samples:
    """Draws batches from the walks of all networks on the device, for many steps at once."""

    def __init__(self, walks: Ints, seeds: Sequence[int], device: torch.device) -> None:
        self._walks = torch.from_numpy(walks).to(device)  # (networks, episodes, EPISODE)
        self._random = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def draw(self, steps: int) -> tuple[Tensor, Tensor]:
        """Draw states: pairs (steps, networks, PAIRS, 2) and single (steps, networks, 2, PAIRS)."""
        drawn = [
            self._draw_one(walks, random, steps)
            for walks, random in zip(self._walks, self._random, strict=True)
        ]
        pairs, alone = zip(*drawn, strict=True)
        return torch.stack(pairs, 1), torch.stack(alone, 1)

    @staticmethod
    def _draw_one(states: Tensor, random: torch.Generator, steps: int) -> tuple[Tensor, Tensor]:
        def uniform(*shape: int) -> Tensor:
            return torch.rand(steps, *shape, generator=random, device=states.device)

        flat = states.flatten()
        first = (uniform(PAIRS) * (EPISODE - 1)).long()
        left = EPISODE - 1 - first
        # A geometric number of steps, truncated at the end of the episode.
        share = uniform(PAIRS) * (1 - DISCOUNT**left)
        later = 1 + (torch.log1p(-share) / math.log(DISCOUNT)).long()
        start = (uniform(PAIRS) * len(states)).long() * EPISODE + first
        pairs = torch.stack([flat[start], flat[start + torch.minimum(later, left)]], -1)
        alone = flat[(uniform(2, PAIRS) * (len(flat) - 1)).long()]
        return pairs, alone


class Streams(Samples):
    """Returns the walks in order, as parallel streams that restart at their end."""

    _next = 0

    def draw(self, steps: int) -> tuple[Tensor, Tensor]:
        """Return states of streams (steps, networks, STREAMS, frames), and no single states."""
        streams = self._walks.unflatten(1, (STREAMS, -1)).flatten(2)
        frames = 2 * PAIRS // STREAMS
        calls = streams.shape[2] // frames
        whole = streams[:, :, : calls * frames].unflatten(2, (calls, frames)).movedim(2, 0)
        clips = whole[torch.arange(self._next, self._next + steps, device=whole.device) % calls]
        self._next += steps
        return clips, clips[:, :, :0, :0]


def train(runs: Sequence[Run], device: str) -> list[Found]:
    """Train the networks of runs that differ only in their world, all in parallel."""
    begin = time.perf_counter()
    place = torch.device(device)
    run = runs[0]
    worlds = [gridworld(run.world) for run in runs]
    seeds = [seed for _ in runs for seed in run.seeds]
    objective = make_objective(run.row, len(seeds)).to(place)
    walks = np.stack([walk(world, run.samples, seed) for world in worlds for seed in run.seeds])
    net, states = _networks(run, worlds, seeds, objective.outputs)
    net.to(place)
    states = states.to(place)
    samples = (Streams if run.row == PAPER else Samples)(walks, seeds, place)
    _learn(net, objective, states, samples, run.steps)
    with torch.no_grad():
        codes = net(states).double().cpu().numpy()
    seconds = time.perf_counter() - begin
    parts = zip(runs, worlds, np.split(codes, len(runs)), np.split(walks, len(runs)), strict=True)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"
    return [_score(*part, seconds / len(runs), name) for part in parts]


def _networks(
    run: Run, worlds: Sequence[Gridworld], seeds: Sequence[int], outputs: int
) -> tuple[nn.Module, Tensor]:
    """Return the networks of all seeds, and their input for every state."""
    if run.pixels:
        (world,) = worlds
        states = torch.from_numpy(world.pictures())
        return Convolutions(seeds, outputs, world.walls.shape), states
    return Perceptrons(seeds, outputs), _padded([world for world in worlds for _ in run.seeds])


def _padded(worlds: Sequence[Gridworld]) -> Tensor:
    """Return the coordinates (worlds, states, 2), padded with zeros in small worlds."""
    parts = [torch.from_numpy(world.coordinates).float() for world in worlds]
    return nn.utils.rnn.pad_sequence(parts, batch_first=True)


def _learn(
    net: nn.Module, objective: Objective, states: Tensor, samples: Samples, steps: int
) -> None:
    optimizer = torch.optim.Adam(net.parameters(), RATE, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for start in range(0, steps, STEPS_PER_DRAW):
        for clips, alone in zip(*samples.draw(min(STEPS_PER_DRAW, steps - start)), strict=True):
            codes = net(states)
            batch = Batch(_gather(codes, clips), _gather(codes, alone))
            objective.descend(batch)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


def _gather(codes: Tensor, states: Tensor) -> Tensor:
    """Return codes (networks, n, d) of states (networks, ...) as (networks, ..., d)."""
    flat = states.flatten(1)[..., None].expand(-1, -1, codes.shape[-1])
    return codes.gather(1, flat).reshape(*states.shape, codes.shape[-1])


def _score(
    run: Run, world: Gridworld, codes: Any, walks: Ints, seconds: float, device: str
) -> Found:
    n = len(world.cells)
    true = truth(world, SLOW)
    vectors = [
        slowest(y[:n], step_counts(states, n), SLOW) for y, states in zip(codes, walks, strict=True)
    ]
    return Found(
        run,
        cosines=[cosines(found, true).tolist() for found in vectors],
        overlaps=[overlap(found, true) for found in vectors],
        seconds=seconds,
        device=device,
        vectors=np.round(vectors[0], 4).tolist() if run.world in DRAWN else [],
    )


def all_runs(seeds: Sequence[int]) -> list[Run]:
    """Return all runs of the experiment `laplacian`, the expensive ones last."""
    seeds = tuple(seeds)
    runs = [Run(world, row, seeds) for row in ROWS for world in NAMES]
    runs += [Run(world, row, seeds, pixels=True) for row in PIXEL_ROWS for world in PIXEL_WORLDS]
    runs += [Run(world, UNTRAINED, seeds, steps=0) for world in NAMES]
    runs = [run for run in runs if run.row not in EXPENSIVE or run.world in EXPENSIVE_WORLDS]
    return sorted(runs, key=lambda run: run.row in EXPENSIVE)


def load(folder: Path) -> dict[str, Found]:
    """Load the finished runs of a folder, by their key."""
    file = folder / RUNS_FILE
    if not file.exists():
        return {}
    stored: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    for found in stored.values():
        found["run"] = Run(**{**found["run"], "seeds": tuple(found["run"]["seeds"])})
    return {key: Found(**found) for key, found in stored.items()}


def complete(
    runs: Sequence[Run],
    folder: Path,
    device: str,
    workers: int,
    progress: Callable[[Found], None] = lambda found: None,
) -> list[Found]:
    """Return the results of all runs; train and store those that are not in the folder yet."""
    done = load(folder)
    groups = list(_together([run for run in runs if run.key not in done], device))
    folder.mkdir(parents=True, exist_ok=True)
    for finished in _in_processes(groups, device, workers):
        for found in finished:
            done[found.run.key] = found
            progress(found)
        with replacing(folder / RUNS_FILE) as file:
            json.dump({key: asdict(found) for key, found in done.items()}, file)
    return [done[run.key] for run in runs]


def _in_processes(
    groups: Sequence[Sequence[Run]], device: str, count: int
) -> Iterator[list[Found]]:
    """Train all groups; yield their results in the order in which they finish."""
    with worker_pool(max(1, min(count, len(groups)))) as pool:
        for finished in as_completed([pool.submit(train, group, device) for group in groups]):
            yield finished.result()


def _together(runs: Sequence[Run], device: str) -> Iterator[list[Run]]:
    """Group runs to train at once: on a GPU, all worlds of an objective in plain torch."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        alone = device == "cpu" or run.pixels or run.row in (FRESH, RUNNING, PAPER)
        group = run if alone else (run.row, run.seeds, run.steps)
        groups.setdefault(group, []).append(run)
    yield from groups.values()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all runs and print their scores."""
    parser = argparse.ArgumentParser(description="Trains all runs of the experiment `laplacian`.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True, help="folder for finished runs")
    parser.add_argument("--workers", type=int, default=1, help="number of parallel processes")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    given = parser.parse_args(arguments)
    begin = time.perf_counter()
    runs = all_runs(range(given.seeds))

    def progress(found: Found) -> None:
        passed = time.perf_counter() - begin
        scores = f"cosine {np.mean(found.cosines):.4f}, overlap {np.mean(found.overlaps):.4f}"
        print(f"{passed:6.0f} s  {found.run.label}: {scores} ({found.seconds:.0f} s)", flush=True)

    complete(runs, given.out, given.device, given.workers, progress)
    print(f"{len(runs)} runs, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
