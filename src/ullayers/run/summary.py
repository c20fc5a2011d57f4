"""What a run found, in total: summary.json, the lines at the end, and whether to trust it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ullayers.errors import RunError
from ullayers.files import from_json, read_json, write_json
from ullayers.learning.config import Task
from ullayers.learning.student import LEAST_AGREEMENT
from ullayers.locate.tracking.identity import Portrait, Recognised
from ullayers.run.plan import Plan
from ullayers.tracks.measures import is_ring, measure_motion
from ullayers.tracks.table import SURE, TRACK, Answer
from ullayers.video.sources import Info

LEAST_STRETCH = 10  # frames: in a shorter absence, the object may have been missed
EQUAL = 0.5  # mass of another object, relative to that of the one found
NEVER_TRAINED = "The network was never trained."
MAX_UNSURE = 0.5  # share of frames with low confidence above which a track is not trusted
MAX_CROWDED = 0.5  # share of frames with several objects above which a track is not trusted
MIN_CORRELATION = 0.5  # of held-out frames and their neighbours, for most numbers of a code
MAX_FOLDED = 0.1  # share of folded frames of a code above which it is not trusted
MAX_RISE = 0.05  # increase of J during training above which a network is not trusted


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
        portraits: Appearance of the objects of a sequence, by its name.
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
    portraits: dict[str, list[Portrait]] = field(default_factory=dict)
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


def summary_lines(run: Plan, exported: Results) -> list[str]:
    """Return the lines that `ul learn` and `ul apply` print at the end.

    Args:
        run: The finished run.
        exported: Results of an export.
    """
    found = _frames(exported.totals.frames)
    if (share := found_share(run, exported)) is not None:
        what = _objects(exported)
        found += f", {what} found in {share:.1%} (confidence of at least {SURE})"
    objective = run.outcome.objective
    evaluation = "unknown" if objective is None else f"{objective:.2f}"
    if run.outcome.held_out_objective is not None:
        evaluation += f" ({run.outcome.held_out_objective:.2f} on held-out frames)"
    line = (
        f"{found}; trained on {trained_frames(run)}, evaluation J {evaluation}, long-term mean: "
        f"{run.kind}"
    )
    taught = [] if run.teaching is None else [f"semi-supervised: {run.teaching}"]
    return [line, *_recognised_lines(exported), *taught]


def _recognised_lines(exported: Results) -> list[str]:
    """Return a line about objects seen in an earlier sequence, if there are any."""
    known = [each for each in map(_recognised, exported.sequences) if each]
    if not known:
        return []
    sequences = "1 sequence" if len(known) == 1 else f"{len(known)} sequences"
    least = min(each["confidence"] for some in known for each in some)
    return [
        f"In {sequences}, objects were recognised from an earlier one and keep their numbers "
        f"(confidence of at least {least:.2f}; see summary.json)"
    ]


def _recognised(entry: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = entry.get("recognised", [])
    return found


def run_title(run: Plan) -> str:
    """Return a title for the results of a run."""
    tasks = {"locate": "Object location", "orient": "Orientation", "features": "Slow features"}
    names = run.outcome.sources
    title = f"{tasks[run.config.task]}: {names[0]}"
    return title if len(names) == 1 else f"{title} and {len(names) - 1} more"


def trained_frames(run: Plan) -> str:
    """Return the number of training frames and of held-out frames."""
    held_out = run.outcome.held_out_frames
    return _frames(training_frames(run)) + (f" ({held_out:,} held out)" if held_out else "")


def training_frames(run: Plan) -> int:
    """Return the number of frames that a run was trained on."""
    outcome = run.outcome
    return (outcome.frames if outcome.trained_frames is None else outcome.trained_frames) or 0


def trust_sentence(run: Plan, exported: Results) -> str:
    """Return the main reason to trust results that have no `distrust_reasons`.

    Args:
        run: The finished run.
        exported: Results of an export.
    """
    if (share := found_share(run, exported)) is not None:
        what, on_average = "The object was", ""
        if (several := _objects(exported)) != "object":
            what, on_average = f"{several} were", ", on average"
        sentence = (
            f"{what} found in {share:.1%} of the frames{on_average} (confidence of at least {SURE})"
        )
        absent = exported.totals.absent / exported.totals.frames
        return f"{sentence}, and nothing in {absent:.1%}." if absent else f"{sentence}."
    if correlations := run.outcome.held_out_correlation:
        return (
            "The code also changes slowly on held-out frames (correlation of neighbouring frames "
            f"{np.median(correlations):.2f})."
        )
    return ""


def _objects(exported: Results) -> str:
    """Return "object", or the largest number of objects in a sequence."""
    most = max((entry.get("objects", 1) for entry in exported.sequences), default=1)
    return "object" if most < 2 else f"{most} objects"


def _frames(number: int) -> str:
    return "1 frame" if number == 1 else f"{number:,} frames"


def distrust_reasons(run: Plan, exported: Results) -> list[str]:
    """Return the reasons not to trust the results, one sentence each; empty if there are none.

    Args:
        run: The finished run.
        exported: Results of an export.
    """
    reasons = []
    if run.outcome.objective is None:
        reasons.append(NEVER_TRAINED)
    if (rise := risen_objective(run)) is not None:
        reasons.append(f"J rose during training, from {rise[0]:.2f} to {rise[1]:.2f}.")
    agreement = run.outcome.agreement
    if agreement is not None and agreement < LEAST_AGREEMENT:
        reasons.append(
            "The network could not learn what the moving objects look like: of what moves in "
            f"held-out frames, it sees {max(agreement, 0):.0%}, at least {LEAST_AGREEMENT:.0%} "
            "expected."
        )
    reasons += unknown_code_reasons(run)
    if (share := excessive_unsure_share(run, exported)) is not None:
        reasons.append(unsure_reason(share))
    if (share := excessive_crowded_share(exported)) is not None:
        reasons.append(
            f"In {share:.1%} of the frames, something else of similar size moves; the position "
            "is that of one of them."
        )
    return reasons


def unsure_reason(share: float) -> str:
    """Return the reason not to trust results of which this share has a low confidence."""
    return f"The confidence is below {SURE} in {share:.1%} of the frames."


def excessive_crowded_share(exported: Results) -> float | None:
    """Return the share of frames with another object of similar size if it is too large."""
    totals = exported.totals
    share = totals.crowded / totals.compared if totals.compared else 0.0
    return share if share > MAX_CROWDED else None


def unknown_code_reasons(run: Plan) -> list[str]:
    """Return why a code may not represent the content of the frames, one sentence each."""
    outcome = run.outcome
    if run.config.task != "locate" and outcome.held_out_frames == 0:
        number = _frames(outcome.frames or 0)
        return [f"There are only {number}, too few to hold some out and check the code on them."]
    correlations = outcome.held_out_correlation
    if not correlations or (typical := float(np.median(correlations))) >= MIN_CORRELATION:
        return _fold_reasons(run)
    return [
        "The code fits the order of the frames, not their content: on held-out frames it changes "
        f"as fast as by chance (correlation of neighbouring frames {typical:.2f}, at least "
        f"{MIN_CORRELATION} expected)."
    ]


def is_folded(run: Plan) -> bool:
    """Return whether the code of a closed loop is equal for different frames."""
    return (run.outcome.folded or 0.0) > MAX_FOLDED


def _fold_reasons(run: Plan) -> list[str]:
    if not is_folded(run):
        return []
    return [
        f"The code is folded: {run.outcome.folded:.1%} of the frames have the code of a frame that "
        "shows the object from another side; a code of the orientation goes around once."
    ]


def risen_objective(run: Plan) -> tuple[float, float] | None:
    """Return J before and after training if it rose so much that training has failed.

    With corrections, J may rise, because another object is followed.
    """
    start, objective = run.outcome.start, run.outcome.objective
    if start is None or objective is None or objective <= start + MAX_RISE or run.teaching:
        return None
    if (run.outcome.agreement or 0.0) >= LEAST_AGREEMENT:  # another network decides
        return None
    return start, objective


def excessive_unsure_share(run: Plan, exported: Results) -> float | None:
    """Return the share of frames with low confidence if it is too large to trust a track.

    Long stretches in which nothing was found are not counted.
    """
    totals = exported.totals
    if run.config.task != "locate":
        return None
    share = 1 - totals.sure / (totals.frames - totals.absent)
    return share if share > MAX_UNSURE else None


def found_share(run: Plan, exported: Results) -> float | None:
    """Return the share of frames with sufficient confidence; None for a code."""
    if run.config.task != "locate":
        return None
    totals = exported.totals
    return totals.sure / totals.frames


@dataclass(frozen=True)
class SequenceSummary:
    """The entry of a sequence in summary.json; None where the task or an old version has no value.

    Attributes:
        name: Name of the sequence.
        frames: Number of frames.
        width: Width of the frames in pixels.
        height: Height of the frames in pixels.
        fps: Frames per second.
        objects: Number of objects.
        rows: Number of rows in tracks.csv.
        distance_px: Distance that a single object has moved, in pixels.
        median_speed_px_per_s: Median speed of a single object.
        recognised: Objects seen in an earlier sequence.
    """

    name: str
    frames: int
    width: int
    height: int
    fps: float | None = None
    objects: int | None = None
    rows: int | None = None
    distance_px: float | None = None
    median_speed_px_per_s: float | None = None
    recognised: list[Recognised] = field(default_factory=list)


@dataclass(frozen=True)
class Summary:
    """The content of summary.json.

    Attributes:
        task: The task.
        frames: Number of frames of all sequences.
        found: Share of the frames with sufficient confidence; None for codes.
        trusted: Whether there is no reason to distrust the results.
        reasons: Reasons not to trust the results, one sentence each.
        objective: Evaluation J of the network.
        held_out_objective: The same on held-out frames.
        semi_supervised: What was learned from corrections of the user.
        ring: Whether codes are trusted and mostly lie around a circle.
        notes: Notes about the objects of a sequence, by its name.
        sequences: All sequences.
        bad: Inputs that could not be read, or only in part, with their errors.
    """

    task: Task
    frames: int
    found: float | None = None
    trusted: bool = False
    reasons: list[str] = field(default_factory=list)
    objective: float | None = None
    held_out_objective: float | None = None
    semi_supervised: str | None = None
    ring: bool | None = None
    notes: dict[str, list[str]] = field(default_factory=dict)
    sequences: list[SequenceSummary] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return one sentence about the results.

        >>> print(Summary("locate", 1200, 0.98, trusted=True))
        1,200 frames, object found in 98.0%; trusted
        """
        found = "" if self.found is None else f", object found in {self.found:.1%}"
        trust = "trusted" if self.trusted else f"check the results: {' '.join(self.reasons)}"
        return f"{_frames(self.frames)}{found}; {trust}"


def read_summary(folder: Path) -> Summary:
    """Read and check the summary.json of a folder.

    Raises:
        RunError: The file is missing or damaged.
    """
    path = folder / "summary.json"
    try:
        return from_json(Summary, read_json(path))
    except FileNotFoundError:
        raise RunError(f"{folder}: has no summary.json; write it with ul learn --resume") from None
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise RunError(f"{path}: summary.json is damaged ({text}); write it again") from error


def write_summary(path: Path, run: Plan, exported: Results) -> None:
    """Write summary.json atomically; J of the training is written only to the run folder.

    Args:
        path: The file to write.
        run: The finished run.
        exported: Results of an export.
    """
    reasons = distrust_reasons(run, exported)
    training = {
        "objective": run.outcome.objective,
        "held_out_objective": run.outcome.held_out_objective,
    }
    content = {
        "task": run.config.task,
        "frames": exported.totals.frames,
        "found": found_share(run, exported),
        "trusted": not reasons,
        "reasons": reasons,
        **(training if path.resolve().is_relative_to(run.folder.resolve()) else {}),
        "semi_supervised": None if run.teaching is None else str(run.teaching),
        "ring": is_trusted_ring(run, exported),
        "notes": exported.notes,
        "sequences": exported.sequences,
        "bad": run.bad | exported.bad,
    }
    write_json(path, content)


def is_trusted_ring(run: Plan, exported: Results) -> bool | None:
    """Return whether codes are trusted and mostly lie around a circle.

    Returns:
        None if the results are not codes of two numbers.
    """
    if run.config.task == "locate" or run.config.outputs != 2:
        return None
    is_around = 2 * exported.totals.around > exported.totals.frames
    return is_around and not distrust_reasons(run, exported)
