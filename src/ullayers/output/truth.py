"""True positions, read from the files of other programs and from our own tables."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ullayers.errors import UserError
from ullayers.learn.regular_files import read_regular
from ullayers.learn.results import SURE
from ullayers.output.formats.packages import load
from ullayers.output.mask_images import Labels, label_box, read_labels
from ullayers.output.observations import Observation, Observations, collect
from ullayers.output.track_table import MAX_FRAMES
from ullayers.output.tracked_video import TrackedVideo

MAX_TABLE_BYTES = 2**30
IDENTITIES = ("animal", "object", "person", "id")
BOX = ("left", "top", "width", "height")


def read_truth(path: Path, video: TrackedVideo) -> Observations:
    """Read true positions of the objects in a video.

    Args:
        path: A .slp file of SLEAP, a .csv or .h5 file of DeepLabCut, a .txt file of MOTChallenge, a
            CSV with a header that names our columns, or a folder of masks.
        video: The video, for its size and name.

    Raises:
        UserError: The file cannot be read.
        MissingPackageError: A package needed to read the file is not installed.
    """
    if not path.exists():
        raise UserError(f"{path}: does not exist; give a file or folder of true positions")
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
    except UserError:
        raise
    except (OSError, ValueError, KeyError, IndexError, OverflowError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as true positions: {error}") from error


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
        raise UserError(f"{path}: has {len(videos)} videos; name one of them {video.name}")
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
        raise UserError(f"{path}: expected {video.width} x {video.height} pixels, got {size}")
    for number in np.unique(labels[labels > 0]).tolist():
        mask = labels == number
        y, x = (axis.mean() + 0.5 for axis in np.nonzero(mask))
        yield Observation(frame, number, float(x), float(y), box=tuple(map(float, label_box(mask))))
