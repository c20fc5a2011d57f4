"""One run of `ul bench`: the parts that were asked for, row by row, and the file of all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from ullayers.errors import UserError
from ullayers.research.bench.timing import How, Row, pinned, write

BUSY = 0.5  # processes that wait for a core, in the last minute


def run(
    parts: Sequence[str], how: How, say: Callable[[str], None], file: Path | None = None
) -> None:
    """Measure, say a line for each row as it comes, and write all of them to a file.

    Args:
        parts: some of `PARTS`.
        how: to measure.
        say: gets every line of the tables.
        file: for JSON; its folder must be there.
    """
    cores, rows = os.cpu_count() or 1, list[Row]()
    if how.threads > cores:
        raise UserError(f"expected --threads of at most {cores}, the cores here, got {how.threads}")
    for doubt in _doubts(how, cores):
        say(doubt)
    with pinned(how.threads):
        for part in parts:
            for row, text in measure(part, how):
                if row:
                    rows.append({"part": part, **row})
                say(text)
    if file is not None:
        write(rows, how, file)


def _doubts(how: How, cores: int) -> Iterator[str]:
    """Why the numbers may not mean much."""
    if how.quick:
        yield "a trial of a few small steps: its numbers mean little"
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not every system knows it
        load = 0.0
    if load + how.threads > cores + BUSY:
        yield f"this machine is busy (load {load:.1f}, {cores} cores): times may be too long"


def measure(part: str, how: How) -> Iterator[tuple[Row, str]]:
    """The rows of one part, each with its line of the table; a header has a line only."""
    module = import_module(
        f"ullayers.research.bench.{part}"
    )  # loaded where used: peers are slow to import
    if hasattr(module, "HEADER"):
        yield {}, module.HEADER
    for row in module.rows(how):
        yield row, row["note"] if "note" in row else module.line(row)
