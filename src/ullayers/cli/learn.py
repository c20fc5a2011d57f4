"""`ul learn`: train on video, apply the network to all frames, and write a report."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ullayers.cli.checks import (
    check_corrections_alone,
    check_same_inputs,
    check_same_options,
    given_reading,
    given_zones,
    make_config,
)
from ullayers.cli.failures import quiet_writer_threads, resumable, say
from ullayers.cli.processes import writes_results
from ullayers.cli.progress import Progress
from ullayers.cli.signals import StopFlag, stop_at_checks
from ullayers.cli.summary import print_summary
from ullayers.errors import UserError
from ullayers.learn.footage import expected_frames
from ullayers.learn.training import Learner, Record
from ullayers.run.plan import Run, csv_name, load_run, plan_run, sources_of
from ullayers.run.relearning import plan_relearning
from ullayers.run.results import MEASURES, apply_to_inputs, frames_to_apply, score, write_reports
from ullayers.run.train import learn_run
from ullayers.tracks.behaviour import check_measures
from ullayers.tracks.masks import OUTLINES, remove_if_damaged
from ullayers.tracks.table import read_answers
from ullayers.video.reader import Source


def run(arguments: Namespace) -> None:
    """Learn from the inputs, or continue the run in --out."""
    learn(arguments)


def learn(arguments: Namespace, truth: Path | None = None) -> None:
    """Learn from the inputs, or continue the run in --out.

    Args:
        arguments: Parsed command line of `ul learn`.
        truth: Table of true positions to compare with.
    """
    if arguments.resume:
        if arguments.corrections is not None:
            raise UserError("--resume continues with the corrections of the run; leave them out")
        planned = _load(arguments)
        _check_outlines(planned)
        if planned.finished:
            _report_finished(arguments, planned, truth)
            return
        sources = sources_of(planned)
    else:
        planned, sources = _plan(arguments)
    with resumable(lambda: _has_progress(planned)):
        if planned.net is None:
            _train(arguments, planned, sources)
        if writes_results():
            _write_outputs(arguments, planned, sources, truth)


def _load(arguments: Namespace) -> Run:
    """Load the run in --out, and refuse options that differ from its own."""
    run = load_run(arguments.out, arguments.device)
    if run.watched:
        raise UserError(
            f"{arguments.out}: was written by ul watch; continue it with ul watch --resume"
        )
    run.skip_bad |= arguments.skip_bad
    run.masks |= arguments.masks
    check_same_inputs(arguments.inputs, run)
    check_same_options(arguments, run, lambda: sources_of(run)[0].probe())
    _apply_new_measures(arguments, run)
    return run


def _check_outlines(run: Run) -> None:
    """Remove damaged outlines, so that they are written again."""
    path = run.folder / OUTLINES
    if remove_if_damaged(path):
        say("learn", f"{path}: was damaged, and is written again")


def _apply_new_measures(arguments: Namespace, run: Run) -> None:
    """Apply new zones or a new pixel size; files that depend on them then count as missing."""
    before = run.zones, run.mm_per_pixel
    zones = given_zones(arguments) or run.zones
    mm_per_pixel = arguments.mm_per_pixel or run.mm_per_pixel
    if (zones, mm_per_pixel) == before:
        return
    sources = sources_of(run)
    infos = [source.probe() for source in sources]
    check_measures(run.config.task, zones, mm_per_pixel, sources, infos)
    run.zones, run.mm_per_pixel = zones, mm_per_pixel
    run.write_config()
    for name in (*MEASURES, "report.html"):
        (run.folder / name).unlink(missing_ok=True)


def _plan(arguments: Namespace) -> tuple[Run, list[Source]]:
    if arguments.corrections is not None:
        check_corrections_alone(arguments)
        folder = Path(arguments.corrections)
        return plan_relearning(
            folder, arguments.out, device=arguments.device, force=arguments.force
        )
    if not arguments.inputs:
        raise UserError("give a video file, a folder or a pattern to learn from")
    return plan_run(
        arguments.inputs,
        arguments.out,
        make_config(arguments),
        skip_bad=arguments.skip_bad,
        masks=arguments.masks,
        zones=given_zones(arguments),
        mm_per_pixel=arguments.mm_per_pixel,
        force=arguments.force,
        **given_reading(arguments),
    )


def _has_progress(run: Run) -> bool:
    """Return whether --resume would find work of this run, not of an earlier one."""
    if run.fresh:
        return False
    return run.net is not None or (run.folder / "checkpoint" / "state.json").exists()


def _report_finished(arguments: Namespace, run: Run, truth: Path | None) -> None:
    if arguments.quiet:
        return
    if truth is not None:
        track = read_answers(run.folder / csv_name(run))[0]
        for name, value in score(run, sources_of(run)[0], track, truth):
            print(f"{name:50} {value:>8}")
    print(f"{run.folder}: already finished; open {run.folder / 'report.html'}")


def _train(arguments: Namespace, run: Run, sources: Sequence[Source]) -> None:
    """Read the frames and train, with progress; a stop signal takes effect between two steps."""
    with (
        quiet_writer_threads(),
        stop_at_checks() as stop,
        _ReadingProgress(run, sources, stop, arguments.quiet) as reading,
        closing(learn_run(run, sources, reading.show)) as steps,
    ):
        training: Progress | None = None
        try:
            for learner, record in steps:
                if training is None:
                    reading.bar.close()
                    quiet = arguments.quiet
                    training = Progress("training", "steps", learner.total, quiet=quiet)
                _show_step(training, learner, record)
                stop.check()
        finally:
            if training is not None:
                training.bar.close()


class _ReadingProgress(Progress):
    """Progress of reading the training frames."""

    def __init__(self, run: Run, sources: Sequence[Source], stop: StopFlag, quiet: bool) -> None:
        super().__init__("reading", "frames", quiet=quiet)
        self.stop = stop
        totals = [expected_frames([s.probe()], run.reading_of(s)) for s in sources]
        self.total = None if None in totals else sum(filter(None, totals))

    def show(self, count: int) -> None:
        """Show the number of frames read, and stop if requested."""
        self.to(count)
        self.stop.check()


def _show_step(progress: Progress, learner: Learner, record: Record) -> None:
    """Show J of a step and its trial, because J of the next trial starts high again."""
    number = f"trial {record.trial + 1} of {len(learner.plan)}"
    if len(learner.plan) == 1:
        name = ""
    else:
        name = "best trial: " if record.step > learner.trial_steps else f"{number}: "
    is_shown = record.held_out is not None and learner.trials[record.trial].comparable
    held_out = f", {record.held_out:.2f} on held-out frames" if is_shown else ""
    progress.to(learner.done, f"{name}J {record.objective:.2f} ({record.kind}){held_out}")


def _write_outputs(
    arguments: Namespace, run: Run, sources: Sequence[Source], truth: Path | None
) -> None:
    """Write missing result files, and print the summary."""
    resume = arguments.resume
    total = frames_to_apply(run, sources, resume=resume)
    with Progress("applying", "frames", total, quiet=arguments.quiet) as progress:
        exported = apply_to_inputs(run, sources, resume=resume, progress=progress.to)
    scores = write_reports(run, sources, exported, truth)
    print_summary(arguments, run, exported, bad=run.bad | exported.bad, scores=scores)
    if not arguments.quiet:
        print(f"open {run.folder / 'report.html'} and {run.folder / 'overlay.mp4'}")
