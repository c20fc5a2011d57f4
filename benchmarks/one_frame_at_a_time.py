"""Learning from frames that come one at a time: running statistics, and what comes closer to fresh.

    python benchmarks/one_frame_at_a_time.py             all that needs no data; about ten minutes
    python benchmarks/one_frame_at_a_time.py --data DIR  the mouse video too (DIR/tracktor/...)

Every learner sees each frame once, in order. The time is that of one processor core.
"""

from __future__ import annotations

import argparse
import csv
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
from ullayers.learn.config import Config
from ullayers.learn.models import Locator
from ullayers.learn.trainer import make_optimizer
from ullayers.learn.watcher import Watcher
from ullayers.output.scores import distances
from ullayers.research.bench.video import MOUSE, TRACK
from ullayers.research.experiments.gridworlds import Gridworld
from ullayers.video.reader import Reading, find_sources
from ullayers.video.scene import write_scene

SEEDS = (0, 1, 2)
RATE = 1e-3  # of Adam
WALL, DOOR = 6, 2  # cells from one wall to the next, and where its doors are
ACTIONS = [3, 1, 2, 0]  # right, down, left, up, of those of a `Gridworld`
TINY = 1e-12  # keeps a matrix of zeros invertible


class Learner(Protocol):
    """What learns from one frame after the other."""

    def see(self, frame: Tensor) -> None:
        """Learn from the next frame."""


@dataclass(frozen=True)
class Task:
    """A stream of frames, a network to learn from it, and how good it is in the end."""

    frames: Tensor
    net: nn.Sequential  # its last layer is linear
    score: Callable[[nn.Module], float]


# Tasks


def blob(seed: int, count: int = 6000, later: int = 2000) -> Task:
    """A blob wanders through noise; scored by R2 of its place, read out linearly, later on."""
    frames, places = blob_film(seed, count + later)

    def score(net: nn.Module) -> float:
        outputs = net(frames[count:]).double()
        rows = torch.cat([outputs, torch.ones(later, 1)], 1)
        fitted, tested = slice(0, later // 2), slice(later // 2, None)
        truth = places[count:].double()
        readout = torch.linalg.lstsq(rows[fitted], truth[fitted]).solution
        error = (rows[tested] @ readout - truth[tested]).square().sum()
        return float(1 - error / (truth[tested] - truth[tested].mean(0)).square().sum())

    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2), nn.Tanh(), nn.Conv2d(8, 16, 5, 2), nn.Tanh(), nn.Flatten(),
        nn.Linear(400, 32), nn.Tanh(), nn.Linear(32, 2),
    )  # fmt: skip
    return Task(frames[:count], net, score)


def blob_film(seed: int, count: int, side: int = 32, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """(time, 1, side, side) pictures of a blob with inertia between walls, and its places."""
    random = torch.Generator().manual_seed(seed)
    place, speed, places = torch.rand(2, generator=random), torch.zeros(2), torch.empty(count, 2)
    for t in range(count):
        speed = 0.9 * speed + 0.008 * torch.randn(2, generator=random)
        place = place + speed
        speed = torch.where(place < 0.15, speed.abs(), speed)
        speed = torch.where(place > 0.85, -speed.abs(), speed)
        places[t] = place = place.clamp(0.15, 0.85)
    pixels = (torch.arange(side) + 0.5) / side
    across, down = ((pixels - p[:, None]).div(0.11).square().neg().exp() for p in places.T)
    pictures = down[:, :, None] * across[:, None, :]
    return (pictures + noise * torch.randn(pictures.shape, generator=random))[:, None], places


def rooms(seed: int, count: int = 12_000, across: int = 2, slowest: int = 3) -> Task:
    """A random walk through rooms; scored by the overlap with its slowest eigenvectors."""
    floor = floor_plan(across)
    world = Gridworld("rooms", np.pad(~floor, 1, constant_values=True))
    follows = world.neighbours[:, ACTIONS]
    random, state = np.random.default_rng(seed), 0
    states = np.empty(count, int)
    for t, action in enumerate(random.integers(0, 4, count)):
        states[t] = state = follows[state, action]
    truth = np.linalg.eigh(world.chain())[1][:, ::-1][:, 1 : slowest + 1]  # the first is constant
    places = torch.from_numpy(3.4 * (np.argwhere(floor) / (len(floor) - 1) - 0.5)).float()

    def score(net: nn.Module) -> float:
        outputs = net(places).double().numpy()
        basis, _ = np.linalg.qr(outputs - outputs.mean(0))
        return float(np.square(basis.T @ truth).sum() / slowest)

    torch.manual_seed(seed)
    widths, layers = [2, 128, 128, 128], list[nn.Module]()
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return Task(places[states], nn.Sequential(*layers, nn.Linear(128, slowest)), score)


def floor_plan(across: int) -> NDArray[np.bool_]:
    """Square rooms, so many each way, with a door in the middle of every wall between two."""
    side = across * WALL - 1
    floor = np.ones((side, side), bool)
    doors = np.arange(DOOR, side, WALL)
    for wall in range(WALL - 1, side, WALL):
        floor[wall, :] = floor[:, wall] = False
    for wall in range(WALL - 1, side, WALL):
        floor[wall, doors] = floor[doors, wall] = True
    return floor


# Learners


def head_of(net: nn.Sequential) -> nn.Linear:
    """The last layer."""
    head = net[-1]
    assert isinstance(head, nn.Linear)
    return head


class Running:
    """A step for every frame with running statistics: Algorithm 1 of the paper."""

    def __init__(self, net: nn.Sequential, rate: float = RATE, eps: float = 1e-3) -> None:
        self.layer = ul.UL1d(head_of(net).out_features, eps=eps, statistics="running")
        self.net, self.optimizer = net, torch.optim.Adam(net.parameters(), rate)

    def see(self, frame: Tensor) -> None:
        """Learn from the next frame."""
        self.optimizer.zero_grad()
        ul.backward(self.layer(self.net(frame[None])))
        self.optimizer.step()


class Bounded(Running):
    """As `Running`, with steps that change the output by at most a share of its spread (B).

    Averages over n frames are stale by what the output changes in n steps, so a bound of about
    eps keeps the two in step.
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
    """Statistics of the last linear layer's input x, so that W = A W_x A' whatever A becomes.

    The gradient of A is exact for the averages; that of the layers below is as stale as x is.
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
        """Eq. 6-9 on x, W averaged over as many frames as B; gives both deviations."""
        self.count += 1
        slow = max(self.eps, 1 / self.count)  # the first frames weigh what they should
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
    """A step with fresh statistics of clips from a memory, every so many frames."""

    def __init__(
        self, net: nn.Sequential, every: int, *, frames: int = 2000, clips: int = 16,
        length: int = 8,
    ) -> None:  # fmt: skip
        self.layer = ul.UL1d(head_of(net).out_features, statistics="fresh", long_term="shared")
        self.net, self.optimizer = net, torch.optim.Adam(net.parameters(), RATE)
        self.frames, self.clips, self.length, self.every = frames, clips, length, every
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
    """As `ul watch`, with a step for every frame and running statistics."""

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
    """Background subtraction alone."""
    watcher = Watcher(config, channels, size)
    watcher.learning = False
    return watcher


WATCHERS: dict[str, Callable[..., Watcher]] = {
    "background subtraction alone": unlearned,
    "running statistics": RunningWatcher,
    "memory, as shipped": Watcher,
}


def learn(task: Task, make: Callable[[nn.Sequential], Learner]) -> tuple[float, float]:
    """The score after the last frame, and milliseconds of processor time for each."""
    learner, begin = make(task.net), time.process_time()
    for frame in task.frames:
        learner.see(frame)
    spent = time.process_time() - begin
    with torch.no_grad():
        return task.score(task.net), 1e3 * spent / len(task.frames)


def watch(frames: Tensor, places: NDArray[np.float64], watcher: Watcher) -> list[float]:
    """The median distance in each third and its 90 % quantile in the last, and ms a frame."""
    begin = time.process_time()
    found = np.array([watcher.see(frame)[0][:2] for frame in frames])
    spent = time.process_time() - begin
    apart = distances(found, places[: len(found)], frames.shape[-2] / frames.shape[-1])
    thirds = np.array_split(apart, 3)
    medians = [float(np.nanmedian(third)) for third in thirds]
    return [*medians, float(np.nanquantile(thirds[-1], 0.9)), 1e3 * spent / len(frames)]


def films(data: Path | None) -> Iterator[tuple[str, Tensor, NDArray[np.float64]]]:
    """Small frames, and the true places in 0..1."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        video = write_scene(place, frames=1800)
        yield "scene of ul demo", _small(video), _columns(place / "truth.csv", "x", "y")
    if data is not None:  # at ten frames a second, to see what becomes of it after five minutes
        places = _columns(data / TRACK, "pos_x", "pos_y") / (640, 480)
        yield "mouse, every third frame", _small(data / MOUSE, 3), places[::3]


def _small(video: Path, stride: int = 1) -> Tensor:
    [source] = find_sources([str(video)])
    reading = Reading(longest=64, stride=stride, max_frames=3000)
    return torch.cat([clip.frames for clip in source.clips(64, reading)])


def _columns(path: Path, *names: str) -> NDArray[np.float64]:
    with open(path, encoding="utf-8", newline="") as file:
        return np.array([[float(row[name]) for name in names] for row in csv.DictReader(file)])


def print_tasks(which: str) -> None:
    for title, make_task in TASKS.items():
        if which not in title:
            continue
        print(f"{title:34} {'scores':>{7 * len(SEEDS) - 1}}    mean  ms a frame")
        for name, make in LEARNERS.items():
            results = [learn(make_task(seed), make) for seed in SEEDS]
            scores, spent = zip(*results, strict=True)
            row = " ".join(f"{score:6.3f}" for score in scores)
            print(f"{name:34} {row}  {np.mean(scores):6.3f}  {np.mean(spent):10.2f}", flush=True)


def print_films(which: str, data: Path | None) -> None:
    for title, frames, places in films(data):
        if which not in title:
            continue
        _, channels, *size = frames.shape
        print(f"{title:30} median distance in thirds  90 % of last  ms a frame")
        for name, make in WATCHERS.items():
            for seed in SEEDS:
                *apart, spent = watch(frames, places, make(Config(seed=seed), channels, size))
                row = " ".join(f"{value:8.2%}" for value in apart)
                print(f"{name:30} {row} {spent:16.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="", help="only tasks with this in their name")
    parser.add_argument("--data", type=Path, help="folder that holds tracktor/")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print_tasks(given.task)
    print_films(given.task, given.data)


if __name__ == "__main__":
    main()
