"""Frames per second of decoding and locating, compared with OpenCV on the same video and cores.

Every method sees the same frames from the start of the video and starts afresh in every round.
Where positions are known, accuracy is reported next to speed.
"""

from __future__ import annotations

import csv
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ullayers.research.bench.profile import lines, profile
from ullayers.research.bench.timing import BenchOptions, Row, missing
from ullayers.run.apply import answers
from ullayers.run.plan import Run, load_run
from ullayers.run.results import Floats, distances
from ullayers.run.watch import watch
from ullayers.video.reader import Reading, Source, find_sources
from ullayers.video.scene import write_scene

MOUSE = "tracktor/videos/mouse_video.mp4"
MOUSE_TRACK = "tracktor/output/mouse_video_tracked.csv"
MOUSE_SIZE = (640, 480)
FRAMES = 2000
ROUNDS = 3
SMALL = 64  # longer side, in pixels, of the frames in which all methods locate
CHUNK = 64
QUICK_CONFIG = {"steps": 2, "restarts": 1, "long_mean": "stream"}
SPECK = 3  # pixels; narrower foreground is noise

Method = Callable[[], Floats | None]  # processes all frames; returns positions (time, 2), or None


class Film(NamedTuple):
    """A video, and the true position (time, 2) in each frame if it is known."""

    name: str
    path: str
    truth: Floats | None


def rows(options: BenchOptions) -> Iterator[Row]:
    """Yield the profile of `ul learn`, then one row for each way to read or to locate."""
    with tempfile.TemporaryDirectory() as place:
        film = choose_film(options, Path(place))
        folder = str(Path(place, "run"))
        [source] = find_sources([film.path])
        frames = source.probe().frames  # raises if the video cannot be read
        config: dict[str, Any] = QUICK_CONFIG if options.quick else {}
        yield {"film": film.name, **profile(film.path, folder, **config)}
        count = min(20 if options.quick else FRAMES, frames or FRAMES)
        methods = own_methods(load_run(folder), source, count)
        try:
            methods |= opencv_methods(film.path, count, options.threads)
        except ModuleNotFoundError:
            yield missing("opencv-python-headless")
        with limited_to_cores(options.threads):
            found = compare(methods, 1 if options.quick else ROUNDS)
        for name, (seconds, positions) in found.items():
            yield {
                "kind": "speed",
                "film": film.name,
                "look": name,
                "frames": count,
                "frames a second": round(count / seconds, 1),
                **accuracy(positions, film.truth, source),
            }


def choose_film(options: BenchOptions, place: Path) -> Film:
    """Return the given video, the mouse video, or the scene of `ul demo` written to `place`."""
    if options.video:
        return Film(Path(options.video).name, options.video, None)
    data = Path(os.environ.get("ULLAYERS_DATA") or "/nonexistent")
    if not options.quick and (data / MOUSE).exists():
        truth = read_columns(data / MOUSE_TRACK, "pos_x", "pos_y") / MOUSE_SIZE
        return Film("mouse", str(data / MOUSE), truth)
    path = write_scene(place, frames=60 if options.quick else 600)
    return Film("scene of ul demo", str(path), read_columns(place / "truth.csv", "x", "y"))


def read_columns(path: Path, *names: str) -> Floats:
    """Return columns of a CSV file, (rows, names)."""
    with open(path, encoding="utf-8", newline="") as file:
        return np.array([[float(row[name]) for name in names] for row in csv.DictReader(file)])


@contextmanager
def limited_to_cores(count: int) -> Iterator[None]:
    """Run threads started inside on a number of cores, as decoders choose their own threads."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compare(methods: dict[str, Method], rounds: int) -> dict[str, tuple[float, Floats | None]]:
    """Return for each method the seconds of its fastest round, and the positions it found."""
    best = dict.fromkeys(methods, float("inf"))
    found: dict[str, Floats | None] = {}
    for _ in range(rounds):
        for name, method in methods.items():
            begin = time.perf_counter()
            found[name] = method()
            best[name] = min(best[name], time.perf_counter() - begin)
    return {name: (best[name], found[name]) for name in methods}


def accuracy(positions: Floats | None, truth: Floats | None, source: Source) -> Row:
    """Return median and 90 % quantile of the error in frame widths; None without a truth."""
    if positions is None or truth is None:
        return {"median": None, "within": None}
    info = source.probe()
    errors = distances(positions, truth[: len(positions)], info.height / info.width)
    return {
        "median": round(float(np.nanmedian(errors)), 5),
        "within": round(float(np.nanquantile(errors, 0.9)), 5),
    }


def own_methods(run: Run, source: Source, count: int) -> dict[str, Method]:
    """Return ours: decoding alone, and everything up to a position."""

    def read(**size: Any) -> Method:
        def method() -> None:
            for _ in source.clips(CHUNK, Reading(max_frames=count, **size)):
                pass

        return method

    def locate() -> Floats:
        parts = [part.values[:, :2] for part in answers(run, source, max_frames=count)]
        return np.concatenate(parts)

    def watched() -> Floats:
        return np.array([seen.values[:2] for seen in watch(source, objects=1, max_frames=count)])

    return {
        "ullayers decode": read(),
        f"ullayers decode, resize to {SMALL}": read(longest=SMALL),
        "ullayers decode, resize, locate": locate,
        "ullayers watch (learns as it goes)": watched,
    }


def opencv_methods(path: str, count: int, threads: int) -> dict[str, Method]:
    """Return OpenCV: decoding alone, and MOG2 with the centroid of the largest moving object."""
    import cv2

    cv2.setNumThreads(threads)

    def small(frame: Any) -> Any:
        height, width = Reading(longest=SMALL).target(*frame.shape[:2])
        return cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)

    def frames(change: Callable[[Any], Any]) -> Iterator[Any]:
        return (change(frame) for frame in islice(_opencv_frames(cv2, path), count))

    def read(change: Callable[[Any], Any]) -> Method:
        def method() -> None:
            for _ in frames(change):
                pass

        return method

    def unchanged(frame: Any) -> Any:
        return frame

    return {
        "OpenCV decode": read(unchanged),
        f"OpenCV decode, resize to {SMALL}": read(small),
        "OpenCV decode, resize, MOG2": lambda: _mog2_positions(cv2, frames(small)),
        "OpenCV decode, MOG2 at full size": lambda: _mog2_positions(cv2, frames(unchanged)),
    }


def _opencv_frames(cv2: Any, path: str) -> Iterator[Any]:
    video = cv2.VideoCapture(path)
    try:
        while True:
            found, frame = video.read()
            if not found:
                return
            yield frame
    finally:
        video.release()


def _mog2_positions(cv2: Any, frames: Iterable[Any]) -> Floats:
    mixture = cv2.createBackgroundSubtractorMOG2(detectShadows=False)
    return filled([_largest(cv2, mixture.apply(frame)) for frame in frames])


def _largest(cv2: Any, mask: Any) -> tuple[float, float]:
    """Return the centroid of the largest blob in 0..1; NaN without one."""
    mask = cv2.morphologyEx(mask, cv2.MORPH_OPEN, np.ones((SPECK, SPECK), np.uint8))
    count, _, sizes, centres = cv2.connectedComponentsWithStats(mask)
    if count < 2:  # the first is the background
        return float("nan"), float("nan")
    x, y = centres[1 + sizes[1:, cv2.CC_STAT_AREA].argmax()] + 0.5
    return x / mask.shape[1], y / mask.shape[0]


def filled(positions: list[tuple[float, float]]) -> Floats:
    """Replace missing positions by the last known one, and leading ones by the centre.

    >>> filled([(float("nan"), 0), (0.1, 0.2), (float("nan"), 0)]).tolist()
    [[0.5, 0.5], [0.1, 0.2], [0.1, 0.2]]
    """
    last = (0.5, 0.5)
    found = []
    for position in positions:
        if not np.isnan(position[0]):
            last = position
        found.append(last)
    return np.array(found)


def line(row: Row) -> str:
    """Format a row of the table, or a profile."""
    if row["kind"] == "profile":
        return lines(row)
    text = f"{row['film']:17} {row['look']:36}{row['frames a second']:9.1f} frames/s"
    if row["median"] is None:
        return text
    return f"{text}  median {row['median']:7.2%}, 90 % within {row['within']:7.2%}"
