"""Finished runs that were made up: a video whose frames show their numbers, and tracks in it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from tests.output.made_tracks import FPS, HEIGHT, WIDTH, wanderers, write_tables
from ullayers.learning.config import Config
from ullayers.tracks.masks import OUTLINES, SCHEMA, encoded
from ullayers.tracks.reading import Track
from ullayers.video.files.writing import VideoWriter

FRAMES = 300
OBJECTS = 3
SEQUENCE = "numbered"
BITS = 9
BLOCK = WIDTH // BITS
RADIUS = 12  # pixels of an object
OUTLINE = 14  # pixels from its place to the sides of its outline, a square


OTHER_SEED = 1  # of tracks that are not those of the video


def made_tracks(seed: int = 0) -> list[Track]:
    """Return the tracks of the objects in the video."""
    return wanderers(OBJECTS, FRAMES, SEQUENCE, seed)[0]


def places(tracks: list[Track], frame: int) -> dict[int, tuple[float, float]]:
    """Return where the objects are in a frame."""
    rows = {track.object: np.flatnonzero(track.frame == frame) for track in tracks}
    return {
        track.object: (float(track.x_px[row]), float(track.y_px[row]))
        for track in tracks
        for row in rows[track.object]
    }


def write_numbered(folder: Path) -> Path:
    """Write a video with a grey disc for every object, and the frame number in bits below."""
    tracks = made_tracks()
    path = folder / f"{SEQUENCE}.mp4"
    with VideoWriter(path, FPS) as video:
        for number in range(FRAMES):
            picture = np.full((HEIGHT, WIDTH), 100, np.uint8)
            for x, y in places(tracks, number).values():
                cv2.circle(picture, (round(x), round(y)), RADIUS, 160, -1)
            bits = np.repeat(number >> np.arange(BITS) & 1, BLOCK)
            picture[HEIGHT - 24 :, : len(bits)] = np.where(bits, 235, 20)
            video.write(np.repeat(picture[..., None], 3, 2))
    return path


def number_points() -> NDArray[np.float64]:
    """Return the points (bits, 2) of a frame that show its number."""
    return np.stack([BLOCK * (np.arange(BITS) + 0.5), np.full(BITS, HEIGHT - 12.0)], 1)


def read_number(colours: NDArray[np.int64]) -> int:
    """Return the number that the colours at `number_points` show."""
    bits = colours.mean(-1) > 128
    return int((bits << np.arange(BITS)).sum())


def write_outlines(folder: Path, sequence: str, tracks: list[Track]) -> None:
    """Write outlines.sqlite, with a square around every object."""
    square = OUTLINE * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    rows = [
        (frame, number, encoded([np.rint(square + place).astype(np.int32)]))
        for frame in range(FRAMES)
        for number, place in places(tracks, frame).items()
    ]
    with closing(sqlite3.connect(folder / OUTLINES)) as database, database:
        for each in SCHEMA:
            database.execute(each)
        database.execute("INSERT INTO sequences VALUES (1, ?, 1)", (sequence,))
        database.executemany("INSERT INTO outlines VALUES (1, ?, ?, ?)", rows)


def write_run(
    folder: Path, video: Path, *, reason: str = "", sequence: str = SEQUENCE, seed: int = 0
) -> Path:
    """Write a run folder as `ul learn` leaves it, as far as the page reads it.

    Args:
        folder: The folder to make.
        video: Its input.
        reason: Why its results are not to be trusted.
        sequence: Name of the sequence.
        seed: Of its tracks.
    """
    folder.mkdir()
    tracks, crossings = wanderers(OBJECTS, FRAMES, sequence, seed)
    write_tables(folder, tracks, crossings)
    write_outlines(folder, sequence, tracks)
    size = {"frames": FRAMES, "width": WIDTH, "height": HEIGHT, "fps": FPS}
    summary = {
        "task": "locate",
        "trusted": not reason,
        "reasons": [reason] if reason else [],
        "found": 0.9,
        "frames": FRAMES,
        "sequences": [{"name": sequence} | size],
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    config = {
        "inputs": [str(video)],
        "skip_bad": False,
        "reading": {"size": [48, 64], "grey": False, "stride": None, "max_frames": None},
        "learn": asdict(Config(task="locate")),
        "result": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
