"""OpenCV's background subtraction (MOG2) at its best setting, chosen with the truth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from .data_sets import DataSet, Image, read_image
from .scores import Floats, Track, all_errors, calibration, filled

SEARCH_BYTES = 10**9  # longer films are searched on every nth frame, so that they fit
FROZEN_BACKGROUND_RATIO = 0.6  # as in `experiments.baselines`
SHADOW = 127  # value of shadows in the masks

Positions = dict["Readout", Floats]


class Model(NamedTuple):
    """How the background is learned.

    Attributes:
        threshold: `varThreshold`.
        history: `history` in frames if the background is learned while frames are read.
        passes: Number of passes over the film that learn the background before it is frozen; 0 to
            learn while frames are read.
    """

    threshold: float
    history: int
    passes: int


class Readout(NamedTuple):
    """How a position follows from the mask of a frame."""

    without_shadows: bool
    opening: int
    largest: bool


MODELS = [
    Model(threshold, history, passes)
    for threshold, (history, passes) in product((8, 16, 32, 64), ((100, 0), (500, 0), (0, 1)))
]
READOUTS = [Readout(*each) for each in product((False, True), (0, 3, 5), (False, True))]


def best_of_mog2(data_set: DataSet) -> dict[str, Any]:
    """Return the setting with the best score, and the scores on all frames."""
    size = sum(_bytes(film.source) for film in data_set.films)
    stride = math.ceil(size / SEARCH_BYTES)
    films = [list(islice(read_frames(film.source), 0, None, stride)) for film in data_set.films]
    sign = -1 if data_set.lower_is_better else 1
    best: tuple[float, Model, Readout] | None = None
    for model in MODELS:
        found = [locate(frames, model, READOUTS, stride) for frames in films]
        for readout in READOUTS:
            scores = _scores(data_set, [positions[readout] for positions in found], stride)
            value = sign * scores[data_set.goal]
            if best is None or value > best[0]:
                best = value, model, readout
    assert best is not None
    _, model, readout = best
    sources = [film.source for film in data_set.films]
    found = [locate(_Frames(source), model, [readout]) for source in sources]
    return {
        "setting": {**model._asdict(), **readout._asdict(), "searched every nth frame": stride},
        "scores": _scores(data_set, [positions[readout] for positions in found]),
    }


def _scores(data_set: DataSet, found: list[Floats], stride: int = 1) -> dict[str, float]:
    tracks = [
        Track(stride * np.arange(len(positions)), positions, np.ones(len(positions)))
        for positions in found
    ]
    truths = [film.truth for film in data_set.films]
    errors = all_errors(truths, tracks)
    return data_set.score(truths, tracks) | calibration(errors, np.ones(len(errors)))


def locate(
    frames: Iterable[Image], model: Model, readouts: list[Readout], stride: int = 1
) -> Positions:
    """Return positions (time, 2) for every way to read them from the mask."""
    count = sum(1 for _ in frames)
    history = model.passes * count if model.passes else max(2, model.history // stride)
    mixture = cv2.createBackgroundSubtractorMOG2(history, model.threshold, detectShadows=True)
    if model.passes:
        mixture.setBackgroundRatio(FROZEN_BACKGROUND_RATIO)
    for _ in range(model.passes):
        for frame in frames:
            mixture.apply(frame)
    rate = 0 if model.passes else -1
    table = np.array(
        [_positions(mixture.apply(frame, learningRate=rate), readouts) for frame in frames]
    )
    return {readout: filled(table[:, i]) for i, readout in enumerate(readouts)}


def _positions(mask: Image, readouts: list[Readout]) -> list[tuple[float, float]]:
    """Return x and y in 0..1 for every way to read them, NaN without foreground."""
    foregrounds = {readout[:2]: _foreground(mask, *readout[:2]) for readout in readouts}
    return [
        (_largest if readout.largest else _centroid)(foregrounds[readout[:2]])
        for readout in readouts
    ]


def _foreground(mask: Image, without_shadows: bool, opening: int) -> Image:
    lowest = SHADOW if without_shadows else 0
    _, foreground = cv2.threshold(mask, lowest, 1, cv2.THRESH_BINARY)
    if opening:
        kernel = np.ones((opening, opening), np.uint8)
        foreground = cv2.morphologyEx(foreground, cv2.MORPH_OPEN, kernel)
    return foreground


def _largest(foreground: Image) -> tuple[float, float]:
    """Return the centroid of the largest component."""
    count, _, sizes, centres = cv2.connectedComponentsWithStats(foreground)
    if count < 2:  # the first component is the background
        return np.nan, np.nan
    x, y = centres[1 + sizes[1:, cv2.CC_STAT_AREA].argmax()]
    return (x + 0.5) / foreground.shape[1], (y + 0.5) / foreground.shape[0]


def _centroid(foreground: Image) -> tuple[float, float]:
    """Return the centroid of all foreground."""
    moments = cv2.moments(foreground, binaryImage=True)
    if not moments["m00"]:
        return np.nan, np.nan
    x, y = moments["m10"] / moments["m00"], moments["m01"] / moments["m00"]
    return (x + 0.5) / foreground.shape[1], (y + 0.5) / foreground.shape[0]


class _Frames:
    """Frames that are read again in every iteration."""

    def __init__(self, source: Path) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Image]:
        return read_frames(self.source)


def read_frames(source: Path) -> Iterator[Image]:
    """Yield the frames of a video or of a folder of images."""
    if source.is_dir():
        yield from (read_image(file) for file in sorted(source.iterdir()))
        return
    video = cv2.VideoCapture(str(source))
    try:
        while (step := video.read())[0]:
            yield step[1]
    finally:
        video.release()


def _bytes(source: Path) -> int:
    """Return the size of all frames in memory."""
    count = sum(1 for _ in source.iterdir()) if source.is_dir() else _count(source)
    return count * next(read_frames(source)).nbytes


def _count(video: Path) -> int:
    return int(cv2.VideoCapture(str(video)).get(cv2.CAP_PROP_FRAME_COUNT))
