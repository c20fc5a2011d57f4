"""Crossings of objects, read from crossings.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ullayers.learn.checkpoint import RunError
from ullayers.learn.regular_files import read_regular
from ullayers.video.atomic_files import replacing

MAX_TABLE_BYTES = 2**28
CROSSINGS = "crossings.csv"
NAMES = ("sequence", "first_frame", "last_frame", "start", "end", "objects", "confidence")


@dataclass(frozen=True)
class Crossing:
    """Frames in which objects touch or hide each other.

    Attributes:
        sequence: Name of the source.
        first_frame: Number of the first frame.
        last_frame: Number of the last frame.
        start: Time of the first frame in seconds.
        end: Time of the last frame.
        objects: Numbers of the objects.
        confidence: Confidence from 0 to 1 that each object has the same number before and after.
    """

    sequence: str
    first_frame: int
    last_frame: int
    start: float
    end: float
    objects: tuple[int, ...]
    confidence: float


def read_crossings(path: Path) -> list[Crossing]:
    r"""Read crossings.csv; a missing file has no crossings.

    Raises:
        RunError: The table is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "crossings.csv")
        ...     _ = path.write_text(
        ...         "sequence,first_frame,last_frame,start,end,objects,confidence\n"
        ...         "a,10,20,0.4,0.8,1 3,0.95\n"
        ...     )
        ...     [crossing] = read_crossings(path)
        >>> crossing.objects, crossing.confidence
        ((1, 3), 0.95)
    """
    try:
        text = read_regular(path, MAX_TABLE_BYTES).decode()
        rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        missing = set(NAMES) - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"no column {sorted(missing)[0]}")
        return [_crossing(row) for row in rows]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
        raise RunError(f"{path}: is damaged ({error}); write it again with --force") from error


def _crossing(row: dict[str, str]) -> Crossing:
    confidence = float(row["confidence"])
    if not 0 <= confidence <= 1:
        raise ValueError(f"expected a confidence from 0 to 1, got {confidence}")
    return Crossing(
        sequence=row["sequence"],
        first_frame=int(row["first_frame"]),
        last_frame=int(row["last_frame"]),
        start=float(row["start"]),
        end=float(row["end"]),
        objects=tuple(int(number) for number in row["objects"].split()),
        confidence=confidence,
    )


def crossing_rows(crossings: Sequence[Crossing]) -> str:
    r"""Return crossings as rows of crossings.csv.

    >>> crossing_rows([Crossing("a", 10, 20, 0.4, 0.8, (1, 3), 0.95)])
    'a,10,20,0.400000,0.800000,1 3,0.950\n'
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for each in crossings:
        times = f"{each.start:.6f}", f"{each.end:.6f}"
        objects = " ".join(map(str, each.objects))
        frames = each.first_frame, each.last_frame
        rows.writerow([each.sequence, *frames, *times, objects, f"{each.confidence:.3f}"])
    return text.getvalue()


def renumbered(rows: str, numbers: Sequence[int]) -> str:
    r"""Return rows of crossings.csv with renumbered objects.

    Args:
        rows: From `crossing_rows`.
        numbers: New numbers of the objects 1, 2, ...

    >>> renumbered("a,10,20,0.400000,0.800000,1 3,0.950\n", [4, 5, 2])
    'a,10,20,0.400000,0.800000,2 4,0.950\n'
    """
    lines = [",".join(NAMES) + "\n", *rows.splitlines(keepends=True)]
    crossings = [_crossing(row) for row in csv.DictReader(lines, strict=True)]
    found = [
        replace(each, objects=tuple(sorted(numbers[number - 1] for number in each.objects)))
        for each in crossings
    ]
    return crossing_rows(sorted(found, key=lambda each: (each.first_frame, each.objects)))


def write_crossings(path: Path, rows: Sequence[str]) -> None:
    """Write crossings.csv atomically.

    Args:
        path: The file.
        rows: Lines of the table, one text for each sequence.
    """
    with replacing(path) as file:
        file.write(",".join(NAMES) + "\n" + "".join(rows))
