"""How much memory a step needs at its peak, whoever asks for it: torch, numpy, LAPACK or Python.

A process of its own runs the steps. Linux keeps the highest resident memory of a process and lets
the process reset it, so a step's peak is the highest during the step less what was there before it,
input included. Memory that is freed goes back to the system at once, else a step could use what an
earlier one has left, and would seem to need nothing.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from ullayers.errors import UserError
from ullayers.research.bench.curves import CURVES
from ullayers.research.bench.timing import Step, pinned

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LARGE = 2**16  # bytes from which on memory is the system's again once it is freed


class Meter:
    """Asks the process that measures; where the system cannot tell, every answer is None."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if RESET.exists():
            command = [sys.executable, "-m", __name__, str(self.threads)]
            keep = {"MALLOC_MMAP_THRESHOLD_": str(LARGE), "MALLOC_TRIM_THRESHOLD_": str(LARGE)}
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, text=True, env=os.environ | keep
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            if kind is not None:
                self.process.kill()
            self.process.communicate()

    def peak(self, curve: str, size: int) -> int | None:
        """Bytes at the peak of one step, beside its input and what the step before has left."""
        if self.process is None:
            return None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(curve, size, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise UserError(
                f"the memory of {curve} at {size} could not be measured; is there enough?"
            )
        return int(answer)


def extra(step: Step) -> int:
    """Bytes by which the resident memory of this process rises at most while a step runs."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    RESET.write_text("5")
    before = _kilobytes("VmRSS")
    step()
    return 1024 * max(0, _kilobytes("VmHWM") - before)


def _kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+)", STATUS.read_text())
    assert found is not None
    return int(found[1])


def answer_questions(threads: int) -> None:
    """Lines of a curve and a size come in, lines of bytes go out."""
    known: set[str] = set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks is told, and ends this process
    with pinned(threads):
        for question in sys.stdin:
            name, size = question.split()
            curve = CURVES[name]
            if name not in known:  # what is loaded or set up once is not the step's
                curve.make(curve.sizes[0])()
                known.add(name)
            step = curve.make(int(size))
            step()  # as the clock sees it: a step that goes on from others
            print(extra(step), flush=True)


if __name__ == "__main__":
    answer_questions(int(sys.argv[1]))
