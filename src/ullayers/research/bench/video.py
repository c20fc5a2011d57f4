"""Decoding and locating in frames a second, beside OpenCV on the same film and the same cores.

Every candidate sees the same frames from the start of the film and begins anew in every round.
Where the truth is known, how near each comes is told beside how fast it is.
"""

from __future__ import annotations

import csv
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ullayers.learn.apply import answers
from ullayers.learn.online import watch
from ullayers.learn.runs import Run, load_run
from ullayers.output.scores import Floats, distances
from ullayers.research.bench.profile import lines, profile
from ullayers.research.bench.timing import How, Row, missing
from ullayers.video.reader import Reading, Source, find_sources
from ullayers.video.scene import write_scene

MOUSE = "tracktor/videos/mouse_video.mp4"
TRACK = "tracktor/output/mouse_video_tracked.csv"
FRAMES, ROUNDS = 2000, 3
SMALL = 64  # pixels of the longer side that everyone locates at
CHUNK = 64
BRIEF = {"steps": 2, "restarts": 1, "long_mean": "stream"}
SPECK = 3  # pixels: what is narrower is noise

Look = Callable[[], Floats | None]  # looks at all frames; gives (time, 2) places in 0..1, or none


class Film(NamedTuple):
    """A video, and where the thing is in each frame, if that is known."""

    name: str
    path: str
    truth: Floats | None


def rows(how: How) -> Iterator[Row]:
    """The profile of `ul learn`, then one row for each way to read or to locate."""
    with tempfile.TemporaryDirectory() as place:
        film, folder = choose(how, Path(place)), str(Path(place, "run"))
        [source] = find_sources([film.path])
        frames = source.probe().frames  # says what is wrong with it, if anything
        brief: dict[str, Any] = BRIEF if how.quick else {}
        yield {"film": film.name, **profile(film.path, folder, **brief)}
        count = min(20 if how.quick else FRAMES, frames or FRAMES)
        looks = own_looks(load_run(folder), source, count)
        try:
            looks |= opencv_looks(film.path, count, how.threads)
        except ModuleNotFoundError:
            yield missing("opencv-python-headless")
        with on_cores(how.threads):
            for name, (seconds, places) in compare(looks, 1 if how.quick else ROUNDS).items():
                yield {"kind": "speed", "film": film.name, "look": name, "frames": count,
                       "frames a second": round(count / seconds, 1),
                       **accuracy(places, film.truth, source)}  # fmt: skip


def choose(how: How, place: Path) -> Film:
    """What was asked for, or else the mouse, or else a film of our own; the latter have a truth."""
    if how.video:
        return Film(Path(how.video).name, how.video, None)
    data = Path(os.environ.get("ULLAYERS_DATA") or "/nonexistent")
    if not how.quick and (data / MOUSE).exists():
        return Film(
            "mouse", str(data / MOUSE), _column(data / TRACK, "pos_x", "pos_y") / (640, 480)
        )
    path = write_scene(place, frames=60 if how.quick else 600)
    return Film("scene of ul demo", str(path), _column(place / "truth.csv", "x", "y"))


def _column(path: Path, *names: str) -> Floats:
    with open(path, encoding="utf-8", newline="") as file:
        return np.array([[float(row[name]) for name in names] for row in csv.DictReader(file)])


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """So many cores for all threads that begin inside; decoders ask no one how many to start."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compare(looks: dict[str, Look], rounds: int) -> dict[str, tuple[float, Floats | None]]:
    """Seconds of the fastest round, and what was found."""
    best, found = dict.fromkeys(looks, float("inf")), dict[str, Floats | None]()
    for _ in range(rounds):
        for name, look in looks.items():
            begin = time.perf_counter()
            found[name] = look()
            best[name] = min(best[name], time.perf_counter() - begin)
    return {name: (best[name], found[name]) for name in looks}


def accuracy(places: Floats | None, truth: Floats | None, source: Source) -> Row:
    """How near, in widths of the frame; nothing without a truth."""
    if places is None or truth is None:
        return {"median": None, "within": None}
    info = source.probe()
    apart = distances(places, truth[: len(places)], info.height / info.width)
    return {"median": round(float(np.nanmedian(apart)), 5),
            "within": round(float(np.nanquantile(apart, 0.9)), 5)}  # fmt: skip


def own_looks(run: Run, source: Source, count: int) -> dict[str, Look]:
    """Ours: reading alone, and all the way to a place."""

    def read(**size: Any) -> Look:
        def look() -> None:
            for _ in source.clips(CHUNK, Reading(max_frames=count, **size)):
                pass

        return look

    def locate() -> Floats:
        parts = [part.values[:, :2] for part in answers(run, source, max_frames=count)]
        return np.concatenate(parts)

    def watched() -> Floats:
        return np.array([seen.values[:2] for seen in watch(source, max_frames=count)])

    return {
        "ullayers decode": read(),
        f"ullayers decode, resize to {SMALL}": read(longest=SMALL),
        "ullayers decode, resize, locate": locate,
        "ullayers watch (learns as it goes)": watched,
    }


def opencv_looks(path: str, count: int, threads: int) -> dict[str, Look]:
    """OpenCV: reading alone, and MOG2 with the centroid of the largest thing that moves."""
    import cv2

    cv2.setNumThreads(threads)

    def frames() -> Iterator[Any]:
        video = cv2.VideoCapture(path)
        try:
            while True:
                there, frame = video.read()
                if not there:
                    return
                yield frame
        finally:
            video.release()

    def small(frame: Any) -> Any:
        height, width = Reading(longest=SMALL).target(*frame.shape[:2])
        return cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)

    def read(change: Callable[[Any], Any] | None = None) -> Look:
        def look() -> None:
            for frame in islice(frames(), count):
                if change is not None:
                    change(frame)

        return look

    def locate(change: Callable[[Any], Any]) -> Look:
        def look() -> Floats:
            mixture = cv2.createBackgroundSubtractorMOG2(detectShadows=False)
            shown = (change(frame) for frame in islice(frames(), count))
            return filled([_largest(cv2, mixture.apply(frame)) for frame in shown])

        return look

    return {
        "OpenCV decode": read(),
        f"OpenCV decode, resize to {SMALL}": read(small),
        "OpenCV decode, resize, MOG2": locate(small),
        "OpenCV decode, MOG2 at full size": locate(lambda frame: frame),
    }


def _largest(cv2: Any, mask: Any) -> tuple[float, float]:
    """Centroid of the largest blob in 0..1; no number where nothing moves."""
    mask = cv2.morphologyEx(mask, cv2.MORPH_OPEN, np.ones((SPECK, SPECK), np.uint8))
    count, _, sizes, centres = cv2.connectedComponentsWithStats(mask)
    if count < 2:  # the first is the background
        return float("nan"), float("nan")
    x, y = centres[1 + sizes[1:, cv2.CC_STAT_AREA].argmax()] + 0.5
    return x / mask.shape[1], y / mask.shape[0]


def filled(places: list[tuple[float, float]]) -> Floats:
    """Where nothing was seen it is where it was last, and in the middle at first.

    >>> filled([(float("nan"), 0), (0.1, 0.2), (float("nan"), 0)]).tolist()
    [[0.5, 0.5], [0.1, 0.2], [0.1, 0.2]]
    """
    last, found = (0.5, 0.5), []
    for place in places:
        last = last if np.isnan(place[0]) else place
        found.append(last)
    return np.array(found)


def line(row: Row) -> str:
    """A row of the table, or a whole profile."""
    if row["kind"] == "profile":
        return lines(row)
    near = "" if row["median"] is None else (
        f"  median {row['median']:7.2%}, 90 % within {row['within']:7.2%}"
    )  # fmt: skip
    return f"{row['film']:17} {row['look']:36}{row['frames a second']:9.1f} frames/s{near}"
