"""Final output of `ul learn` and `ul apply`: results to stdout, warnings to stderr."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence

from ullayers.cli.failures import say
from ullayers.run.plan import Run
from ullayers.run.summary import (
    Results,
    excessive_crowded_share,
    excessive_unsure_share,
    risen_objective,
    summary_lines,
    unknown_code_reasons,
)


def print_summary(
    arguments: Namespace,
    run: Run,
    exported: Results,
    *,
    bad: Mapping[str, str],
    scores: Sequence[tuple[str, str]] = (),
) -> None:
    """Print warnings, the scores and the summary of a run applied to video.

    Args:
        arguments: Parsed command line.
        run: The applied run.
        exported: Its results.
        bad: Inputs that could not be read, or only in part, with their errors.
        scores: Names and values, if ground truth is known.
    """
    _report_bad_inputs(arguments, bad)
    _warn(arguments, run, exported)
    if arguments.quiet:
        return
    for name, value in scores:
        print(f"{name:50} {value:>8}")
    for line in summary_lines(run, exported):
        print(line)


def _report_bad_inputs(arguments: Namespace, bad: Mapping[str, str]) -> None:
    for name, error in bad.items():
        how = "used in part" if "can be read" in error else "left out"
        text = error if name in error else f"{name}: {error}"
        say(arguments.command, f"{how}: {text}")


def _warn(arguments: Namespace, run: Run, exported: Results) -> None:
    if (share := excessive_unsure_share(run, exported)) is not None:
        no_overlay = arguments.command == "apply" and not arguments.overlay
        option = " (made by --overlay)" if no_overlay else ""
        say(
            arguments.command,
            f"warning: the positions are unreliable: the confidence is below 0.5 in {share:.1%} of "
            f"frames; check overlay.mp4{option}, or use a part of the video: --roi, --start, --end",
        )
    for name, notes in exported.notes.items():
        for note in notes:
            say(arguments.command, f"warning: {name}: {note[0].lower()}{note[1:].rstrip('.')}")
    if (share := excessive_crowded_share(exported)) is not None:
        say(
            arguments.command,
            f"warning: something else of similar size moves in {share:.1%} of frames; choose one "
            "object with --roi, or track several with --objects",
        )
    for reason in unknown_code_reasons(run):
        text = reason.rstrip(".")
        say(arguments.command, f"warning: the code is unreliable: {text[0].lower()}{text[1:]}")
    rise = risen_objective(run)
    if arguments.command != "apply" and rise is not None:
        say(
            arguments.command,
            f"warning: training failed: J rose from {rise[0]:.2f} to {rise[1]:.2f}; try a smaller "
            "--lr",
        )
