"""`ul` in processes forked from one that has imported everything, which saves seconds for each.

A server (this file as a program) imports the command once and forks for each request. The forked
process runs `main` as `python -m ullayers` does, or given code as `python -c` does, and ends as an
interpreter does. A second server has imported torch only, for code that looks at what the package
imports.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn, Self, TypedDict

MODULES = (
    "ullayers.cli.learn",
    "ullayers.cli.apply",
    "ullayers.cli.watch",
    "ullayers.cli.export",
    "ullayers.cli.studio",
    "ullayers.studio.server",
    "ullayers.kernels.numba.fresh",
    "matplotlib.font_manager",
    "torch._dynamo",  # imported by the first optimizer
    "torch.distributed.run",
    "torch.utils.tensorboard",
)
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
SIZE = 1 << 16  # limit of a request in bytes


class Request(TypedDict):
    """What to run."""

    arguments: list[str]
    code: str | None
    environment: dict[str, str]
    folder: str


class Forked:
    """A forked process, with the methods of `subprocess.Popen` that tests use.

    Args:
        *arguments: The command line of `ul`.
        code: Code to run instead of the command.
        bare: Start with torch imported, and nothing of the package.
        stdout: Descriptor of the file that it prints to, instead of a pipe.
    """

    def __init__(
        self,
        *arguments: str,
        code: str | None = None,
        bare: bool = False,
        stdout: int | None = None,
    ) -> None:
        own, theirs = map(list, zip(*(os.pipe() for _ in range(3)), strict=True))
        self._news = os.fdopen(own[0])
        self.stdout, self.stderr = (os.fdopen(number) for number in own[1:])
        if stdout is not None:
            os.dup2(stdout, theirs[1])
        request = Request(
            arguments=list(arguments),
            code=code,
            environment=os.environ | ENVIRONMENT,
            folder=os.getcwd(),
        )
        server = _servers()[1 if bare else 0]
        socket.send_fds(server, [json.dumps(request).encode()], theirs)
        for number in theirs:
            os.close(number)
        self.pid = int(self._news.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code; minus the signal if it was killed."""
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("ul", timeout or 0)
            with self._news:
                self.returncode = int(self._news.readline())
        return self.returncode

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """Read all that it prints until it ends; it is killed after `timeout` seconds."""
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        with self.stdout, self.stderr, ThreadPoolExecutor(2) as readers:
            out, errors = readers.map(lambda stream: stream.read(), (self.stdout, self.stderr))
        self.wait()
        timer.cancel()
        return out, errors

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()


@functools.cache
def _servers() -> list[socket.socket]:
    """Start the servers of this process; returns the connections to them."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    own, theirs = map(list, zip(*pairs, strict=True))
    numbers = [each.fileno() for each in theirs]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forked", *map(str, numbers)],
        pass_fds=numbers,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
        env=os.environ | ENVIRONMENT,
        preexec_fn=hear_ctrl_c,
    )
    for each in theirs:
        each.close()

    def end() -> None:
        for each in own:
            each.close()
        process.wait()

    atexit.register(end)
    return own


def hear_ctrl_c() -> None:
    """Undo that a shell has started the tests in the background, with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def serve_both(full: socket.socket, bare: socket.socket) -> None:
    """Fork the server that imports everything from the one that imports torch only."""
    import_module("torch")
    if os.fork() == 0:
        bare.close()
        serve(full, MODULES)
    else:
        full.close()
        serve(bare)


def serve(requests: socket.socket, modules: Sequence[str] = ()) -> None:
    """Fork for each request, until the tests have ended."""
    for name in modules:
        import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        message, streams, _, _ = socket.recv_fds(requests, SIZE, 3)
        if not message:
            break
        if os.fork() == 0:
            requests.close()
            _keep(json.loads(message), streams)
        for number in streams:
            os.close(number)
        _reap(os.WNOHANG)
    _reap(0)


def _reap(options: int) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _keep(request: Request, streams: list[int]) -> NoReturn:
    """Fork the process, and tell its number and its exit code."""
    news, *outputs = streams
    pid = os.fork()
    if pid == 0:
        os.close(news)
        _become(request, outputs)
    for number in outputs:
        os.close(number)
    os.write(news, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(news, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(request: Request, outputs: list[int]) -> NoReturn:
    """Become the process: run the command as `python -m ullayers` does, or the code."""
    for number, stream in zip(outputs, (1, 2), strict=True):
        os.dup2(number, stream)
        os.close(number)
    # The streams of this process may be seekable files, the new ones are not.
    encoding = sys.stdout.encoding
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)
    sys.stderr = open(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = ["ul", *request["arguments"]]
    if request["code"] is not None:
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
        sys.exit()
    from ullayers.cli.main import main

    sys.exit(main())


if __name__ == "__main__":
    connections = [socket.socket(fileno=int(number)) for number in sys.argv[1:]]
    serve_both(*connections)
