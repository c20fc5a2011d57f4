"""Memory of each track while frames arrive, of constant size."""

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
MOVING = 0.5  # of its extent: least distance of a moving object from its trail

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LiveObject:
    """An object in the latest frame.

    Attributes:
        number: Its number, from 1.
        x: Position in 0..1, from the top left corner of the frame.
        y: Position in 0..1.
        confidence: From 0 to 1; 0 if it is not seen in this frame and x, y is its predicted
            position.
        outline: (points, 2) x, y of its outline in 0..1; empty if it is not seen.
    """

    number: int
    x: float
    y: float
    confidence: float
    outline: Floats


@dataclass
class Place:
    """Position of an object.

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

    @property
    def extent(self) -> Floats:
        """Width and height in pixels."""
        return self.box[2:] - self.box[:2]


@dataclass
class RecentAppearance:
    """Appearance of a track since it last shared a blob.

    Attributes:
        total: Sum of the appearances in the current block of frames.
        frames: Number of these frames.
        mean: Mean appearance in the previous blocks.
        blocks: Number of blocks.
        decided: Whether its identity is known.
    """

    total: Floats = field(default_factory=lambda: np.zeros(APPEARANCE))
    frames: int = 0
    mean: Floats = field(default_factory=lambda: np.zeros(APPEARANCE))
    blocks: int = 0
    decided: bool = True

    def add(self, appearance: Floats, block: int) -> Floats | None:
        """Add a frame; return the mean of the block of frames if it is complete."""
        self.total = self.total + appearance
        self.frames += 1
        if self.frames < block:
            return None
        mean: Floats = self.total / self.frames
        self.total, self.frames = np.zeros(APPEARANCE), 0
        self.blocks += 1
        return mean

    def start_again(self) -> None:
        """Forget the appearance, because the track shares a blob."""
        self.total, self.frames = np.zeros(APPEARANCE), 0
        self.mean, self.blocks = np.zeros(APPEARANCE), 0
        self.decided = False


@dataclass
class LiveTrack:
    """Memory of a track.

    Attributes:
        track: Number of the track.
        name: Number of the object; 0 until it is known to be an object.
        seen: Number of frames in which it was seen.
        length: Length of the object in pixels.
        speed: Its usual step from frame to frame, in pixels.
        clarity: Confidence of the latest sighting.
        objective: J of its path.
        trail: Its position, smoothed over time.
        first: First position.
        last: Last position at which it was alone.
        look: Appearance.
    """

    track: int = 0
    name: int = 0
    seen: int = 0
    length: float = 0.0
    speed: float = 0.0
    clarity: float = 0.0
    objective: RunningObjective = field(default_factory=RunningObjective)
    trail: Floats = field(default_factory=lambda: np.zeros(2))
    first: Place = field(default_factory=Place)
    last: Place = field(default_factory=Place)
    look: RecentAppearance = field(default_factory=RecentAppearance)

    def add(self, one: TrackedObject, sighting: Sighting) -> None:
        """Add its sighting in the latest frame."""
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

    @property
    def moves(self) -> bool:
        """Whether it has moved lately."""
        ahead = np.abs(self.objective.last - self.trail)
        return bool((ahead > MOVING * self.last.extent).any())

    @property
    def has_left(self) -> bool:
        """Whether it has left the place where it was first seen."""
        first, last = self.first, self.last
        apart = np.abs(np.array([last.x - first.x, last.y - first.y]))
        return bool((apart > (first.extent + last.extent) / 2).any())
