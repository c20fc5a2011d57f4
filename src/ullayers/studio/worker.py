"""The process of a job: trains like `ul learn` or `ul watch`, and writes what the page shows.

    python -m ullayers.studio.worker STUDIO NAME

It stops between two steps if the studio asks it to, or on SIGTERM; the job can then be resumed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ullayers.errors import Error, RunError
from ullayers.files import partial_path
from ullayers.learning.checkpoint import read_tensors
from ullayers.learning.config import Config
from ullayers.learning.networks import Encoder, Locator, Model
from ullayers.learning.training import Learner, Record
from ullayers.learning.trials import ClipTrial, Trial
from ullayers.report.overlay import display_size
from ullayers.report.pictures import kernel_sheet
from ullayers.run.apply import describe
from ullayers.run.folder import finite, locked
from ullayers.run.pipeline import Event, work
from ullayers.run.plan import Plan, load_plan, plan_relearning, plan_run, sources_of
from ullayers.run.watch import keep_results, watch
from ullayers.run.watcher import WatchResult, keep_outlines
from ullayers.studio.files import Workspace, write_quickly
from ullayers.studio.jobs import LIVE, LIVE_PICTURE, LOCK_SECONDS, Job, JobState, Request, Stage
from ullayers.tracks.masks import EDGE
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.clips import READ_AS_IS, Render
from ullayers.video.region import Box
from ullayers.video.sources import Clip, Reading, Source, find_sources, open_live

STATE_SECONDS = 0.25  # between two versions of state.json
LIVE_SECONDS = 0.5  # between two versions of live.json
LIVE_SHARE = 0.1  # share of the time that may be spent on the live view
PREVIEW_FRAMES = 32
RATE_SECONDS = 2.0  # over which the speed is averaged
MIN_POINTS = 3  # of an outline
QUALITY = 80
SAVE_SECONDS = 10.0  # between two checkpoints, from which the kernels are shown
CODES = 400  # latest numbers of a code in the scatter
NICE = 5  # keeps the page and the rest of the computer responsive


def mask_outlines(masks: NDArray[np.uint8], box: Box | None = None) -> list[list[list[float]]]:
    """Return the outlines of masks as polygons x0, y0, x1, y1, ... in 0..1.

    Args:
        masks: (time, height, width) uint8; the edge of the object is at `EDGE`.
        box: Part of the frame that the masks cover; None for all of it.

    Example:
        >>> masks = np.zeros((1, 4, 8), np.uint8)
        >>> masks[0, 1:3, 2:6] = 255
        >>> mask_outlines(masks)
        [[[0.3125, 0.375, 0.3125, 0.625, 0.6875, 0.625, 0.6875, 0.375]]]
    """
    left, top, width, height = (0.0, 0.0, 1.0, 1.0) if box is None else box
    scale = np.array([width / masks.shape[2], height / masks.shape[1]])
    outlines = []
    for mask in masks:
        found, _ = cv2.findContours(
            (mask >= EDGE).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE
        )
        polygons = [
            (points[:, 0] + 0.5) * scale + (left, top)
            for points in found
            if len(points) >= MIN_POINTS
        ]
        outlines.append([_rounded(polygon).ravel().tolist() for polygon in polygons])
    return outlines


def _rounded(values: NDArray[Any]) -> NDArray[np.float64]:
    rounded: NDArray[np.float64] = np.round(np.nan_to_num(values).astype(np.float64), 5)
    return rounded


def saved_kernels(folder: Path) -> str | None:
    """Return the kernels of a network saved by a watching job; None if there is none."""
    try:
        saved = read_tensors(folder / "model.safetensors")
    except RunError:
        return None
    first = [saved[name] for name in ("conv1.weight", "convs.0.weight") if name in saved]
    return kernel_sheet(first[0].float().numpy()).picture.uri if first else None


def kernels_uri(net: Model) -> str:
    """Return the kernels of the first convolution as a data URI."""
    first = net.convs[0] if isinstance(net, Encoder) else net.conv1
    weight = first.weight
    assert isinstance(weight, torch.Tensor)
    return kernel_sheet(weight.detach().float().cpu().numpy()).picture.uri


class LiveView:
    """Writes state.json and live.json of a job regularly.

    Args:
        job: The job.
        ids: Ids of the videos by the name of their sequence.
    """

    def __init__(self, job: Job, ids: Mapping[str, str]) -> None:
        self.job = job
        self.ids = ids
        self.state = job.state
        self.live: dict[str, Any] = {"kernels": None, "preview": None, "trial": None}
        self._last_state = 0.0
        self._next_live = 0.0
        self._marks: list[tuple[float, int]] = []

    def follow(self, event: Event) -> None:
        """Show what the pipeline has just done."""
        if event.learner is not None and event.record is not None:
            self.step(event.learner, event.record)
            return
        if event.found is not None:
            self.seen(event.found)
        self.progress(event.stage, event.done, event.total)

    def progress(self, stage: Stage, done: int, total: int | None) -> None:
        """Record the progress of a stage."""
        now = time.monotonic()
        begins = stage != self.state.stage
        if begins:
            self._marks = [(now, done)]
            self.state = replace(self.state, rate=None, left=None)
            self.live |= {"preview": None}
        rate, left = self._speed(now, done, total)
        self.state = replace(self.state, stage=stage, done=done, total=total, rate=rate, left=left)
        if begins or now - self._last_state >= STATE_SECONDS:
            self._last_state = now
            self.job.write(self.state)

    def _speed(self, now: float, done: int, total: int | None) -> tuple[float | None, float | None]:
        """Return items per second over the last seconds, and the remaining seconds."""
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_SECONDS:
            self._marks.pop(0)
        began, before = self._marks[0]
        if now - began < 0.2 or done <= before:
            return self.state.rate, self.state.left
        rate = (done - before) / (now - began)
        return rate, None if total is None else max(0.0, (total - done) / rate)

    def step(self, learner: Learner, record: Record) -> None:
        """Show a training step."""
        self.progress("training", learner.done, learner.total)
        if not self._is_due():
            return
        began = time.monotonic()
        trial = learner.trials[record.trial]
        self.live |= {
            "trial": {
                "number": record.trial + 1,
                "of": len(learner.plan),
                "kind": record.kind,
                "seed": record.seed,
                "best": record.step > learner.trial_steps or len(learner.plan) == 1,
            },
            "objective": finite(record.objective),
            "rank": finite(record.rank),
            "features": record.features,
            "kernels": kernels_uri(trial.net),
            "preview": self._preview(learner, trial),
        }
        self._write_live(began)

    def _preview(self, learner: Learner, trial: Trial) -> dict[str, Any]:
        """Return the current results of the network on the same frames."""
        piece = learner.footage.pieces[0]
        rows = slice(0, min(PREVIEW_FRAMES, len(piece)))
        preview = self._named(learner.footage.names[piece.source])
        preview["frames"] = piece.clip.index[rows].tolist()
        net, was_training = trial.net, trial.net.training
        net.eval()  # does not change the statistics of the layers
        try:
            with torch.no_grad():
                if isinstance(net, Locator) and isinstance(trial, ClipTrial):
                    values, masks = describe(net, net(trial.read(piece, rows)))
                    preview |= {"places": _rounded(values).tolist()}
                    preview |= {"outlines": mask_outlines(masks)}
                else:
                    assert isinstance(net, Encoder)
                    frames = (piece.clip.frames[rows].float() / 255).to(trial.config.device)
                    preview["codes"] = _rounded(net.embed(frames).cpu().numpy()).tolist()
                    if piece.clip.crops is not None:
                        preview["crops"] = _rounded(piece.clip.crops[rows].numpy()).tolist()
        finally:
            net.train(was_training)
        return preview

    def seen(self, part: Answer) -> None:
        """Show results for frames that were just processed."""
        if not self._is_due():
            return
        began = time.monotonic()
        rows = slice(max(0, len(part.index) - PREVIEW_FRAMES), None)
        preview = self._named(part.sequence)
        preview["frames"] = part.index[rows].tolist()
        values = _rounded(part.values[rows]).tolist()
        preview["places" if part.columns == TRACK else "codes"] = values
        if part.masks is not None:
            preview["outlines"] = mask_outlines(part.masks[rows], part.box)
        if part.crops is not None:
            preview["crops"] = _rounded(part.crops[rows]).tolist()
        self.live["preview"] = preview
        self._write_live(began)

    def _named(self, sequence: str) -> dict[str, Any]:
        empty: dict[str, Any] = {"outlines": [], "places": [], "codes": None, "crops": None}
        return {"source": self.ids.get(sequence), "sequence": sequence, "image": None} | empty

    def _is_due(self) -> bool:
        return time.monotonic() >= self._next_live

    def _write_live(self, began: float) -> None:
        state = self.state
        now = {"stage": state.stage, "done": state.done, "total": state.total}
        write_quickly(
            self.job.folder / LIVE, self.live | now | {"rate": state.rate, "left": state.left}
        )
        spent = time.monotonic() - began
        self._next_live = time.monotonic() + max(LIVE_SECONDS, spent / LIVE_SHARE)


@dataclass(frozen=True)
class Tapped(Source):
    """A source that keeps its latest frame at display size.

    Attributes:
        id: Id of the video; None if it is not in the library.
        latest: The latest frame, (height, width, 3) in RGB.
    """

    id: str | None = None
    latest: list[NDArray[np.uint8]] = field(default_factory=list, compare=False)

    def clips(
        self, length: int, reading: Reading = READ_AS_IS, *, ahead: int = 2
    ) -> Generator[Clip, None, None]:
        """Yield clips as the source does, and keep the latest frame."""
        size = display_size(self.probe())

        def tap(render: Render) -> None:
            self.latest[:] = [render(size).permute(1, 2, 0).numpy()]

        return super().clips(length, replace(reading, tap=tap), ahead=1)


def sighting_outlines(sighting: WatchResult) -> list[tuple[int, list[float]]]:
    """Return the number and the outline x0, y0, x1, y1, ... in 0..1 of each object in a frame.

    Before the first object is certain, this is the mask of the network.
    """
    if sighting.objects:
        return [
            (each.number, np.round(each.outline, 5).ravel().tolist())
            for each in sighting.objects
            if len(each.outline) >= MIN_POINTS
        ]
    if sighting.mask is None:
        return []
    [polygons] = mask_outlines(sighting.mask[None], sighting.box)
    return [(1, polygon) for polygon in polygons]


def progress_of(sighting: WatchResult) -> dict[str, Any]:
    """Return J and the collapse meter; None before the first step."""
    return {
        "objective": finite(sighting.objective),
        "rank": finite(sighting.rank),
        "features": len(sighting.columns) - (sighting.columns == TRACK),
    }


class SavedKernels:
    """Kernels of a watching run, read again when they are saved.

    Args:
        folder: The run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._saved = 0
        self._uri: str | None = None

    def uri(self) -> str | None:
        """Return the kernels as a data URI; None before the first checkpoint."""
        path = self.folder / "model.safetensors"
        saved = path.stat().st_mtime_ns if path.exists() else 0
        if saved != self._saved:
            self._saved, self._uri = saved, saved_kernels(self.folder)
        return self._uri


class WatchView(LiveView):
    """Writes state.json, live.json and live.jpg of a job that watches.

    Args:
        job: The job.
        source: The watched source.
    """

    def __init__(self, job: Job, source: Tapped) -> None:
        super().__init__(job, {} if source.id is None else {source.name: source.id})
        self.source = source
        self.total = source.probe().frames
        self.kernels = SavedKernels(job.run)
        self._codes: list[list[float]] = []

    def show(self, sighting: WatchResult) -> None:
        """Show the result of a frame."""
        self.progress("training", sighting.frame + 1, self.total)
        is_track = sighting.columns == TRACK
        if not is_track:
            self._codes = [*self._codes, list(sighting.values)][-CODES:]
        if not self._is_due():
            return
        began = time.monotonic()
        preview: dict[str, Any] = self._named(sighting.sequence)
        preview["frames"] = [sighting.frame]
        if is_track:
            preview["places"] = [list(sighting.values)]
            preview["outlines"] = [[polygon for _, polygon in sighting_outlines(sighting)]]
        else:
            preview["codes"] = self._codes
        if self.source.latest:
            self._write_picture(self.source.latest[0])
            preview["image"] = f"/api/runs/{self.job.name}/{LIVE_PICTURE}?{sighting.frame}"
        self.live |= {"preview": preview, "kernels": self.kernels.uri()} | progress_of(sighting)
        self._write_live(began)

    def _write_picture(self, picture: NDArray[np.uint8]) -> None:
        path = self.job.folder / LIVE_PICTURE
        partial = partial_path(path, ".jpg")
        bgr = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
        cv2.imwrite(str(partial), bgr, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
        os.replace(partial, path)


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
