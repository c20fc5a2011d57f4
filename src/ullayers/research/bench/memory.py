"""Peak memory of a step, including what torch, numpy, LAPACK and Python allocate.

The steps run in a separate process. Linux records the peak resident memory of a process and lets
the process reset it, so the peak of a step is the peak during the step minus the memory before it,
which includes its input. malloc is told to return freed memory to the system at once; otherwise a
step could reuse memory of an earlier one and would seem to need none.
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
from ullayers.research.bench.timing import Step, pinned_threads

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
LARGE = 2**16  # allocations of this many bytes are returned to the system when they are freed


class MemoryMeter:
    """Measures steps in a separate process; the answer is None where the system has no counter."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if RESET.exists():
            command = [sys.executable, "-m", __name__, str(self.threads)]
            malloc = {"MALLOC_MMAP_THRESHOLD_": str(LARGE), "MALLOC_TRIM_THRESHOLD_": str(LARGE)}
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | malloc,
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
        """Return the peak bytes of one step, without its input and what the last step has left."""
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
                f"could not measure the memory of {curve} at {size}: its process ended; "
                "is there enough memory?"
            )
        return int(answer)


def peak_increase(step: Step) -> int:
    """Return by how many bytes the resident memory of this process rises during a step."""
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


def serve(threads: int) -> None:
    """Read lines with a curve and a size, write lines with the peak bytes of a step."""
    warmed_up: set[str] = set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    with pinned_threads(threads):
        for request in sys.stdin:
            name, size = request.split()
            curve = CURVES[name]
            if name not in warmed_up:  # one-time imports and set-up are not part of a step
                curve.make(curve.sizes[0])()
                warmed_up.add(name)
            step = curve.make(int(size))
            step()  # the timed steps are not the first ones either
            print(peak_increase(step), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
