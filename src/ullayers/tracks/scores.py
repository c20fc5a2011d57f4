"""Tracks compared with the truth: files with true positions, and the scores of trackers."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ullayers.errors import Error
from ullayers.files import read_regular
from ullayers.tracks.formats.packages import load
from ullayers.tracks.masks import Labels, label_box, read_labels
from ullayers.tracks.reading import Floats
from ullayers.tracks.table import MAX_FRAMES, SURE
from ullayers.tracks.tracked_video import (
    Frames,
    TrackedVideo,
    boxed_objects,
    has_sizes,
    overlap,
    read_videos,
    sure,
)

NOWHERE = (np.nan,) * 4
MAX_TABLE_BYTES = 2**30
IDENTITIES = ("animal", "object", "person", "id")
BOX = ("left", "top", "width", "height")
MIN_IOU = 0.5
BODY = 0.5  # of the body length: largest distance of a found object
UNKNOWN_BODY = 0.05  # of the frame width: the same if the body length is unknown


class Observation(NamedTuple):
    """An object in one frame.

    Attributes:
        frame: Number of the frame.
        identity: Identity of the object; None if unknown.
        x: Horizontal position in pixels.
        y: Vertical position in pixels.
        heading: Degrees, clockwise from the right; NaN if unknown.
        box: Left, top, width and height in pixels; NaN if unknown.
    """

    frame: int
    identity: str | int | None
    x: float
    y: float
    heading: float = np.nan
    box: tuple[float, ...] = NOWHERE


@dataclass(frozen=True)
class Observations:
    """Objects in frames, sorted by frame; one row per object and frame.

    Attributes:
        frame: (rows,) number of the frame.
        identity: (rows,) number of the object.
        place: (rows, 2) x and y in pixels.
        heading: (rows,) degrees, clockwise from the right; NaN if unknown.
        box: (rows, 4) left, top, width and height in pixels; NaN if unknown.
        frames: Annotated or processed frames, with and without objects, sorted.
        identified: Whether identities are known.
        labels: Returns the object of each pixel of a frame; None if there are no masks.
    """

    frame: Frames
    identity: NDArray[np.int64]
    place: Floats
    heading: Floats
    box: Floats
    frames: Frames
    identified: bool = True
    labels: Callable[[int], Labels | None] | None = None

    @property
    def has_boxes(self) -> bool:
        """Whether any box is known."""
        return bool(np.isfinite(self.box).any())

    def at(self, frame: int) -> slice:
        """Return the rows of a frame."""
        start, end = np.searchsorted(self.frame, [frame, frame + 1])
        return slice(int(start), int(end))


def collect(
    rows: Iterable[Observation],
    frames: Iterable[int],
    labels: Callable[[int], Labels | None] | None = None,
) -> Observations:
    """Put rows into arrays.

    If all identities are unknown and no frame has several objects, there is one object.

    Args:
        rows: Objects in any order; those without a position are left out.
        frames: Annotated or processed frames, in any order; those of `rows` are added.
        labels: As in `Observations`.

    Raises:
        ValueError: An object appears twice in one frame.

    Example:
        >>> rows = [Observation(3, "b", 1.0, 2.0), Observation(3, "a", 5.0, 6.0)]
        >>> seen = collect(rows, frames=[2, 3])
        >>> seen.identity.tolist(), seen.place.tolist(), seen.frames.tolist()
        ([1, 0], [[1.0, 2.0], [5.0, 6.0]], [2, 3])
    """
    rows = sorted(rows, key=lambda row: row.frame)
    looked = np.unique([*frames, *(row.frame for row in rows)]).astype(np.int64)
    rows = [row for row in rows if np.isfinite(row.x + row.y)]
    identities, identified = _numbers(rows)
    return Observations(
        frame=np.array([row.frame for row in rows], np.int64),
        identity=np.array(identities, np.int64),
        place=np.array([(row.x, row.y) for row in rows]).reshape(-1, 2),
        heading=np.array([row.heading for row in rows], np.float64),
        box=np.array([row.box for row in rows]).reshape(-1, 4),
        frames=looked,
        identified=identified,
        labels=labels,
    )


def _numbers(rows: Sequence[Observation]) -> tuple[list[int], bool]:
    """Return a number for the identity of each row, and whether identities are known."""
    if any(row.identity is None for row in rows):
        counts: Counter[int] = Counter()
        numbers = []
        for row in rows:
            numbers.append(counts[row.frame])
            counts[row.frame] += 1
        return numbers, max(counts.values()) == 1
    for (frame, name), count in Counter((row.frame, row.identity) for row in rows).items():
        if count > 1:
            raise ValueError(f"object {name} has {count} rows in frame {frame}")
    if all(isinstance(row.identity, int) for row in rows):
        return [int(row.identity or 0) for row in rows], True
    ordered = sorted({str(row.identity) for row in rows})
    names = {name: number for number, name in enumerate(ordered)}
    return [names[str(row.identity)] for row in rows], True


def observe(video: TrackedVideo, boxes: bool) -> Observations:
    """Return the detections of a run with a confidence of at least 0.5.

    Args:
        video: Results of the run.
        boxes: Whether to add boxes, if the results have masks or sizes.
    """
    known: dict[tuple[int, int], tuple[float, ...]] = {}
    if boxes and (video.masks is not None or has_sizes(video)):
        known = {
            (item.frame, item.object): tuple(item.box.tolist()) for item in boxed_objects(video)
        }
    rows = []
    for track in video.tracks:
        kept = sure(track)
        columns = track.frame[kept], track.x_px[kept], track.y_px[kept], track.heading[kept]
        for frame, x, y, heading in zip(*(column.tolist() for column in columns), strict=True):
            box = known.get((frame, track.object), NOWHERE)
            rows.append(Observation(frame, track.object, x, y, heading, box))
    labels = None if video.masks is None else video.labels
    return collect(rows, video.frames.tolist(), labels)


def read_truth(path: Path, video: TrackedVideo) -> Observations:
    """Read true positions of the objects in a video.

    Args:
        path: A .slp file of SLEAP, a .csv or .h5 file of DeepLabCut, a .txt file of MOTChallenge, a
            CSV with a header that names our columns, or a folder of masks.
        video: The video, for its size and name.

    Raises:
        Error: The file cannot be read.
        MissingPackageError: A package needed to read the file is not installed.
    """
    if not path.exists():
        raise Error(f"{path}: does not exist; give a file or folder of true positions")
    suffix = path.suffix.lower()
    try:
        if path.is_dir():
            return _read_masks(path, video)
        if suffix == ".slp":
            return _read_sleap(path, video)
        if suffix in (".h5", ".hdf5"):
            return _read_dlc_table(path)
        text = read_regular(path, MAX_TABLE_BYTES).decode("utf-8-sig")
        if suffix == ".txt":
            return _read_mot(text)
        return _read_csv(text, video)
    except Error:
        raise
    except (OSError, ValueError, KeyError, IndexError, OverflowError, csv.Error) as error:
        raise Error(f"{path}: cannot be read as true positions: {error}") from error


def _read_csv(text: str, video: TrackedVideo) -> Observations:
    first = text.split("\n", 1)[0].split(",")
    if first[0] == "scorer":
        return _read_dlc_text(text)
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    names = tuple(rows.fieldnames or ())
    if "frame" not in names:
        raise ValueError(f"expected a header with a column frame, got {','.join(names)[:100]}")
    listed = [row for row in rows if None not in row.values()]
    sequences = {row["sequence"] for row in listed} if "sequence" in names else set()
    if len(sequences) > 1 and video.name not in sequences:
        raise ValueError(f"it has several sequences, and none is {video.name}")
    if len(sequences) > 1:
        listed = [row for row in listed if row["sequence"] == video.name]
    objects = [_seen(row, names, video) for row in listed]
    return collect(objects, ())


def _seen(row: Mapping[str, str], names: Sequence[str], video: TrackedVideo) -> Observation:
    """Return the object in a row of our own tables."""
    which = next((name for name in IDENTITIES if name in names), None)
    identity = None if which is None else row[which]
    heading = _number(row.get("heading", ""))
    frame = _frame(row["frame"], first=0)
    if "confidence" in names and not _number(row["confidence"]) >= SURE:
        return Observation(frame, identity, np.nan, np.nan)
    if "x_px" in names:
        return Observation(frame, identity, _number(row["x_px"]), _number(row["y_px"]), heading)
    if "x" in names:
        # Tables with the name of the sequence are from this package, with positions from 0 to 1.
        unit = (video.width, video.height) if "sequence" in names else (1, 1)
        x, y = (_number(row[name]) * one for name, one in zip("xy", unit, strict=True))
        return Observation(frame, identity, x, y, heading)
    if not set(BOX) <= set(names):
        raise ValueError("expected columns x and y, or left, top, width and height")
    return _boxed(frame, identity, [_number(row[name]) for name in BOX], heading)


def _boxed(
    frame: int, identity: str | int | None, box: Sequence[float], heading: float = np.nan
) -> Observation:
    left, top, width, height = box
    if min(width, height) < 0:
        raise ValueError(f"expected boxes of at least 0 pixels, got {width:g} x {height:g}")
    return Observation(frame, identity, left + width / 2, top + height / 2, heading, tuple(box))


def _frame(text: str, first: int) -> int:
    """Return the number of a frame, counted from 0; the file counts from `first`."""
    number = _number(text)
    if number % 1 != 0 or not first <= number < MAX_FRAMES:  # or NaN
        raise ValueError(f"expected frame numbers from {first} to 1e8, got {text[:20]!r}")
    return int(number) - first


def _number(text: str) -> float:
    return float(text) if text.strip() else np.nan


def _read_mot(text: str) -> Observations:
    """Read boxes; rows with the flag 0 are ignored. Frames without rows are empty."""
    rows = []
    for line in filter(str.strip, text.splitlines()):
        texts = re.split(r"[,\s]+", line.strip(", \t"))
        cells = [float(text) for text in texts]
        if len(cells) < 6:
            raise ValueError(f"expected frame, id, left, top, width and height, got {line[:60]!r}")
        if len(cells) < 7 or cells[6] != 0:
            rows.append(_boxed(_frame(texts[0], first=1), int(cells[1]), cells[2:6]))
    if not rows:
        raise ValueError("it has no boxes")
    return collect(rows, range(max(row.frame for row in rows) + 1))


def _read_dlc_text(text: str) -> Observations:
    lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    count = 4 if lines[1][0] == "individuals" else 3
    head = lines[:count]
    body = [line for line in lines[count:] if line]
    # Labels of images have three index columns, with the folder in two of them.
    index = next(i for i, name in enumerate(head[0]) if i and name)
    levels = [line[0] for line in head]
    columns = [dict(zip(levels, names, strict=True)) for names in zip(*head, strict=True)][index:]
    values = np.array([[_number(cell) for cell in line[index:]] for line in body])
    return _from_dlc(columns, [line[:index] for line in body], values)


def _read_dlc_table(path: Path) -> Observations:
    pandas, tables = load("score", "pandas", "tables")
    try:
        table = pandas.read_hdf(path)
    except tables.HDF5ExtError as error:  # its message has a dozen lines
        raise ValueError("it is not an HDF5 file") from error
    columns = [dict(zip(table.columns.names, names, strict=True)) for names in table.columns]
    index = [key if isinstance(key, tuple) else (key,) for key in table.index]
    return _from_dlc(columns, index, table.to_numpy(np.float64))


def _from_dlc(
    columns: Sequence[Mapping[str, str]], index: Sequence[Sequence[Any]], values: Any
) -> Observations:
    """Return the mean of the known points of each individual.

    Args:
        columns: For each column its scorer, individuals, bodyparts and coords.
        index: For each row the cells of its index: a frame number, or the path of an image.
        values: (rows, columns) numbers.
    """
    frames = [_frame_number(cells[-1]) for cells in index]
    names = list(dict.fromkeys(column.get("individuals", "") for column in columns))
    if len(names) > 1:
        names = [name for name in names if name != "single"]  # parts that belong to no animal
    rows = []
    for name in names:
        own = [i for i, column in enumerate(columns) if column.get("individuals", "") == name]
        parts = list(dict.fromkeys(columns[i]["bodyparts"] for i in own))
        points = np.full((len(parts), 3, len(frames)), np.nan)
        points[:, 2] = 1
        for i in own:
            coord = ("x", "y", "likelihood").index(columns[i]["coords"])
            points[parts.index(columns[i]["bodyparts"]), coord] = values[:, i]
        points[:, :2][np.repeat(~(points[:, 2] >= SURE)[:, None], 2, 1)] = np.nan
        x, y = _mean(points[:, 0]), _mean(points[:, 1])
        rows += [Observation(*row) for row in zip(frames, [name] * len(frames), x, y, strict=True)]
    return collect(rows, frames)


def _mean(values: Any) -> list[float]:
    """Return means over the first dimension, without NaN."""
    known = np.isfinite(values)
    total, count = np.where(known, values, 0).sum(0), known.sum(0)
    means: list[float] = np.where(count > 0, total / count.clip(min=1), np.nan).tolist()
    return means


def _frame_number(name: object) -> int:
    found = re.findall(r"\d+", Path(str(name)).stem)
    if not found:
        raise ValueError(f"expected a frame number, got {name!r}")
    return _frame(found[-1], first=0)


def _read_sleap(path: Path, video: TrackedVideo) -> Observations:
    [sleap] = load("sleap", "sleap_io")
    labels = sleap.load_slp(str(path), open_videos=False)
    chosen = [_video_of(path, labels.videos, video)]
    rows, frames = [], []
    for frame in labels.labeled_frames:
        if frame.video not in chosen:
            continue
        frames.append(int(frame.frame_idx))
        for instance in frame.user_instances or frame.predicted_instances:
            x, y = _mean(instance.numpy())
            identity = None if instance.track is None else labels.tracks.index(instance.track)
            rows.append(Observation(frames[-1], identity, x, y))
    return collect(rows, frames)


def _video_of(path: Path, videos: Sequence[Any], video: TrackedVideo) -> Any:
    """Return the video of a .slp file that has the name of ours, or the only one."""
    if len(videos) == 1:
        return videos[0]
    named = [one for one in videos if Path(str(one.filename)).stem == video.name]
    if len(named) != 1:
        raise Error(f"{path}: has {len(videos)} videos; name one of them {video.name}")
    return named[0]


def _read_masks(folder: Path, video: TrackedVideo) -> Observations:
    files = {_frame_number(path.name): path for path in sorted(folder.glob("*.png"))}
    if not files:
        raise ValueError("it has no PNG files")

    def labels(frame: int) -> Labels | None:
        return read_labels(files[frame]) if frame in files else None

    rows = [row for frame in files for row in _masked(files[frame], frame, video)]
    return collect(rows, files, labels)


def _masked(path: Path, frame: int, video: TrackedVideo) -> Iterator[Observation]:
    labels = read_labels(path)
    if labels.shape != (video.height, video.width):
        size = f"{labels.shape[1]} x {labels.shape[0]}"
        raise Error(f"{path}: expected {video.width} x {video.height} pixels, got {size}")
    for number in np.unique(labels[labels > 0]).tolist():
        mask = labels == number
        y, x = (axis.mean() + 0.5 for axis in np.nonzero(mask))
        yield Observation(frame, number, float(x), float(y), box=tuple(map(float, label_box(mask))))


@dataclass(frozen=True)
class Rule:
    """Rule for when an object counts as found.

    Attributes:
        kind: Basis of the comparison: "masks", "boxes" or "distance".
        within: Largest distance in pixels; unused for masks and boxes.
    """

    kind: str
    within: float

    def __str__(self) -> str:
        if self.kind == "distance":
            return f"at most {self.within:.1f} px apart"
        return f"IoU of {self.kind} of at least {MIN_IOU}"


@dataclass
class Pairs:
    """Values of paired objects, collected frame by frame."""

    distances: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    overlaps: list[float] = field(default_factory=list)


def choose_rule(
    found: Observations, truth: Observations, within: float | None, length: float, width: int
) -> Rule:
    """Return the rule for when an object counts as found.

    Args:
        found: Results of a run.
        truth: True positions.
        within: Largest distance in pixels given by the user; None for the default.
        length: Median body length in pixels; NaN if unknown.
        width: Width of the frames in pixels.

    Example:
        >>> from ullayers.tracks.scores import Observation, collect
        >>> one = collect([Observation(0, 1, 5.0, 5.0)], [])
        >>> str(choose_rule(one, one, None, length=20.0, width=640))
        'at most 10.0 px apart'
    """
    if within is not None:
        return Rule("distance", within)
    if found.labels is not None and truth.labels is not None:
        return Rule("masks", np.nan)
    if found.has_boxes and truth.has_boxes:
        return Rule("boxes", np.nan)
    if truth.has_boxes:
        length = float(np.nanmedian(truth.box[:, 2:].max(1)))
    return Rule("distance", UNKNOWN_BODY * width if np.isnan(length) else BODY * length)


def score_tracks(
    found: Observations, truth: Observations, rule: Rule, width: int
) -> dict[str, Any]:
    """Compare tracks with ground truth in the frames that both have.

    Args:
        found: Results of a run.
        truth: True positions.
        rule: Rule for when an object counts as found.
        width: Width of the frames in pixels.

    Returns:
        Scores by name; None where a score is not defined. Distances and headings are those of the
        nearest pairs in each frame (optimal assignment). `mean_iou` is the mean over all true
        objects, 0 for missed ones.

    Raises:
        Error: There is nothing to compare.
        MissingPackageError: motmetrics is not installed.

    Example:
        >>> from ullayers.tracks.scores import Observation, collect
        >>> truth = collect([Observation(i, 1, i, 0.0) for i in range(4)], [])
        >>> found = collect([Observation(i, 7, i, 3.0) for i in range(3)], range(4))
        >>> scores = score_tracks(found, truth, Rule("distance", 5.0), width=100)
        >>> scores["found"], scores["misses"], scores["median_distance_px"]
        (0.75, 1, 3.0)
    """
    [metrics] = load("score", "motmetrics")
    frames = np.intersect1d(found.frames, truth.frames)
    if not np.isin(truth.frame, frames).any():
        raise Error(
            f"the truth has no objects in frames of the run: it has {_shown(truth.frame)}, the run "
            f"has {_shown(found.frames)}"
        )
    events = metrics.MOTAccumulator(auto_id=False)
    pairs = Pairs()
    for frame in frames.tolist():
        costs = _compare(found, truth, rule, frame, pairs)
        ids = truth.identity[truth.at(frame)], found.identity[found.at(frame)]
        events.update(*ids, costs, frameid=frame)
    return {"frames": len(frames), **_summary(metrics, events, truth), **_quantiles(pairs, width)}


def _compare(
    found: Observations, truth: Observations, rule: Rule, frame: int, pairs: Pairs
) -> Floats:
    """Return the cost of each pair of a true and a found object; NaN if it is too large."""
    theirs, ours = truth.at(frame), found.at(frame)
    difference = truth.place[theirs, None] - found.place[None, ours]
    distances: Floats = np.hypot(difference[..., 0], difference[..., 1])
    costs = np.where(distances <= rule.within, distances, np.nan)
    if found.labels is not None and truth.labels is not None:
        identities = truth.identity[theirs], found.identity[ours]
        shares = _mask_overlap((truth.labels(frame), found.labels(frame)), identities)
        best = shares[linear_sum_assignment(-shares)].tolist()
        pairs.overlaps += best + [0.0] * (len(shares) - len(best))
        if rule.kind == "masks":
            costs = np.where(shares >= MIN_IOU, 1 - shares, np.nan)
    if rule.kind == "boxes":
        shares = overlap(truth.box[theirs], found.box[ours])
        costs = np.where(shares >= MIN_IOU, 1 - shares, np.nan)
    rows, columns = linear_sum_assignment(distances)
    pairs.distances += distances[rows, columns].tolist()
    turns = truth.heading[theirs][rows] - found.heading[ours][columns]
    turns = np.abs((turns + 180) % 360 - 180)
    pairs.turns += turns[np.isfinite(turns) & np.isfinite(costs[rows, columns])].tolist()
    return costs


def _mask_overlap(
    labels: tuple[Labels | None, Labels | None], identities: tuple[Any, Any]
) -> Floats:
    """Return the intersection over union of each pair of masks."""
    shares = np.zeros((len(identities[0]), len(identities[1])))
    first, second = labels
    if first is None or second is None or not shares.size:
        return shares
    for i, own in enumerate(identities[0]):
        for j, other in enumerate(identities[1]):
            one, two = first == own, second == other
            both = int((one | two).sum())
            shares[i, j] = (one & two).sum() / both if both else 0.0
    return shares


def _summary(metrics: Any, events: Any, truth: Observations) -> dict[str, Any]:
    names = ("num_objects", "recall", "idf1", "mota", "num_switches", "num_misses")
    values = metrics.metrics.create().compute(
        events, metrics=[*names, "num_false_positives"], return_dataframe=False
    )
    known = truth.identified
    return {
        "objects": int(values["num_objects"]),
        "found": float(values["recall"]),
        "idf1": float(values["idf1"]) if known else None,
        "mota": float(values["mota"]) if known else None,
        "switches": int(values["num_switches"]) if known else None,
        "misses": int(values["num_misses"]),
        "false_positives": int(values["num_false_positives"]),
    }


def _quantiles(pairs: Pairs, width: int) -> dict[str, float | None]:
    median, most = (_quantile(pairs.distances, share) for share in (0.5, 0.9))
    return {
        "median_distance_px": median,
        "p90_distance_px": most,
        "median_distance_width": None if median is None else median / width,
        "p90_distance_width": None if most is None else most / width,
        "median_heading_error_deg": _quantile(pairs.turns, 0.5),
        "p90_heading_error_deg": _quantile(pairs.turns, 0.9),
        "mean_iou": float(np.mean(pairs.overlaps)) if pairs.overlaps else None,
    }


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


def _shown(frames: Any) -> str:
    return f"frames {frames.min()} to {frames.max()}" if len(frames) else "none"


@dataclass(frozen=True)
class Score:
    """Comparison of tracks with true positions; None where a score is not defined.

    Attributes:
        sequence: Name of the video.
        rule: When an object counts as found.
        frames: Number of frames that both have.
        objects: Number of true positions in these frames.
        found: Share of the true positions that were found.
        idf1: Share of positions with the right identity; None if the truth has no identities.
        mota: Accuracy of multiple object tracking; None as above.
        switches: Number of identity switches; None as above.
        misses: Number of true positions that were not found.
        false_positives: Number of positions where nothing is.
        median_distance_px: Median distance of the nearest pairs in pixels.
        p90_distance_px: Distance that 90 % of the pairs keep.
        median_distance_width: Median distance as a share of the frame width.
        p90_distance_width: Distance that 90 % of the pairs keep, as a share of the frame width.
        median_heading_error_deg: Median error of the heading in degrees.
        p90_heading_error_deg: Error of the heading that 90 % of the pairs keep.
        mean_iou: Mean intersection over union of masks, 0 for missed objects.
    """

    sequence: str
    rule: str
    frames: int
    objects: int
    found: float
    idf1: float | None
    mota: float | None
    switches: int | None
    misses: int
    false_positives: int
    median_distance_px: float | None
    p90_distance_px: float | None
    median_distance_width: float | None
    p90_distance_width: float | None
    median_heading_error_deg: float | None
    p90_heading_error_deg: float | None
    mean_iou: float | None


def score_folder(
    folder: Path, truth: Path, *, sequence: str | None = None, within: float | None = None
) -> Score:
    """Compare the tracks of a folder with true positions; corrections of the user are not used.

    Args:
        folder: Folder of `ul learn` or `ul apply`.
        truth: True positions, as in `read_truth`.
        sequence: The video that the truth belongs to, if there are several.
        within: An object is found if it is at most this many pixels from its true position; None
            to choose by the size of the object.

    Raises:
        Error: There is no such video, or nothing to compare.
    """
    video = _choose(read_videos(folder), folder, sequence)
    expected = read_truth(truth, video)
    found = observe(video, boxes=expected.has_boxes and within is None)
    rule = choose_rule(found, expected, within, _body_length(video), video.width)
    return Score(video.name, str(rule), **score_tracks(found, expected, rule, video.width))


def _choose(videos: list[TrackedVideo], folder: Path, name: str | None) -> TrackedVideo:
    """Return the video of this name, or the only one."""
    found = [video for video in videos if name in (None, video.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(video.name for video in videos[:5]) + (", ..." if len(videos) > 5 else "")
    if not found:
        raise Error(f"{folder}: has no sequence {name}; it has {names or 'none'}")
    raise Error(f"{folder}: has {len(videos)} sequences; choose one with --sequence: {names}")


def _body_length(video: TrackedVideo) -> float:
    lengths = np.concatenate([np.zeros(0), *(track.length[sure(track)] for track in video.tracks)])
    known = lengths[np.isfinite(lengths)]
    return float(np.median(known)) if len(known) else np.nan
