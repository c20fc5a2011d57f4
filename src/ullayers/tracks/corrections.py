"""Corrections of tracks by a user, stored in corrections.json beside the results.

They are applied in order and never change the original results. Frame ranges are inclusive, and
object numbers are those at the time of the correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import Error, RunError
from ullayers.files import (
    check_inside,
    from_json,
    read_json,
    write_json,
)
from ullayers.tracks.masks import MAX_PALETTE_OBJECTS
from ullayers.tracks.measures import half_window, speed
from ullayers.tracks.reading import NAMES, Crossing, Floats, Track
from ullayers.tracks.table import SURE
from ullayers.tracks.tracked_video import Numbers, TrackedVideo, read_videos

VERSION = 1
MAX_CORRECTIONS = 10_000
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
SHAPE = ("heading", "length", "width", "area")  # columns that belong to the mask
FAR = 0.01  # of the frame width: a position that moved by more has changed


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
            Error: There are too many.
        """
        if len(self.applied) >= MAX_CORRECTIONS:
            raise Error(f"there are {MAX_CORRECTIONS:,} corrections already; learn from them")
        return Corrections((*self.applied, correction))

    def undo(self) -> Corrections:
        """Return these corrections without the last one.

        Raises:
            Error: There is none.
        """
        if not self.applied:
            raise Error("there is no correction to undo")
        return Corrections(self.applied[:-1], (*self.undone, self.applied[-1]))

    def redo(self) -> Corrections:
        """Return these corrections with the last undone one.

        Raises:
            Error: None was undone.
        """
        if not self.undone:
            raise Error("there is no correction to redo")
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
        Error: It does not describe a correction.

    Example:
        >>> correction_from_json({"op": "split", "sequence": "a", "object": 1, "first": 10})
        Split(sequence='a', object=1, first=10)
        >>> correction_from_json({"op": "split", "sequence": "a", "object": 1})
        Traceback (most recent call last):
        ullayers.errors.Error: split: first is missing
    """
    op = content.get("op") if isinstance(content, dict) else None
    if not isinstance(op, str) or op not in KINDS:
        raise Error(f"expected a correction with op {', '.join(KINDS)}")
    try:
        return from_json(KINDS[op], {name: content[name] for name in content if name != "op"})
    except ValueError as error:
        raise Error(f"{op}: {error}") from error


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


class CorrectedRows:
    """All rows of a video, in any order; no two rows have the same frame and number.

    The first rows are those of the original tracks, one track after the other. Rows added by
    corrections follow. An invalid correction raises `Error` and changes nothing.

    Args:
        video: The video with its original tracks.

    Attributes:
        frames: Numbers of the processed frames.
        frame: (rows,) frame of each row.
        number: (rows,) number after the corrections; 0 if the row was removed.
        placed: (rows,) whether a correction determines the position.
        masked: (rows,) whether the original mask belongs to the object.
        ends: (tracks,) number of rows up to the end of each original track.
    """

    def __init__(self, video: TrackedVideo) -> None:
        self.video = video
        self.frames = video.frames
        tracks = video.tracks
        counts = np.array([len(track.frame) for track in tracks], np.int64)
        self.ends: Integers = np.cumsum(counts)
        self.count = int(counts.sum())  # of original rows
        self.frame: Integers = np.concatenate(
            [np.zeros(0, np.int64), *(track.frame for track in tracks)]
        )
        self.number = np.repeat(np.array([track.object for track in tracks], np.int32), counts)
        self.placed: Flags = np.zeros(self.count, bool)
        self.masked: Flags = np.ones(self.count, bool)
        self.highest = max((track.object for track in tracks), default=0)  # not used again
        self._moved: dict[int, tuple[float, float]] = {}  # corrected positions by row

    def places(self, rows: Integers) -> Floats:
        """Return the corrected positions of rows, (rows, 2) pixels; NaN where there is none."""
        nowhere = math.nan, math.nan
        found = [self._moved.get(row, nowhere) for row in rows.tolist()]
        return np.array(found, np.float64).reshape(-1, 2)

    def apply(self, correction: Correction) -> None:
        """Apply one correction.

        Raises:
            Error: The correction is invalid.
        """
        match correction:
            case Swap():
                self._swap(*correction.objects, correction.first)
            case Merge():
                self._merge(*correction.objects)
            case Split():
                self._split(correction.object, correction.first)
            case Delete():
                self._delete(correction)
            case Move():
                self._move(correction)
            case MarkEmpty():
                self._clear(correction.first, correction.last)

    def columns(self, names: Sequence[str], rows: Integers) -> dict[str, NDArray[np.floating[Any]]]:
        """Return a copy of the original values of rows, by column.

        Args:
            names: Names of columns of a track.
            rows: The rows.
        """
        tracks = self.video.tracks
        kinds = {
            name: np.result_type(np.float32, *(getattr(track, name) for track in tracks))
            for name in names
        }
        found = {name: np.empty(len(rows), kind) for name, kind in kinds.items()}
        owner = self._owner(rows)
        for place in np.flatnonzero(np.bincount(owner)):
            own = np.flatnonzero(owner == place)
            chosen = rows[own] - (self.ends[place] - len(tracks[place].frame))
            for name, values in found.items():
                values[own] = getattr(tracks[place], name)[chosen]
        return found

    def _owner(self, rows: Integers) -> Integers:
        return np.searchsorted(self.ends, rows, side="right")

    def is_unchanged(self, place: int) -> bool:
        """Return whether a track is unchanged and has no added rows.

        Args:
            place: Index of the track in the video.
        """
        track = self.video.tracks[place]
        end = int(self.ends[place])
        own = slice(end - len(track.frame), end)
        return bool(
            (self.number[own] == track.object).all()
            and not self.placed[own].any()
            and self.masked[own].all()
            and np.count_nonzero(self.number == track.object) == len(track.frame)
        )

    def follows(self, chosen: Integers) -> Flags:
        """Return where consecutive rows of an object are those of the original track.

        Args:
            chosen: Rows of the object, sorted by frame.

        Returns:
            (rows + 1,) whether nothing has changed before the first row, between each two
            consecutive rows, and after the last row.
        """
        kept = ~self.placed[chosen] & (chosen < self.count)
        same = np.diff(self._owner(chosen)) == 0
        between = (np.diff(chosen) == 1) & same & kept[1:] & kept[:-1]
        first = np.isin(chosen[:1], [0, *self.ends]) & kept[:1]
        last = np.isin(chosen[-1:] + 1, self.ends) & kept[-1:]
        return np.concatenate([first, between, last])

    def _swap(self, one: int, other: int, first: int) -> None:
        self._check_pair(one, other)
        self._check_frame(first)
        later = self.frame >= first
        is_one = later & (self.number == one)
        is_other = later & (self.number == other)
        if not (is_one.any() or is_other.any()):
            raise Error(f"neither object {one} nor {other} has a row from frame {first} on")
        self.number[is_one], self.number[is_other] = other, one

    def _merge(self, one: int, other: int) -> None:
        self._check_pair(one, other)
        is_other = np.flatnonzero(self.number == other)
        both = np.isin(self.frame[is_other], self.frame[self.number == one])
        self.number[is_other] = np.where(both, 0, one)

    def _split(self, number: int, first: int) -> None:
        own = self._rows_of(number)
        self._check_frame(first)
        later = own & (self.frame >= first)
        if not later.any() or (later == own).all():
            start, end = self.frame[own].min(), self.frame[own].max()
            raise Error(
                f"object {number} is in frames {start} to {end}; split it after frame {start}, and "
                f"not after frame {end}"
            )
        if self.highest >= MAX_PALETTE_OBJECTS:
            raise Error(f"there cannot be more than {MAX_PALETTE_OBJECTS} objects")
        self.highest += 1
        self.number[later] = self.highest

    def _delete(self, wanted: Delete) -> None:
        own = self._rows_of(wanted.object)
        for frame in (wanted.first, wanted.last):
            if frame is not None:
                self._check_frame(frame)
        first = int(self.frames[0]) if wanted.first is None else wanted.first
        last = int(self.frames[-1]) if wanted.last is None else wanted.last
        removed = own & (self.frame >= first) & (self.frame <= last)
        if not removed.any():
            raise Error(f"object {wanted.object} has no row in frames {first} to {last}")
        self.number[removed] = 0

    def _move(self, wanted: Move) -> None:
        own = self._rows_of(wanted.object)
        self._check_frame(wanted.frame)
        x = wanted.x
        y = wanted.y
        width = self.video.width
        height = self.video.height
        if not (0 <= x <= width and 0 <= y <= height):  # or NaN
            raise Error(f"({x:g}, {y:g}) is outside the frame, which has {width} x {height} pixels")
        rows = np.flatnonzero(own & (self.frame == wanted.frame))
        row = int(rows[0]) if len(rows) else self._new_row(wanted.frame, wanted.object)
        self._moved[row] = x, y
        self.placed[row] = True
        self.masked[row] = self._is_in_mask(row)

    def _is_in_mask(self, row: int) -> bool:
        """Return whether a row is at most half a length from its original position."""
        if row >= self.count:
            return False
        found = self.columns(("x_px", "y_px", "length"), np.array([row]))
        x, y, length = (float(values[0]) for values in found.values())
        return math.dist(self._moved[row], (x, y)) <= length / 2

    def _new_row(self, frame: int, number: int) -> int:
        new = {"frame": frame, "number": number, "placed": True, "masked": False}
        for name, value in new.items():
            old = getattr(self, name)
            setattr(self, name, np.append(old, np.array(value, old.dtype)))
        return len(self.frame) - 1

    def _clear(self, first: int, last: int) -> None:
        self._check_frame(first)
        self._check_frame(last)
        inside = (self.frame >= first) & (self.frame <= last) & (self.number > 0)
        if not inside.any():
            raise Error(f"no object has a row in frames {first} to {last}")
        self._moved = {row: place for row, place in self._moved.items() if not inside[row]}
        self.placed[inside] = True
        self.masked[inside] = False

    def _rows_of(self, number: int) -> Flags:
        own: Flags = self.number == number
        if number < 1 or not own.any():
            known = ", ".join(map(str, np.unique(self.number[self.number > 0])[:10])) or "none"
            raise Error(f"{self.video.name} has no object {number}; its objects are {known}")
        return own

    def _check_pair(self, one: int, other: int) -> None:
        if one == other:
            raise Error(f"expected two objects, got {one} twice")
        for number in (one, other):
            self._rows_of(number)

    def _check_frame(self, frame: int) -> None:
        """Refuse a frame that was not processed."""
        frames = self.frames
        if not len(frames) or not frames[0] <= frame <= frames[-1]:
            span = f"frames {frames[0]} to {frames[-1]}" if len(frames) else "no frames"
            raise Error(f"{self.video.name} has no frame {frame}; it has {span}")
        if frames[np.searchsorted(frames, frame)] != frame:
            raise Error(f"frame {frame} of {self.video.name} was not processed")


def apply_corrections(
    videos: Sequence[TrackedVideo], corrections: Corrections
) -> list[TrackedVideo]:
    """Return videos with corrected tracks, crossings and object numbers of masks.

    Speeds are recomputed from the corrected positions. Heading and size are measured on the mask,
    so an object that was moved by more than half of its length has none.

    Args:
        videos: From `read_videos`.
        corrections: The corrections; undone ones are ignored.

    Raises:
        Error: A correction is invalid.
    """
    rows = corrected_rows(videos, corrections)
    return [
        _corrected(video, rows[video.name]) if video.name in rows else video for video in videos
    ]


def corrected_rows(
    videos: Sequence[TrackedVideo], corrections: Corrections
) -> dict[str, CorrectedRows]:
    """Return the corrected rows of each video that has corrections.

    Args:
        videos: From `read_videos`.
        corrections: The corrections.

    Raises:
        Error: A correction is invalid.
    """
    touched = {correction.sequence for correction in corrections.applied}
    known = {video.name: CorrectedRows(video) for video in videos if video.name in touched}
    for number, correction in enumerate(corrections.applied, 1):
        try:
            _rows_of(known, correction).apply(correction)
        except Error as error:
            raise Error(
                f"corrections.json: correction {number} ({correction.op}): {error}"
            ) from error
    return known


def check_correction(
    videos: Sequence[TrackedVideo], corrections: Corrections, new: Correction
) -> Corrections:
    """Add a correction, after checking it against the tracks as corrected so far.

    Raises:
        Error: The new correction is invalid: there is no such object, or the frame is outside
            the video.
    """
    known = {video.name: CorrectedRows(video) for video in videos if video.name == new.sequence}
    for correction in corrections.applied:
        if correction.sequence == new.sequence:
            _rows_of(known, correction).apply(correction)
    _rows_of(known, new).apply(new)
    return corrections.add(new)


def corrected_numbers(video: TrackedVideo, corrections: Corrections) -> Numbers:
    """Return the corrected numbers of all objects found in a video.

    An object has no number where it was deleted, in frames marked as empty, and where it was moved
    away from its mask.

    Args:
        video: From `read_videos`.
        corrections: The corrections.

    Raises:
        Error: A correction is invalid.
    """
    rows = CorrectedRows(video)
    for correction in corrections.applied:
        if correction.sequence == video.name:
            rows.apply(correction)
    return _numbers(rows)


def read_corrected(folder: Path) -> tuple[list[TrackedVideo], Corrections]:
    """Read the results of a folder and apply its corrections.

    Raises:
        RunError: A file is missing or damaged.
        Error: A correction is invalid.
    """
    corrections = read_corrections(folder)
    return apply_corrections(read_videos(folder), corrections), corrections


def _rows_of(known: dict[str, CorrectedRows], correction: Correction) -> CorrectedRows:
    if correction.sequence not in known:
        raise Error(f"there is no sequence {correction.sequence}")
    return known[correction.sequence]


def _corrected(video: TrackedVideo, rows: CorrectedRows) -> TrackedVideo:
    kept = {
        track.object: track for place, track in enumerate(video.tracks) if rows.is_unchanged(place)
    }
    present = np.flatnonzero(np.bincount(rows.number))
    tracks = [
        kept.get(number) or _track(video, rows, number) for number in present.tolist() if number
    ]
    numbers = _numbers(rows)
    crossings = [_crossing(crossing, numbers) for crossing in video.crossings]
    left = [crossing for crossing in crossings if len(crossing.objects) > 1]
    return replace(video, tracks=tracks, crossings=left, processed=rows.frames, numbers=numbers)


def _track(video: TrackedVideo, rows: CorrectedRows, number: int) -> Track:
    chosen = np.flatnonzero(rows.number == number)
    chosen = chosen[np.argsort(rows.frame[chosen], kind="stable")]  # it is nearly sorted
    found = chosen < rows.count
    columns: dict[str, Any] = rows.columns(NAMES, chosen[found])
    if not found.all():
        for name, values in columns.items():
            columns[name] = np.full(len(chosen), np.nan, values.dtype)
            columns[name][found] = values
        columns["time"][~found] = _times(video, rows.frame[chosen[~found]])
    placed = rows.placed[chosen]
    x_px, y_px = rows.places(chosen[placed]).T
    columns["x_px"][placed], columns["y_px"][placed] = x_px, y_px
    columns["x"][placed] = x_px / video.width
    columns["y"][placed] = y_px / video.height
    columns["confidence"][placed] = np.isfinite(x_px)
    for name in SHAPE:
        columns[name][~rows.masked[chosen]] = np.nan
    _renew_speed(columns, rows, chosen)
    return Track(video.name, number, {"frame": rows.frame[chosen], **columns})


def _times(video: TrackedVideo, frames: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the times of frames without a row of this object, from the rows of all objects."""
    if not video.tracks:
        return frames / video.fps
    known, first = np.unique(
        np.concatenate([track.frame for track in video.tracks]), return_index=True
    )
    time = np.concatenate([track.time for track in video.tracks])[first]
    outside = frames - frames.clip(known[0], known[-1])
    times: NDArray[np.float64] = np.interp(frames, known, time) + outside / video.fps
    return times


def _renew_speed(
    columns: dict[str, NDArray[Any]], rows: CorrectedRows, chosen: NDArray[np.int64]
) -> None:
    """Recompute the speed near rows that are not consecutive in the original track.

    Other rows keep their speed, which would change slightly because positions in a table are
    rounded.
    """
    half = half_window(columns["time"])
    joints = np.flatnonzero(~rows.follows(chosen))  # joint i is between rows i - 1 and i
    changed = _around(joints, half, len(chosen))
    if not changed.any():
        return
    used = _around(joints, 2 * half, len(chosen))
    renewed = np.full(len(chosen), np.nan)
    x, y, time, confidence = (
        columns[name][used] for name in ("x_px", "y_px", "time", "confidence")
    )
    renewed[used] = speed(np.where(confidence >= SURE, x, np.nan), y, time)
    columns["speed"][changed] = renewed[changed]


def _around(joints: NDArray[np.int64], reach: int, count: int) -> NDArray[np.bool_]:
    """Return which rows are at most `reach` rows away from a joint.

    >>> _around(np.array([0, 4]), 1, 6).tolist()
    [True, False, False, True, True, False]
    """
    changes = np.zeros(count + 1, np.int64)
    np.add.at(changes, (joints - reach).clip(0, count), 1)
    np.add.at(changes, (joints + reach).clip(0, count), -1)
    return np.cumsum(changes[:-1]) > 0


def _numbers(rows: CorrectedRows) -> Numbers:
    numbers = np.where(rows.masked, rows.number, 0)
    ends = rows.ends.tolist()
    tracks = {
        track.object: (track.frame, numbers[end - len(track.frame) : end])
        for track, end in zip(rows.video.tracks, ends, strict=True)
    }
    return Numbers(tracks)


def _crossing(crossing: Crossing, numbers: Numbers) -> Crossing:
    """Return a crossing with the numbers in its first frame, or in its last one."""
    found = np.array(crossing.objects)
    start, end = (
        numbers(np.full_like(found, frame), found)
        for frame in (crossing.first_frame, crossing.last_frame)
    )
    objects = np.unique(np.where(start > 0, start, end))
    return replace(crossing, objects=tuple(objects[objects > 0].tolist()))


@dataclass(frozen=True)
class Changes:
    """Changes due to training with corrections.

    Attributes:
        frames: Number of positions compared: of the same object in the same frame.
        moved: Number of positions that moved by more than 1 % of the frame width.
        share: Their share.
        median_px: Median distance between the old and the new position in pixels; None without
            frames.
        corrected_before_px: Mean distance of the old positions from the corrected ones; None if no
            position was corrected.
        corrected_after_px: The same for the new positions.
        sentence: Summary as a sentence.
    """

    frames: int
    moved: int
    share: float
    median_px: float | None
    corrected_before_px: float | None
    corrected_after_px: float | None
    sentence: str


def compare_runs(old: Path, new: Path, corrections: Corrections) -> Changes:
    """Compare the positions found by two runs.

    Args:
        old: Folder of the run that was corrected.
        new: Folder of the run trained with the corrections.
        corrections: The corrections of the old run.

    Raises:
        RunError: A file of a run is missing or damaged.
        Error: A correction is invalid.
    """
    before = read_videos(old)
    after = {video.name: video for video in read_videos(new)}
    pairs = [(video, after[video.name]) for video in before if video.name in after]
    moves = [np.zeros(0), *(_moves(*pair) for pair in pairs)]
    moved = sum(int((each > FAR).sum()) for each in moves)
    widths = [0, *(video.width for video, _ in pairs)]
    pixels = np.concatenate([each * width for each, width in zip(moves, widths, strict=True)])
    rows = corrected_rows(before, corrections)
    told = [_from_corrected(*pair, rows[pair[0].name]) for pair in pairs if pair[0].name in rows]
    near = np.concatenate([np.zeros((0, 2)), *told])
    share = moved / max(len(pixels), 1)
    median = float(np.median(pixels)) if len(pixels) else None
    first, last = near.mean(0).tolist() if len(near) else (None, None)
    sentence = _sentence(len(pixels), moved, share, median)
    if len(near):
        noun = (
            "the corrected position" if len(near) == 1 else f"the {len(near)} corrected positions"
        )
        sentence += f" Its distance from {noun} was {first:.1f} px and is now {last:.1f} px."
    return Changes(len(pixels), moved, share, median, first, last, sentence)


def _sentence(frames: int, moved: int, share: float, median: float | None) -> str:
    if not moved:
        return f"The position is the same as before in all {frames:,} frames."
    return (
        f"The position has changed in {moved:,} of {frames:,} frames ({share:.1%}); the median "
        f"change is {median:.1f} px."
    )


def _moves(old: TrackedVideo, new: TrackedVideo) -> Floats:
    """Return the distances between old and new positions, relative to the frame width."""
    found = [np.zeros(0)]
    for track in old.tracks:
        for other in _numbered(new.tracks, track.object):
            _, mine, its = np.intersect1d(track.frame, other.frame, return_indices=True)
            offset = _places(track)[mine] - _places(other)[its]
            distance = np.hypot(*offset.T) / old.width
            found.append(distance[np.isfinite(distance)])
    return np.concatenate(found)


def _from_corrected(old: TrackedVideo, new: TrackedVideo, rows: CorrectedRows) -> Floats:
    """Return (positions, 2) distances in pixels of the old and new from the corrected ones."""
    told = np.flatnonzero(rows.placed & (rows.number > 0))
    told = told[np.isfinite(rows.places(told)[:, 0])]
    found = [np.zeros((0, 2))]
    for number in np.unique(rows.number[told]).tolist():
        chosen = told[rows.number[told] == number]
        distances = [
            _distances(video.tracks, number, rows.frame[chosen], rows.places(chosen))
            for video in (old, new)
        ]
        found.append(np.stack(distances, 1))
    every = np.concatenate(found)
    return every[np.isfinite(every).all(1)]


def _distances(
    tracks: Sequence[Track], number: int, frames: NDArray[np.int64], places: Floats
) -> Floats:
    """Return the distances of an object from given positions; NaN where it has no row."""
    distances = np.full(len(frames), np.nan)
    for track in _numbered(tracks, number):
        order = np.argsort(frames)
        _, mine, its = np.intersect1d(frames[order], track.frame, return_indices=True)
        offset = places[order[mine]] - _places(track)[its]
        distances[order[mine]] = np.hypot(*offset.T)
    return distances


def _numbered(tracks: Sequence[Track], number: int) -> list[Track]:
    return [track for track in tracks if track.object == number]


def _places(track: Track) -> Floats:
    return np.stack([track.x_px, track.y_px], 1)


CORRECTIONS = "corrections.json"  # corrections of the tracks in this folder
