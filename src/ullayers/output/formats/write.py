"""The formats of `ul export --format`, and the files that they are written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ullayers.learn.checkpoint import RunError
from ullayers.output.formats.coco import write_coco
from ullayers.output.formats.parquet import write_parquet
from ullayers.output.formats.poses import write_movement, write_nwb, write_sleap
from ullayers.output.formats.text import write_dlc, write_mot, write_napari
from ullayers.output.tracked_video import TrackedVideo, read_videos

FOLDER = "export"  # in the results folder, for files without a name


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        suffix: End of file names.
        several: Whether a file holds several videos.
        write: Function that writes videos to a file.
    """

    suffix: str
    several: bool
    write: Callable[[Sequence[TrackedVideo], Path], None]


TABLE = {
    "movement": Format(".movement.nc", False, write_movement),
    "sleap": Format(".slp", True, write_sleap),
    "dlc": Format(".dlc.csv", False, write_dlc),
    "mot": Format(".mot.txt", False, write_mot),
    "coco": Format(".coco.json", True, write_coco),
    "nwb": Format(".nwb", False, write_nwb),
    "napari": Format(".napari.csv", False, write_napari),
    "parquet": Format(".parquet", True, write_parquet),
}


@dataclass(frozen=True)
class FormatFile:
    """A file to write, and the videos in it."""

    path: Path
    videos: list[TrackedVideo]


def plan_files(folder: Path, name: str, out: Path | None) -> list[FormatFile]:
    """Return which files a format is written to.

    Args:
        folder: Folder of `ul learn` or `ul apply`.
        name: Name of the format.
        out: File, or an existing folder; None for the folder `export` in `folder`. If there are
            several files, the names of the videos are added to the name of the file.

    Raises:
        RunError: The results cannot be read, or have no objects.
    """
    videos = [video for video in read_videos(folder) if video.tracks]
    if not videos:
        raise RunError(f"{folder}: tracks.csv has no rows, so there is nothing to export")
    form = TABLE[name]
    target = folder / FOLDER if out is None else out
    in_folder = out is None or out.is_dir()
    if form.several:
        return [FormatFile(target / f"tracks{form.suffix}" if in_folder else target, videos)]
    if in_folder:
        return [FormatFile(target / f"{video.name}{form.suffix}", [video]) for video in videos]
    if len(videos) == 1:
        return [FormatFile(target, videos)]
    return [
        FormatFile(target.with_name(f"{target.stem}-{video.name}{target.suffix}"), [video])
        for video in videos
    ]


def write_files(name: str, files: Sequence[FormatFile]) -> None:
    """Write planned files, each completely or not at all.

    Args:
        name: Name of the format.
        files: Files of `plan_files`.

    Raises:
        MissingPackageError: The package of the format is not installed.
        UserError: The results lack what the format needs.
    """
    for file in files:
        TABLE[name].write(file.videos, file.path)
