"""Decoding and locating compared with OpenCV, and a profile of `ul learn`, on one video.

Speed: every method sees the same frames from the start of the video and starts afresh in every
round. Where positions are known, accuracy is reported next to speed.

Profile: the command runs in a separate process with all threads, as for users. A thread samples the
stack of the main thread and assigns the time between two samples to the innermost function that
belongs to a stage. Frames are decoded in background threads. Their cost is therefore reported
twice: as the time for which the main thread waited, and as the processor time of the same reading
done alone.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self
from unittest.mock import patch

import cv2
import numpy as np

from experiments.bench.timing import THREAD_VARIABLES, BenchOptions, Row
from ullayers.cli.main import main as ul
from ullayers.errors import Error
from ullayers.run.apply import answers
from ullayers.run.plan import Plan, load_plan
from ullayers.run.results import Floats, distances
from ullayers.run.watch import watch
from ullayers.video.clips import READ_AS_IS
from ullayers.video.demo_films import write_scene
from ullayers.video.sources import Clip, Reading, Source, find_sources

MOUSE = "tracktor/videos/mouse_video.mp4"
MOUSE_TRACK = "tracktor/output/mouse_video_tracked.csv"
MOUSE_SIZE = (640, 480)
FRAMES = 2000
ROUNDS = 3
SMALL = 64  # longer side, in pixels, of the frames in which all methods locate
CHUNK = 64
QUICK = ("--steps", "2", "--restarts", "1", "--long-mean", "stream")
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
        settings = QUICK if options.quick else ()
        yield {"film": film.name, **profile(film.path, folder, settings)}
        count = min(20 if options.quick else FRAMES, frames or FRAMES)
        methods = own_methods(load_plan(folder), source, count)
        methods |= opencv_methods(film.path, count, options.threads)
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


def own_methods(run: Plan, source: Source, count: int) -> dict[str, Method]:
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
    cv2.setNumThreads(threads)

    def small(frame: Any) -> Any:
        height, width = Reading(longest=SMALL).target(*frame.shape[:2])
        return cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)

    def frames(change: Callable[[Any], Any]) -> Iterator[Any]:
        return (change(frame) for frame in islice(_opencv_frames(path), count))

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
        "OpenCV decode, resize, MOG2": lambda: _mog2_positions(frames(small)),
        "OpenCV decode, MOG2 at full size": lambda: _mog2_positions(frames(unchanged)),
    }


def _opencv_frames(path: str) -> Iterator[Any]:
    video = cv2.VideoCapture(path)
    try:
        while True:
            found, frame = video.read()
            if not found:
                return
            yield frame
    finally:
        video.release()


def _mog2_positions(frames: Iterable[Any]) -> Floats:
    mixture = cv2.createBackgroundSubtractorMOG2(detectShadows=False)
    return filled([_largest(mixture.apply(frame)) for frame in frames])


def _largest(mask: Any) -> tuple[float, float]:
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


WAITING = "waiting for frames"
REST = "everything else"
ANY_FUNCTION = ""
# Stage of a (module, function); inner functions take precedence over outer ones.
STAGES: dict[tuple[str, str], str] = {
    (__name__, "clips"): WAITING,
    ("ullayers.video.access", ANY_FUNCTION): WAITING,
    ("ullayers.learning.footage", "make_piece"): "camera and background",
    ("ullayers.learning.training", ANY_FUNCTION): "learning",
    ("ullayers.run.apply", ANY_FUNCTION): "locating",
    ("ullayers.report.overlay", ANY_FUNCTION): "overlay.mp4",
    ("ullayers.run.reports", ANY_FUNCTION): "report",
}
INTERVAL = 0.005  # seconds between two samples


def stage_of(frame: FrameType | None) -> str:
    """Return the stage of the innermost function on a stack that belongs to one."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        for function in (frame.f_code.co_name, ANY_FUNCTION):
            if (module, function) in STAGES:
                return STAGES[module, function]
        frame = frame.f_back
    return REST


class StageSampler:
    """Divides the wall-clock time of the thread that enters it into stages.

    Attributes:
        seconds: Time spent in each stage; the sum is the time inside the `with` block.

    Example:
        >>> with StageSampler() as sampler:
        ...     time.sleep(0.02)
        >>> list(sampler.seconds), sampler.seconds[REST] >= 0.02
        (['everything else'], True)
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stage-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._sampled = threading.get_ident()
        self._last = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._add(REST)  # the time since the last sample

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._add(stage_of(sys._current_frames().get(self._sampled)))

    def _add(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


@dataclass
class Read:
    """One pass over a source.

    Attributes:
        source: What was read.
        length: Number of frames per clip.
        reading: How frames were read.
        frames: Number of frames that were taken.
    """

    source: Source
    length: int
    reading: Reading
    frames: int = 0

    def again(self) -> int:
        """Repeat the pass, without keeping pictures; return the number of frames."""
        reading = replace(self.reading, max_frames=self.frames, tap=None)
        return sum(len(clip.index) for clip in self.source.clips(self.length, reading))


@contextmanager
def recorded_reads() -> Iterator[list[Read]]:
    """Record every pass over the frames of any source inside the `with` block."""
    reads: list[Read] = []
    read_clips = Source.clips

    def clips(
        source: Source, length: int, reading: Reading = READ_AS_IS, *, ahead: int = 2
    ) -> Generator[Clip, None, None]:
        read = Read(source, length, reading)
        reads.append(read)
        with closing(read_clips(source, length, reading, ahead=ahead)) as found:
            for clip in found:
                read.frames += len(clip.index)
                yield clip

    with patch.object(Source, "clips", clips):
        yield reads


def profile_here(video: str, folder: str, options: Sequence[str] = ()) -> Row:
    """Run `ul learn VIDEO --out FOLDER` in this process; return the time of each stage."""
    begin = time.perf_counter()
    processor_begin = time.process_time()
    with StageSampler() as sampler, recorded_reads() as reads:
        code = ul(["learn", video, "--out", folder, "--quiet", *options])
    if code:
        sys.exit(code)
    return {
        "kind": "profile",
        "seconds": time.perf_counter() - begin,
        "processor": time.process_time() - processor_begin,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "stages": sampler.seconds,
        "reading": _reading_alone([read for read in reads if read.frames]),
        "cores": os.cpu_count(),
    }


def _reading_alone(reads: Sequence[Read]) -> Row:
    """Repeat all reading without other work; return its wall-clock and processor time."""
    begin = time.perf_counter()
    processor_begin = time.process_time()
    frames = sum(read.again() for read in reads)
    return {
        "seconds": time.perf_counter() - begin,
        "processor": time.process_time() - processor_begin,
        "passes": len(reads),
        "frames": frames,
    }


def profile(video: str, folder: str, options: Sequence[str] = ()) -> Row:
    """Run `ul learn` in a separate process that may use all threads."""
    command = [sys.executable, "-m", __name__, video, folder, *options]
    variables = {k: value for k, value in os.environ.items() if k not in THREAD_VARIABLES}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["ul learn was stopped"]
        raise Error(errors[-1])
    row: Row = json.loads(done.stdout)
    return row


def lines(row: Row) -> str:
    """Format a profile as a table, longest stage first."""
    total = row["seconds"]
    reading = row["reading"]
    stages = sorted(row["stages"].items(), key=lambda item: -item[1])
    text = [
        f"ul learn: {total:.1f} s on {row['cores']} cores, {row['megabytes']:.0f} MB; "
        f"the bottleneck is {stages[0][0]}"
    ]
    text += [f"  {name:24} {spent:8.2f} s {spent / total:7.1%}" for name, spent in stages]
    text.append(
        f"  reading alone ({reading['passes']} passes, {reading['frames']:,} frames kept): "
        f"{reading['seconds']:.2f} s, {reading['processor']:.2f} s of processor time of "
        f"{row['processor']:.1f} s in all ({reading['processor'] / row['processor']:.1%})"
    )
    return "\n".join(text)


if __name__ == "__main__":
    print(json.dumps(profile_here(sys.argv[1], sys.argv[2], sys.argv[3:])))
