"""The CSV of an export. It is written as a partial table, so that an export can be resumed."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ullayers.learn.checkpoint import RunError
from ullayers.learn.folders import check_inside
from ullayers.learn.results import Answer, header, read_answers
from ullayers.video.atomic_files import write_json
from ullayers.video.reader import Source


class PartialTable:
    """A CSV that has another name until it is complete, with a note of how much of it is valid.

    A process that is killed while it writes leaves half a sequence, which the note does not count.

    Args:
        path: The complete table.
        request: What was asked for; a table is resumed only with an equal request.
        resume: Whether to keep the sequences of a partial table.
        masks: Whether the masks of finished sequences are needed too.

    Attributes:
        finished: Path of the source of each finished sequence.
        answers: Results of the sequences that were finished before.
    """

    def __init__(self, path: Path, request: list[Any], resume: bool, masks: bool = False) -> None:
        self.path = path
        self.partial = path.with_suffix(".partial.csv")
        self.note = path.with_suffix(".partial.json")
        check_inside(path.parent, self.partial, self.note)
        self.request = request
        self.masks = masks
        self.finished: dict[str, str] = {}
        self.answers: dict[str, Answer] = {}
        self.header = ""
        if resume and self.partial.exists() and self.note.exists():
            self._resume()

    def _resume(self) -> None:
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
            request = note["asked"]
            valid_bytes = int(note["bytes"])
            finished = {str(name): str(path) for name, path in dict(note["places"]).items()}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._damaged(self.note) from error
        if request != self.request:
            raise RunError(
                f"{self.partial}: was started with another run, --stride or --max-frames; use the "
                "same ones, or start again with --force"
            )
        if not 0 <= valid_bytes <= self.partial.stat().st_size:
            raise self._damaged(self.partial)
        if self.masks and not note.get("masks"):
            return  # the finished sequences have no masks, so all are processed again
        os.truncate(self.partial, valid_bytes)
        self._read_finished(finished)

    def _read_finished(self, finished: dict[str, str]) -> None:
        try:
            with open(self.partial, encoding="utf-8", newline="") as file:
                first = file.readline()
                answers = {found.sequence: found for found in read_answers([first, *file])}
        except (ValueError, IndexError, StopIteration, csv.Error) as error:
            raise self._damaged(self.partial) from error
        if answers.keys() != finished.keys():
            raise self._damaged(self.partial)
        self.header, self.answers, self.finished = first, answers, finished

    def _damaged(self, path: Path) -> RunError:
        return RunError(f"{path}: is damaged; start again with --force")

    def has(self, source: Source) -> bool:
        """Return whether the rows of this source are in the table.

        Raises:
            RunError: The table has rows of another file of the same name.
        """
        path = self.finished.get(source.name)
        if path is not None and path != os.path.abspath(source.path):
            raise RunError(
                f"{self.partial}: has {source.name} from {path}; use the same inputs, or start "
                "again with --force"
            )
        return path is not None

    def __enter__(self) -> PartialTable:
        if not self.finished:
            self.note.unlink(missing_ok=True)
        check_inside(self.path.parent, self.partial)
        self.file = open(self.partial, "ab" if self.finished else "wb")
        return self

    def write(self, answer: Answer, source: Source) -> None:
        """Add the rows of a sequence."""
        if not self.finished:
            self.header = header(answer.table_columns)
            self.file.write(self.header.encode())
        elif self.header != header(answer.table_columns):  # of version 0.1, without pixels
            answer = replace(answer, size=None)
        self.file.write(answer.lines().encode())
        self.file.flush()
        finished = {**self.finished, answer.sequence: os.path.abspath(source.path)}
        note = {
            "asked": self.request,
            "bytes": self.file.tell(),
            "places": finished,
            "masks": self.masks,
        }
        write_json(self.note, note)
        self.finished = finished

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        completed = kind is None
        try:
            self.file.close()
            if completed:
                os.replace(self.partial, self.path)
        finally:
            if completed or not self.finished:
                self.partial.unlink(missing_ok=True)
                self.note.unlink(missing_ok=True)
