"""How everything is timed: all candidates take turns in every round, and the fastest round counts.

Whatever else the machine does can only make a round slower, so the fastest is the nearest to what
the work itself takes, and taking turns lets a busy minute disturb all alike.
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

from ullayers.video.atomic_files import write_json

SECONDS = 2.0  # for every row, and at least
ROUNDS = 5
WARM_UP = 0.1  # seconds of calls that do not count, two to four of them
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
PACKAGES = (
    "ullayers", "torch", "triton", "numpy", "scipy", "scikit-learn", "av", "opencv-python-headless",
    "deeptime", "sklearn-sfa", "cebra",
)  # fmt: skip

Row = dict[str, Any]
Step = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class How:
    """What was asked for.

    Attributes:
        device: of the layers.
        threads: of the CPU, for everyone.
        quick: small sizes only.
        video: a file to measure on; None for the mouse of ULLAYERS_DATA, or else the demo's scene.
        plots: a folder for charts.
        mdp: a Python that has MDP, which needs a numpy of its own.
    """

    device: str = "cpu"
    threads: int = 1
    quick: bool = False
    video: str | None = None
    plots: Path | None = None
    mdp: str | None = None


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """So many threads for torch, for every BLAS that is loaded, and for those that will be."""
    from threadpoolctl import threadpool_limits

    before, environment = torch.get_num_threads(), dict(os.environ)
    torch.set_num_threads(threads)
    os.environ.update(dict.fromkeys(POOLS, str(threads)))
    try:
        with threadpool_limits(limits=threads):
            yield
    finally:
        torch.set_num_threads(before)
        for name in POOLS:
            os.environ.pop(name)
            os.environ.update({name: environment[name]} if name in environment else {})


def fastest(
    steps: dict[str, Step], device: str = "cpu", *, seconds: float | None = None
) -> dict[str, float]:
    """Seconds of one call of each, in its fastest round.

    Args:
        steps: what to call, by name.
        device: to wait for.
        seconds: that rounds go on for at least; None for SECONDS.
    """
    repeats = {name: _repeats(step, device) for name, step in steps.items()}
    best = dict.fromkeys(steps, float("inf"))
    begin, rounds = time.perf_counter(), 0
    enough, least = (SECONDS, ROUNDS) if seconds is None else (seconds, 1)
    while rounds < least or time.perf_counter() - begin < enough:
        for name, step in steps.items():
            best[name] = min(best[name], _seconds(step, repeats[name], device))
        rounds += 1
    return best


def _repeats(step: Step, device: str) -> int:
    """As many calls as make a round worth timing; the calls before are the warm-up."""
    begin, calls, latest = time.perf_counter(), 0, 0.0
    while calls < 2 or (calls < 4 and time.perf_counter() - begin < WARM_UP):
        latest = _seconds(step, 1, device)  # of the first, which may load something, none counts
        calls += 1
    return max(1, int(2e-3 / max(latest, 1e-6)))


def _seconds(step: Step, repeats: int, device: str) -> float:
    _wait(device)
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    _wait(device)
    return (time.perf_counter() - begin) / repeats


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def missing(package: str) -> Row:
    """A row in place of those of a peer that is not here."""
    note = f"{package} is not installed: pip install 'ullayers[peers]', or '.[peers]' in a clone"
    return {"kind": "missing", "package": package, "note": note}


def machine(device: str, threads: int) -> dict[str, Any]:
    """What the rows were measured on, and with which versions."""
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
    """The model as the system names it; Python knows it on some systems only."""
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


def write(rows: list[Row], how: How, path: Path) -> None:
    """All rows with the machine they were measured on, as JSON, whole or not at all."""
    write_json(path, {"machine": machine(how.device, how.threads), "rows": rows})
