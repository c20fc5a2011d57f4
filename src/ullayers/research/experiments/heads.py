"""Heads that turn: pictures of Pointing'04 and videos in which a head wanders over its poses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ullayers.learn.config import Config
from ullayers.learn.footage import Footage, Piece
from ullayers.learn.models import Encoder
from ullayers.learn.training import Learner
from ullayers.research.datasets import Sequence, head_poses, load, panning_heads
from ullayers.research.experiments.common import Floats, apart, correlation
from ullayers.video.follow import SIDE, cut_squares, follow
from ullayers.video.frames import Clip

WHOLE = (144, 192)  # height and width of a whole picture
MARGIN = 1.2  # of a face's box
PEOPLE, UNSEEN = set(range(1, 11)), {11, 12}  # of Pointing'04: learned from, and never seen
TILTS = 30  # degrees; pictures that look farther up or down are few
WALK = 256  # frames of a video in which a head wanders
TILT = 0.35  # probability that the next step is one of tilt


@dataclass(frozen=True)
class Heads:
    """Pictures of people in all poses.

    Attributes:
        frames: (series, tilts, pans, 1, height, width) uint8.
        pan: (pans,) degrees.
        person: (series,) number.
    """

    frames: Tensor
    pan: Floats
    person: NDArray[np.int64]

    def of(self, people: set[int]) -> NDArray[np.int64]:
        """The series of these people."""
        return np.flatnonzero(np.isin(self.person, list(people)))

    def pictures(self, series: NDArray[np.int64]) -> Tensor:
        """All frames of these series, one after the other, in 0..1."""
        return self.frames[series].flatten(0, 2).float() / 255

    def angles(self, series: NDArray[np.int64]) -> Floats:
        """The pan of every frame of these series, one after the other."""
        return np.tile(self.pan, len(series) * self.frames.shape[1])


@cache
def read_heads(data: str, view: str) -> Heads:
    """Pointing'04 as faces cut out by the given "boxes", "followed" without them, or "whole".

    A fourth view is of "rendered" heads, which only pan: each counts as a person, from 1 on.
    """
    if view == "rendered":
        rendered = panning_heads(data)
        frames = torch.stack([load(head, (SIDE, SIDE), grey=True).frames for head in rendered])
        return Heads(frames[:, None], rendered[0].truth["pan"], np.arange(len(rendered)) + 1)
    sweeps = [
        sweep for sweep in head_poses(data)
        if int(sweep.group) in PEOPLE | UNSEEN and abs(_tilt(sweep)[0]) <= TILTS
    ]  # fmt: skip
    series = sorted({(sweep.group, sweep.name.split("-")[1]) for sweep in sweeps})
    frames = torch.stack([_view(sweep, view) for sweep in sorted(sweeps, key=_tilt)])
    frames = frames.unflatten(0, (-1, len(series))).transpose(0, 1).contiguous()
    return Heads(frames, sweeps[0].truth["pan"], np.array([int(person) for person, _ in series]))


def _tilt(sweep: Sequence) -> tuple[int, str, str]:
    person, series, tilt = sweep.name.split("-", 2)
    return int(tilt.removeprefix("tilt")), person, series


def _view(sweep: Sequence, view: str) -> Tensor:
    if view == "whole":
        return load(sweep, (SIDE, SIDE * WHOLE[1] // WHOLE[0]), grey=True).frames
    clip = load(sweep, WHOLE, grey=True)
    if view == "followed":
        return follow(clip).frames
    with Image.open(sweep.files[0]) as picture:
        scale = WHOLE[1] / picture.width  # boxes are in pixels of the files
    boxes = scale * torch.from_numpy(sweep.boxes).float()
    radius = MARGIN * (boxes[:, 2:] - boxes[:, :2]).amax(1) / 2
    return cut_squares(clip.frames, (boxes[:, :2] + boxes[:, 2:]) / 2, radius, SIDE)


def videos(heads: Heads, people: set[int], seed: int) -> Footage:
    """Pictures in an order that a camera might have seen; that is all that is known of them.

    If heads tilt, one video of each series in which the head wanders over its poses by one step of
    pan or of tilt at a time; else one of each pan.
    """
    if heads.frames.shape[1] == 1:
        return sweeps(heads, people)
    chance = np.random.default_rng(seed)
    _, tilts, pans = heads.frames.shape[:3]
    pieces = []
    for number, series in enumerate(heads.of(people)):
        tilt, pan = _wander(chance, tilts, pans)
        pieces.append(piece(number, heads.frames[series, tilt, pan]))
    return Footage([str(i) for i in range(len(pieces))], pieces, seen=WALK * len(pieces))


def sweeps(heads: Heads, people: set[int]) -> Footage:
    """Videos of one pan each, at every tilt."""
    chosen = heads.frames[heads.of(people)].flatten(0, 1)
    pieces = [piece(number, frames) for number, frames in enumerate(chosen)]
    return Footage([str(i) for i in range(len(pieces))], pieces, seen=chosen[:, :, 0, 0, 0].numel())


def piece(number: int, frames: Tensor) -> Piece:
    """Frames of a static camera as something to learn from."""
    count = torch.arange(len(frames))
    clip = Clip(frames, count.double(), count)
    return Piece(number, clip, None, frames.float().median(0).values / 255)


def _wander(chance: np.random.Generator, tilts: int, pans: int) -> tuple[list[int], list[int]]:
    tilt, pan, way = chance.integers(tilts), chance.integers(pans), chance.choice([-1, 1])
    path = []
    for _ in range(WALK):
        path.append((int(tilt), int(pan)))
        if chance.random() < TILT:
            tilt = np.clip(tilt + chance.choice([-1, 1]), 0, tilts - 1)
        else:
            way = way if 0 <= pan + way < pans else -way  # it turns back at either end only
            pan += way
    return [t for t, _ in path], [p for _, p in path]


def learn(footage: Footage, seed: int, **how: Any) -> Encoder:
    """What `ul learn --task orient` does."""
    # Two starts for each seed, which no other seed shares.
    learner = Learner(footage, Config(task="orient", seed=2 * seed, **how))
    for _ in learner:
        pass
    net = learner.best.net
    assert isinstance(net, Encoder)
    return net


@torch.no_grad()
def codes(net: Encoder, heads: Heads, series: NDArray[np.int64]) -> Floats:
    """The code of every frame of these series, one after the other."""
    parts = heads.pictures(series).split(256)
    code: Floats = torch.cat([net.code(part) for part in parts]).numpy()
    return code


def score(read: Floats, true: Floats) -> tuple[float, float]:
    """Mean absolute error in degrees, and the correlation of the sine.

    Args:
        read: (n, 2) sine and cosine that were read from codes.
        true: (n,) degrees.
    """
    sine, cosine = read.T
    found = np.degrees(np.arctan2(sine, np.maximum(cosine, 0)))  # nobody looks backwards
    return float(apart(found, true).mean()), correlation(sine, np.sin(np.radians(true)))
