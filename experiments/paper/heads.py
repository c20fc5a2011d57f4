"""Pictures of heads in all poses (Pointing'04) and videos made from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from experiments.common import Floats, angle_difference, correlation
from experiments.datasets import Sequence, head_poses, load
from ullayers.learning.config import Config
from ullayers.learning.footage import Footage, Piece
from ullayers.learning.networks import Encoder
from ullayers.learning.training import Learner
from ullayers.video.camera.following import SIDE, cut_squares
from ullayers.video.clips import Clip

WHOLE = (144, 192)  # height and width of a whole picture
MARGIN = 1.2  # side of the cut-out square relative to the face's box
PEOPLE = set(range(1, 11))  # training persons of Pointing'04
UNSEEN = {11, 12}  # test persons of Pointing'04
MAX_TILT = 30  # degrees; there are few pictures that look farther up or down
VIDEO_FRAMES = 256  # length of a video in which a head wanders over its poses
TILT_PROBABILITY = 0.35  # that the next step changes the tilt and not the pan


@dataclass(frozen=True)
class Heads:
    """Pictures of people in all poses.

    Attributes:
        frames: Pictures (series, tilts, pans, 1, height, width), uint8.
        pan: Pan angles (pans,) in degrees.
        person: Number of the person of each series, (series,).
    """

    frames: Tensor
    pan: Floats
    person: NDArray[np.int64]

    def of(self, people: set[int]) -> NDArray[np.int64]:
        """Return the indices of the series of these people."""
        return np.flatnonzero(np.isin(self.person, list(people)))

    def pictures(self, series: NDArray[np.int64]) -> Tensor:
        """Return all frames of these series, concatenated, in 0..1."""
        return self.frames[series].flatten(0, 2).float() / 255

    def angles(self, series: NDArray[np.int64]) -> Floats:
        """Return the pan of every frame of `pictures(series)`."""
        return np.tile(self.pan, len(series) * self.frames.shape[1])


@cache
def read_heads(data: str) -> Heads:
    """Load the faces of Pointing'04 in their given boxes, in grey."""
    sweeps = pan_sweeps(data, PEOPLE | UNSEEN)
    series = sorted({(sweep.group, sweep.name.split("-")[1]) for sweep in sweeps})
    ordered = sorted(sweeps, key=_tilt_person_series)
    frames = torch.stack([cut_faces(sweep, SIDE, grey=True) for sweep in ordered])
    frames = frames.unflatten(0, (-1, len(series))).transpose(0, 1).contiguous()
    return Heads(frames, sweeps[0].truth["pan"], np.array([int(person) for person, _ in series]))


def pan_sweeps(data: str, people: set[int]) -> list[Sequence]:
    """Return the sweeps of Pointing'04 in which these people pan, without extreme tilts."""
    sweeps = [sweep for sweep in head_poses(data) if int(sweep.group) in people]
    return [sweep for sweep in sweeps if abs(_tilt_person_series(sweep)[0]) <= MAX_TILT]


def _tilt_person_series(sweep: Sequence) -> tuple[int, str, str]:
    person, series, tilt = sweep.name.split("-", 2)
    return int(tilt.removeprefix("tilt")), person, series


def cut_faces(sweep: Sequence, side: int, *, grey: bool = False) -> Tensor:
    """Return the faces of a sweep in their given boxes, (time, channels, side, side) uint8."""
    clip = load(sweep, WHOLE, grey=grey)
    with Image.open(sweep.files[0]) as picture:
        scale = WHOLE[1] / picture.width  # boxes are in pixels of the file
    boxes = scale * torch.from_numpy(sweep.boxes).float()
    radius = MARGIN * (boxes[:, 2:] - boxes[:, :2]).amax(1) / 2
    return cut_squares(clip.frames, (boxes[:, :2] + boxes[:, 2:]) / 2, radius, side)


def videos(heads: Heads, people: set[int], seed: int) -> Footage:
    """Return videos that show the pictures in an order that a camera might have recorded.

    There is one video per series, in which the head wanders over its poses by one step of pan or
    tilt at a time.
    """
    random = np.random.default_rng(seed)
    _, tilts, pans = heads.frames.shape[:3]
    pieces = []
    for number, series in enumerate(heads.of(people)):
        tilt, pan = _wander(random, tilts, pans)
        pieces.append(piece(number, heads.frames[series, tilt, pan]))
    return _footage(pieces)


def sweeps(heads: Heads, people: set[int]) -> Footage:
    """Return one video per series and tilt, in which the head pans once."""
    chosen = heads.frames[heads.of(people)].flatten(0, 1)
    return _footage([piece(number, frames) for number, frames in enumerate(chosen)])


def piece(number: int, frames: Tensor) -> Piece:
    """Return frames of a static camera as a piece to learn from."""
    count = torch.arange(len(frames))
    clip = Clip(frames, count.double(), count)
    return Piece(number, clip, None, frames.float().median(0).values / 255)


def _footage(pieces: list[Piece]) -> Footage:
    names = [str(i) for i in range(len(pieces))]
    return Footage(names, pieces, seen=sum(len(piece) for piece in pieces))


def _wander(random: np.random.Generator, tilts: int, pans: int) -> tuple[list[int], list[int]]:
    """Return the indices of tilt and pan in every frame of a video."""
    tilt = random.integers(tilts)
    pan = random.integers(pans)
    direction = random.choice([-1, 1])
    tilt_path = []
    pan_path = []
    for _ in range(VIDEO_FRAMES):
        tilt_path.append(int(tilt))
        pan_path.append(int(pan))
        if random.random() < TILT_PROBABILITY:
            tilt = np.clip(tilt + random.choice([-1, 1]), 0, tilts - 1)
        else:
            if not 0 <= pan + direction < pans:  # turns back at either end only
                direction = -direction
            pan += direction
    return tilt_path, pan_path


def learn(footage: Footage, seed: int, **settings: Any) -> Encoder:
    """Learn as `ul learn --task orient` does, with some settings of `Config`."""
    # Each run has two starts; the factor keeps those of different seeds apart.
    learner = Learner(footage, Config(task="orient", seed=2 * seed, **settings))
    for _ in learner:
        pass
    net = learner.best.net
    assert isinstance(net, Encoder)
    return net


@torch.no_grad()
def codes(net: Encoder, heads: Heads, series: NDArray[np.int64]) -> Floats:
    """Return the code of every frame of `heads.pictures(series)`."""
    parts = heads.pictures(series).split(256)
    code: Floats = torch.cat([net.code(part) for part in parts]).numpy()
    return code


def score(decoded: Floats, true: Floats) -> tuple[float, float]:
    """Return the mean absolute error in degrees, and the correlation of the sine.

    Args:
        decoded: Decoded sine and cosine, (n, 2).
        true: True angles (n,) in degrees.
    """
    sine, cosine = decoded.T
    found = np.degrees(np.arctan2(sine, np.maximum(cosine, 0)))  # all pans are within 90 degrees
    error = float(angle_difference(found, true).mean())
    return error, correlation(sine, np.sin(np.radians(true)))
