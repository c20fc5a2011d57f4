"""The command `python -m experiments`: run experiments and write results.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from experiments.common import as_command, positive_integer
from experiments.paper import NAMES
from experiments.runner import PAGE, reproduce_all
from ullayers.run.folder import locked

PROGRAM = "python -m experiments"
GOAL_MISSED = 1  # exit code
DESCRIPTION = """\
Run experiments of the paper and further ones, compare with other methods, and
write results.md with tables and figures. Labels are used for scores only, except
in rows that say otherwise. The exit code is 1 if a result misses its goal."""
EXAMPLES = """\
examples:
  python -m experiments synthetic
  python -m experiments walk pan --data data --out found
  python -m experiments all --data data --quick"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: The command line without the program name; None for `sys.argv`.
    """
    given = make_parser().parse_args(arguments)
    # Experiments use a process per core; OpenCV's threads would wait for each other in loops.
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    return as_command(PROGRAM, lambda: run(given))


def run(given: argparse.Namespace) -> int:
    """Run the experiments, and print a line for each."""
    goal_missed = False
    with locked(given.out):
        for result in reproduce_all(
            given.names,
            given.data,
            given.out,
            first_seed=given.seed,
            seed_count=given.seeds,
            quick=given.quick,
            resume=given.resume,
            force=given.force,
            quiet=given.quiet,
        ):
            if not given.quiet:
                print(f"{result.name}: {result.seconds:.0f} s", flush=True)
            for claim in result.failed:
                goal_missed = True
                missed = f"does not hold: {claim.what}: {claim.value:.4g}"
                print(f"{PROGRAM}: {result.name}: {missed}", file=sys.stderr)
    if not given.quiet:
        print(f"open {os.path.join(given.out, PAGE)}")
    return GOAL_MISSED if goal_missed else 0


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
        "names",
        nargs="+",
        choices=[*NAMES, "all"],
        metavar="NAME",
        help=f"{', '.join(NAMES)}, or all",
    )
    add(
        "--data",
        default=os.environ.get("ULLAYERS_DATA") or None,
        metavar="DIR",
        help="folder of the data sets (default: $ULLAYERS_DATA)",
    )
    add(
        "--out",
        default="reproduced",
        metavar="DIR",
        help="folder to write to (default: %(default)s)",
    )
    add(
        "--quick",
        action="store_true",
        help="run small versions, which only check that learning works",
    )
    add(
        "--seeds",
        type=positive_integer,
        metavar="N",
        help="number of seeds per row (default: 5, or 1 with --quick)",
    )
    add("--seed", type=int, default=0, metavar="N", help="first seed (default: %(default)s)")
    add("--quiet", action="store_true", help="show no progress")
    add("--force", action="store_true", help="replace earlier results in --out")
    add("--resume", action="store_true", help="keep experiments that are finished")
    return parser


if __name__ == "__main__":
    sys.exit(main())
