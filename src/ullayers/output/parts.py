"""Results of single videos as Parquet files, merged into one table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import MissingPackageError
from ullayers.learn.checkpoint import RunError
from ullayers.learn.folders import check_inside, clear_masks, clear_parts
from ullayers.learn.results import CROP, ROWS_AT_ONCE, SHAPE, TRACK, Answer, header
from ullayers.learn.typed_json import from_json
from ullayers.locate.recognition import KnownObjects, Portrait
from ullayers.output.crossing_table import CROSSINGS, renumbered, write_crossings
from ullayers.output.exported import Totals, describe_recognised
from ullayers.output.mask_files import renumber_masks
from ullayers.video.atomic_files import replacing, sweep
from ullayers.video.reader import Source, VideoError
from ullayers.video.remote import absolute_path, without_password

NOTE = b"ullayers"  # key of the note in the metadata of a Parquet file


@dataclass(frozen=True)
class PartNote:
    """The note in the result file of a video.

    Attributes:
        request: What was asked for.
        path: Path of the video.
        columns: Columns of the results, without pixels.
        totals: Numbers of frames.
        sequence: Entry of the video in summary.json.
        error: Why the video could not be read to its end; None if it could.
        crossings: Rows of crossings.csv, if there are several objects.
        notes: Notes about the objects.
        portraits: Appearance of the objects.
    """

    request: list[str | int | None]
    path: str
    columns: list[str]
    totals: Totals
    sequence: dict[str, str | int | float | None]
    error: str | None = None
    crossings: str = ""
    notes: list[str] = field(default_factory=list)
    portraits: list[Portrait] = field(default_factory=list)

    @property
    def objects(self) -> int:
        """Number of objects."""
        return int(self.sequence.get("objects") or 1)


@dataclass
class Merged:
    """Results of all videos; as in `Exported`."""

    totals: Totals = field(default_factory=Totals)
    sequences: list[dict[str, Any]] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)


def load_parquet() -> ModuleType:
    """Import pyarrow on first use."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "Parquet files need the package pyarrow: pip install 'ullayers[ray]'"
        ) from error
    module: ModuleType = pyarrow.parquet
    return module


def stored_path(source: Source) -> str:
    """Return the path of a source as stored: absolute, without a password."""
    return without_password(absolute_path(source.path))


def to_parquet(answer: Answer, note: PartNote) -> bytes:
    """Return the rows of a video as a Parquet file; numbers are not rounded.

    Args:
        answer: All rows.
        note: The note to store with them.
    """
    parquet = load_parquet()
    import pyarrow as arrow

    answer = answer.several or answer
    rows = len(answer.index)
    pixels = None if answer.size is None else answer.values[:, :2] * answer.size
    blocks = [answer.values, pixels, answer.shapes, answer.crops]
    values = [block for block in blocks if block is not None]
    name = arrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [answer.sequence])
    columns = {"sequence": name, "frame": answer.index}
    if answer.objects is not None:
        columns["object"] = answer.objects
    columns["time"] = answer.seconds
    columns |= dict(zip(answer.table_columns, np.concatenate(values, 1).T, strict=True))
    table = arrow.table(columns).replace_schema_metadata({NOTE: json.dumps(asdict(note))})
    file = arrow.BufferOutputStream()
    parquet.write_table(table, file, compression="zstd")
    content: bytes = file.getvalue().to_pybytes()
    return content


class Parts:
    """A folder with the result file of each finished video, and the merged table.

    The folder is called tracks.partial.parquet, or codes.partial.parquet, until the table is
    complete, and tracks.parquet afterwards.

    Args:
        table: The complete CSV.
        request: What was asked for; videos are resumed only with an equal request.
        resume: Whether to keep finished videos.
    """

    def __init__(self, table: Path, request: list[str | int | None], *, resume: bool) -> None:
        self.table = table
        self.request = request
        self.complete = table.with_suffix(".parquet")
        self.folder = table.with_suffix(".partial.parquet")
        check_inside(table.parent, self.folder, self.complete)
        if not resume:
            clear_parts(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)

    def finished(self, sources: Sequence[Source], *, skip_bad: bool) -> set[str]:
        """Return the names of the finished videos.

        Args:
            sources: All videos.
            skip_bad: Whether videos that could be read only in part count as finished.

        Raises:
            RunError: The folder has results of other videos, of another request, or damaged ones.
        """
        known = {source.name: source for source in sources}
        done: set[str] = set()
        for file in self.folder.glob("*.parquet"):
            if file.stem not in known:
                raise RunError(
                    f"{file}: belongs to a video that is not among the inputs; "
                    "use the same inputs, or start again with --force"
                )
            note = self._note(known[file.stem])
            if note.error is None or skip_bad:
                done.add(file.stem)
        return done

    def write(self, source: Source, content: bytes) -> None:
        """Write the result file of a video atomically."""
        with replacing(self._file(source), "wb") as file:
            file.write(content)

    def merge(self, sources: Sequence[Source]) -> Merged:
        """Write the table of all finished videos, in the order of the sources.

        Memory does not grow with the number of rows.
        """
        merged, known = Merged(), KnownObjects()
        notes = {source: self._note(source) for source in sources if self._file(source).exists()}
        met = {source: known.meet(note.portraits, source.name) for source, note in notes.items()}
        numbered = any(note.objects > 1 for note in notes.values())
        if numbered:
            crossings = self.table.with_name(CROSSINGS)
            rows = [renumbered(note.crossings, met[source][0]) for source, note in notes.items()]
            write_crossings(crossings, rows)
            merged.files.append(crossings)
        with replacing(self.table) as file:
            for source, note in notes.items():
                numbers, recognised = met[source]
                for answer in self._answers(source, note, numbers):
                    if not file.tell():
                        file.write(header(answer.table_columns, numbered=numbered))
                    file.write(answer.lines(numbered=numbered))
                self._publish_masks(source, numbers)
                merged.totals += note.totals
                merged.sequences.append({**note.sequence, **describe_recognised(recognised)})
                if note.notes:
                    merged.notes[source.name] = note.notes
                if note.error is not None:
                    merged.bad[source.name] = VideoError(note.error).reason
        return merged

    def _publish_masks(self, source: Source, numbers: Sequence[int]) -> None:
        """Write masks of several objects, now that the object numbers are known."""
        waiting = self.folder / "masks" / source.name
        if waiting.is_dir():
            target = self.table.parent / "masks" / source.name
            check_inside(self.table.parent, target)
            renumber_masks(waiting, target, numbers)

    def remove_if_empty(self) -> bool:
        """Remove the folder if no video is finished; returns whether it was empty."""
        with suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()

    def finish(self) -> None:
        """Give the folder its final name."""
        clear_masks(self.folder)
        clear_parts(self.complete)
        os.replace(self.folder, self.complete)

    def _file(self, source: Source) -> Path:
        return self.folder / f"{source.name}.parquet"

    def _note(self, source: Source) -> PartNote:
        parquet, file = load_parquet(), self._file(source)
        import pyarrow as arrow

        try:
            stored = parquet.read_schema(file).metadata or {}
            note = from_json(PartNote, json.loads(stored[NOTE]))
        except (arrow.ArrowException, OSError, KeyError, ValueError) as error:
            raise RunError(f"{file}: is damaged; remove it, or start again with --force") from error
        if note.request != self.request:
            raise RunError(
                f"{self.folder}: was started with another run, --stride, --max-frames, --start, "
                "--end, --roi, --objects or --masks; use the same ones, or start again with --force"
            )
        if note.path != stored_path(source):
            raise RunError(
                f"{self.folder}: has {source.name} from {note.path}; use the same inputs, or start "
                "again with --force"
            )
        return note

    def _answers(self, source: Source, note: PartNote, numbers: Sequence[int]) -> Iterator[Answer]:
        """Read the rows of a video in parts.

        Args:
            source: The video.
            note: Its note.
            numbers: New numbers of the objects 1, 2, ... in the file.
        """
        lookup = np.array([0, *numbers])
        for columns in self._whole_frames(source):
            count = len(columns["frame"])
            objects = columns.get("object")
            if numbers and (objects is not None or numbers[0] != 1):
                objects = lookup[np.ones(count, np.int64) if objects is None else objects]
                order = np.lexsort([objects, columns["frame"]])
                columns = {name: values[order] for name, values in columns.items()}
                objects = objects[order]
            more = [
                np.stack([columns[name] for name in names], 1) if names[0] in columns else None
                for names in (SHAPE, CROP)
            ]
            yield Answer(
                source.name,
                columns["frame"],
                columns["time"],
                tuple(note.columns),
                np.stack([columns[name] for name in note.columns], 1),
                size=_frame_size(note),
                shapes=more[0],
                crops=more[1],
                objects=objects,
            )

    def _whole_frames(self, source: Source) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield columns in parts; all rows of a frame are in the same part."""
        waiting: dict[str, NDArray[Any]] = {}
        with load_parquet().ParquetFile(self._file(source)) as file:
            for rows in file.iter_batches(ROWS_AT_ONCE):
                columns = {name: rows.column(name).to_numpy() for name in rows.schema.names[1:]}
                if waiting:
                    columns = {k: np.concatenate([waiting[k], v]) for k, v in columns.items()}
                end = int(np.searchsorted(columns["frame"], columns["frame"][-1]))
                yield {name: values[:end] for name, values in columns.items()}
                waiting = {name: values[end:] for name, values in columns.items()}
        if waiting:
            yield waiting


def _frame_size(note: PartNote) -> tuple[int, int] | None:
    """Return (width, height) of a video whose table also has pixels."""
    if note.columns != list(TRACK):
        return None
    return int(note.sequence["width"] or 0), int(note.sequence["height"] or 0)
