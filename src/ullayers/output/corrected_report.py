"""The report of a run with corrections applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ullayers.errors import UserError
from ullayers.learn.results import TRACK, Answer
from ullayers.learn.runs import Run, sources_of
from ullayers.output.behaviour import measure_scenes
from ullayers.output.corrected_tracks import read_corrected
from ullayers.output.exported import Exported
from ullayers.output.report import write_report
from ullayers.output.run_report import contents_of
from ullayers.output.track_table import Track
from ullayers.output.tracked_video import TrackedVideo, on_frames
from ullayers.video.reader import Info, Source


def write_corrected_report(run: Run, path: Path) -> None:
    """Write the report of a run with its corrections, and a note about them.

    Args:
        run: A finished run with the task locate.
        path: The file to write.

    Raises:
        RunError: The results cannot be read.
        UserError: A correction is invalid, or there are no objects.
        VideoError: A video of the run no longer exists.
    """
    if not (run.folder / "metrics.jsonl").exists():
        raise UserError(f"{run.folder}: was written by ul watch; reports are for runs of ul learn")
    videos, corrections = read_corrected(run.folder)
    videos = [video for video in videos if video.tracks]
    if not videos:
        raise UserError(f"{run.folder}: has no objects, so there is nothing to report")
    done = Exported()
    for video in videos:
        done.add(_answer(video), {}, Info(video.width, video.height, video.fps, video.count))
    contents = contents_of(run, _sources_of(run, videos), done)
    sizes = {video.name: (video.width, video.height) for video in videos}
    count = len(corrections.applied)
    contents = replace(
        contents,
        title=f"{contents.title} (corrected)" if count else contents.title,
        scenes=measure_scenes([track for video in videos for track in video.tracks], sizes),
        crossings=[crossing for video in videos for crossing in video.crossings],
        corrections=count,
    )
    write_report(path, contents)


def _sources_of(run: Run, videos: Sequence[TrackedVideo]) -> list[Source]:
    """Return the source of each video."""
    sources = {source.name: source for source in sources_of(run)}
    for video in videos:
        if video.name not in sources:
            raise UserError(
                f"{run.folder}: the video {video.name} no longer exists, "
                "so there is nothing to report"
            )
    return [sources[video.name] for video in videos]


def _answer(video: TrackedVideo) -> Answer:
    """Return one row per frame, of the object with most rows, and the rows of all objects."""
    tracks = video.tracks
    rows = _rows(tracks, video)
    assert rows.objects is not None
    order = np.lexsort([rows.objects, rows.index])  # by frame, then by object
    frames = video.frames
    main = max(tracks, key=lambda track: len(track.frame))
    time = np.interp(frames, rows.index[order], rows.seconds[order])
    values = on_frames(main, _rows([main], video).values, frames)
    values[:, 2] = np.nan_to_num(values[:, 2])  # no position: no confidence
    several = rows.rows(order) if len(tracks) > 1 else None
    return Answer(video.name, frames, time, TRACK, values, size=rows.size, several=several)


def _rows(tracks: Sequence[Track], video: TrackedVideo) -> Answer:
    def column(name: str) -> Any:
        return np.concatenate([getattr(track, name) for track in tracks])

    objects = np.repeat([track.object for track in tracks], [len(t.frame) for t in tracks])
    values = np.stack([column(name) for name in TRACK], 1)
    size = video.width, video.height
    return Answer(
        video.name, column("frame"), column("time"), TRACK, values, size=size, objects=objects
    )
