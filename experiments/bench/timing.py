"""Timing: all candidates take turns in every round, and the fastest round counts.

Other load on the machine can only make a round slower, so the fastest round is the best estimate
of the work itself. Taking turns spreads a temporary load over all candidates.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ullayers.files import write_json

SECONDS = 2.0  # minimum duration of the rounds of a row
ROUNDS = 5  # minimum number of rounds of a row
WARM_UP = 0.1  # seconds of calls that are not counted, two to four of them
ROUND_SECONDS = 2e-3  # a round repeats its step until it takes about this long
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
PACKAGES = (
    "ullayers",
    "torch",
    "triton",
    "numpy",
    "scipy",
    "scikit-learn",
    "av",
    "opencv-python-headless",
    "deeptime",
    "sklearn-sfa",
    "cebra",
)

Row = dict[str, Any]
Step = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `python -m experiments.bench`.

    Attributes:
        device: Device of the layers.
        threads: Number of CPU threads of every candidate.
        quick: Measure small sizes only.
        video: Video file to measure on. None takes the mouse video of ULLAYERS_DATA, or the scene
            of `ul demo` if there is none.
        plots: Folder for charts.
    """

    device: str = "cpu"
    threads: int = 1
    quick: bool = False
    video: str | None = None
    plots: Path | None = None


@contextmanager
def pinned_threads(threads: int) -> Iterator[None]:
    """Limit torch, every loaded BLAS and those loaded later to a number of threads."""
    from threadpoolctl import threadpool_limits

    threads_before = torch.get_num_threads()
    variables_before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    torch.set_num_threads(threads)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    try:
        with threadpool_limits(limits=threads):
            yield
    finally:
        torch.set_num_threads(threads_before)
        for name, value in variables_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def forward_backward(layer: Callable[[Tensor], Tensor], inputs: list[Tensor]) -> Step:
    """Return a step that runs a layer forward and backward on the next of its inputs."""
    leaves = [y.clone().requires_grad_() for y in inputs]
    gradient = torch.randn_like(leaves[0])
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        y = leaves[turn % len(leaves)]
        y.grad = None
        layer(y).backward(gradient)

    return step


def fastest(
    steps: dict[str, Step], device: str = "cpu", *, seconds: float | None = None
) -> dict[str, float]:
    """Return the seconds of one call of each step, in its fastest round.

    Args:
        steps: Functions to call, by name.
        device: Device to synchronize with.
        seconds: Minimum duration of all rounds; None for `SECONDS` and at least `ROUNDS` rounds.
    """
    repeats = {name: _repeats(step, device) for name, step in steps.items()}
    best = dict.fromkeys(steps, float("inf"))
    min_seconds = SECONDS if seconds is None else seconds
    min_rounds = ROUNDS if seconds is None else 1
    begin = time.perf_counter()
    rounds = 0
    while rounds < min_rounds or time.perf_counter() - begin < min_seconds:
        for name, step in steps.items():
            best[name] = min(best[name], _seconds(step, repeats[name], device))
        rounds += 1
    return best


def _repeats(step: Step, device: str) -> int:
    """Warm up, and return the number of calls per round."""
    begin = time.perf_counter()
    calls = 0
    latest = 0.0
    while calls < 2 or (calls < 4 and time.perf_counter() - begin < WARM_UP):
        latest = _seconds(step, 1, device)  # the first call may load or compile something
        calls += 1
    return max(1, int(ROUND_SECONDS / max(latest, 1e-6)))


def _seconds(step: Step, repeats: int, device: str) -> float:
    _synchronize(device)
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    _synchronize(device)
    return (time.perf_counter() - begin) / repeats


def _synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def missing(package: str) -> Row:
    """Return the row that replaces those of a package that is not installed."""
    note = f"{package} is not installed: `make bench` installs it"
    return {"kind": "missing", "package": package, "note": note}


def machine(device: str, threads: int) -> dict[str, Any]:
    """Return the hardware and the package versions of a measurement."""
    on_gpu = torch.device(device).type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else cpu_name(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def cpu_name(listing: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU model from the system's list, or what Python knows of it."""
    if listing.exists():
        for text in listing.read_text().splitlines():
            name, _, value = text.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write(rows: list[Row], options: BenchOptions, path: Path) -> None:
    """Write all rows and the machine they were measured on to a JSON file, atomically."""
    write_json(path, {"machine": machine(options.device, options.threads), "rows": rows})
