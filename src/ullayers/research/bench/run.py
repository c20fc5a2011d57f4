"""Run parts of `ul bench`: print each row as it is measured and write all of them to a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from ullayers.errors import UserError
from ullayers.research.bench.timing import BenchOptions, Row, pinned_threads, write

MAX_WAITING = 0.5  # average number of processes waiting for a core on a machine that is not busy


def run(
    parts: Sequence[str],
    options: BenchOptions,
    say: Callable[[str], None],
    file: Path | None = None,
) -> None:
    """Measure, print one line per row, and write all rows to a file.

    Args:
        parts: Some of `PARTS`.
        options: How to measure.
        say: Called with each line of the tables.
        file: JSON file to write; its folder must exist.
    """
    cores = os.cpu_count() or 1
    if options.threads > cores:
        raise UserError(
            f"expected --threads of at most {cores}, the cores here, got {options.threads}"
        )
    for warning in _warnings(options, cores):
        say(warning)
    found: list[Row] = []
    with pinned_threads(options.threads):
        for part in parts:
            for row, text in measure(part, options):
                if row:
                    found.append({"part": part, **row})
                say(text)
    if file is not None:
        write(found, options, file)


def _warnings(options: BenchOptions, cores: int) -> Iterator[str]:
    """Yield reasons why the numbers may be unreliable."""
    if options.quick:
        yield "quick trial with small sizes: the numbers mean little"
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not available on every system
        load = 0.0
    if load + options.threads > cores + MAX_WAITING:
        yield f"this machine is busy (load {load:.1f}, {cores} cores): times may be too long"


def measure(part: str, options: BenchOptions) -> Iterator[tuple[Row, str]]:
    """Yield each row of a part with its line of the table; a header is a line without a row."""
    # Imported here because other packages are slow to import.
    module = import_module(f"ullayers.research.bench.{part}")
    if hasattr(module, "HEADER"):
        yield {}, module.HEADER
    for row in module.rows(options):
        yield row, row["note"] if "note" in row else module.line(row)
