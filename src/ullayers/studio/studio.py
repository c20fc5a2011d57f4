"""The state of a studio: its videos and runs, and their data for the page."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ullayers import __version__
from ullayers.errors import Error
from ullayers.files import from_json
from ullayers.learning.config import MAX_OBJECTS
from ullayers.run.plan import read_teaching
from ullayers.studio import tables
from ullayers.studio.editing import (
    OVERLAY,
    export_folder,
    export_run,
    overlay_range,
    read_edited,
    write_overlay,
)
from ullayers.studio.files import Library, Workspace, sources_of
from ullayers.studio.jobs import Job, Jobs, Request, describe
from ullayers.video.access import FrameAccess
from ullayers.video.files.finding import safe_name
from ullayers.video.sources import VideoError

OPEN_VIDEOS = 6
MAX_WIDTH = 4096  # largest width of a frame that the page may request
REQUESTED = {
    "kind",
    "sources",
    "task",
    "objects",
    "outputs",
    "steps",
    "start",
    "end",
    "masks",
    "name",
}


class Studio:
    """All requests of the page as plain functions; see `app` for their routes.

    Args:
        workspace: The studio folder.
        inputs: Inputs of `ul studio`: videos, folders, run folders, cameras.

    Raises:
        Error: An input cannot be read.
    """

    def __init__(self, workspace: Workspace, inputs: Sequence[str] = ()) -> None:
        self.workspace = workspace
        self.library = Library(workspace, inputs)
        self.jobs = Jobs(workspace)
        self.opened = {_opened_id(folder): folder for folder in self.library.runs}
        for folder in self.library.runs:
            self.library.open_inputs(tables.inputs_of(folder))
        self._videos: OrderedDict[str, FrameAccess] = OrderedDict()
        self._lock = threading.Lock()

    def state(self) -> dict[str, Any]:
        """Return all videos and runs."""
        return {
            "version": __version__,
            "sources": [entry.describe() for entry in self.library.entries()],
            "runs": self.runs(),
            "upload_limit": self.library.upload_limit,
        }

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs, those that were opened first."""
        opened = [self._opened_run(id) for id in self.opened]
        made = [describe(job) | self._trust(job.run) for job in self.jobs.all()]
        return opened + made

    def _trust(self, folder: Path) -> dict[str, Any]:
        return tables.trust_of(tables.summary_of(folder))

    def _opened_run(self, id: str) -> dict[str, Any]:
        folder = self.opened[id]
        config = tables.config_of(folder)
        learn = config.get("learn")
        task = learn.get("task") if isinstance(learn, dict) else None
        return {
            "id": id,
            "name": folder.name,
            "kind": "learn",
            "task": task if task in ("locate", "orient", "features") else "locate",
            "state": "done",
            "sources": sorted(set(self.sequence_ids(folder).values())),
            "opened": True,
            "stage": None,
            "error": None,
            "parent": None,
            "created": 0.0,
            "done": 0,
            "total": None,
            "rate": None,
            "left": None,
        } | self._trust(folder)

    def run(self, id: str) -> dict[str, Any]:
        """Return one run as in the list of runs.

        Raises:
            KeyError: There is no such run.
        """
        if id in self.opened:
            return self._opened_run(id)
        job = self.jobs.get(id)
        return describe(job) | self._trust(job.run)

    def folder(self, id: str) -> Path:
        """Return the folder of a run.

        Raises:
            KeyError: There is no such run.
        """
        return self.opened[id] if id in self.opened else self.jobs.get(id).run

    def job(self, id: str) -> Job:
        """Return the job of a run that was started here.

        Raises:
            KeyError: There is no such run.
            Error: The run was opened from elsewhere.
        """
        if id in self.opened:
            raise Error(f"{self.opened[id].name}: was opened from elsewhere; use a copy of it")
        return self.jobs.get(id)

    def details(self, id: str) -> dict[str, Any]:
        """Return a run with its results.

        Raises:
            KeyError: There is no such run.
            Error: Its table is damaged.
        """
        folder = self.folder(id)
        config = tables.config_of(folder)
        config.pop("inputs", None)  # do not reveal paths of this computer
        edited = read_edited(folder)
        found, corrected = (
            [track for video in videos for track in video.tracks]
            for videos in (edited.found, edited.videos)
        )
        ids = self.sequence_ids(folder, id)
        return self.run(id) | {
            "summary": tables.summary_of(folder),
            "config": config,
            "sequences": tables.sequences_of(folder, found, corrected, ids),
            "crossings": [asdict(crossing) for crossing in edited.crossings],
            "files": tables.files_of(folder),
            "corrections": edited.corrections.to_json(),
        }

    def sequence_ids(self, folder: Path, id: str | None = None) -> dict[str, str]:
        """Return the ids of the videos of a run by the name of their sequence."""
        inputs = tables.inputs_of(folder)
        if id is not None and id not in self.opened:
            inputs = self.jobs.get(id).request.inputs
        try:
            sources = sources_of(tuple(inputs))
        except VideoError:
            return {}
        ids = self.library.of_paths([source.path for source in sources])
        return {source.name: ids[source.path] for source in sources if source.path in ids}

    def prepare(self) -> None:
        """Open the first video or run in advance, because long ones take a while.

        Call this in a separate thread while the browser starts.
        """
        entries = self.library.entries()
        if len(entries) == 1 and len(self.opened) <= 1:
            with suppress(Error, KeyError):  # the page reports the error
                self._access(entries[0].id)
        if len(self.opened) == 1:
            with suppress(Error):
                read_edited(next(iter(self.opened.values())))

    def add_run(self, content: Mapping[str, Any]) -> Job:
        """Queue a run.

        Args:
            content: Request of the page.

        Raises:
            Error: Something is missing or out of range.
        """
        unknown = sorted(set(content) - REQUESTED)
        if unknown:
            raise Error(f"unknown entry {unknown[0]!r}")
        ids = content.get("sources")
        if not isinstance(ids, list) or not ids or not all(isinstance(id, str) for id in ids):
            raise Error("choose a video to learn from")
        try:
            entries = [self.library.get(id) for id in ids]
        except KeyError:
            raise Error("the video is not in the library any more; load the page again") from None
        given = {key: value for key, value in content.items() if key != "sources"}
        task = given.get("task", "locate")
        wanted = given.pop("name", None) or f"{entries[0].source.name}-{task}"
        try:
            request = from_json(Request, {"name": safe_name(str(wanted))} | given)
        except ValueError as error:
            raise Error(str(error)) from error
        _check(request, len(entries))
        inputs = [entry.source.path for entry in entries]
        return self.jobs.add(replace(request, inputs=inputs, sources=ids))

    def relearn(self, id: str) -> Job:
        """Queue a run that is trained with the corrections of another one.

        Raises:
            KeyError: There is no such run.
            Error: It has no corrections to learn from.
        """
        folder = self.folder(id)
        read_teaching(folder)  # refuses corrections that cannot be used
        run = self.run(id)
        inputs = tables.inputs_of(folder)
        ids = self.library.of_paths(inputs)
        return self.jobs.add(
            Request(
                name=f"{run['name']}-taught",
                inputs=inputs,
                sources=[ids[path] for path in inputs if path in ids] or run["sources"],
                task=run["task"],
                parent=id,
                parent_folder=str(folder),
            )
        )

    def export(self, id: str, content: Mapping[str, Any]) -> list[Path]:
        """Write files for other programs, or an overlay; returns the files.

        Raises:
            KeyError: There is no such run.
            Error: The request cannot be fulfilled.
        """
        folder = self.folder(id)
        if content.get("format") != OVERLAY:
            return export_run(folder, content)
        wanted = {key: value for key, value in content.items() if key != "format"}
        video, first, last = overlay_range(folder, wanted)
        source = self.sequence_ids(folder, id).get(video.name)
        if source is None:
            raise Error(f"{video.name}: the video no longer exists")
        path = export_folder(folder) / f"{video.name}-{first}-{last}.mp4"
        write_overlay(path, folder, video, self._access(source), first, last)
        return [path]

    def jpeg(self, id: str, number: int, width: int | None) -> bytes:
        """Return a frame of a video.

        Args:
            id: The video.
            number: Number of the frame.
            width: Its width; None for that of the video.

        Raises:
            KeyError: There is no such video.
            VideoError: There is no such frame.
        """
        access = self._access(id)
        return access.jpeg(number, None if width is None else min(max(width, 16), MAX_WIDTH))

    def quick(self, id: str, number: int) -> int:
        """Return the number of a frame near this one that can be shown quickly.

        Raises:
            KeyError: There is no such video.
        """
        return self._access(id).quick(number)

    def _access(self, id: str) -> FrameAccess:
        """Return the frames of a video; the latest videos stay open."""
        entry = self.library.get(id)
        if entry.source.kind == "live":
            raise VideoError(f"{entry.source.name}: a camera has no frames to go back to")
        with self._lock:
            access = self._videos.pop(id, None) or FrameAccess(entry.source)
            self._videos[id] = access
            while len(self._videos) > OPEN_VIDEOS:
                self._videos.popitem(last=False)[1].close()
        return access

    def close(self) -> None:
        """Close all videos."""
        with self._lock:
            while self._videos:
                self._videos.popitem()[1].close()


def _opened_id(folder: Path) -> str:
    code = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    return f"opened-{safe_name(folder.name)}-{code}"


def _check(request: Request, videos: int) -> None:
    """Refuse values that the worker would refuse later."""
    if request.kind == "camera":
        raise Error("the camera of the browser is started on the page")
    if request.kind == "watch" and videos != 1:
        raise Error("watch takes one video at a time")
    if request.kind == "watch" and request.task == "features":
        raise Error("slow features need the whole recording; learn from it instead")
    if request.objects is not None and not 1 <= request.objects <= MAX_OBJECTS:
        raise Error(f"expected 1 to {MAX_OBJECTS} objects, got {request.objects}")
    if not 1 <= request.outputs <= 64:
        raise Error(f"expected 1 to 64 numbers in a code, got {request.outputs}")
    if request.steps is not None and not 1 <= request.steps <= 10**6:
        raise Error(f"expected 1 to a million training steps, got {request.steps}")
    if request.start < 0 or (request.end is not None and request.end <= request.start):
        raise Error("the end must be after the start")
