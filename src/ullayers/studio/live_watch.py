"""Data for the page from a job that watches a file or a camera of this computer."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.files import partial_path
from ullayers.report.overlay import display_size
from ullayers.run.folder import finite
from ullayers.run.watcher import WatchResult
from ullayers.studio.jobs import LIVE_PICTURE, Job
from ullayers.studio.live import MIN_POINTS, LiveView, mask_outlines, saved_kernels
from ullayers.tracks.table import TRACK
from ullayers.video.clips import READ_AS_IS, Render
from ullayers.video.sources import Clip, Reading, Source

QUALITY = 80
SAVE_SECONDS = 10.0  # between two checkpoints, from which the kernels are shown
CODES = 400  # latest numbers of a code in the scatter


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
