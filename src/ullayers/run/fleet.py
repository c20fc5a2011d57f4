"""Many videos on a Ray cluster, or on an instance of Ray started on this machine."""

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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from ullayers.errors import Error, MissingPackageError
from ullayers.run.folder import clear_masks, clear_parts
from ullayers.run.parts import (
    Joined,
    PartNote,
    apply_part,
    finished_parts,
    join_parts,
    part_request,
    write_note,
)
from ullayers.run.plan import Plan
from ullayers.run.write import ExportOptions
from ullayers.tracks.behaviour import Zones
from ullayers.video.files.opening import absolute_path, without_password
from ullayers.video.parallel import without_help
from ullayers.video.sources import Source, VideoError

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
ATTEMPTS = 3  # for each video; a lost connection or a dead worker may be temporary
TASKS_PER_CPU = 2  # submitted at once: one running and one waiting
MAX_IDLE_SECONDS = 60.0  # without any CPU in the cluster


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
            Error: The head of the cluster no longer answers.
        """
        if time.monotonic() - self._answered > LOST_SECONDS:
            raise lost_cluster()
        return self._number


def lost_cluster() -> Error:
    """Return the error of a cluster that has died."""
    return Error(
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
        Error: The cluster cannot be reached.
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
        Error: Nothing answers, or something other than Ray.
    """
    found = re.fullmatch(r"(?:ray://)?([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", address)
    if address != "auto" and found is None:
        raise Error(
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


def _cannot_connect(address: str, reason: str) -> Error:
    if address == LOCAL:
        return Error(f"Ray cannot be started on this machine: {reason}")
    return Error(f"--ray {address}: no Ray cluster there ({reason}); is it running?")


def apply_in_worker(run: Plan, source: Source, options: ExportOptions, out: Path) -> PartNote:
    """Apply a run to one video in a worker, to which the cluster has given one CPU."""
    with without_help():
        return apply_part(run, source, options, out)


def apply_fleet(
    run: Plan,
    sources: Sequence[Source],
    out: Path,
    options: ExportOptions,
    progress: Callable[[int, int], None] = lambda videos, frames: None,
    zones: Zones | None = None,
    mm_per_pixel: float | None = None,
) -> Joined:
    """Apply a run to videos on the connected cluster, and join the results.

    Args:
        run: A finished run.
        sources: From `find_sources`; the workers must be able to read them.
        out: Folder of the results, on all machines; created if needed.
        options: What to write; `resume` keeps finished videos.
        progress: Called with the numbers of finished videos and processed frames.
        zones: Zones to measure; None for none.
        mm_per_pixel: Size of a pixel; None measures in pixels only.

    Raises:
        RunError: A machine lacks a folder, or the folder has results of something else.
        VideoError: A video cannot be read, after several attempts.
        Error: The cluster has died or lost its workers.
    """
    out.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        clear_parts(out)
        clear_masks(out)
    request = part_request(run, options)
    notes = finished_parts(sources, out, request, skip_bad=options.skip_bad)
    waiting = [source for source in sources if source.name not in notes]
    _Fleet(run, options, out, len(sources)).work(waiting, progress)
    notes = finished_parts(sources, out, request, skip_bad=options.skip_bad)
    return join_parts(run, sources, out, notes, zones, mm_per_pixel)


class _Fleet:
    """Tasks in flight: a few per CPU, so that memory does not grow with the number of videos."""

    def __init__(self, run: Plan, options: ExportOptions, out: Path, count: int) -> None:
        ray = load_ray()
        self.count = count
        self.options = options
        self.out = out.absolute()
        self.request = part_request(run, options)
        # Attempts are counted here: Ray would repeat a task that runs out of memory forever.
        self.task = ray.remote(num_cpus=1, max_retries=0)(apply_in_worker)
        # Sent to each machine once; workers may have a different working directory.
        self.run = ray.put(replace(run, folder=run.folder.absolute()))
        self.running: dict[Any, tuple[Source, int]] = {}
        self.last_cpu = time.monotonic()

    def work(self, sources: Sequence[Source], progress: Callable[[int, int], None]) -> None:
        """Process videos until all are finished or have failed."""
        waiting = deque((source, 1) for source in sources)
        done, frames = self.count - len(waiting), 0
        # After an error, tasks in flight end with the connection: Ray 2.60 aborts this process if a
        # task ends while it is being cancelled.
        with ClusterCpus() as cpus:
            while waiting or self.running:
                self._submit(waiting, cpus.count())
                for task in self._ended_tasks():
                    source, attempt = self.running.pop(task)
                    note = self._result(source, task)
                    if note.error is not None and attempt < ATTEMPTS:
                        waiting.append((source, attempt + 1))
                        continue
                    if note.error is not None and not self.options.skip_bad:
                        raise VideoError(note.error).with_skip_hint(self.count)
                    done, frames = done + 1, frames + note.frames
                    progress(done, frames)

    def _ended_tasks(self) -> list[Any]:
        """Wait a moment for tasks to end."""
        try:
            ended, _ = load_ray().wait(list(self.running), timeout=POLL_SECONDS)
        except ConnectionError as error:  # of a client, ray://
            raise lost_cluster() from error
        return list(ended)

    def _submit(self, waiting: deque[tuple[Source, int]], cpus: int) -> None:
        if cpus:
            self.last_cpu = time.monotonic()
        elif time.monotonic() - self.last_cpu > MAX_IDLE_SECONDS:
            raise Error(
                f"the Ray cluster has had no CPU for {MAX_IDLE_SECONDS:g} seconds; start workers, "
                "then continue with --resume"
            )
        while waiting and len(self.running) < max(1, TASKS_PER_CPU * cpus):
            source, attempt = waiting.popleft()
            task = self.task.remote(self.run, source, self.options, self.out)
            self.running[task] = source, attempt

    def _result(self, source: Source, task: Any) -> PartNote:
        """Return the note of a task that has ended; a dead worker is an error of the video."""
        ray = load_ray()
        try:
            note: PartNote = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            path = without_password(absolute_path(source.path))
            text = f"{path}: its worker process died ({type(error).__name__})"
            note = PartNote(self.request, path, error=text)
            if self.options.skip_bad:
                write_note(self.out, source, note)
        return note
