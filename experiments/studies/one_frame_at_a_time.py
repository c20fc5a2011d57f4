"""Online learning from single frames: running statistics and alternatives closer to fresh ones.

    python -m experiments.studies.one_frame_at_a_time             without data; about ten minutes
    python -m experiments.studies.one_frame_at_a_time --data DIR  also DIR/tracktor (mouse)

Every learner sees each frame once, in order. Times are processor times on one core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import ullayers as ul
from experiments.bench.video import MOUSE, MOUSE_SIZE, MOUSE_TRACK, read_columns
from experiments.paper.gridworlds import Gridworld
from ullayers.learning.config import Config
from ullayers.learning.networks import Locator
from ullayers.learning.trials import make_optimizer
from ullayers.run.results import Floats, distances
from ullayers.run.watcher import Watcher
from ullayers.video.demo_films import write_scene
from ullayers.video.sources import Reading, find_sources

SEEDS = (0, 1, 2)
RATE = 1e-3  # learning rate of Adam
WALL_SPACING = 6  # cells from one wall to the next
DOOR = 2  # position of the door in each wall
ACTIONS = [3, 1, 2, 0]  # indices of right, down, left and up in the actions of a `Gridworld`
TINY = 1e-12  # keeps a zero matrix invertible


class Learner(Protocol):
    """A learner that is given one frame at a time."""

    def see(self, frame: Tensor) -> None:
        """Learn from the next frame."""


@dataclass(frozen=True)
class Task:
    """A stream of frames, a network to train on it, and the score of the trained network."""

    frames: Tensor
    net: nn.Sequential  # its last layer is linear
    score: Callable[[nn.Module], float]


# Tasks


def blob(seed: int, count: int = 6000, later: int = 2000) -> Task:
    """A blob wanders through noise; scored by R2 of its position, decoded on later frames."""
    frames, positions = blob_film(seed, count + later)

    def score(net: nn.Module) -> float:
        outputs = net(frames[count:]).double()
        rows = torch.cat([outputs, torch.ones(later, 1)], 1)
        fitted = slice(0, later // 2)
        tested = slice(later // 2, None)
        truth = positions[count:].double()
        readout = torch.linalg.lstsq(rows[fitted], truth[fitted]).solution
        error = (rows[tested] @ readout - truth[tested]).square().sum()
        return float(1 - error / (truth[tested] - truth[tested].mean(0)).square().sum())

    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2),
        nn.Tanh(),
        nn.Conv2d(8, 16, 5, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(400, 32),
        nn.Tanh(),
        nn.Linear(32, 2),
    )
    return Task(frames[:count], net, score)


def blob_film(seed: int, count: int, side: int = 32, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Return frames (time, 1, side, side) of a blob that bounces off walls, and its positions."""
    random = torch.Generator().manual_seed(seed)
    position = torch.rand(2, generator=random)
    speed = torch.zeros(2)
    positions = torch.empty(count, 2)
    for t in range(count):
        speed = 0.9 * speed + 0.008 * torch.randn(2, generator=random)
        position = position + speed
        speed = torch.where(position < 0.15, speed.abs(), speed)
        speed = torch.where(position > 0.85, -speed.abs(), speed)
        position = position.clamp(0.15, 0.85)
        positions[t] = position
    pixels = (torch.arange(side) + 0.5) / side
    columns, rows = ((pixels - p[:, None]).div(0.11).square().neg().exp() for p in positions.T)
    pictures = rows[:, :, None] * columns[:, None, :]
    return (pictures + noise * torch.randn(pictures.shape, generator=random))[:, None], positions


def rooms(seed: int, count: int = 12_000, across: int = 2, slowest: int = 3) -> Task:
    """A random walk through rooms; scored by the overlap with its slowest eigenvectors."""
    floor = floor_plan(across)
    world = Gridworld("rooms", np.pad(~floor, 1, constant_values=True))
    follows = world.neighbours[:, ACTIONS]
    random = np.random.default_rng(seed)
    state = 0
    states = np.empty(count, int)
    for t, action in enumerate(random.integers(0, 4, count)):
        state = follows[state, action]
        states[t] = state
    truth = np.linalg.eigh(world.chain())[1][:, ::-1][:, 1 : slowest + 1]  # the first is constant
    positions = torch.from_numpy(3.4 * (np.argwhere(floor) / (len(floor) - 1) - 0.5)).float()

    def score(net: nn.Module) -> float:
        outputs = net(positions).double().numpy()
        basis, _ = np.linalg.qr(outputs - outputs.mean(0))
        return float(np.square(basis.T @ truth).sum() / slowest)

    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([2, 128, 128, 128]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return Task(positions[states], nn.Sequential(*layers, nn.Linear(128, slowest)), score)


def floor_plan(across: int) -> NDArray[np.bool_]:
    """Return `across` x `across` square rooms with a door in every wall between two rooms."""
    side = across * WALL_SPACING - 1
    floor = np.ones((side, side), bool)
    walls = np.arange(WALL_SPACING - 1, side, WALL_SPACING)
    doors = np.arange(DOOR, side, WALL_SPACING)
    floor[walls, :] = False
    floor[:, walls] = False
    floor[np.ix_(walls, doors)] = True
    floor[np.ix_(doors, walls)] = True
    return floor


# Learners


def head_of(net: nn.Sequential) -> nn.Linear:
    """Return the last layer."""
    head = net[-1]
    assert isinstance(head, nn.Linear)
    return head


class Running:
    """One step per frame with running statistics: Algorithm 1 of the paper."""

    def __init__(self, net: nn.Sequential, rate: float = RATE, eps: float = 1e-3) -> None:
        self.layer = ul.UL1d(head_of(net).out_features, eps=eps, statistics="running")
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters(), rate)

    def see(self, frame: Tensor) -> None:
        """Learn from the next frame."""
        self.optimizer.zero_grad()
        ul.backward(self.layer(self.net(frame[None])))
        self.optimizer.step()


class Bounded(Running):
    """`Running` with steps that change the output by at most a share of its spread (B).

    Averages over n frames are stale by the change of the output in n steps, so a bound of about
    eps keeps them up to date.
    """

    def __init__(self, net: nn.Sequential, bound: float = 1e-3) -> None:
        super().__init__(net)
        self.bound = bound

    def see(self, frame: Tensor) -> None:
        """Learn from the next frame."""
        weights = list(self.net.parameters())
        before = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            output = self.net(frame[None])
        super().see(frame)
        with torch.no_grad():
            change = (self.net(frame[None]) - output).double()
            inverse = torch.linalg.pinv(self.layer.long_cov.double())
            size = float((change @ inverse @ change.T).sqrt()) / change.numel() ** 0.5
            if size > self.bound:
                for weight, old in zip(weights, before, strict=True):
                    weight.copy_(old + (weight - old) * (self.bound / size))


class InputSide:
    """Statistics of the last linear layer's input x, so that W = A W_x A' for any weights A.

    The gradient of A is exact for the averages; that of the layers below is as stale as x.
    """

    def __init__(self, net: nn.Sequential, *, below: bool, eps: float = 1e-3) -> None:
        self.body, self.head, self.below = net[:-1], head_of(net), below
        self.optimizer = torch.optim.Adam((net if below else self.head).parameters(), RATE)
        size = self.head.in_features
        self.short, self.long = torch.zeros(2, size, dtype=torch.double)
        self.within, self.between = torch.zeros(2, size, size, dtype=torch.double)
        self.eps, self.count = eps, 0

    def see(self, frame: Tensor) -> None:
        """Learn from the next frame."""
        x = self.body(frame[None])[0]
        fast, slow = self._advance(x.detach().double())
        if self.count < 2 * len(self.head.weight) + 2:  # B has no inverse yet
            return
        A = self.head.weight.detach().double()
        inner, outer = (_inverse(A @ cov @ A.T) for cov in (self.within, self.between))
        self.optimizer.zero_grad()
        if self.below:
            x.backward((A.T @ (inner @ (A @ fast) - outer @ (A @ slow))).to(x))
        self.head.weight.grad = (inner @ A @ self.within - outer @ A @ self.between).to(x)
        self.optimizer.step()

    def _advance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Apply Eq. 6-9 to x, with W averaged over as many frames as B; return both deviations."""
        self.count += 1
        slow = max(self.eps, 1 / self.count)  # the plain mean of the first frames
        self.short += max(0.5, 1 / self.count) * (x - self.short)
        self.long += slow * (x - self.long)
        inner, outer = x - self.short, self.short - self.long
        self.within += slow * (torch.outer(inner, inner) - self.within)
        self.between += slow * (torch.outer(outer, outer) - self.between)
        return inner, outer


def _inverse(cov: Tensor) -> Tensor:
    ridge = 1e-4 * cov.trace() / len(cov) + TINY
    inverse: Tensor = torch.linalg.inv(cov + ridge * torch.eye(len(cov), dtype=cov.dtype))
    return inverse


class Replay:
    """One step with fresh statistics of clips from a memory per `every` frames."""

    def __init__(
        self,
        net: nn.Sequential,
        every: int,
        *,
        frames: int = 2000,
        clips: int = 16,
        length: int = 8,
    ) -> None:
        self.layer = ul.UL1d(head_of(net).out_features, statistics="fresh", long_term="shared")
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters(), RATE)
        self.frames = frames
        self.clips = clips
        self.length = length
        self.every = every
        self.memory: ul.ReplayMemory | None = None
        self.count = 0

    def see(self, frame: Tensor) -> None:
        """Learn from the next frame."""
        if self.memory is None:
            size = {"clips": self.clips, "length": self.length}
            self.memory = ul.ReplayMemory(frame.shape, self.frames, **size)
        self.memory.add(frame[None])
        self.count += 1
        if self.count % self.every or len(self.memory) < self.clips * self.length:
            return
        self.optimizer.zero_grad()
        with ul.sequences(self.layer, self.memory.lengths):
            ul.backward(self.layer(self.net(self.memory.sample())))
        self.optimizer.step()


LEARNERS: dict[str, Callable[[nn.Sequential], Learner]] = {
    "running statistics": Running,
    "running, Adam 1e-4": lambda net: Running(net, 1e-4),
    "running, eps 1e-2": lambda net: Running(net, eps=1e-2),
    "running, bounded steps": Bounded,
    "input side, all layers": lambda net: InputSide(net, below=True),
    "input side, last layer alone": lambda net: InputSide(net, below=False),
    "latest 128 frames, every 128": lambda net: Replay(net, 128, frames=128, clips=1, length=128),
    "latest 128 frames, every 16": lambda net: Replay(net, 16, frames=128, clips=1, length=128),
    "memory of 500, every 16": lambda net: Replay(net, 16, frames=500),
    "memory of 2000, every 64": lambda net: Replay(net, 64),
    "memory of 2000, every 16": lambda net: Replay(net, 16),
    "memory of 2000, every 4": lambda net: Replay(net, 4),
}
TASKS: dict[str, Callable[[int], Task]] = {
    "blob, R2": blob,
    "rooms, overlap": rooms,
}


class RunningWatcher(Watcher):
    """`ul watch` with one step per frame and running statistics."""

    def __init__(self, config: Config, channels: int, size: tuple[int, int]) -> None:
        super().__init__(config, channels, size)
        self.net.cost = ul.UL1d(2, statistics="running", long_term="stream")
        self.optimizer = make_optimizer(self.net, replace(self.config, lr=config.lr or 3e-4))

    def learn(self, picture: Tensor) -> None:
        """Learn from the next picture."""
        assert isinstance(self.net, Locator)
        self.optimizer.zero_grad()
        ul.backward(self.net.judge(self.net(picture)))
        self.optimizer.step()


def unlearned(config: Config, channels: int, size: tuple[int, int]) -> Watcher:
    """Return a watcher without learning, which is background subtraction."""
    watcher = Watcher(config, channels, size)
    watcher.learning = False
    return watcher


WATCHERS: dict[str, Callable[..., Watcher]] = {
    "background subtraction alone": unlearned,
    "running statistics": RunningWatcher,
    "memory, as shipped": Watcher,
}


def learn(task: Task, make: Callable[[nn.Sequential], Learner]) -> tuple[float, float]:
    """Return the score after the last frame, and milliseconds of processor time per frame."""
    learner = make(task.net)
    begin = time.process_time()
    for frame in task.frames:
        learner.see(frame)
    spent = time.process_time() - begin
    with torch.no_grad():
        return task.score(task.net), 1e3 * spent / len(task.frames)


def watch(frames: Tensor, truth: Floats, watcher: Watcher) -> list[float]:
    """Return the median error in each third, the 90 % quantile in the last, and ms per frame."""
    begin = time.process_time()
    found = np.array([watcher.see(frame)[0][:2] for frame in frames])
    spent = time.process_time() - begin
    errors = distances(found, truth[: len(found)], frames.shape[-2] / frames.shape[-1])
    thirds = np.array_split(errors, 3)
    medians = [float(np.nanmedian(third)) for third in thirds]
    return [*medians, float(np.nanquantile(thirds[-1], 0.9)), 1e3 * spent / len(frames)]


def films(data: Path | None) -> Iterator[tuple[str, Tensor, Floats]]:
    """Yield titles, small frames and true positions in 0..1."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        video = write_scene(place, frames=1800)
        yield "scene of ul demo", _small(video), read_columns(place / "truth.csv", "x", "y")
    if data is not None:  # ten frames per second, which makes five minutes of video
        truth = read_columns(data / MOUSE_TRACK, "pos_x", "pos_y") / MOUSE_SIZE
        yield "mouse, every third frame", _small(data / MOUSE, 3), truth[::3]


def _small(video: Path, stride: int = 1) -> Tensor:
    [source] = find_sources([str(video)])
    reading = Reading(longest=64, stride=stride, max_frames=3000)
    return torch.cat([clip.frames for clip in source.clips(64, reading)])


def print_tasks(which: str) -> None:
    for title, make_task in TASKS.items():
        if which not in title:
            continue
        print(f"{title:34} {'scores':>{7 * len(SEEDS) - 1}}    mean  ms/frame")
        for name, make in LEARNERS.items():
            results = [learn(make_task(seed), make) for seed in SEEDS]
            scores, spent = zip(*results, strict=True)
            row = " ".join(f"{score:6.3f}" for score in scores)
            print(f"{name:34} {row}  {np.mean(scores):6.3f}  {np.mean(spent):8.2f}", flush=True)


def print_films(which: str, data: Path | None) -> None:
    for title, frames, truth in films(data):
        if which not in title:
            continue
        _, channels, *size = frames.shape
        print(f"{title:30} median distance in thirds  90 % of last    ms/frame")
        for name, make in WATCHERS.items():
            for seed in SEEDS:
                *errors, spent = watch(frames, truth, make(Config(seed=seed), channels, size))
                row = " ".join(f"{value:8.2%}" for value in errors)
                print(f"{name:30} {row} {spent:16.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="", help="run only tasks whose name contains this")
    parser.add_argument("--data", type=Path, help="folder that contains tracktor/")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print_tasks(given.task)
    print_films(given.task, given.data)


if __name__ == "__main__":
    main()
