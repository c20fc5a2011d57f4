"""The CSV of an export, written as a partial table so that an export can be resumed."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ullayers.learn.checkpoint import RunError, read_json
from ullayers.learn.folders import check_inside
from ullayers.learn.regular_files import keep_beginning, open_regular, read_regular
from ullayers.learn.results import CROP, PIXELS, SHAPE, Answer, header, read_answers
from ullayers.learn.typed_json import from_json
from ullayers.locate.recognition import Portrait
from ullayers.output.crossing_table import CROSSINGS, write_crossings
from ullayers.output.exported import SequenceNote
from ullayers.video.atomic_files import replacing, write_json
from ullayers.video.reader import Source
from ullayers.video.remote import absolute_path

MAX_TABLE_BYTES = 2**30
PARTIAL_TABLES = "*.partial.json", "*.partial.csv"
MORE_COLUMNS = (PIXELS, PIXELS + SHAPE, CROP)  # after those of the results


@dataclass(frozen=True)
class PartialNote:
    """The note beside a partial table.

    Attributes:
        asked: The request.
        bytes: Valid bytes of the table.
        places: Path of the source of each finished sequence.
        masks: Whether the finished sequences have masks.
        crossings: Rows of crossings.csv of each finished sequence with several objects.
        portraits: Appearance of the objects of each finished sequence.
        summaries: What the summary says about each finished sequence.
    """

    asked: list[str | int | None]
    bytes: int
    places: dict[str, str]
    masks: bool = False
    crossings: dict[str, str] = field(default_factory=dict)
    portraits: dict[str, list[Portrait]] = field(default_factory=dict)
    summaries: dict[str, SequenceNote] = field(default_factory=dict)


def read_note(path: Path) -> PartialNote:
    """Read the note beside a partial table.

    Raises:
        RunError: The note is damaged.
    """
    try:
        return from_json(PartialNote, read_json(path))
    except (OSError, ValueError) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> RunError:
    return RunError(f"{path}: is damaged; start again with --force")


def unfinished_sources(sources: Iterable[Source], out: Path, masks: bool) -> list[Source]:
    """Return the sources that `export` still has to process when it resumes a partial table.

    Args:
        sources: All sources of the command.
        out: Folder of the partial table.
        masks: Whether masks are written; a sequence without its masks is not finished.
    """
    finished: set[str] = set()
    for path in out.glob("*.partial.json"):
        try:
            note = read_note(path)
        except RunError:
            continue  # `export` refuses a damaged note with a message
        if note.masks or not masks:
            finished.update(note.places)
    return [source for source in sources if source.name not in finished]


class PartialTable:
    """A CSV under a temporary name, with a note of how much of it is valid.

    A killed process leaves an incomplete sequence, which the note does not include. The partial
    table stays until `remove_partial_tables`, so that an export can be resumed until its last file
    is written.

    Args:
        path: The complete table.
        request: The request; a table is resumed only with an equal request.
        columns: Columns of the results.
        resume: Whether to keep the sequences of a partial table.
        masks: Whether the masks of finished sequences are needed too.
        numbered: Whether there may be several objects. The complete table has a column `object`
            only if there are several.

    Attributes:
        finished: Path of the source of each finished sequence.
        answers: Results of the sequences that were finished before.
    """

    def __init__(
        self,
        path: Path,
        request: list[str | int | None],
        columns: Sequence[str],
        *,
        resume: bool,
        masks: bool = False,
        numbered: bool = False,
    ) -> None:
        self.path = path
        self.partial = path.with_suffix(".partial.csv")
        self.note = path.with_suffix(".partial.json")
        check_inside(path.parent, self.partial, self.note)
        self.request = request
        self.columns = tuple(columns)
        self.masks = masks
        self.numbered = numbered
        self.crossings: dict[str, str] = {}
        self.portraits: dict[str, list[Portrait]] = {}
        self.summaries: dict[str, SequenceNote] = {}
        self.finished: dict[str, str] = {}
        self.answers: dict[str, Answer] = {}
        self.header = ""
        if resume and self.partial.exists() and self.note.exists():
            self._resume()

    def _resume(self) -> None:
        note = read_note(self.note)
        if note.asked != self.request:
            raise RunError(
                f"{self.partial}: was started with another run, --stride, --max-frames, --start, "
                "--end or --roi; use the same ones, or start again with --force"
            )
        if self.masks and not note.masks:
            return  # the finished sequences have no masks, so all are processed again
        try:
            self._read_finished(note)
        except (OSError, ValueError, csv.Error) as error:
            raise _damaged(self.partial) from error
        self.finished = note.places
        self.crossings = note.crossings
        self.portraits = note.portraits
        self.summaries = note.summaries
        keep_beginning(self.partial, note.bytes)

    def _read_finished(self, note: PartialNote) -> None:
        content = read_regular(self.partial, MAX_TABLE_BYTES)
        if not 0 <= note.bytes <= len(content):
            raise ValueError(f"expected a table of {note.bytes} bytes, got {len(content)}")
        text = io.TextIOWrapper(io.BytesIO(content[: note.bytes]), "utf-8", newline="")
        self.header = text.readline()
        known = [self.columns, *(self.columns + more for more in MORE_COLUMNS)]
        if self.header not in {header(each, numbered=self.numbered) for each in known}:
            raise ValueError(f"expected a table with columns {self.columns}")
        text.seek(0)
        answers = read_answers(text)
        self.answers = {found.sequence: found for found in answers}
        if len(answers) != len(self.answers) or self.answers.keys() != note.places.keys():
            raise ValueError("expected the sequences of the note, each once")

    def has(self, source: Source) -> bool:
        """Return whether the rows of this source are in the table.

        Raises:
            RunError: The table has rows of another file of the same name.
        """
        path = self.finished.get(source.name)
        if path is not None and path != absolute_path(source.path):
            raise RunError(
                f"{self.partial}: has {source.name} from {path}; use the same inputs, or start "
                "again with --force"
            )
        return path is not None

    def __enter__(self) -> PartialTable:
        if not self.finished:
            self.note.unlink(missing_ok=True)
            self.partial.unlink(missing_ok=True)  # it may be a pipe or a hard link
        check_inside(self.path.parent, self.partial)
        self.file = open(self.partial, "ab" if self.finished else "xb")
        return self

    def write(
        self,
        answer: Answer,
        source: Source,
        crossings: str = "",
        portraits: Sequence[Portrait] = (),
        summary: SequenceNote | None = None,
    ) -> None:
        """Add the rows of a sequence.

        Args:
            answer: The rows.
            source: Their source.
            crossings: Rows of crossings.csv, if there are several objects.
            portraits: Appearance of the objects.
            summary: What the summary says about the sequence.
        """
        columns = header(answer.table_columns, numbered=self.numbered)
        if not self.finished:
            self.header = columns
            self.file.write(self.header.encode())
        elif self.header != columns:  # of an older version
            answer = answer.with_columns(self.header.strip().split(","))
        for some in answer.in_parts():
            self.file.write(some.lines(numbered=self.numbered).encode())
        if answer.several is not None:
            self.crossings = {**self.crossings, answer.sequence: crossings}
        if portraits:
            self.portraits = {**self.portraits, answer.sequence: list(portraits)}
        if summary is not None:
            self.summaries = {**self.summaries, answer.sequence: summary}
        self.file.flush()
        finished = {**self.finished, answer.sequence: absolute_path(source.path)}
        note = {
            "asked": self.request,
            "bytes": self.file.tell(),
            "places": finished,
            "masks": self.masks,
            "crossings": self.crossings,
            "portraits": {k: list(map(asdict, each)) for k, each in self.portraits.items()},
            "summaries": {name: asdict(each) for name, each in self.summaries.items()},
        }
        write_json(self.note, note)
        self.finished = finished

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.file.close()
        if kind is None:
            self._complete()
        elif not self.finished:
            remove_partial_tables(self.path.parent)

    def _complete(self) -> None:
        """Write the complete table, without the column `object` if there is one object."""
        listed = self.path.with_name(CROSSINGS)
        if self.crossings:
            write_crossings(listed, list(self.crossings.values()))
        elif self.numbered:
            listed.unlink(missing_ok=True)
            _copy_without_column(self.partial, self.path, 2)
            return
        with replacing(self.path, "wb") as new, open_regular(self.partial) as old:
            shutil.copyfileobj(old, new)


def has_partial_tables(folder: Path) -> bool:
    """Return whether a folder has an export that can be resumed, even one without rows."""
    return any(path for pattern in PARTIAL_TABLES for path in folder.glob(pattern))


def remove_partial_tables(folder: Path) -> None:
    """Remove the partial tables of an export that is complete, or has no finished sequence.

    The notes come first: without its note, a partial table is not resumed.
    """
    for pattern in PARTIAL_TABLES:
        for path in folder.glob(pattern):
            path.unlink()


def _copy_without_column(source: Path, path: Path, column: int) -> None:
    with replacing(path) as new, open_regular(source) as old:
        text = io.TextIOWrapper(old, newline="")
        rows = csv.writer(new, lineterminator="\n")
        rows.writerows(row[:column] + row[column + 1 :] for row in csv.reader(text))
