"""What the experiments share: how they are run, what they give back, and how codes are scored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ullayers.research.experiments.processes import worker_pool

Floats = NDArray[np.floating[Any]]
Job = TypeVar("Job")
Done = TypeVar("Done")

WINDOW = 5  # frames over which the physics-constraint authors correlate


@dataclass(frozen=True)
class Setting:
    """Where an experiment finds its data and leaves its figures, and how much it does.

    Attributes:
        data: the folder of the data sets.
        out: the experiment's own folder.
        seeds: of the runs that every row is the mean of.
        quick: a small version, to see that learning works.
        progress: called with what has just been done.
    """

    data: Path
    out: Path
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    quick: bool = False
    progress: Callable[[str], None] = lambda what: None

    def each(self, function: Callable[[Job], Done], jobs: Sequence[Job]) -> list[Done]:
        """What a function of a module gives for each job, on all cores, in order.

        A job runs in a process of its own with one thread: two seeds side by side are faster than
        one after the other on two threads. So a job is a few plain values and reads its own data.
        """
        done: list[Done] = []
        with worker_pool(min(os.cpu_count() or 1, len(jobs))) as pool:
            for job, result in zip(jobs, pool.map(function, jobs), strict=True):
                done.append(result)
                self.progress(self._label(job))
        return done

    def _label(self, job: object) -> str:
        parts = job if isinstance(job, tuple) else (job,)
        return " ".join(str(part) for part in parts if part != str(self.data))

    def picture(self, figure: Figure, name: str, caption: str, *, of_data: bool = False) -> Picture:
        """Keep a figure as a PNG."""
        self.out.mkdir(parents=True, exist_ok=True)
        file = f"frames_{name}.png" if of_data else f"{name}.png"
        figure.savefig(self.out / file, dpi=110, bbox_inches="tight", facecolor="white")
        return Picture(file, caption, of_data)


@dataclass(frozen=True)
class Picture:
    """A figure in the experiment's folder; `of_data` if frames of the data can be seen in it."""

    file: str
    caption: str
    of_data: bool = False


@dataclass
class Table:
    """Rows of numbers side by side.

    Attributes:
        title: what is compared.
        columns: names of the numbers.
        best: for each column "low", "high", or "" if no end of it is better.
        rows: a name, and for each column its value of every seed.
        note: what a reader must know.

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
        """One more row: for each column a value, or those of all seeds; nan where there is none."""
        assert len(values) == len(self.columns), f"{name}: {len(values)} of {self.columns}"
        lists = [np.atleast_1d(np.asarray(value, float)).tolist() for value in values]
        self.rows[name] = lists

    def mean(self, name: str, column: str) -> float:
        """Of a row over its seeds."""
        return float(np.mean(self.rows[name][self.columns.index(column)]))

    def markdown(self) -> str:
        """The table, with the best of each column in bold."""
        winners = [self._winner(i) for i in range(len(self.columns))]
        lines = [
            f"| {' | '.join([self.title, *self.columns])} |",
            "|---" * (len(winners) + 1) + "|",
        ]
        for name, values in self.rows.items():
            cells = [_cell(v) if name not in w else f"**{_cell(v)}**" for v, w in
                     zip(values, winners, strict=True)]  # fmt: skip
            lines.append(f"| {' | '.join([name, *cells])} |")
        return "\n".join(lines + [f"\n{self.note.strip()}"] * bool(self.note))

    def _winner(self, column: int) -> set[str]:
        means = {name: np.mean(values[column]) for name, values in self.rows.items()}
        means = {name: mean for name, mean in means.items() if np.isfinite(mean)}
        if not means or not self.best[column]:
            return set()
        top = min(means.values()) if self.best[column] == "low" else max(means.values())
        return {name for name, mean in means.items() if mean == top}


def _cell(values: Sequence[float]) -> str:
    if not np.isfinite(np.mean(values)):
        return "-"
    digits = 3 if np.max(np.abs(values)) < 2 else 2
    spread = f" ± {np.std(values):.{digits}f}" * (len(values) > 1)
    return f"{np.mean(values):.{digits}f}{spread}"


@dataclass(frozen=True)
class Claim:
    """Something that must hold, or that is aimed at.

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
        """Whether it holds; never for nan."""
        return bool(self.at_least <= self.value <= self.at_most)


@dataclass
class Outcome:
    """What an experiment found.

    Attributes:
        title: of its section.
        text: what was done, as Markdown.
        tables, pictures, claims: in the order of the page.
        files: names of other files it wrote, with what is in them.
    """

    title: str
    text: str
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def decode_angle(codes: Floats, angles: Floats, unseen: Floats) -> Floats:
    """Degrees read from codes by one linear map to sine and cosine.

    Args:
        codes: (n, d) of frames with known angles, to fit the map.
        angles: (n,) their angles, in degrees.
        unseen: (m, d) codes to read.

    Returns:
        (m, 2): the sine and the cosine; `np.arctan2` of them is the angle.

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
    """(n, 2) of angles (n,).

    >>> sine_and_cosine(np.array([0.0, 90.0])).round().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    radians = np.radians(degrees)
    return np.stack([np.sin(radians), np.cos(radians)], 1)


def _with_one(codes: Floats) -> Floats:
    return np.concatenate([codes, np.ones((len(codes), 1))], 1)


def apart(found: Floats, true: Floats) -> Floats:
    """Degrees between two angles, the short way round.

    >>> apart(np.array([350.0]), np.array([20.0])).tolist()
    [30.0]
    """
    between: Floats = np.abs((found - true + 180) % 360 - 180)
    return between


def correlation(a: Floats, b: Floats) -> float:
    """Of two series where both are known; 0 if one is constant.

    >>> round(correlation(np.array([1.0, 2.0, np.nan]), np.array([2.0, 4.0, 9.0])), 3)
    1.0
    """
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def window_score(found: Sequence[Floats], true: Sequence[Floats]) -> float:
    """Mean absolute correlation over windows of five frames, as the physics-constraint authors do.

    Args:
        found: a series for each sequence.
        true: likewise.
    """
    scores = [
        abs(correlation(f[i : i + WINDOW], t[i : i + WINDOW]))
        for f, t in zip(found, true, strict=True)
        for i in range(len(f) - WINDOW + 1)
        if np.isfinite(t[i : i + WINDOW]).all()
    ]
    return float(np.mean(scores))
