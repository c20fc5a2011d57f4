"""The process behind the camera of the browser: learns from frames as they arrive.

    python -m ullayers.studio.camera_process STUDIO NAME

Frames arrive on standard input; results are written to standard output, one JSON object per line.
It writes a run folder as `ul watch --out` does, and the frames as a video, so that the recording
can be inspected and used for training.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ullayers.errors import Error
from ullayers.learning.config import Config
from ullayers.run.folder import locked
from ullayers.run.watch import keep_results, watch
from ullayers.run.watcher import WatchResult, keep_outlines
from ullayers.studio.files import HEADER, LENGTH, Workspace
from ullayers.studio.jobs import LOCK_SECONDS, Job, JobState
from ullayers.studio.worker import SAVE_SECONDS, SavedKernels, progress_of, sighting_outlines
from ullayers.tracks.table import TRACK
from ullayers.video.clips import READ_AS_IS
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import Clip, Info, Reading, Source

FPS = 10.0  # of the recording
KERNEL_FRAMES = 20  # after which the kernels are sent again


@dataclass(frozen=True)
class BrowserCamera(Source):
    """Frames that arrive on a pipe, each as its length, `HEADER` and a JPEG.

    Attributes:
        size: (width, height) of the frames.
        pipe: Input stream.
        recording: Records every frame.
        sent: Sequence number of the latest frame, and when it arrived.
        is_to_stop: Returns whether no more frames are wanted.
    """

    size: tuple[int, int] = (320, 240)
    pipe: BinaryIO = field(default=sys.stdin.buffer, compare=False)
    recording: VideoWriter | None = field(default=None, compare=False)
    sent: list[tuple[int, float]] = field(default_factory=list, compare=False)
    is_to_stop: Callable[[], bool] = field(default=lambda: False, compare=False)

    def probe(self) -> Info:
        """Return the size of the frames."""
        return Info(*self.size, FPS, None)

    def clips(
        self, length: int, reading: Reading = READ_AS_IS, *, ahead: int = 2
    ) -> Generator[Clip, None, None]:
        """Yield each frame as a separate clip."""
        height, width = reading.target(self.size[1], self.size[0])
        first: float | None = None
        number = 0
        while (frame := self._next()) is not None:
            seconds, picture = frame
            first = seconds if first is None else first
            if self.recording is not None:
                self.recording.write(picture)
            small = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
            tensor = torch.from_numpy(small).permute(2, 0, 1)[None].contiguous()
            times = torch.tensor([seconds - first], dtype=torch.float64)
            yield Clip(tensor, times, torch.tensor([number]))
            number += 1

    def _next(self) -> tuple[float, NDArray[np.uint8]] | None:
        """Return the time and pixels of the next frame; None at the end."""
        while True:
            prefix = self.pipe.read(LENGTH.size)
            if len(prefix) < LENGTH.size or self.is_to_stop():
                return None
            [length] = LENGTH.unpack(prefix)
            content = self.pipe.read(length)
            if len(content) < length or length < HEADER.size:
                return None
            number, _, seconds = HEADER.unpack(content[: HEADER.size])
            jpeg = np.frombuffer(content, np.uint8, offset=HEADER.size)
            picture = cv2.imdecode(jpeg, cv2.IMREAD_COLOR_RGB) if len(jpeg) else None
            if picture is None or not math.isfinite(seconds):
                continue  # a damaged frame
            if picture.shape[:2] != self.size[::-1]:
                picture = cv2.resize(picture, self.size)
            self.sent[:] = [(number, time.monotonic())]
            return seconds, picture.astype(np.uint8, copy=False)


def message(sighting: WatchResult, sent: tuple[int, float]) -> dict[str, Any]:
    """Return the data of a frame for the page."""
    number, arrived = sent
    values = [float(value) for value in sighting.values]
    if sighting.objects:
        objects = [[each.number, each.x, each.y, each.confidence] for each in sighting.objects]
    else:
        objects = [[1, *values]] if sighting.columns == TRACK else []
    return {
        "type": "camera",
        "seq": number,
        "ms": round(1000 * (time.monotonic() - arrived), 1),
        "values": values,
        "outlines": sighting_outlines(sighting),
        "objects": objects,
        "learning": sighting.learning,
    } | progress_of(sighting)


def main(arguments: Sequence[str]) -> int:
    """Learn until the pipe ends; returns the exit code."""
    folder, name, width, height = arguments
    workspace = Workspace.open(folder)
    job = Job(workspace, name)
    with job.lock().acquire(timeout=LOCK_SECONDS):
        running = JobState(state="running", stage="training", pid=os.getpid(), since=time.time())
        job.write(running)
        state = replace(running, state="done")
        try:
            _watch(job, Path(job.request.inputs[0]), (int(width), int(height)))
        except Error as error:
            state = replace(running, state="failed", error=str(error))
        except BaseException as error:
            state = replace(running, state="failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            job.write(replace(state, stage=None, pid=None, since=time.time()))
    return 0


def _watch(job: Job, video: Path, size: tuple[int, int]) -> None:
    config = Config(task=job.request.task, outputs=job.request.outputs)
    objects = None if config.task == "locate" else 1
    kernels = SavedKernels(job.run)
    count = 0
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(locked(job.run))
        recording = stack.enter_context(VideoWriter(video, FPS))
        camera = BrowserCamera(
            *(video.stem, str(video), "live"),
            size=size,
            recording=recording,
            is_to_stop=job.is_to_stop,
        )
        sightings = watch(
            camera, config=config, objects=objects, folder=job.run, every=SAVE_SECONDS, force=True
        )
        kept = keep_results(keep_outlines(sightings, job.run), job.run)
        for sighting in stack.enter_context(closing(kept)):
            count += 1
            answer = message(sighting, camera.sent[0])
            answer |= {"frames": count, "fps": round(count / (time.monotonic() - began), 1)}
            if count % KERNEL_FRAMES == 0:
                answer["kernels"] = kernels.uri()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
