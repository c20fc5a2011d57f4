"""Shared by the experiments: setting, outcome, scores of codes, worker processes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ullayers.errors import Error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.floating[Any]]
Job = TypeVar("Job")
JobResult = TypeVar("JobResult")

WINDOW = 5  # frames per window in the scores of Stewart and Ermon (2017)


@dataclass(frozen=True)
class Setting:
    """Input, output and size of an experiment.

    Attributes:
        data: Folder of the data sets.
        out: Folder for the experiment's figures and files.
        seeds: Seeds of the runs that each row averages.
        quick: Run a small version that only checks that learning works.
        progress: Called with a description of each finished job.
    """

    data: Path
    out: Path
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    quick: bool = False
    progress: Callable[[str], None] = lambda what: None

    def each(self, function: Callable[[Job], JobResult], jobs: Sequence[Job]) -> list[JobResult]:
        """Return the results of a function for all jobs, in order, computed on all cores.

        Jobs run in worker processes with one thread each: two seeds in parallel are faster than
        one after the other with two threads. A job is a tuple of plain values and loads its own
        data; the function must be importable.
        """
        results: list[JobResult] = []
        with worker_pool(min(os.cpu_count() or 1, len(jobs))) as pool:
            for job, result in zip(jobs, pool.map(function, jobs), strict=True):
                results.append(result)
                self.progress(self._label(job))
        return results

    def each_by_job(
        self, function: Callable[[Job], JobResult], jobs: Sequence[Job]
    ) -> dict[Job, JobResult]:
        """Return the results of `each` by job."""
        return dict(zip(jobs, self.each(function, jobs), strict=True))

    def _label(self, job: object) -> str:
        parts = job if isinstance(job, tuple) else (job,)
        return " ".join(str(part) for part in parts if part != str(self.data))

    def picture(self, figure: Figure, name: str, caption: str, *, of_data: bool = False) -> Picture:
        """Save a figure as a PNG; `of_data` if it shows frames of the data."""
        self.out.mkdir(parents=True, exist_ok=True)
        file = f"frames_{name}.png" if of_data else f"{name}.png"
        figure.savefig(self.out / file, dpi=110, bbox_inches="tight", facecolor="white")
        return Picture(file, caption, of_data)


@dataclass(frozen=True)
class Picture:
    """A figure in the experiment's folder; `of_data` if it shows frames of the data."""

    file: str
    caption: str
    of_data: bool = False


@dataclass
class Table:
    """A table of scores.

    Attributes:
        title: What is compared.
        columns: Names of the scores.
        best: For each column "low", "high", or "" if neither is better.
        rows: For each row name and column, the values of all seeds.
        note: Text below the table.

    Example:
        >>> table = Table("heads", ["degrees"], ["low"])
        >>> table.add("ours", [6.0, 8.0])
        >>> table.add("theirs", [9.0])
        >>> print(table.markdown())
        | heads | degrees |
        |---|---|
        | ours | **7.00 ± 1.00** |
        | theirs | 9.00 |
    """

    title: str
    columns: list[str]
    best: list[str]
    rows: dict[str, list[list[float]]] = field(default_factory=dict)
    note: str = ""

    def add(self, name: str, *values: float | Iterable[float]) -> None:
        """Add a row: one value or the values of all seeds per column, NaN for a missing one."""
        assert len(values) == len(self.columns), f"{name}: {len(values)} of {self.columns}"
        lists = [np.atleast_1d(np.asarray(value, float)).tolist() for value in values]
        self.rows[name] = lists

    def mean(self, name: str, column: str) -> float:
        """Return the mean of a row over its seeds."""
        return float(np.mean(self.rows[name][self.columns.index(column)]))

    def markdown(self) -> str:
        """Return the table in Markdown, with the best value of each column in bold."""
        best = [self._best_rows(i) for i in range(len(self.columns))]
        lines = [
            f"| {' | '.join([self.title, *self.columns])} |",
            "|---" * (len(self.columns) + 1) + "|",
        ]
        for name, values in self.rows.items():
            cells = [
                f"**{_cell(of_column)}**" if name in best_rows else _cell(of_column)
                for of_column, best_rows in zip(values, best, strict=True)
            ]
            lines.append(f"| {' | '.join([name, *cells])} |")
        if self.note:
            lines += ["", self.note.strip()]
        return "\n".join(lines)

    def _best_rows(self, column: int) -> set[str]:
        means = {name: np.mean(values[column]) for name, values in self.rows.items()}
        means = {name: mean for name, mean in means.items() if np.isfinite(mean)}
        if not means or not self.best[column]:
            return set()
        best = min(means.values()) if self.best[column] == "low" else max(means.values())
        return {name for name, mean in means.items() if mean == best}


def _cell(values: Sequence[float]) -> str:
    if not np.isfinite(np.mean(values)):
        return "-"
    digits = 3 if np.max(np.abs(values)) < 2 else 2
    spread = f" ± {np.std(values):.{digits}f}" * (len(values) > 1)
    return f"{np.mean(values):.{digits}f}{spread}"


@dataclass(frozen=True)
class Claim:
    """A bound on a score that must hold or, if `aim`, is only aimed at.

    Example:
        >>> Claim("error in degrees", 6.8, at_most=8).met, Claim("r", 0.9, at_least=0.95).met
        (True, False)
    """

    what: str
    value: float
    at_most: float = np.inf
    at_least: float = -np.inf
    aim: bool = False

    @property
    def met(self) -> bool:
        """Whether it holds; False for NaN."""
        return bool(self.at_least <= self.value <= self.at_most)


@dataclass
class Outcome:
    """Result of an experiment.

    Attributes:
        title: Title of its section.
        text: Description in Markdown.
        tables: Tables in the order of the page.
        pictures: Figures in the order of the page.
        claims: Claims in the order of the page.
        files: Other files it wrote, with a description of each.
    """

    title: str
    text: str
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def decode_angle(codes: Floats, angles: Floats, unseen: Floats) -> Floats:
    """Decode sine and cosine of an angle from codes by one linear map.

    Args:
        codes: Codes (n, d) with known angles, to fit the map.
        angles: Their angles (n,) in degrees.
        unseen: Codes (m, d) to decode.

    Returns:
        Sine and cosine, (m, 2); `np.arctan2` of them is the angle.

    Example:
        >>> angles = np.arange(0, 360, 30)
        >>> circle = np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], 1)
        >>> sine, cosine = decode_angle(5 * circle + 1, angles, 5 * circle[1:2] + 1)[0]
        >>> round(np.degrees(np.arctan2(sine, cosine)))
        30
    """
    solution = np.linalg.lstsq(_with_one(codes), sine_and_cosine(angles), rcond=None)[0]
    read: Floats = _with_one(unseen) @ solution
    return read


def sine_and_cosine(degrees: Floats) -> Floats:
    """Return sine and cosine, (n, 2), of angles (n,) in degrees.

    >>> sine_and_cosine(np.array([0.0, 90.0])).round().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    radians = np.radians(degrees)
    return np.stack([np.sin(radians), np.cos(radians)], 1)


def _with_one(codes: Floats) -> Floats:
    return np.concatenate([codes, np.ones((len(codes), 1))], 1)


def angle_difference(found: Floats, true: Floats) -> Floats:
    """Return the absolute difference of two angles in degrees, at most 180.

    >>> angle_difference(np.array([350.0]), np.array([20.0])).tolist()
    [30.0]
    """
    difference: Floats = np.abs((found - true + 180) % 360 - 180)
    return difference


def correlation(a: Floats, b: Floats) -> float:
    """Return the correlation of two series where both are finite; 0 if one is constant.

    >>> round(correlation(np.array([1.0, 2.0, np.nan]), np.array([2.0, 4.0, 9.0])), 3)
    1.0
    """
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def window_score(found: Sequence[Floats], true: Sequence[Floats]) -> float:
    """Return the mean absolute correlation over windows of five frames (Stewart and Ermon, 2017).

    Args:
        found: Decoded values of each sequence.
        true: True values of each sequence.
    """
    scores = [
        abs(correlation(f[i : i + WINDOW], t[i : i + WINDOW]))
        for f, t in zip(found, true, strict=True)
        for i in range(len(f) - WINDOW + 1)
        if np.isfinite(t[i : i + WINDOW]).all()
    ]
    return float(np.mean(scores))


@contextmanager
def worker_pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of processes with one thread each; stop them if the block fails.

    Raises:
        Error: A worker process was killed.
    """
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawn, torch.set_num_threads, (1,)) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise Error("a worker was killed; is there enough memory?") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()  # otherwise they would finish their jobs first
            raise


def positive_integer(text: str) -> int:
    """Convert an option's value to a whole number of at least 1.

    >>> positive_integer("12")
    12
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def as_command(program: str, run: Callable[[], int]) -> int:
    """Return the exit code of a command; errors of the user are printed on one line, as by `ul`."""
    try:
        return run()
    except Error as error:
        print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: stopped", file=sys.stderr)
        return 130
