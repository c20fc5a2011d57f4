"""Where `ul learn` spends its time: what it does, in the same order, with a clock in every room.

It runs in a process of its own with all threads, as the command does. Frames are decoded and made
small in the background, so their cost is told twice: as the time for which nothing else could go
on, and as the processor's time of the same reading done alone.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ullayers.learn.apply
import ullayers.learn.footage
import ullayers.output.run_report
import ullayers.video.reader
from ullayers.errors import UserError
from ullayers.learn.config import Config
from ullayers.learn.run_training import learn_run
from ullayers.learn.runs import plan_run
from ullayers.learn.training import Trial
from ullayers.output.export import ExportOptions, export
from ullayers.output.overlay import Overlay
from ullayers.output.run_report import report_run
from ullayers.research.bench.timing import POOLS, Row
from ullayers.video.frames import READ_AS_IS
from ullayers.video.reader import Clip, Reading, Source

WAITING, LEARNING, REPORT, REST = "waiting for frames", "learning", "report", "everything else"
# Whose time it is: an object, the name of its function, the stage.
ROOMS: list[tuple[Any, str, str]] = [
    (Trial, "__init__", LEARNING),
    (Trial, "step", LEARNING),
    (Trial, "score", LEARNING),
    (ullayers.learn.footage, "make_piece", "camera and backdrop"),
    (ullayers.learn.apply, "make_piece", "camera and backdrop"),
    (ullayers.learn.apply, "_track", "locating"),
    (Overlay, "add", "overlay.mp4"),
    (ullayers.output.run_report, "frames_at", WAITING),
]
SHOWN = 1500  # frames of the overlay, as `ul learn` has it


@dataclass
class Read:
    """A source that was read in chunks, and how many frames of it were taken."""

    source: Source
    length: int
    reading: Reading
    frames: int = 0

    def again(self) -> int:
        """Read as many frames once more."""
        if not self.frames:
            return 0
        reading = replace(self.reading, max_frames=self.frames)
        return sum(len(clip.index) for clip in self.source.clips(self.length, reading))


class Stages:
    """Seconds in each stage; a stage inside another stops the other's clock.

    >>> stages = Stages()
    >>> with stages("a"), stages("b"):
    ...     pass
    >>> sorted(stages.seconds)
    ['a', 'b', 'everything else']
    """

    def __init__(self) -> None:
        self.seconds = {REST: 0.0}
        self.now, self.since = REST, time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Be in a stage."""
        before = self._enter(stage)
        try:
            yield
        finally:
            self._enter(before)

    def _enter(self, stage: str) -> str:
        before, then = self.now, time.perf_counter()
        self.seconds[before] = self.seconds.get(before, 0.0) + then - self.since
        self.now, self.since = stage, then
        return before

    def end(self) -> dict[str, float]:
        """All seconds so far."""
        self._enter(self.now)
        return self.seconds


@contextmanager
def watched(stages: Stages) -> Iterator[list[Read]]:
    """Clocks in all rooms; gives what was read."""
    reads: list[Read] = []
    clips, background = Source.clips, ullayers.video.reader._in_background

    def noted(
        source: Source, length: int, reading: Reading = READ_AS_IS, **how: Any
    ) -> Generator[Clip, None, None]:
        handed, read = clips(source, length, reading, **how), Read(source, length, reading)
        reads.append(read)
        with closing(handed):
            for clip in handed:
                read.frames += len(clip.index)
                yield clip

    def waiting(*arguments: Any) -> Generator[Any, None, None]:
        handed = background(*arguments)
        try:
            while True:
                with stages(WAITING):
                    clip = next(handed, None)
                if clip is None:
                    return
                yield clip
        finally:
            handed.close()

    with ExitStack() as stack:
        _replace(stack, Source, "clips", noted)
        _replace(stack, ullayers.video.reader, "_in_background", waiting)
        for owner, name, stage in ROOMS:
            _replace(stack, owner, name, _clocked(getattr(owner, name), stages, stage))
        yield reads


def _replace(stack: ExitStack, owner: Any, name: str, new: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, new)


def _clocked(work: Callable[..., Any], stages: Stages, stage: str) -> Callable[..., Any]:
    def inside(*arguments: Any, **named: Any) -> Any:
        with stages(stage):
            return work(*arguments, **named)

    return inside


def learn(video: str, folder: str, config: Config) -> Row:
    """Do what `ul learn VIDEO --out FOLDER` does, and tell where the time went."""
    begin, used, stages = time.perf_counter(), time.process_time(), Stages()
    with watched(stages) as reads:
        run, sources = plan_run([video], folder, config)
        for _ in learn_run(run, sources):
            pass
        done = export(run, sources, folder, ExportOptions(overlay=SHOWN, samples=True))
        with stages(REPORT):
            report_run(run, sources, done)
    seconds, processor = time.perf_counter() - begin, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "kind": "profile", "seconds": seconds, "processor": processor, "megabytes": peak,
        "stages": stages.end(), "reading": _read_again(reads), "cores": os.cpu_count(),
    }  # fmt: skip


def _read_again(reads: list[Read]) -> Row:
    """The cost of the same reading alone: on the clock, and of the processor in all its threads."""
    begin, used = time.perf_counter(), time.process_time()
    frames = sum(read.again() for read in reads)
    return {
        "seconds": time.perf_counter() - begin, "processor": time.process_time() - used,
        "passes": len(reads), "frames": frames,
    }  # fmt: skip


def profile(video: str, folder: str, **config: Any) -> Row:
    """`learn` in a process of its own, with as many threads as it likes."""
    command = [sys.executable, "-m", __name__, video, folder, json.dumps(config)]
    free = {name: value for name, value in os.environ.items() if name not in POOLS}
    done = subprocess.run(command, capture_output=True, text=True, env=free)
    if done.returncode:
        raise UserError((done.stderr.strip().splitlines() or ["ul learn was stopped"])[-1])
    found: Row = json.loads(done.stdout)
    return found


def lines(row: Row) -> str:
    """The profile as a table; what takes longest comes first."""
    total, reading = row["seconds"], row["reading"]
    stages = sorted(row["stages"].items(), key=lambda item: -item[1])
    told = [f"ul learn: {total:.1f} s on {row['cores']} cores, {row['megabytes']:.0f} MB; "
            f"the bottleneck is {stages[0][0]}"]  # fmt: skip
    told += [f"  {name:24} {spent:8.2f} s {spent / total:7.1%}" for name, spent in stages]
    told.append(
        f"  reading alone ({reading['passes']} passes, {reading['frames']:,} frames kept): "
        f"{reading['seconds']:.2f} s, {reading['processor']:.2f} s of processor time of "
        f"{row['processor']:.1f} s in all ({reading['processor'] / row['processor']:.1%})"
    )
    return "\n".join(told)


if __name__ == "__main__":
    print(json.dumps(learn(sys.argv[1], sys.argv[2], Config(**json.loads(sys.argv[3])))))
