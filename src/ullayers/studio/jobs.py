"""Jobs: runs started in a studio, each trained in its own process.

A job is a folder with its request (`request.json`) and its progress (`state.json`). Its process
holds a lock in the folder while it runs, so any server can check whether it is running.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from filelock import FileLock, Timeout

from ullayers.errors import Error
from ullayers.files import from_json, read_json, write_json
from ullayers.learning.config import Task
from ullayers.studio.files import Workspace, free_name, write_quickly

Kind = Literal["learn", "watch", "camera"]
State = Literal["queued", "running", "stopping", "stopped", "done", "failed", "interrupted"]
Stage = Literal["reading", "training", "applying", "report"]

REQUEST, STATE, LIVE, LOG, LOCK = "request.json", "state.json", "live.json", "log.txt", "lock"
STOP = "stop"  # a file that asks the process to stop; it also finds it if it is just starting
LIVE_PICTURE = "live.jpg"  # the latest frame of a job that watches
START_SECONDS = 60.0  # within which a process takes its lock
LOCK_SECONDS = 10.0  # a process waits for its lock, which others test occasionally


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request of a job.

    Attributes:
        name: Name of the job and of its run folder.
        kind: `learn` from files, `watch` a file or a camera of this computer, or the `camera` of
            the browser.
        inputs: Paths of the videos.
        sources: Ids of the videos.
        task: What to learn.
        objects: Number of objects; None to find it.
        outputs: Length of a code.
        steps: Maximum number of training steps; None for the default.
        start: Use frames from this time on, in seconds.
        end: Use frames before this time; None for no limit.
        masks: Also write masks as images.
        parent: Name of the run whose corrections are used for training; None for none.
        parent_folder: Its folder.
        created: Time of the request, in seconds since 1970.
    """

    name: str
    kind: Kind = "learn"
    inputs: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    task: Task = "locate"
    objects: int | None = None
    outputs: int = 2
    steps: int | None = None
    start: float = 0.0
    end: float | None = None
    masks: bool = False
    parent: str | None = None
    parent_folder: str | None = None
    created: float = 0.0


@dataclass(frozen=True, kw_only=True)
class JobState:
    """Progress of a job.

    Attributes:
        state: State of the job.
        stage: Current stage of its process.
        done: Frames or steps completed in this stage.
        total: Frames or steps in total; None if unknown.
        rate: Frames or steps per second; None if unknown.
        left: Remaining seconds in this stage; None if unknown.
        error: Why it failed.
        pid: Its process; None if there is none.
        since: When this state began, in seconds since 1970.
    """

    state: State = "queued"
    stage: Stage | None = None
    done: int = 0
    total: int | None = None
    rate: float | None = None
    left: float | None = None
    error: str | None = None
    pid: int | None = None
    since: float = 0.0


class Job:
    """A job in its folder.

    Args:
        workspace: The studio folder.
        name: Name of the job.
    """

    def __init__(self, workspace: Workspace, name: str) -> None:
        self.workspace = workspace
        self.name = name
        self.folder = workspace.jobs / name
        self.run = workspace.runs / name

    @property
    def request(self) -> Request:
        """The request.

        Raises:
            Error: The file is damaged.
        """
        try:
            return from_json(Request, read_json(self.folder / REQUEST))
        except (OSError, ValueError) as error:
            raise Error(f"{self.name}: its request.json is damaged ({error})") from error

    @property
    def state(self) -> JobState:
        """The progress; a running job whose process has died is interrupted."""
        state = self._written_state()
        if state.state not in ("running", "stopping") or self._is_alive():
            return state
        if state.pid is None and time.time() - state.since < START_SECONDS:
            return state  # its process is starting
        state = self._written_state()  # it may have ended in between
        if state.state not in ("running", "stopping"):
            return state
        if state.pid is None:
            text = f"its process did not start; {self.folder / LOG} may say why"
            return replace(state, state="failed", error=text)
        return replace(state, state="interrupted", rate=None, left=None, pid=None)

    def _written_state(self) -> JobState:
        try:
            state = from_json(JobState, read_json(self.folder / STATE))
        except (OSError, ValueError):
            return JobState(state="failed", error="its state.json is missing or damaged")
        is_ending = state.state == "running" and self.is_to_stop()
        return replace(state, state="stopping") if is_ending else state

    def write(self, state: JobState) -> None:
        """Replace the state."""
        write_quickly(self.folder / STATE, asdict(state))

    def lock(self) -> FileLock:
        """Return the lock that its process holds."""
        return FileLock(self.folder / LOCK)

    def _is_alive(self) -> bool:
        try:
            with self.lock().acquire(timeout=0):
                return False
        except Timeout:
            return True
        except OSError:  # the folder was deleted
            return False

    def start(self) -> None:
        """Start its process, which outlives this one."""
        self.write(JobState(state="running", since=time.time()))
        (self.folder / STOP).unlink(missing_ok=True)
        command = [sys.executable, "-m", "ullayers.studio.worker", str(self.workspace.folder)]
        with open(self.folder / LOG, "ab") as log:
            process = subprocess.Popen(
                [*command, self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # It is reaped as soon as it ends, unless this process ends before.
        threading.Thread(target=process.wait, name="ullayers-job", daemon=True).start()

    def stop(self) -> None:
        """Ask its process to stop without losing work.

        Raises:
            Error: It is not running.
        """
        state = self.state
        if state.state == "queued":
            self.write(JobState(state="stopped", since=time.time()))
            return
        if state.state != "running":
            raise Error(f"{self.name}: is not running")
        (self.folder / STOP).touch()

    def is_to_stop(self) -> bool:
        """Return whether it was asked to stop since it was started."""
        return (self.folder / STOP).exists()

    def resume(self) -> None:
        """Queue it again; its process continues from the last checkpoint.

        Raises:
            Error: It is running or done.
        """
        if self.state.state not in ("stopped", "failed", "interrupted"):
            raise Error(f"{self.name}: is {self.state.state}")
        if self.request.kind == "camera":
            raise Error(f"{self.name}: a camera cannot be resumed; start a new recording")
        self.write(JobState(since=time.time()))

    def delete(self) -> None:
        """Delete it with its run folder.

        Raises:
            Error: It is running.
        """
        if self.state.state in ("running", "stopping"):
            raise Error(f"{self.name}: is running; stop it first")
        for folder in (self.run, self.folder):
            if folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)


class Jobs:
    """All jobs of a studio, one of which runs at a time.

    Args:
        workspace: The studio folder.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def all(self) -> list[Job]:
        """Return all jobs, oldest first."""
        names = [path.parent.name for path in self.workspace.jobs.glob(f"*/{REQUEST}")]
        jobs = [Job(self.workspace, name) for name in names]
        return sorted(jobs, key=lambda job: (_created(job), job.name))

    def get(self, name: str) -> Job:
        """Return a job by its name.

        Raises:
            KeyError: There is no such job.
        """
        for job in self.all():
            if job.name == name:
                return job
        raise KeyError(name)

    def add(self, request: Request, state: JobState | None = None) -> Job:
        """Queue a job under a free name."""
        name = free_name(self.workspace.jobs, request.name)
        while os.path.lexists(self.workspace.runs / name):
            name = free_name(self.workspace.runs, name + "-2")
        job = Job(self.workspace, name)
        job.folder.mkdir()
        job.write(state or JobState(since=time.time()))
        write_json(job.folder / REQUEST, asdict(replace(request, name=name, created=time.time())))
        return job

    def start_next(self) -> bool:
        """Start the oldest queued job if none is running; returns whether one was started."""
        jobs = [(job, job.state) for job in self.all()]
        if any(state.state in ("running", "stopping") for _, state in jobs):
            return False
        for job, state in jobs:
            if state.state == "queued":
                job.start()
                return True
        return False


def _created(job: Job) -> float:
    with suppress(Error):
        return job.request.created
    return 0.0


def describe(job: Job) -> dict[str, Any]:
    """Return the data of a job for the page."""
    state = asdict(job.state)
    state.pop("pid")
    state.pop("since")
    try:
        request = job.request
    except Error as error:
        request = Request(name=job.name)
        state |= {"state": "failed", "error": str(error)}
    return {
        "id": job.name,
        "name": job.name,
        "kind": request.kind,
        "task": request.task,
        "sources": request.sources,
        "created": request.created,
        "parent": request.parent,
        "opened": False,
    } | state
