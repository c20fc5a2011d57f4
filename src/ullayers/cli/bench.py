"""`ul bench`: measure speed, memory and quality."""

from __future__ import annotations

import os
from argparse import Namespace
from functools import partial
from pathlib import Path

import ullayers.research.bench.run as benchmarks
from ullayers.errors import UserError
from ullayers.learn.config import choose_device
from ullayers.research.bench.names import PARTS
from ullayers.research.bench.timing import BenchOptions
from ullayers.run.plan import check_device


def run(arguments: Namespace) -> None:
    """Run the benchmarks and print their tables."""
    arguments.device = choose_device(arguments.device)
    check_device(arguments.device)
    parts = PARTS if arguments.what == "all" else [arguments.what]
    options = BenchOptions(**{name: getattr(arguments, name) for name in vars(BenchOptions())})
    benchmarks.run(parts, options, partial(print, flush=True), _json_file(arguments.json))


def _json_file(path: str | None) -> Path | None:
    """Return the file for --json, which must be writable before hours of measurements."""
    if path is None:
        return None
    file = Path(path)
    if file.is_dir() or not os.access(file.absolute().parent, os.W_OK):
        raise UserError(f"{file}: cannot be written; give another --json")
    return file
