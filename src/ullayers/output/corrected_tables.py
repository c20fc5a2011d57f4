"""The tables of a results folder with corrections applied."""

from __future__ import annotations

from pathlib import Path

from ullayers.learn.folders import is_run
from ullayers.learn.run_config import read_config
from ullayers.output.behaviour import measure_scenes, write_behaviour
from ullayers.output.formats.write import plan_files, write_files


def write_corrected(
    folder: Path,
    out: Path,
    *,
    sequence: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> list[Path]:
    """Write corrected tracks, crossings and behaviour as CSV.

    Zones and millimetres are those of the run. `ul apply` does not store them, so its folders have
    neither.

    Args:
        folder: Folder of `ul learn` or `ul apply`.
        out: An existing folder.
        sequence: Write only this video; None for all.
        first: First frame to write; None for the beginning.
        last: Last frame to write; None for the end.

    Returns:
        The files written; existing files of these names are replaced.

    Raises:
        RunError: The results cannot be read, or have no objects.
        UserError: A correction is invalid, or the requested part is empty.
    """
    files = plan_files(folder, "csv", out, sequence=sequence, first=first, last=last)
    write_files("csv", files)
    videos = [video for file in files for video in file.videos]
    scenes = measure_scenes(
        [track for video in videos for track in video.tracks],
        {video.name: (video.width, video.height) for video in videos},
    )
    run = read_config(folder) if is_run(folder) else None
    zones, mm_per_pixel = (None, None) if run is None else (run.zones, run.mm_per_pixel)
    written = [path for file in files for path in file.paths]
    return written + write_behaviour(out, scenes, zones, mm_per_pixel)
