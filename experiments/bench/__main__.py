"""The command `python -m experiments.bench`: print each row as it is measured."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from experiments.bench import PARTS
from experiments.bench.timing import BenchOptions, Row, pinned_threads, write
from experiments.common import as_command, positive_integer
from ullayers.errors import Error
from ullayers.learning.config import choose_device
from ullayers.run.plan import check_device

PROGRAM = "python -m experiments.bench"
DESCRIPTION = """\
Compare this package with others in one run: all candidates alternate, and the
fastest round counts. Ratios can be compared between machines; times cannot.
  layers  forward and backward pass, against batch norm, layer norm, convolution
  growth  time and memory by the size of each input, with fitted exponents
  peers   SlowFeatures and learning, against deeptime, sklearn-sfa, scikit-learn
          and CEBRA (`make bench` installs them)
  video   decoding and locating, against OpenCV; profile of `ul learn`
  all     everything"""
EXAMPLES = """\
examples:
  python -m experiments.bench --device cuda
  python -m experiments.bench growth --plots charts
  python -m experiments.bench all --quick --json bench.json"""
MAX_WAITING = 0.5  # average number of processes waiting for a core on a machine that is not busy


def measure_all(
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
        raise Error(f"expected --threads of at most {cores}, the cores here, got {options.threads}")
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
    module = import_module(f"experiments.bench.{part}")
    if hasattr(module, "HEADER"):
        yield {}, module.HEADER
    for row in module.rows(options):
        yield row, row["note"] if "note" in row else module.line(row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: The command line without the program name; None for `sys.argv`.
    """
    given = make_parser().parse_args(arguments)
    return as_command(PROGRAM, lambda: run(given))


def run(given: argparse.Namespace) -> int:
    """Run the benchmarks and print their tables."""
    given.device = choose_device(given.device)
    check_device(given.device)
    parts = PARTS if given.what == "all" else [given.what]
    options = BenchOptions(**{name: getattr(given, name) for name in vars(BenchOptions())})
    file = given.json
    if file and (file.is_dir() or not os.access(file.absolute().parent, os.W_OK)):
        raise Error(f"{file}: cannot be written; give another --json")  # before hours of work
    measure_all(parts, options, partial(print, flush=True), file)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "what",
        nargs="?",
        choices=[*PARTS, "all"],
        default=PARTS[0],
        metavar="PART",
        help=f"{', '.join(PARTS)}, or all (default: %(default)s)",
    )
    add(
        "--device",
        default="auto",
        help="device of the layers, such as cpu or cuda; auto is cuda if there is one, cpu "
        "otherwise (default: %(default)s)",
    )
    add(
        "--threads",
        type=positive_integer,
        default=1,
        metavar="N",
        help="number of CPU threads (default: %(default)s)",
    )
    add(
        "--quick",
        action="store_true",
        help="run a few small steps, as a test; the numbers mean little",
    )
    add("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    add("--plots", type=Path, metavar="DIR", help="draw the charts of growth into this folder")
    add(
        "--video",
        metavar="FILE",
        help="video to measure on (default: the mouse of $ULLAYERS_DATA, or the demo's scene)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
