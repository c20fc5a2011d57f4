"""`ul reproduce`: run the experiments of the paper."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import ullayers.research.reproduce as experiments
from ullayers.cli.failures import resumable, say
from ullayers.cli.progress import Progress
from ullayers.errors import UserError
from ullayers.research.experiments.names import NAMES

GOAL_MISSED = 1  # exit code
SEEDS, QUICK_SEEDS = 5, 1


def run(arguments: Namespace) -> int:
    """Run the experiments, print a line for each, and write the page of results."""
    goal_missed = False
    out = Path(arguments.out)
    with resumable(lambda: any(out.glob("results/*/outcome.json"))):
        for result in _results(arguments, out):
            if not arguments.quiet:
                print(f"{result.name}: {result.seconds:.0f} s", flush=True)
            for claim in result.failed:
                goal_missed = True
                missed = f"{result.name}: does not hold: {claim.what}: {claim.value:.4g}"
                say(arguments.command, missed)
        experiments.write_page(out)
    if not arguments.quiet:
        print(f"open {out / experiments.PAGE}")
    return GOAL_MISSED if goal_missed else 0


def _results(arguments: Namespace, out: Path) -> Iterator[experiments.Result]:
    """Check the command line, then yield results, those of an earlier run with --resume."""
    names = NAMES if "all" in arguments.names else tuple(dict.fromkeys(arguments.names))
    seeds = _seeds(arguments)
    data = _data(arguments, names)
    _check_out(arguments, out)
    for name in names:
        result = experiments.load_result(out, name) if arguments.resume else None
        if result is None or not experiments.is_done(result, seeds, arguments.quick):
            with Progress(name, "runs", quiet=arguments.quiet) as progress:
                result = experiments.reproduce(
                    name, data, out, seeds, quick=arguments.quick, progress=progress.one
                )
        yield result


def _seeds(arguments: Namespace) -> range:
    count = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    return experiments.seeds_from(arguments.seed, count)


def _data(arguments: Namespace, names: Sequence[str]) -> Path:
    if arguments.data is None and any(name in experiments.NEEDED for name in names):
        raise UserError("give --data, the folder of the data sets")
    data = Path(arguments.data or "")
    experiments.check_data(names, data)
    return data


def _check_out(arguments: Namespace, out: Path) -> None:
    if arguments.resume and arguments.force:
        raise UserError("--resume keeps results and --force replaces them; give one of them")
    page = out / experiments.PAGE
    if page.exists() and not (arguments.resume or arguments.force):
        raise UserError(f"{page}: exists; keep it with --resume or replace it with --force")
