"""The process of a job: trains like `ul learn` or `ul watch`, and reports its progress.

    python -m ullayers.studio.worker STUDIO NAME

It stops between two steps if the studio asks it to, or on SIGTERM; the job can then be resumed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch

from ullayers.errors import Error
from ullayers.learning.config import Config
from ullayers.run.folder import locked
from ullayers.run.pipeline import work
from ullayers.run.plan import Plan, load_plan, plan_relearning, plan_run, sources_of
from ullayers.run.watch import keep_results, watch
from ullayers.run.watcher import keep_outlines
from ullayers.studio.jobs import LOCK_SECONDS, Job, JobState, Request
from ullayers.studio.live import LiveView
from ullayers.studio.live_watch import SAVE_SECONDS, Tapped, WatchView
from ullayers.studio.workspace import Workspace
from ullayers.video.sources import Source, find_sources, open_live

NICE = 5  # keeps the page and the rest of the computer responsive


class StoppedError(Exception):
    """The job was asked to stop."""


class StopFlag:
    """Whether a job was asked to stop.

    Args:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, not its jobs

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True

    def check(self) -> None:
        """Raise StoppedError if a stop was requested."""
        if self.is_set or self.job.is_to_stop():
            raise StoppedError


def main(arguments: Sequence[str]) -> int:
    """Run a job; returns the exit code."""
    folder, name = arguments
    job = Job(Workspace.open(folder), name)
    stop = StopFlag(job)
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # waiting threads must sleep
    with job.lock().acquire(timeout=LOCK_SECONDS):
        started = JobState(state="running", pid=os.getpid(), since=time.time())
        job.write(started)
        state = started
        try:
            os.nice(NICE)
            _run(job, stop)
            state = JobState(state="done")
        except StoppedError:
            state = JobState(state="stopped")
        except Error as error:
            state = JobState(state="failed", error=str(error))
        except BaseException as error:
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}; the end of log.txt in {job.folder} has more"
            state = JobState(state="failed", error=text)
            return 1
        finally:
            job.write(replace(state, since=time.time()))
    return 0


def _run(job: Job, stop: StopFlag) -> None:
    stop.check()
    request = job.request
    with locked(job.run):
        if request.kind == "watch":
            _watch(job, request, stop)
        else:
            _learn(job, request, stop)


def _learn(job: Job, request: Request, stop: StopFlag) -> None:
    """Learn from the beginning or from the last checkpoint, and write missing results."""
    resume = (job.run / "config.json").exists()
    run, sources = _resumed(job) if resume else _planned(job, request)
    view = LiveView(job, _ids(request, sources))
    view.progress("reading", 0, None)
    stop.check()
    if run.finished:
        return
    with closing(work(run, sources, resume=resume)) as events:
        for event in events:
            view.follow(event)
            stop.check()


def _resumed(job: Job) -> tuple[Plan, list[Source]]:
    run = load_plan(job.run)
    return run, sources_of(run)


def _planned(job: Job, request: Request) -> tuple[Plan, list[Source]]:
    if request.parent_folder is not None:
        return plan_relearning(Path(request.parent_folder), job.run)
    return plan_run(
        request.inputs,
        job.run,
        _config(request),
        start=request.start,
        end=request.end,
        masks=request.masks,
    )


def _config(request: Request) -> Config:
    return Config(
        task=request.task,
        objects=request.objects,
        outputs=request.outputs,
        steps=request.steps,
    )


def _ids(request: Request, sources: Sequence[Source]) -> dict[str, str]:
    """Return the ids of the videos by the name of their sequence."""
    by_path = dict(zip(map(os.path.realpath, request.inputs), request.sources, strict=False))
    ids = {source.name: by_path.get(os.path.realpath(source.path)) for source in sources}
    return {name: id for name, id in ids.items() if id is not None}


def _watch(job: Job, request: Request, stop: StopFlag) -> None:
    """Learn online from a file or a camera of this computer."""
    [path] = request.inputs
    source = find_sources([path])[0] if os.path.isdir(path) else open_live(path)
    tapped = Tapped(source.name, source.path, source.kind, request.sources[0])
    view = WatchView(job, tapped)
    config = _config(request)
    resume = (job.run / "config.json").exists()
    frames = watch(
        tapped,
        config=config,
        objects=request.objects if request.task == "locate" else 1,
        folder=job.run,
        every=SAVE_SECONDS,
        force=not resume,
        resume=resume,
    )
    with closing(keep_results(keep_outlines(frames, job.run), job.run)) as seen:
        for sighting in seen:
            view.show(sighting)
            stop.check()


if __name__ == "__main__":
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))  # leave one core for the page
    sys.exit(main(sys.argv[1:]))
