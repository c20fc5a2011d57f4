"""Results of many videos, each in a folder of its own, and how they are joined.

`ul apply --ray` and `ul apply --part` write the results of each video to parts/NAME in the output
folder, in any order and on any machine, with `export`. The note in a part is written last: a part
without it was not finished, and is done again. When all are there, they are joined into the files
that `export` writes for all videos.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ullayers.errors import RunError
from ullayers.files import check_inside, from_json, open_regular, read_json, replacing, write_json
from ullayers.locate.tracking.identity import KnownObjects, Portrait
from ullayers.run.folder import OVERLAYS, PART_NOTE, PARTS, clear_part, clear_parts
from ullayers.run.plan import Plan, csv_name
from ullayers.run.summary import SequenceNote, Totals, describe_recognised, write_summary
from ullayers.run.write import ExportOptions, export, request_of
from ullayers.tracks.behaviour import Zones, measure_folder, write_behaviour
from ullayers.tracks.masks import MASK_FILES, OUTLINES, join_outlines, renumber_masks
from ullayers.tracks.reading import renumbered, write_crossings
from ullayers.tracks.table import CROSSINGS
from ullayers.video.files.opening import absolute_path, without_password
from ullayers.video.sources import Source, VideoError

Request = list[str | int | None]


@dataclass(frozen=True)
class PartNote:
    """The note of a finished part.

    Attributes:
        request: What was asked for.
        path: Path of the video.
        summary: What the summary says about the video; None if it has no results.
        portraits: Appearance of the objects, by which they are recognised in other videos.
        error: Why the video could not be read to its end; None if it could.
        is_open: Whether the video could be opened.
    """

    request: Request
    path: str
    summary: SequenceNote | None = None
    portraits: list[Portrait] = field(default_factory=list)
    error: str | None = None
    is_open: bool = True

    @property
    def frames(self) -> int:
        """Number of processed frames."""
        return 0 if self.summary is None else self.summary.totals.frames


@dataclass
class Joined:
    """Results of all videos; as in `Exported`.

    Attributes:
        totals: Numbers of frames.
        sequences: Entries of the videos in summary.json.
        bad: Videos that could not be read, or only in part, with the error.
        files: Files and folders written.
        notes: Notes about the objects of a video.
        unopened: Videos that could not be opened by path, with the error.
    """

    totals: Totals = field(default_factory=Totals)
    sequences: list[dict[str, Any]] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    unopened: dict[str, str] = field(default_factory=dict)


class _Part(NamedTuple):
    """Folder of a part, name of its video, and the final numbers of the objects 1, 2, ... in it."""

    folder: Path
    name: str
    numbers: list[int]

    @property
    def is_final(self) -> bool:
        """Whether the objects already have these numbers."""
        return self.numbers == list(range(1, len(self.numbers) + 1))


def part_request(run: Plan, options: ExportOptions) -> Request:
    """Return what is asked for; parts are kept only if it is the same."""
    masks = "soft masks" if options.soft else "masks"
    return [
        *request_of(run, options),
        *([masks] if options.masks else []),
        *(["overlay"] if options.overlay else []),
    ]


def apply_part(run: Plan, source: Source, options: ExportOptions, out: Path) -> PartNote:
    """Apply a run to one video, and write its results to a folder of its own.

    Args:
        run: A finished run.
        source: The video.
        options: What to write.
        out: Folder of the results of all videos.

    Returns:
        The note of the part. Without `skip_bad`, a part with an error is not finished.

    Raises:
        RunError: This machine lacks a folder that is read or written.
    """
    for folder in (run.folder, out):
        if not folder.is_dir():
            raise RunError(f"{folder}: is not on all machines; mount it there")
    place = out / PARTS / source.name
    check_inside(out, place)
    clear_part(place)
    if place.exists():
        raise RunError(f"{place}: is not a result; give another folder with --out")
    note = PartNote(part_request(run, options), _stored_path(source), is_open=False)
    try:
        source.probe()
        note = replace(note, is_open=True)
        done = export(run, [source], place, replace(options, resume=False))
        portraits = done.portraits.get(source.name, [])
        error = done.bad.get(source.name)
        note = replace(note, summary=done.note_last(), portraits=portraits, error=error)
    except VideoError as error:
        note = replace(note, error=str(error))
    if note.error is None or options.skip_bad:
        write_note(out, source, note)
    return note


def write_note(out: Path, source: Source, note: PartNote) -> None:
    """Finish a part."""
    place = out / PARTS / source.name
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / PART_NOTE, asdict(note))


def _stored_path(source: Source) -> str:
    return without_password(absolute_path(source.path))


def finished_parts(
    sources: Sequence[Source], out: Path, request: Request, *, skip_bad: bool
) -> dict[str, PartNote]:
    """Return the notes of the finished videos by name.

    Args:
        sources: All videos.
        out: Folder of the results.
        request: What is asked for.
        skip_bad: Whether videos that could not be read to their end count as finished.

    Raises:
        RunError: The folder has results of other videos, of another request, or damaged ones.
    """
    known = {source.name: source for source in sources}
    check_inside(out, out / PARTS)
    notes: dict[str, PartNote] = {}
    for path in sorted((out / PARTS).glob(f"*/{PART_NOTE}")):
        source = known.get(path.parent.name)
        if source is None:
            raise RunError(
                f"{path.parent}: belongs to a video that is not among the inputs; use the same "
                "inputs, or start again with --force"
            )
        note = _read_note(path)
        if note.request != request:
            raise RunError(
                f"{out}: was started with another run, --stride, --max-frames, --start, --end, "
                "--roi, --objects, --masks or --overlay; use the same ones, or start again with "
                "--force"
            )
        if note.path != _stored_path(source):
            raise RunError(
                f"{out}: has {source.name} from {note.path}; use the same inputs, or start again "
                "with --force"
            )
        if note.error is None or skip_bad:
            notes[source.name] = note
    return notes


def _read_note(path: Path) -> PartNote:
    try:
        return from_json(PartNote, read_json(path))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: is damaged; remove it, or start again with --force") from error


def join_parts(
    run: Plan,
    sources: Sequence[Source],
    out: Path,
    notes: dict[str, PartNote],
    zones: Zones | None = None,
    mm_per_pixel: float | None = None,
) -> Joined:
    """Join the results of all videos, in the order of the sources; memory stays constant.

    If it is stopped, it can be repeated: the parts are removed at the end.

    Args:
        run: The applied run.
        sources: All videos.
        out: Folder of the results.
        notes: From `finished_parts`.
        zones: Zones to measure; None for none.
        mm_per_pixel: Size of a pixel; None measures in pixels only.

    Raises:
        VideoError: No video has results.
    """
    joined, parts, known = Joined(), list[_Part](), KnownObjects()
    for source in sources:
        note = notes[source.name]
        if note.summary is None:
            error = str(note.error)
            reasons, key = (
                (joined.bad, source.name) if note.is_open else (joined.unopened, source.path)
            )
            reasons[key] = VideoError(error).reason
            continue
        numbers, recognised = known.meet(note.portraits, source.name)
        parts.append(_Part(out / PARTS / source.name, source.name, numbers))
        joined.totals += note.summary.totals
        entry = {**note.summary.sequence, **describe_recognised(recognised)}
        joined.sequences.append(entry)
        if note.summary.notes:
            joined.notes[source.name] = note.summary.notes
        if note.error is not None:
            joined.bad[source.name] = note.error
    if not parts:
        clear_parts(out)
        raise VideoError(next(iter((joined.unopened | joined.bad).values())))
    table = out / csv_name(run)
    joined.files = [table, *_join_crossings(out, parts)]
    _join_tables(table, parts)
    if run.config.task == "locate":
        join_outlines(out / OUTLINES, [(part.folder / OUTLINES, part.numbers) for part in parts])
        joined.files += [out / OUTLINES]
        scenes = measure_folder(out, joined.sequences)
        joined.files += write_behaviour(out, scenes, zones, mm_per_pixel)
    joined.files += [*_take_masks(out, parts), *_take_overlays(out, parts), out / "summary.json"]
    write_summary(out / "summary.json", replace(run, bad=run.bad | joined.unopened), joined)
    clear_parts(out)
    return joined


def _join_tables(table: Path, parts: Sequence[_Part]) -> None:
    """Write the rows of all parts; names of sequences have no quotes and no commas."""
    with replacing(table, "wb") as file:
        for part in parts:
            with open_regular(part.folder / table.name) as rows:
                header = rows.readline()
                if not file.tell():
                    file.write(header)
                if part.is_final:
                    shutil.copyfileobj(rows, file)
                else:
                    file.writelines(_renumbered_rows(rows, part.numbers))


def _renumbered_rows(rows: Iterable[bytes], numbers: Sequence[int]) -> Iterator[bytes]:
    """Yield rows with the final numbers of objects, sorted by number within each frame."""
    cells = (row.split(b",", 3) for row in rows)
    for _, frame in groupby(cells, itemgetter(1)):
        found = ((numbers[int(row[2]) - 1], row) for row in frame)
        for number, row in sorted(found, key=itemgetter(0)):
            yield b",".join([*row[:2], str(number).encode(), row[3]])


def _join_crossings(out: Path, parts: Sequence[_Part]) -> list[Path]:
    """Write crossings.csv if a part has one; returns the files written."""
    rows = []
    for part in parts:
        file = part.folder / CROSSINGS
        if file.exists():
            text = file.read_text().partition("\n")[2]
            rows.append(text if part.is_final else renumbered(text, part.numbers))
    if rows:
        write_crossings(out / CROSSINGS, rows)
    return [out / CROSSINGS] if rows else []


def _take_masks(out: Path, parts: Sequence[_Part]) -> list[Path]:
    """Move the masks of all parts, with the final numbers of objects; returns their folder."""
    for part in parts:
        masks, target = part.folder / "masks" / part.name, out / "masks" / part.name
        check_inside(out, target)
        if not masks.is_dir():
            continue
        if not part.is_final:
            renumber_masks(masks, target, part.numbers)
            continue
        target.mkdir(parents=True, exist_ok=True)
        for path in masks.glob(MASK_FILES):
            os.replace(path, target / path.name)
    return [out / "masks"] if (out / "masks").is_dir() else []


def _take_overlays(out: Path, parts: Sequence[_Part]) -> list[Path]:
    """Move the overlays of all parts, named after the videos; returns their folder."""
    for part in parts:
        overlay, target = part.folder / "overlay.mp4", out / OVERLAYS / f"{part.name}.mp4"
        check_inside(out, target)
        if overlay.exists():
            target.parent.mkdir(exist_ok=True)
            os.replace(overlay, target)
    return [out / OVERLAYS] if (out / OVERLAYS).is_dir() else []
