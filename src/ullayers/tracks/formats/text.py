"""Tracks as text: the table of a run, DeepLabCut, MOTChallenge and napari."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ullayers.files import replacing
from ullayers.tracks.table import PIXELS, SHAPE, TRACK, csv_lines, header
from ullayers.tracks.tracked_video import TrackedVideo, boxed_objects, object_name, positions, sure

SCORER = "ullayers"
PART = "centroid"


def write_csv(videos: Sequence[TrackedVideo], path: Path) -> None:
    """Write a table like tracks.csv."""
    with replacing(path) as file:
        file.write(header(TRACK + PIXELS + SHAPE))
        for video in videos:
            file.write(_csv_lines(video))


def _csv_lines(video: TrackedVideo) -> str:
    """Return the rows of a video, sorted by frame and object."""
    tracks = video.tracks
    number = np.concatenate([np.full(len(track.frame), track.object) for track in tracks])
    frame = np.concatenate([track.frame for track in tracks])
    order = np.lexsort((number, frame))
    blocks = [("%d", frame[order]), ("%d", number[order])]
    forms = {"time": "%.6f"} | dict.fromkeys(TRACK, "%.6f") | dict.fromkeys(PIXELS + SHAPE, "%.2f")
    for name, form in forms.items():
        blocks.append((form, np.concatenate([getattr(track, name) for track in tracks])[order]))
    return csv_lines(video.name, blocks)


def write_dlc(videos: Sequence[TrackedVideo], path: Path) -> None:
    """Write a CSV of DeepLabCut, with individuals if the video has several objects.

    Rows are the frames of the video from 0 on, because many programs count rows and ignore the
    index. Cells of unknown positions are empty.
    """
    [video] = videos
    frames = np.arange(video.frames[-1] + 1)
    places, confidences = positions(video, frames)
    cells = np.concatenate([places, confidences[:, :, None]], 2).reshape(len(frames), -1)
    names = [object_name(track) for track in video.tracks]
    width = 3 * len(names)
    with replacing(path) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["scorer", *[SCORER] * width])
        if len(names) > 1:
            rows.writerow(["individuals", *(name for name in names for _ in range(3))])
        rows.writerow(["bodyparts", *[PART] * width])
        rows.writerow(["coords", *["x", "y", "likelihood"] * len(names)])
        for frame, row in zip(frames.tolist(), cells.tolist(), strict=True):
            rows.writerow([frame, *("" if np.isnan(cell) else repr(cell) for cell in row)])


def write_mot(videos: Sequence[TrackedVideo], path: Path) -> None:
    """Write the text format of MOTChallenge: one box per line, frames from 1."""
    [video] = videos
    with replacing(path) as file:
        for item in boxed_objects(video):
            cells = [item.frame + 1, item.object, *item.box.tolist(), item.confidence, -1, -1, -1]
            file.write(",".join(map(repr, cells)) + "\n")


def write_napari(videos: Sequence[TrackedVideo], path: Path) -> None:
    """Write the array of a tracks layer of napari as CSV: ID, T, Y, X, sorted by ID and T."""
    [video] = videos
    with replacing(path) as file:
        file.write("ID,T,Y,X\n")
        for track in sorted(video.tracks, key=lambda track: track.object):
            kept = sure(track)
            columns = track.frame[kept], track.y_px[kept], track.x_px[kept]
            for frame, y, x in zip(*(column.tolist() for column in columns), strict=True):
                file.write(f"{track.object},{frame},{y!r},{x!r}\n")
