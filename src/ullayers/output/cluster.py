"""Connection to a Ray cluster, or to an instance of Ray started on this machine."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType, TracebackType
from typing import Any

from ullayers.errors import MissingPackageError, UserError

LOCAL = "local"
CLIENT = "ray://"
CLIENT_ATTEMPTS = 3  # in the head, gRPC sometimes breaks the process started for a client
CONNECT_SECONDS = 10.0  # to reach the machine
JOIN_SECONDS = 40.0  # to join the cluster
POLL_SECONDS = 1.0
# After 60 seconds Ray ends the process; disconnecting before that takes 8 seconds.
LOST_SECONDS = 30.0  # without an answer from the head of the cluster
OBJECT_STORE_BYTES = 2**28  # for waiting results; those of an hour of video take a few megabytes
# If an address is wrong, Ray waits for minutes and then ends the process, so another process tries
# it.
TRIAL = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False)"


def load_ray() -> ModuleType:
    """Import Ray on first use."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "--ray needs the package ray: pip install 'ullayers[ray]'"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)
    module: ModuleType = ray
    return module


class ClusterCpus:
    """Number of CPUs of the connected cluster, which may grow and shrink; a context manager.

    A thread queries it, because the query blocks and cannot be interrupted if the head of the
    cluster has died.
    """

    def __init__(self) -> None:
        self._ray = load_ray()
        self._number = 0
        self._answered = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_asking, daemon=True)

    def __enter__(self) -> ClusterCpus:
        self._ask()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(POLL_SECONDS)  # if it waits for a dead cluster, it ends with the process

    def _ask(self) -> None:
        self._number = int(self._ray.cluster_resources().get("CPU", 0))
        self._answered = time.monotonic()

    def _keep_asking(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            # Any error, including one of gRPC, counts as no answer; see `count`.
            with suppress(Exception):
                self._ask()

    def count(self) -> int:
        """Return the latest number.

        Raises:
            UserError: The head of the cluster no longer answers.
        """
        if time.monotonic() - self._answered > LOST_SECONDS:
            raise lost_cluster()
        return self._number


def lost_cluster() -> UserError:
    """Return the error of a cluster that has died."""
    return UserError(
        "the head of the Ray cluster no longer answers; finished videos are kept, start the "
        "cluster again and continue with --resume"
    )


@contextmanager
def cluster(address: str = LOCAL, cpus: int | None = None) -> Iterator[None]:
    """Connect to a Ray cluster and disconnect at the end.

    An existing connection of this process is used and left open.

    Args:
        address: "local" starts Ray on this machine for the duration of the block; otherwise
            HOST:PORT, ray://HOST:PORT, or "auto" for a cluster that this machine is part of.
        cpus: Number of CPUs of a local instance; None for all CPUs available to this process.

    Raises:
        UserError: The cluster cannot be reached.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {
            "num_cpus": cpus or len(os.sched_getaffinity(0)),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    else:
        check_address(address)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            _connect(address, options)
        except (ConnectionError, RuntimeError, OSError, ValueError) as error:
            raise _cannot_connect(address, str(error)) from error
        finally:
            for number, handler in handlers.items():  # Ray's would end the process
                signal.signal(number, handler)
        yield
    finally:
        ray.shutdown()


def _connect(address: str, options: dict[str, Any]) -> None:
    ray = load_ray()
    attempts = CLIENT_ATTEMPTS if address.startswith(CLIENT) else 1
    for attempt in range(1, attempts + 1):
        try:
            with warnings.catch_warnings(action="ignore"):  # the error says the same
                ray.init(address, **options)
            return
        except ConnectionAbortedError:  # the head could not start its process for this client
            if attempt == attempts:
                raise


def check_address(address: str) -> None:
    """Refuse an address at which no Ray cluster answers within a bounded time.

    Raises:
        UserError: Nothing answers, or something other than Ray.
    """
    found = re.fullmatch(r"(?:ray://)?([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", address)
    if address != "auto" and found is None:
        raise UserError(
            f"--ray {address}: expected HOST:PORT, ray://HOST:PORT or auto; write --ray without an "
            "address last on the command line"
        )
    if found is not None:
        try:
            host, port = found[1].strip("[]"), int(found[2])
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _cannot_connect(address, str(error)) from error
    if address.startswith(CLIENT):  # fails by itself, after 30 seconds
        return
    try:
        trial = subprocess.run(
            [sys.executable, "-c", TRIAL, address],
            capture_output=True,
            text=True,
            timeout=JOIN_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _cannot_connect(address, f"no answer within {JOIN_SECONDS:g} seconds") from error
    if trial.returncode:
        lines = trial.stderr.strip().splitlines() or ["no answer"]
        raise _cannot_connect(address, lines[-1])


def _cannot_connect(address: str, reason: str) -> UserError:
    if address == LOCAL:
        return UserError(f"Ray cannot be started on this machine: {reason}")
    return UserError(f"--ray {address}: no Ray cluster there ({reason}); is it running?")
