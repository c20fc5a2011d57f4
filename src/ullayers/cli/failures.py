"""Exit codes of the command, and error messages."""

from __future__ import annotations

import errno
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ullayers.errors import UserError

if TYPE_CHECKING:
    from argparse import Namespace

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


@contextmanager
def quiet_writer_threads() -> Iterator[None]:
    """Do not print OSErrors of threads: TensorBoard's writer also raises them in our thread."""
    previous_hook = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not isinstance(arguments.exc_value, OSError):
            previous_hook(arguments)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = previous_hook


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
    if isinstance(error, UserError):
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
