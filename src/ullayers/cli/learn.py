"""`ul learn`: train on video, apply the network to all frames, and write a report."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path

from ullayers.cli.messages import print_summary, resumable, say
from ullayers.cli.options import given_options
from ullayers.run.pipeline import follow, work
from ullayers.run.plan import Plan, csv_name, has_progress, plan, sources_of
from ullayers.run.progress import Bars
from ullayers.run.results import score
from ullayers.tracks.table import read_answers


def run(arguments: Namespace) -> None:
    """Learn from the inputs, or continue the run in --out."""
    learn(arguments)


def learn(arguments: Namespace, truth: Path | None = None) -> None:
    """Learn from the inputs, or continue the run in --out.

    Args:
        arguments: Parsed command line of `ul learn`.
        truth: Table of true positions to compare with.
    """
    planned, sources = plan(arguments.inputs, given_options(arguments), partial(say, "learn"))
    if planned.finished:
        _report_finished(arguments, planned, truth)
        return
    known = resumable(lambda: has_progress(planned))
    with known, Bars(arguments.quiet) as bars:
        events = work(planned, sources, resume=arguments.resume, truth=truth)
        outcome = follow(events, bars.show)
    bad = planned.bad | outcome.exported.bad
    print_summary(arguments, planned, outcome.exported, bad=bad, scores=outcome.scores)
    if not arguments.quiet:
        print(f"open {planned.folder / 'report.html'} and {planned.folder / 'overlay.mp4'}")


def _report_finished(arguments: Namespace, run: Plan, truth: Path | None) -> None:
    if arguments.quiet:
        return
    if truth is not None:
        track = read_answers(run.folder / csv_name(run))[0]
        for name, value in score(run, sources_of(run)[0], track, truth):
            print(f"{name:50} {value:>8}")
    print(f"{run.folder}: already finished; open {run.folder / 'report.html'}")
