"""What is remembered of tracks while frames arrive, in constant memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ullayers.locate.identity import APPEARANCE
from ullayers.locate.judge import RunningObjective
from ullayers.locate.sightings import Sighting
from ullayers.locate.tracking import TrackedObject

SPEED_RATE = 0.1
TRAIL_RATE = 0.04
MOVING = 0.5  # of its length, by which an object that moves is ahead of its trail

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LiveObject:
    """An object in the latest frame.

    Attributes:
        number: Its number, from 1.
        x: Position in 0..1 of the frame, from its top left corner.
        y: Position in 0..1.
        confidence: From 0 to 1; 0 if it is not seen in this frame, but expected at x, y.
        outline: (points, 2) its outline x, y in 0..1; empty if it is not seen.
    """

    number: int
    x: float
    y: float
    confidence: float
    outline: Floats


@dataclass
class Place:
    """Where an object was.

    Attributes:
        frame: Number of the frame.
        x: Position in pixels.
        y: Position in pixels.
        box: (4,) left, top, right, bottom in pixels.
    """

    frame: int = 0
    x: float = 0.0
    y: float = 0.0
    box: Floats = field(default_factory=lambda: np.zeros(4))


@dataclass
class Look:
    """What a track looks like since it was last together with another one.

    Attributes:
        total: Sum of the appearances in the current block of frames.
        frames: Number of these frames.
        mean: Mean appearance in the blocks before.
        blocks: Number of blocks.
        decided: Whether it is known who it is.
    """

    total: Floats = field(default_factory=lambda: np.zeros(APPEARANCE))
    frames: int = 0
    mean: Floats = field(default_factory=lambda: np.zeros(APPEARANCE))
    blocks: int = 0
    decided: bool = True

    def add(self, appearance: Floats, block: int) -> Floats | None:
        """Take in a frame; return the mean of a block of frames if it is complete."""
        self.total = self.total + appearance
        self.frames += 1
        if self.frames < block:
            return None
        mean: Floats = self.total / self.frames
        self.total, self.frames = np.zeros(APPEARANCE), 0
        self.blocks += 1
        return mean

    def start_again(self) -> None:
        """Forget what it looks like: it is together with another one."""
        self.total, self.frames = np.zeros(APPEARANCE), 0
        self.mean, self.blocks = np.zeros(APPEARANCE), 0
        self.decided = False


@dataclass
class LiveTrack:
    """What is remembered of a track.

    Attributes:
        track: Number of the track.
        name: Number of the object; 0 as long as it is not known to be one.
        seen: Frames in which it was seen.
        length: Of the object, in pixels.
        speed: Its usual step from frame to frame, in pixels.
        clarity: Confidence of the latest sighting.
        objective: J of its path.
        trail: Its position, smoothed over time.
        low: Smallest x and y.
        high: Largest x and y.
        first: Where it was first seen.
        last: Where it was last seen alone.
        look: What it looks like.
    """

    track: int = 0
    name: int = 0
    seen: int = 0
    length: float = 0.0
    speed: float = 0.0
    clarity: float = 0.0
    objective: RunningObjective = field(default_factory=RunningObjective)
    trail: Floats = field(default_factory=lambda: np.zeros(2))
    low: Floats = field(default_factory=lambda: np.full(2, np.inf))
    high: Floats = field(default_factory=lambda: np.full(2, -np.inf))
    first: Place = field(default_factory=Place)
    last: Place = field(default_factory=Place)
    look: Look = field(default_factory=Look)

    def add(self, one: TrackedObject, sighting: Sighting) -> None:
        """Take in where it is in the latest frame."""
        position = np.array([sighting.x, sighting.y])
        place = Place(sighting.frame, sighting.x, sighting.y, sighting.box)
        if self.seen == 0:
            self.first = self.last = place
            self.trail = position
        else:
            self.trail = self.trail + TRAIL_RATE * (position - self.trail)
            step = float(np.linalg.norm(position - self.objective.last))
            self.speed += SPEED_RATE * (step - self.speed)
        if not sighting.company:
            self.last = place
        self.seen += 1
        self.length = one.length
        self.clarity = sighting.clarity
        self.objective.add(position)
        self.low, self.high = np.minimum(self.low, position), np.maximum(self.high, position)

    @property
    def moves(self) -> bool:
        """Whether it has moved lately."""
        ahead = float(np.linalg.norm(self.objective.last - self.trail))
        return ahead > MOVING * self.length

    @property
    def travelled(self) -> float:
        """Diagonal of the box of all its places, in pixels."""
        return float(np.linalg.norm(self.high - self.low))
