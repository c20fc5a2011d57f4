"""Results of an export, in full and as totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ullayers.learn.results import SURE, TRACK, Answer
from ullayers.locate.recognition import Recognised
from ullayers.output.motion import measure_motion
from ullayers.output.ring import is_ring
from ullayers.video.reader import Info

LEAST_STRETCH = 10  # frames: in a shorter absence, the object may have been missed
EQUAL = 0.5  # mass of another object, relative to that of the one found


@dataclass(frozen=True)
class Totals:
    """Numbers of frames for the summary.

    Attributes:
        frames: All frames.
        sure: Frames with sufficient confidence; zero for codes, which have none.
        compared: Frames in which the object was compared with others.
        crowded: Those in which another object has a similar size.
        around: Frames of sequences whose codes, of two numbers, lie around a circle.
        absent: Frames of long stretches without an object; see `absent_frames`.

    Example:
        >>> Totals(10, 9) + Totals(5, 1)
        Totals(frames=15, sure=10, compared=0, crowded=0, around=0, absent=0)
    """

    frames: int = 0
    sure: int = 0
    compared: int = 0
    crowded: int = 0
    around: int = 0
    absent: int = 0

    @classmethod
    def of(cls, answer: Answer) -> Self:
        """Count the frames of one sequence."""
        answer = answer.as_written()
        frames = len(answer.index)
        if answer.columns != TRACK:
            return cls(frames, around=frames if is_ring([answer]) else 0)
        sure = int((answer.values[:, 2] >= SURE).sum())
        if answer.several is not None:
            return cls._of_several(answer.several, answer.index)
        absent = absent_frames(answer.values[:, 2])
        if answer.others is None:
            return cls(frames, sure, absent=absent)
        crowded = int((answer.others > EQUAL).sum())
        return cls(frames, sure, len(answer.others), crowded, absent=absent)

    @classmethod
    def _of_several(cls, rows: Answer, index: NDArray[np.int64]) -> Self:
        """Count the frames in which objects are found, each by the share of objects found."""
        index = np.union1d(index, rows.index)
        best = np.zeros(len(index))  # confidence of the clearest object in each frame
        np.maximum.at(best, np.searchsorted(index, rows.index), rows.values[:, 2])
        absent = absent_frames(best)
        missed = int((best == 0).sum()) - absent
        sure = int((rows.values[:, 2] >= SURE).sum()) / max(1, len(rows.index) + missed)
        return cls(len(index), round(sure * (len(index) - absent)), absent=absent)

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.frames + other.frames,
            self.sure + other.sure,
            self.compared + other.compared,
            self.crowded + other.crowded,
            self.around + other.around,
            self.absent + other.absent,
        )


def absent_frames(confidence: NDArray[np.float64]) -> int:
    """Return the number of frames in long stretches in which nothing was found.

    An animal that arrives late or leaves early is clearly visible while it is there. Without such a
    clear stretch, no absence can be established.

    Args:
        confidence: (time,) of consecutive frames.

    Example:
        >>> absent_frames(np.repeat([0.0, 0.9, 0.0, 0.9], [30, 20, 3, 20]))
        30
        >>> absent_frames(np.repeat([0.0, 0.4], [30, 20]))
        0
    """
    gone, seen = confidence == 0, confidence >= SURE
    if _stretches(seen).max(initial=0) < LEAST_STRETCH:
        return 0
    lengths = _stretches(gone)
    return int(lengths[lengths >= LEAST_STRETCH].sum())


def _stretches(chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the lengths of runs of True."""
    ends = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return ends[1::2] - ends[::2]


class Results(Protocol):
    """Results of an export that the summary needs; attributes as in `Exported`."""

    bad: dict[str, str]
    files: list[Path]
    notes: dict[str, list[str]]

    @property
    def totals(self) -> Totals:
        """Numbers of frames of all sequences."""

    @property
    def sequences(self) -> list[dict[str, Any]]:
        """Entries of the sequences in summary.json."""


def describe_sequence(answer: Answer, info: Info) -> dict[str, Any]:
    """Return the entry of a sequence in summary.json.

    Args:
        answer: All rows of the sequence.
        info: Frame size and frame rate.
    """
    answer = answer.as_written()
    content = {
        "name": answer.sequence,
        "frames": len(answer.index),
        "width": info.width,
        "height": info.height,
        "fps": info.rate,
    }
    if answer.columns != TRACK:
        return content
    content["objects"] = len(answer.of_objects()) if Totals.of(answer).sure else 0
    content["rows"] = len((answer.several or answer).index)
    if answer.several is not None:  # behaviour.csv has the distance of each
        return content
    motion = measure_motion(answer, info.width, info.height)
    return content | {
        "distance_px": _rounded(motion.distance),
        "median_speed_px_per_s": _rounded(motion.speed_quantile(0.5)),
    }


def describe_recognised(recognised: Sequence[Recognised]) -> dict[str, Any]:
    """Return the entry of summary.json on objects seen in an earlier sequence."""
    return {"recognised": list(map(asdict, recognised))} if recognised else {}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


@dataclass(frozen=True)
class SequenceNote:
    """What the summary says about a finished sequence; its rows do not show all of it.

    Attributes:
        totals: Numbers of frames.
        sequence: Entry of the sequence in summary.json.
        notes: Notes about its objects.
        bad: Why the source could not be read completely; None if it could.
    """

    totals: Totals
    sequence: dict[str, str | int | float | None]
    notes: list[str] = field(default_factory=list)
    bad: str | None = None


@dataclass
class Exported:
    """Results of `export`; `answers`, `masks` and `infos` have one entry for each sequence.

    Attributes:
        answers: All rows of the sequence, without masks.
        masks: Evenly spaced masks of the sequence, by row number.
        infos: Frame size and frame rate of the sequence.
        frames_to_show: Evenly spaced frames by sequence name and row number, in colour at display
            size; only for some sequences, and not for resumed ones.
        bad: Sources that could not be read completely, with the error.
        files: Files and folders written.
        notes: Notes about the objects of a sequence, by its name.
        recognised: Objects seen in an earlier sequence, by the name of the later one.
        restored: Summaries of sequences that were finished before this export was resumed.
    """

    answers: list[Answer] = field(default_factory=list)
    masks: list[dict[int, NDArray[np.uint8]]] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    frames_to_show: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    recognised: dict[str, list[Recognised]] = field(default_factory=dict)
    restored: dict[str, SequenceNote] = field(default_factory=dict)

    def add(self, answer: Answer, masks: dict[int, NDArray[np.uint8]], info: Info) -> None:
        """Add a sequence."""
        self.answers.append(answer)
        self.masks.append(masks)
        self.infos.append(info)

    def note_last(self) -> SequenceNote:
        """Return what the summary says about the last sequence."""
        answer, info = self.answers[-1], self.infos[-1]
        name = answer.sequence
        return SequenceNote(
            Totals.of(answer),
            describe_sequence(answer, info),
            self.notes.get(name, []),
            self.bad.get(name),
        )

    def restore(self, name: str, note: SequenceNote) -> None:
        """Use the summary of a sequence that was finished before."""
        self.restored[name] = note
        if note.notes:
            self.notes[name] = note.notes
        if note.bad is not None:
            self.bad[name] = note.bad

    @property
    def totals(self) -> Totals:
        """Numbers of frames of all sequences."""
        restored = {name: note.totals for name, note in self.restored.items()}
        counted = (restored.get(each.sequence) or Totals.of(each) for each in self.answers)
        return sum(counted, Totals())

    @property
    def sequences(self) -> list[dict[str, Any]]:
        """Entries of the sequences in summary.json."""
        restored = {name: note.sequence for name, note in self.restored.items()}
        described = (
            restored.get(answer.sequence) or describe_sequence(answer, info)
            for answer, info in zip(self.answers, self.infos, strict=True)
        )
        return [
            entry | describe_recognised(self.recognised.get(str(entry["name"]), []))
            for entry in described
        ]
