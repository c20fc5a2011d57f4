"""The formats of `ul export --format`, and the files written.

Tracks are written with corrections applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ullayers.errors import Error, RunError
from ullayers.tracks.corrections import read_corrected
from ullayers.tracks.formats.coco import write_coco
from ullayers.tracks.formats.names import EXPORT_FOLDER
from ullayers.tracks.formats.parquet import write_parquet
from ullayers.tracks.formats.poses import write_movement, write_nwb, write_sleap
from ullayers.tracks.formats.text import write_csv, write_dlc, write_mot, write_napari
from ullayers.tracks.reading import crossing_rows, write_crossings
from ullayers.tracks.table import CROSSINGS
from ullayers.tracks.tracked_video import TrackedVideo, cut_video


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        suffix: Suffix of file names.
        several: Whether a file contains several videos.
        write: Function that writes videos to a file.
    """

    suffix: str
    several: bool
    write: Callable[[Sequence[TrackedVideo], Path], None]


TABLE = {
    "csv": Format(".csv", True, write_csv),
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
    """A file to write, and the videos in it.

    Attributes:
        path: The file.
        videos: The videos.
        crossings: File for the crossings; None if they are not written.
    """

    path: Path
    videos: list[TrackedVideo]
    crossings: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """All files to write."""
        return [self.path] if self.crossings is None else [self.path, self.crossings]


def plan_files(
    folder: Path,
    name: str,
    out: Path | None,
    *,
    sequence: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> list[FormatFile]:
    """Return the files to write for a format.

    Args:
        folder: Folder of `ul learn` or `ul apply`.
        name: Name of the format.
        out: File, or an existing folder; None for the folder `export` in `folder`. If there are
            several files, the names of the videos are added to the name of the file.
        sequence: Write only this video; None for all.
        first: First frame to write; None for the beginning.
        last: Last frame to write; None for the end.

    Raises:
        RunError: The results cannot be read, or have no objects.
        Error: A correction is invalid, or the requested part is empty.
    """
    videos = _part(folder, sequence, first, last)
    form = TABLE[name]
    target = folder / EXPORT_FOLDER if out is None else out
    in_folder = out is None or out.is_dir()
    # Parts of a video have their own names.
    frames = "" if first is last is None else f"-{_shown(first)}-{_shown(last)}"
    if form.several:
        stem = "tracks" if sequence is None else sequence
        path = target / f"{stem}{frames}{form.suffix}" if in_folder else target
        crossings = _beside(path) if name == "csv" and any(v.crossings for v in videos) else None
        return [FormatFile(path, videos, crossings)]
    if in_folder:
        names = [f"{video.name}{frames}{form.suffix}" for video in videos]
        return [FormatFile(target / n, [v]) for n, v in zip(names, videos, strict=True)]
    if len(videos) == 1:
        return [FormatFile(target, videos)]
    return [
        FormatFile(target.with_name(f"{target.stem}-{video.name}{target.suffix}"), [video])
        for video in videos
    ]


def _shown(frame: int | None) -> str:
    return "" if frame is None else str(frame)


def _beside(path: Path) -> Path:
    """Return the file for the crossings of a table.

    >>> _beside(Path("export/tracks.csv")).name, _beside(Path("export/mouse.csv")).name
    ('crossings.csv', 'mouse-crossings.csv')
    """
    return path.with_name(CROSSINGS if path.stem == "tracks" else f"{path.stem}-{CROSSINGS}")


def _part(
    folder: Path, sequence: str | None, first: int | None, last: int | None
) -> list[TrackedVideo]:
    """Return the corrected videos with objects in a range of frames."""
    videos, _ = read_corrected(folder)
    if sequence is not None:
        names = ", ".join(video.name for video in videos)
        videos = [video for video in videos if video.name == sequence]
        if not videos:
            raise Error(f"{folder}: has no sequence {sequence}; it has {names or 'none'}")
    videos = [video for video in videos if video.tracks]
    if not videos:
        raise RunError(f"{folder}: has no tracks, so there is nothing to export")
    if first is last is None:
        return videos
    parts = [cut_video(video, first, last) for video in videos]
    if not any(part.tracks for part in parts):
        raise Error(f"{folder}: has no tracks in frames {_shown(first)} to {_shown(last)}")
    return [part for part in parts if part.tracks]


def write_files(name: str, files: Sequence[FormatFile]) -> None:
    """Write planned files, each atomically.

    Args:
        name: Name of the format.
        files: Files of `plan_files`.

    Raises:
        MissingPackageError: The package of the format is not installed.
        Error: The results lack what the format needs.
    """
    for file in files:
        TABLE[name].write(file.videos, file.path)
        if file.crossings is not None:
            write_crossings(file.crossings, [crossing_rows(v.crossings) for v in file.videos])
