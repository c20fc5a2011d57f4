"""Entry point of the `ul` command."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, NoReturn, TextIO

from ullayers.cli.messages import INTERRUPTED, STANDARD_OUTPUT, explain
from ullayers.cli.parser import make_parser
from ullayers.errors import Error
from ullayers.run.stopping import stop_with_interrupt

STDERR = 2  # its descriptor
# Imported only when they run: they load torch, which `ul --help` does not need.
COMMANDS = {
    "demo": "ullayers.cli.demo",
    "learn": "ullayers.cli.learn",
    "apply": "ullayers.cli.apply",
    "watch": "ullayers.cli.watch",
    "export": "ullayers.cli.export",
    "score": "ullayers.cli.score",
    "studio": "ullayers.cli.studio",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command line without the program name; None for `sys.argv`.

    Returns:
        The exit code: 0 for success, 1 for a bug, 2 for an error that the user can fix, 130 if
        the command was stopped.
    """
    _prepare_streams()
    # A harmless warning of PyTorch on a GPU: its backward thread starts without a CUDA context.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
    parsed = make_parser().parse_args(arguments)
    # Waiting threads must sleep: on a busy machine, spinning makes training ten times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Frames are processed in two threads already; OpenCV's own threads would wait in a loop.
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    try:
        _check_alone(parsed.command)
        with stop_with_interrupt(), _lock(parsed):
            code = _function(parsed.command)(parsed) or 0
            sys.stdout.flush()  # report an error here, not when the interpreter ends
            return code
    except (Exception, KeyboardInterrupt) as error:
        return explain(parsed, error)


def run() -> NoReturn:
    """Run the command and exit."""
    sys.stdout, sys.stderr = _Output.opened(sys.stdout), _Output.opened(sys.stderr)
    try:
        code = main()
    except KeyboardInterrupt:  # before the command has begun
        print("ul: stopped", file=sys.stderr)
        code = INTERRUPTED
    reading = sys.modules.get("ullayers.video.parallel")
    if reading is not None and reading.is_reading():
        # After an interrupt, a thread may still be computing in PyTorch; ending the interpreter
        # while it does would abort the process.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


class _Output(FileIO):
    """Standard output, whose errors name it, or standard error, whose errors are ignored.

    A full disk behind standard error must not end a command that has nothing else to complain of.
    """

    @classmethod
    def opened(cls, stream: TextIO) -> TextIO:
        """Return a stream that writes to the same file; other streams are returned unchanged."""
        if not isinstance(stream, TextIOWrapper):  # None
            return stream
        if type(getattr(stream.buffer, "raw", stream.buffer)) is not FileIO:  # Windows' console
            return stream
        output = cls(stream.fileno(), "w", closefd=False)
        return TextIOWrapper(
            output if stream.write_through else BufferedWriter(output),  # PYTHONUNBUFFERED
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, data: Any) -> int:
        """Write, as far as possible."""
        try:
            return super().write(data)
        except OSError as error:
            if self.fileno() == STDERR:
                return len(data)
            raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from error


def _prepare_streams() -> None:
    """Keep printing from failing: with a closed stream, or a name that its encoding lacks."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _check_alone(command: str) -> None:
    """Refuse to run in several processes of `torchrun`, which would all write the same files."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Error(
            f"{command} runs in one process; start it without torchrun (layers in your own network "
            "can be trained in several processes, see examples/several_processes.py)"
        )


def _lock(arguments: Namespace) -> AbstractContextManager[None]:
    """Keep a second process from writing to the same folder."""
    from ullayers.run.folder import locked

    if arguments.out is None:
        return nullcontext()
    part = getattr(arguments, "part", None)  # other parts are written at the same time
    name = "" if part is None else ".part-{}-of-{}".format(*part)
    return locked(os.path.join(arguments.out, name))


def _function(command: str) -> Callable[[Namespace], int | None]:
    """Import the module of a command and return its function `run`."""
    function: Callable[[Namespace], int | None] = import_module(COMMANDS[command]).run
    return function
