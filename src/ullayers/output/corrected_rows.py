"""The rows of a video while corrections are applied one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import UserError
from ullayers.output.corrections import Correction, Delete, MarkEmpty, Merge, Move, Split, Swap
from ullayers.output.mask_images import MAX_PALETTE_OBJECTS
from ullayers.output.track_table import Floats
from ullayers.output.tracked_video import TrackedVideo

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class CorrectedRows:
    """All rows of a video, in any order; no two rows have the same frame and number.

    The first rows are those of the original tracks, one track after the other. Rows added by
    corrections follow. An invalid correction raises `UserError` and changes nothing.

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
            UserError: The correction is invalid.
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
            raise UserError(f"neither object {one} nor {other} has a row from frame {first} on")
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
            raise UserError(
                f"object {number} is in frames {start} to {end}; split it after frame {start}, and "
                f"not after frame {end}"
            )
        if self.highest >= MAX_PALETTE_OBJECTS:
            raise UserError(f"there cannot be more than {MAX_PALETTE_OBJECTS} objects")
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
            raise UserError(f"object {wanted.object} has no row in frames {first} to {last}")
        self.number[removed] = 0

    def _move(self, wanted: Move) -> None:
        own = self._rows_of(wanted.object)
        self._check_frame(wanted.frame)
        x = wanted.x
        y = wanted.y
        width = self.video.width
        height = self.video.height
        if not (0 <= x <= width and 0 <= y <= height):  # or NaN
            raise UserError(
                f"({x:g}, {y:g}) is outside the frame, which has {width} x {height} pixels"
            )
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
            raise UserError(f"no object has a row in frames {first} to {last}")
        self._moved = {row: place for row, place in self._moved.items() if not inside[row]}
        self.placed[inside] = True
        self.masked[inside] = False

    def _rows_of(self, number: int) -> Flags:
        own: Flags = self.number == number
        if number < 1 or not own.any():
            known = ", ".join(map(str, np.unique(self.number[self.number > 0])[:10])) or "none"
            raise UserError(f"{self.video.name} has no object {number}; its objects are {known}")
        return own

    def _check_pair(self, one: int, other: int) -> None:
        if one == other:
            raise UserError(f"expected two objects, got {one} twice")
        for number in (one, other):
            self._rows_of(number)

    def _check_frame(self, frame: int) -> None:
        """Refuse a frame that was not processed."""
        frames = self.frames
        if not len(frames) or not frames[0] <= frame <= frames[-1]:
            span = f"frames {frames[0]} to {frames[-1]}" if len(frames) else "no frames"
            raise UserError(f"{self.video.name} has no frame {frame}; it has {span}")
        if frames[np.searchsorted(frames, frame)] != frame:
            raise UserError(f"frame {frame} of {self.video.name} was not processed")
