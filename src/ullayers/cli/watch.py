"""`ul watch`: learn while frames arrive."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ullayers.cli.checks import given_options, given_reading
from ullayers.cli.failures import resumable, say
from ullayers.cli.view import View
from ullayers.errors import UserError
from ullayers.run.plan import check_same_options, given_config, load_run
from ullayers.run.stopping import stop_at_checks
from ullayers.run.watch import WatchResult, follows_several, keep_results, watch
from ullayers.run.watcher import keep_outlines
from ullayers.video.sources import Info, find_sources, open_live

NOTHING = (
    "no object was found: nothing has moved away from the place where it was first seen; use "
    "--objects 1 for a position in every frame"
)

Show = Callable[[WatchResult], None]


def run(arguments: Namespace) -> None:
    """Watch the source until it ends or a stop signal arrives."""
    if arguments.resume:
        _check_resume(arguments)
    config = given_config(given_options(arguments))
    if arguments.objects is not None and config.task != "locate":
        raise UserError(f"--objects is for --task locate; leave it out for {config.task}")
    sightings = watch(
        arguments.source,
        config=config,
        objects=None if arguments.objects == "auto" else arguments.objects,
        folder=arguments.out,
        every=arguments.every,
        force=arguments.force,
        resume=arguments.resume,
        **given_reading(arguments),
    )
    if arguments.out is not None:
        sightings = keep_results(keep_outlines(sightings, arguments.out), arguments.out)
    with (
        resumable(lambda: _has_checkpoint(arguments)),
        stop_at_checks() as stop,
        closing(sightings),
        _output(arguments) as show,
    ):
        numbers: set[int] | None = None
        for sighting in sightings:
            if sighting.objects is not None:
                numbers = (numbers or set()) | {each.number for each in sighting.objects}
            show(sighting)
            stop.check()
    if numbers is not None and not numbers:
        say("watch", NOTHING)


def _check_resume(arguments: Namespace) -> None:
    """Refuse to resume a folder not written by `ul watch`, or with other options."""
    if arguments.out is None:
        raise UserError("--resume needs --out, the folder of the run to continue")
    if Path(arguments.out, "metrics.jsonl").exists():
        raise UserError(f"{arguments.out}: was written by ul learn; give another --out")
    run = load_run(arguments.out)
    given = given_options(arguments)
    given.pop("max_frames", None)  # N more frames, any N
    check_same_options(given, run, lambda: _first_frame(arguments.source))
    auto = arguments.objects == "auto"
    if auto and not (follows_several(arguments.out) and run.config.objects is None):
        raise UserError(
            "this run does not find the number of objects; leave --objects auto out, "
            "or start again with --force"
        )


def _first_frame(source: str) -> Info:
    found = find_sources([source])[0] if os.path.isdir(source) else open_live(source)
    return found.probe()


def _has_checkpoint(arguments: Namespace) -> bool:
    if arguments.out is None:
        return False
    return Path(arguments.out, "checkpoint", "state.json").exists()


@contextmanager
def _output(arguments: Namespace) -> Iterator[Show]:
    """Yield the function that shows a result: nothing, CSV lines or the live view."""
    if arguments.quiet:
        yield lambda sighting: None
    elif arguments.lines or not sys.stdout.isatty():
        yield _LinePrinter().show
    else:
        with closing(View(sys.stdout)) as view:
            yield view.show


class _LinePrinter:
    """Prints results as CSV, with a header before the first."""

    def __init__(self) -> None:
        self.has_header = False

    def show(self, sighting: WatchResult) -> None:
        """Print the lines of one frame."""
        if not self.has_header:
            print(sighting.header, end="")
            self.has_header = True
        print(sighting.lines(), end="", flush=True)
