"""`ul reproduce`: run the experiments of the paper."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path

from ullayers.cli.failures import resumable, say
from ullayers.research.reproduce import PAGE, reproduce_all
from ullayers.run.progress import Progress

GOAL_MISSED = 1  # exit code


def run(arguments: Namespace) -> int:
    """Run the experiments, print a line for each, and write the page of results."""
    goal_missed = False
    out = Path(arguments.out)
    results = reproduce_all(
        arguments.names,
        arguments.data,
        out,
        first_seed=arguments.seed,
        seed_count=arguments.seeds,
        quick=arguments.quick,
        resume=arguments.resume,
        force=arguments.force,
        progress=partial(Progress, unit="runs", quiet=arguments.quiet),
    )
    with resumable(lambda: any(out.glob("results/*/outcome.json"))):
        for result in results:
            if not arguments.quiet:
                print(f"{result.name}: {result.seconds:.0f} s", flush=True)
            for claim in result.failed:
                goal_missed = True
                missed = f"{result.name}: does not hold: {claim.what}: {claim.value:.4g}"
                say(arguments.command, missed)
    if not arguments.quiet:
        print(f"open {out / PAGE}")
    return GOAL_MISSED if goal_missed else 0
