"""Corrections of an earlier run, used for training in addition to the UL objective."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.learning.footage import Footage, Piece, TaughtFrame
from ullayers.learning.networks import Locator
from ullayers.locate.paths import Anchors
from ullayers.video.region import Cut
from ullayers.video.sources import Reading, Source, VideoError

MAX_TAUGHT_FRAMES = 256  # corrected frames that train the network; the path uses all
FRAMES_PER_STEP = 32
WEIGHT = 1.0  # of the loss on corrected frames, relative to J

Place = tuple[int, float | None, float | None]  # frame, x and y in 0..1; None if the frame is empty


@dataclass(frozen=True)
class Teaching:
    """Corrections used to train a run.

    Attributes:
        run: Folder of the run that was corrected.
        corrections: Number of corrections.
        places: Corrected frames of each source, by its name, in ascending order.

    Raises:
        ValueError: A position is outside the frame, or frames are not in order.
    """

    run: str
    corrections: int
    places: dict[str, list[Place]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for places in self.places.values():
            frames = [frame for frame, _, _ in places]
            if frames != sorted(set(frames)) or min(frames, default=0) < 0:
                raise ValueError("places: expected frames in ascending order")
            for _, x, y in places:
                if (x is None) != (y is None) or not 0 <= (x or 0) <= 1 or not 0 <= (y or 0) <= 1:
                    raise ValueError("places: expected x and y from 0 to 1, or neither")

    def __str__(self) -> str:
        return f"{self.corrections} correction{'s' * (self.corrections != 1)} of {self.run}"

    def anchors(self, name: str, cut: Cut | None, frames: NDArray[np.int64]) -> Anchors | None:
        """Return the corrections for these frames of a source; None if there are none.

        Args:
            name: Name of the source.
            cut: The region of interest; None for the whole frame.
            frames: Numbers of the frames, ascending.
        """
        known = self.places.get(name, [])
        inside = [each for each in known if frames[0] <= each[0] <= frames[-1]]
        rows = np.searchsorted(frames, [frame for frame, _, _ in inside])
        anchors = Anchors(np.full((len(frames), 2), np.nan), np.zeros(len(frames), bool))
        for row, (frame, x, y) in zip(rows, inside, strict=True):
            if frames[row] == frame:
                anchors.nothing[row] = x is None
                anchors.places[row] = np.nan if x is None else (x, y)
        if cut is not None:
            left, top, width, height = cut.box
            anchors.places[:] = (anchors.places - (left, top)) / (width, height)
            outside = ((anchors.places < 0) | (anchors.places > 1)).any(1)
            anchors.places[outside] = np.nan
        return anchors if (anchors.given | anchors.nothing).any() else None


def read_taught(
    teaching: Teaching, sources: Sequence[Source], reading: Reading, footage: Footage
) -> list[TaughtFrame]:
    """Read the corrected frames; if there are many, an evenly spaced subset.

    Args:
        teaching: The corrections.
        sources: All sources.
        reading: How the network's frames are read.
        footage: Footage of the sources.
    """
    every = [
        (number, frame)
        for number, source in enumerate(sources)
        for frame, _, _ in teaching.places.get(source.name, [])
    ]
    some = np.linspace(0, len(every) - 1, min(len(every), MAX_TAUGHT_FRAMES), dtype=int)
    frames = [_read_frame(teaching, sources, reading, footage, *every[i]) for i in some]
    return [frame for frame in frames if frame is not None]


def _read_frame(
    teaching: Teaching,
    sources: Sequence[Source],
    reading: Reading,
    footage: Footage,
    number: int,
    frame: int,
) -> TaughtFrame | None:
    """Return a corrected frame of a source; None if it cannot be read or used."""
    source, pieces = sources[number], footage.of_source(number)
    info = source.probe()
    cut = reading.cut(source.path, info.height, info.width)
    anchors = teaching.anchors(source.name, cut, np.array([frame]))
    if anchors is None or not pieces:
        return None
    single = replace(reading, start=0.0, end=None, first=frame, stride=1, max_frames=1)
    try:
        with closing(source.clips(1, single)) as clips:
            clip = next(clips)
    except (VideoError, StopIteration):
        return None
    distances = [(piece.clip.index - frame).abs() for piece in pieces]
    nearest = min(range(len(pieces)), key=lambda i: int(distances[i].min()))
    row, piece = int(distances[nearest].argmin()), pieces[nearest]
    path = None if piece.path is None else piece.path[row : row + 1]
    return TaughtFrame(Piece(number, clip, path, piece.behind), anchors.places[0])


class Lesson:
    """The loss of a network on corrected frames.

    Args:
        frames: (frames, channels, height, width) input of the network.
        places: (frames, 2) true x and y in 0..1; NaN in empty frames.
    """

    def __init__(self, frames: Tensor, places: Tensor) -> None:
        self.frames = frames
        self.places = places

    def loss(self, net: Locator, generator: torch.Generator | None = None) -> Tensor:
        """Return the loss: squared distances relative to mask size, and confidence in empty frames.

        Args:
            net: The network.
            generator: Chooses some frames and mirrors them at random; None uses all frames
                unchanged.
        """
        frames, places = self.frames, self.places
        if generator is not None:
            rows = torch.randperm(len(frames), generator=generator)[:FRAMES_PER_STEP]
            frames, places = frames[rows], places[rows]
            if torch.rand((), generator=generator) < 0.5:
                frames = frames.flip(-1)
                places = torch.stack([1 - places[:, 0], places[:, 1]], 1)
        was_training = net.training
        net.eval()  # the UL layers must not use these frames for their statistics
        found = net(frames)
        net.train(was_training)
        given = places.isfinite().all(1)
        offset = (found.centroid - places)[given]
        distance = offset.square().sum(1) / net.size.square()
        confidence = net.confidence(found)[~given]
        return WEIGHT * torch.cat([distance, confidence]).mean()
