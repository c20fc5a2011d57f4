"""Corrections of tracks by a user, stored in corrections.json beside the results.

They are applied in order and never change the original results. Frame ranges are inclusive, and
object numbers are those at the time of the correction.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from ullayers.errors import UserError
from ullayers.learn.checkpoint import RunError, read_json
from ullayers.learn.folders import CORRECTIONS, check_inside
from ullayers.learn.typed_json import from_json
from ullayers.video.atomic_files import write_json

VERSION = 1
MAX_CORRECTIONS = 10_000


@dataclass(frozen=True)
class Swap:
    """Swap two objects from a frame on.

    Attributes:
        sequence: Name of the sequence.
        objects: Numbers of both objects.
        first: First frame in which they are swapped.
    """

    op: ClassVar = "swap"
    sequence: str
    objects: tuple[int, int]
    first: int


@dataclass(frozen=True)
class Merge:
    """Merge an object into another one, whose rows are kept in frames that have both.

    Attributes:
        sequence: Name of the sequence.
        objects: Number that is kept, and number that disappears.
    """

    op: ClassVar = "merge"
    sequence: str
    objects: tuple[int, int]


@dataclass(frozen=True)
class Split:
    """Give an object a new number from a frame on: the next unused one.

    Attributes:
        sequence: Name of the sequence.
        object: Number of the object.
        first: First frame of the new object.
    """

    op: ClassVar = "split"
    sequence: str
    object: int
    first: int


@dataclass(frozen=True)
class Delete:
    """Remove an object in a range of frames or in all.

    Attributes:
        sequence: Name of the sequence.
        object: Number of the object.
        first: First frame to remove; None for the beginning.
        last: Last frame to remove; None for the end.
    """

    op: ClassVar = "delete"
    sequence: str
    object: int
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class Move:
    """Set the position of an object in a frame.

    Attributes:
        sequence: Name of the sequence.
        object: Number of the object.
        frame: The frame.
        x: Pixels from the left edge of the frame.
        y: Pixels from the top edge.
    """

    op: ClassVar = "move"
    sequence: str
    object: int
    frame: int
    x: float
    y: float


@dataclass(frozen=True)
class MarkEmpty:
    """Mark frames as empty.

    Attributes:
        sequence: Name of the sequence.
        first: First of these frames.
        last: Last of these frames.
    """

    op: ClassVar = "nothing"
    sequence: str
    first: int
    last: int


Correction = Swap | Merge | Split | Delete | Move | MarkEmpty
KINDS: dict[str, type[Correction]] = {
    kind.op: kind for kind in (Swap, Merge, Split, Delete, Move, MarkEmpty)
}


@dataclass(frozen=True)
class Corrections:
    """Corrections of one results folder.

    Attributes:
        applied: Active corrections, in order.
        undone: Undone corrections, the latest one last.

    Example:
        >>> one, two = Split("a", 1, 10), Merge("a", (1, 2))
        >>> edited = Corrections().add(one).add(two).undo()
        >>> len(edited.applied), len(edited.undone), len(edited.redo().applied)
        (1, 1, 2)
    """

    applied: tuple[Correction, ...] = ()
    undone: tuple[Correction, ...] = ()

    def add(self, correction: Correction) -> Corrections:
        """Return these corrections with a new one; undone corrections are dropped.

        Raises:
            UserError: There are too many.
        """
        if len(self.applied) >= MAX_CORRECTIONS:
            raise UserError(f"there are {MAX_CORRECTIONS:,} corrections already; learn from them")
        return Corrections((*self.applied, correction))

    def undo(self) -> Corrections:
        """Return these corrections without the last one.

        Raises:
            UserError: There is none.
        """
        if not self.applied:
            raise UserError("there is no correction to undo")
        return Corrections(self.applied[:-1], (*self.undone, self.applied[-1]))

    def redo(self) -> Corrections:
        """Return these corrections with the last undone one.

        Raises:
            UserError: None was undone.
        """
        if not self.undone:
            raise UserError("there is no correction to redo")
        return Corrections((*self.applied, self.undone[-1]), self.undone[:-1])

    def to_json(self) -> dict[str, Any]:
        """Return the content of corrections.json."""
        return {
            "version": VERSION,
            "applied": list(map(correction_to_json, self.applied)),
            "undone": list(map(correction_to_json, self.undone)),
        }


def correction_to_json(correction: Correction) -> dict[str, Any]:
    """Return a correction as a JSON object.

    >>> correction_to_json(Split("a", 1, 10))
    {'op': 'split', 'sequence': 'a', 'object': 1, 'first': 10}
    """
    return {"op": correction.op, **asdict(correction)}


def correction_from_json(content: Any) -> Correction:
    """Return the correction that a JSON object describes.

    Raises:
        UserError: It does not describe a correction.

    Example:
        >>> correction_from_json({"op": "split", "sequence": "a", "object": 1, "first": 10})
        Split(sequence='a', object=1, first=10)
        >>> correction_from_json({"op": "split", "sequence": "a", "object": 1})
        Traceback (most recent call last):
        ullayers.errors.UserError: split: first is missing
    """
    op = content.get("op") if isinstance(content, dict) else None
    if not isinstance(op, str) or op not in KINDS:
        raise UserError(f"expected a correction with op {', '.join(KINDS)}")
    try:
        return from_json(KINDS[op], {name: content[name] for name in content if name != "op"})
    except ValueError as error:
        raise UserError(f"{op}: {error}") from error


def read_corrections(folder: Path) -> Corrections:
    """Read corrections.json of a results folder; a missing file has no corrections.

    Raises:
        RunError: The file is damaged, or a link to another folder.
    """
    path = folder / CORRECTIONS
    check_inside(folder, path)
    try:
        return _parse(read_json(path))
    except (FileNotFoundError, NotADirectoryError):
        return Corrections()
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: is damaged ({error}); repair or remove it") from error


def _parse(content: Any) -> Corrections:
    if not isinstance(content, dict) or set(content) != {"version", "applied", "undone"}:
        raise ValueError("expected version, applied and undone")
    if content["version"] != VERSION:
        raise ValueError(f"expected version {VERSION}")
    parts = content["applied"], content["undone"]
    if not all(isinstance(part, list) and len(part) <= MAX_CORRECTIONS for part in parts):
        raise ValueError(f"expected lists of at most {MAX_CORRECTIONS} corrections")
    return Corrections(*(tuple(map(correction_from_json, part)) for part in parts))


def write_corrections(folder: Path, corrections: Corrections) -> None:
    """Write corrections.json atomically.

    Raises:
        RunError: The file is a link to another folder.
    """
    path = folder / CORRECTIONS
    check_inside(folder, path)
    write_json(path, corrections.to_json())
