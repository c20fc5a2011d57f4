"""What a command says at its end: results, warnings, errors, and its exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ullayers.errors import Error

if TYPE_CHECKING:  # they load torch, which `ul --help` does not need
    from ullayers.run.plan import Plan
    from ullayers.run.summary import Results

SUCCESS = 0
BUG = 1
USER_ERROR = 2
INTERRUPTED = 130
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STANDARD_OUTPUT = "standard output"
PRINT_LAST = ("demo", "learn", "apply", "export")  # commands that print when all files are written
CAN_RESUME = "finished work is kept; continue with --resume"
CANNOT_RESUME = "nothing was finished; start again"


def say(command: str, text: str) -> None:
    """Print one line to stderr, preceded by the name of the command."""
    print(f"ul {command}: {' '.join(text.split())}", file=sys.stderr)


@contextmanager
def resumable(has_progress: Callable[[], bool]) -> Iterator[None]:
    """Add a note to any exception if --resume would find finished work.

    Args:
        has_progress: Whether there is finished work, called when an exception passes.
    """
    try:
        yield
    except BaseException as error:
        if has_progress():
            error.add_note(CAN_RESUME)
        raise


def explain(arguments: Namespace, error: BaseException) -> int:
    """Print the error and return the exit code.

    Args:
        arguments: Parsed command line.
        error: The exception that ended the command.
    """
    if isinstance(error, BrokenPipeError):  # the reader of our output has closed it: `... | head`
        _discard_output()
        return SUCCESS
    if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
        _discard_output()
    if isinstance(error, KeyboardInterrupt):
        say(arguments.command, f"stopped; {_resume_hint(arguments, error)}")
        return INTERRUPTED
    message = _user_message(arguments, error)
    if message is None:
        traceback.print_exception(error)
        say(arguments.command, "internal error; please report it with the traceback above")
        return BUG
    say(arguments.command, message)
    return USER_ERROR


def _discard_output() -> None:
    """Discard what is still to be printed, which would fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _user_message(arguments: Namespace, error: BaseException) -> str | None:
    """Return the message of an error that the user can fix, None for any other error."""
    if isinstance(error, Error):
        return str(error)
    if not isinstance(error, OSError):
        return None
    if error.filename == STANDARD_OUTPUT:
        is_done = arguments.command in PRINT_LAST
        hint = "all files are written" if is_done else _resume_hint(arguments, error)
        return f"{STANDARD_OUTPUT} cannot be written to ({error.strerror}); {hint}"
    if error.errno in DISK_FULL:
        return f"the disk is full; free some space; {_resume_hint(arguments, error)} ({error})"
    if error.errno is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check --out and the inputs"
    return None


def _resume_hint(arguments: Namespace, error: BaseException) -> str:
    can_resume = arguments.resume or CAN_RESUME in getattr(error, "__notes__", ())
    return CAN_RESUME if can_resume else CANNOT_RESUME


def print_summary(
    arguments: Namespace,
    run: Plan,
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
    from ullayers.run.summary import summary_lines

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


def _warn(arguments: Namespace, run: Plan, exported: Results) -> None:
    from ullayers.run.summary import (
        excessive_crowded_share,
        excessive_unsure_share,
        risen_objective,
        unknown_code_reasons,
    )

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
