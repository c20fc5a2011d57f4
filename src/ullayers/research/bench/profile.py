"""Profile of `ul learn`: the same work as the command, with its time divided into stages.

The work runs in a separate process with all threads, as the command does. A thread samples the
stack of the main thread and assigns the time between two samples to the innermost function that
belongs to a stage, so nothing in the library has to be changed to be measured.

Frames are decoded in background threads. Their cost is therefore reported twice: as the time for
which the main thread waited, and as the processor time of the same reading done alone.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from types import FrameType, TracebackType
from typing import Any, Self

from ullayers.errors import UserError
from ullayers.learn.config import Config
from ullayers.research.bench.timing import THREAD_VARIABLES, Row
from ullayers.run.pipeline import OVERLAY_FRAMES, learn_run
from ullayers.run.plan import plan_run
from ullayers.run.reports import report_run
from ullayers.run.write import ExportOptions, export
from ullayers.video.frames import READ_AS_IS
from ullayers.video.reader import Clip, Reading, Source

WAITING = "waiting for frames"
REST = "everything else"
ANY_FUNCTION = ""
# Stage of a (module, function); inner functions take precedence over outer ones.
STAGES: dict[tuple[str, str], str] = {
    (__name__, "clips"): WAITING,
    ("ullayers.video.single_frames", ANY_FUNCTION): WAITING,
    ("ullayers.learn.footage", "make_piece"): "camera and background",
    ("ullayers.learn.training", ANY_FUNCTION): "learning",
    ("ullayers.run.apply", ANY_FUNCTION): "locating",
    ("ullayers.report.overlay", ANY_FUNCTION): "overlay.mp4",
    ("ullayers.run.results", ANY_FUNCTION): "report",
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
        length: Number of frames per clip.
        reading: How frames were read.
        frames: Number of frames that were taken.
    """

    length: int
    reading: Reading
    frames: int = 0


@dataclass(frozen=True)
class RecordedSource(Source):
    """A source that records every pass over its frames in `reads`."""

    reads: list[Read] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def of(cls, source: Source) -> RecordedSource:
        """Return a recorded copy of a source."""
        return cls(
            **{part.name: getattr(source, part.name) for part in fields(source) if part.init}
        )

    def clips(
        self, length: int, reading: Reading = READ_AS_IS, *, ahead: int = 2
    ) -> Generator[Clip, None, None]:
        """Yield the clips of the source and count their frames."""
        read = Read(length, reading)
        self.reads.append(read)
        with closing(super().clips(length, reading, ahead=ahead)) as clips:
            for clip in clips:
                read.frames += len(clip.index)
                yield clip

    def read_again(self) -> int:
        """Repeat all recorded passes; return the number of frames."""
        frames = 0
        for read in self.reads:
            if read.frames:
                reading = replace(read.reading, max_frames=read.frames)
                frames += sum(len(clip.index) for clip in super().clips(read.length, reading))
        return frames


def learn(video: str, folder: str, config: Config) -> Row:
    """Do what `ul learn VIDEO --out FOLDER` does; return the time of each stage."""
    begin = time.perf_counter()
    processor_begin = time.process_time()
    with StageSampler() as sampler:
        run, found = plan_run([video], folder, config)
        sources = [RecordedSource.of(source) for source in found]
        for _ in learn_run(run, sources):
            pass
        options = ExportOptions(overlay=OVERLAY_FRAMES, samples=True)
        exported = export(run, sources, folder, options)
        report_run(run, sources, exported)
    return {
        "kind": "profile",
        "seconds": time.perf_counter() - begin,
        "processor": time.process_time() - processor_begin,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "stages": sampler.seconds,
        "reading": _reading_alone(sources),
        "cores": os.cpu_count(),
    }


def _reading_alone(sources: list[RecordedSource]) -> Row:
    """Repeat all reading without other work; return its wall-clock and processor time."""
    begin = time.perf_counter()
    processor_begin = time.process_time()
    passes = sum(len(source.reads) for source in sources)
    frames = sum(source.read_again() for source in sources)
    return {
        "seconds": time.perf_counter() - begin,
        "processor": time.process_time() - processor_begin,
        "passes": passes,
        "frames": frames,
    }


def profile(video: str, folder: str, **config: Any) -> Row:
    """Run `learn` in a separate process that may use all threads."""
    command = [sys.executable, "-m", __name__, video, folder, json.dumps(config)]
    variables = {k: value for k, value in os.environ.items() if k not in THREAD_VARIABLES}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["ul learn was stopped"]
        raise UserError(errors[-1])
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
    print(json.dumps(learn(sys.argv[1], sys.argv[2], Config(**json.loads(sys.argv[3])))))
