"""Codes of one turn of a head or an object, by our method and others, and their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ullayers.learn.config import Config
from ullayers.learn.networks import Encoder
from ullayers.nn.layers import UL1d, UL2d, backward, mu_by_depth
from ullayers.research.baselines import (
    learn_supervised,
    random_weights,
    similarity_codes,
    slow_codes,
)
from ullayers.research.datasets import load, turning_head, turntable
from ullayers.research.experiments.coded import apply_code, learn_code, numbered
from ullayers.research.experiments.common import (
    Floats,
    angle_difference,
    decode_angle,
    sine_and_cosine,
)

SIDE = 32  # pixels per side of a frame
HELD_OUT = 3  # every third frame is held out
TURNS = 4  # repetitions of the training frames in the video of other methods
QUICK_SETTINGS: dict[str, Any] = {"steps": 100, "restarts": 1}
STEPS = 120
LR = 3e-3
SUPERVISED_STEPS = 150
PAPER_EPOCHS = 20
KERNELS = 4  # of the paper's convolution
KERNEL_SIZE = 9
# Principal components: with all of them, 48 frames could be put in any order.
LINEAR_COMPONENTS = 20
QUADRATIC_COMPONENTS = 6

OURS = "ours"
FOUR = "paper's network, UL after each layer, our cost and AdamW"
FOUR_LAST = "paper's network, UL after the last layer, our cost and AdamW"
PAPER_SGD = "paper's network, Algorithm 1, SGD 1e-5"
PAPER_ADAM = "paper's network, Algorithm 1, Adam 1e-3"
SFA = "linear SFA"
QUADRATIC_SFA = "quadratic SFA"
CLOSED = "closed form on similarity edges"
RANDOM = "random weights"
SUPERVISED = "supervised, our network with labels"
DETERMINISTIC = (SFA, QUADRATIC_SFA, CLOSED)  # independent of the seed
HEAD_ONLY: tuple[str, ...] = (FOUR, FOUR_LAST, PAPER_SGD, PAPER_ADAM)
EVERYWHERE: tuple[str, ...] = (OURS, SFA, QUADRATIC_SFA, CLOSED, RANDOM, SUPERVISED)
HEAD = "scan"
FIRST_SYMMETRIC = 12  # objects from this one on look alike from several sides


@dataclass(frozen=True)
class Turn:
    """Frames of one turn.

    Attributes:
        frames: Frames (time, 1, height, width) in 0..1.
        degrees: Their angles (time,).
        known: Whether each is a training frame, (time,).
        files: Their files.
    """

    frames: Tensor
    degrees: Floats
    known: NDArray[np.bool_]
    files: tuple[Path, ...]

    @property
    def training(self) -> Tensor:
        """One turn of the training frames."""
        return self.frames[torch.from_numpy(self.known)]


@dataclass(frozen=True)
class Reading:
    """Result of a row on a turn.

    Attributes:
        error: Error on held-out frames in degrees.
        code: Codes (time, 2).
        found: Decoded angles (time,) in degrees.
        kernels: Kernels of the paper's network.
        maps: Its maps of the first frame.
    """

    error: float
    code: Floats
    found: Floats
    kernels: Floats | None = None
    maps: Floats | None = None


Job = tuple[str, str, str, int, bool]  # data, sequence, row, seed, quick


def read_turn(data: str, name: str) -> Turn:
    """Load the head or one object."""
    found = {sequence.name: sequence for sequence in turning_head(data) + turntable(data)}
    frames = load(found[name], (SIDE, SIDE), grey=True).frames.float() / 255
    known = np.arange(len(frames)) % HELD_OUT != HELD_OUT - 1
    return Turn(frames, found[name].truth["angle"], known, found[name].files)


def one_reading(job: Job) -> Reading:
    """Learn from the training frames of one turn, and decode all of its frames."""
    data, name, row, seed, quick = job
    turn = read_turn(data, name)
    if row == OURS:
        code = learn_turn(turn, seed, QUICK_SETTINGS if quick else {})
        net = None
    else:
        code, net = _code(turn, row, seed)
    known = turn.known
    sine, cosine = decode_angle(code[known], turn.degrees[known], code).T
    found = np.degrees(np.arctan2(sine, cosine))
    error = float(angle_difference(found, turn.degrees)[~known].mean())
    if row != FOUR or net is None:
        return Reading(error, code, found)
    with torch.no_grad():
        maps = net.maps(turn.frames[:1])["conv1"][0].numpy()
    kernels = net.get_parameter("convs.0.weight").detach()[:, 0].numpy()
    return Reading(error, code, found, kernels, maps)


def _code(turn: Turn, row: str, seed: int) -> tuple[Floats, Encoder | None]:
    """Return the code (time, 2) of all frames, and the encoder that computes it if there is one."""
    if row in DETERMINISTIC:
        return _pixel_code(turn, row), None
    torch.manual_seed(seed)
    if row in (PAPER_SGD, PAPER_ADAM):
        return _algorithm_1_code(turn, row), None
    net = _encoder(turn, row, seed)
    with torch.no_grad():
        return net.eval().embed(turn.frames).numpy(), net


def _pixel_code(turn: Turn, row: str) -> Floats:
    pixels = turn.frames.flatten(1).numpy()
    video = [np.concatenate([pixels[turn.known]] * TURNS)]
    if row == SFA:
        return slow_codes(video, components=LINEAR_COMPONENTS)(pixels)
    if row == QUADRATIC_SFA:
        return slow_codes(video, degree=2, components=QUADRATIC_COMPONENTS)(pixels)
    return similarity_codes(video)(pixels)


def _encoder(turn: Turn, row: str, seed: int) -> Encoder:
    """Return the paper's network with our cost, or ours with random or supervised weights."""
    if row in (FOUR, FOUR_LAST):
        net = four_kernels(local=float(row == FOUR))
        _learn_whole_turns(net, turn.training)
        return net
    random = random_weights(Config(task="orient"), "stream", 1, (SIDE, SIDE), seed)
    assert isinstance(random, Encoder)
    if row == SUPERVISED:
        truth = sine_and_cosine(turn.degrees[turn.known])
        learn_supervised(
            random, random.embed, [turn.training], [truth], steps=SUPERVISED_STEPS, seed=seed
        )
    return random


def learn_turn(turn: Turn, seed: int, settings: Mapping[str, Any]) -> Floats:
    """Run `ul learn --task orient` on one turn of the training frames, `ul apply` on all frames."""
    learned = [file for file, known in zip(turn.files, turn.known, strict=True) if known]
    with numbered({"turn": learned}) as some, numbered({"turn": turn.files}) as every:
        run = learn_code(some, seed, settings)
        [code] = apply_code(run, every)
    return code


def four_kernels(local: float) -> Encoder:
    """Return the paper's network, one convolution and one linear layer, with our encoder's cost."""
    net = Encoder((SIDE, SIDE), long_term="shared")
    net.convs = nn.ModuleList([nn.Conv2d(1, KERNELS, KERNEL_SIZE, 2, KERNEL_SIZE // 2)])
    net.locals = nn.ModuleList([UL2d(KERNELS, weight=local) if local else nn.Identity()])
    net.full = nn.Linear(KERNELS * (SIDE // 2) ** 2, 2)
    mu_by_depth(net)
    return net


def _learn_whole_turns(net: Encoder, frames: Tensor) -> None:
    closed = torch.cat([frames, frames[:1]])
    optimizer = torch.optim.AdamW(net.parameters(), LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        backward(net.learn_from(closed, [len(closed)]))
        optimizer.step()


def _algorithm_1_code(turn: Turn, row: str) -> Floats:
    """Return the code of Algorithm 1 with the paper's settings, one frame at a time."""
    net = nn.Sequential(
        nn.Conv2d(1, KERNELS, KERNEL_SIZE, 2, KERNEL_SIZE // 2),
        UL2d(KERNELS, reduction="sum", start="paper"),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(KERNELS * (SIDE // 2) ** 2, 2),
        UL1d(2, reduction="sum", start="paper"),
    )
    mu_by_depth(net)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    if row == PAPER_SGD:
        optimizer = torch.optim.SGD(net.parameters(), 1e-5, 0.9, weight_decay=0.01)
    for _ in range(PAPER_EPOCHS):
        for frame in turn.training.split(1):
            optimizer.zero_grad()
            backward(net(frame))
            optimizer.step()
    with torch.no_grad():
        code: Floats = net.eval()(turn.frames).numpy()
    return code
