"""Tracks, frame size and masks of each video in a results folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import Error, RunError
from ullayers.files import read_json
from ullayers.tracks.masks import MAX_PALETTE_OBJECTS, Labels, label_box, read_labels
from ullayers.tracks.reading import Crossing, Floats, Track, read_crossings, read_tracks
from ullayers.tracks.table import CROSSINGS, MAX_FRAMES, SURE

MAX_SIDE = 2**20  # pixels of a frame's side
Frames = NDArray[np.int64]


@dataclass(frozen=True)
class Numbers:
    """Numbers of objects after corrections.

    Attributes:
        tracks: For each original object number, the frames in which the object was found,
            ascending, and its corrected number in them; 0 if it was removed.
    """

    tracks: Mapping[int, tuple[Frames, NDArray[np.integer[Any]]]]

    @property
    def first(self) -> int:
        """The smallest original number."""
        return min(self.tracks, default=1)

    def __call__(self, frames: Any, objects: Any) -> NDArray[np.int64]:
        """Return corrected numbers; 0 for removed or unknown objects.

        Args:
            frames: Numbers of frames, of any shape.
            objects: Original object numbers, of the same shape.

        Example:
            >>> numbers = Numbers({1: (np.arange(2), np.array([1, 3]))})
            >>> numbers([0, 1, 2], [1, 1, 1]).tolist()
            [1, 3, 0]
        """
        frames = np.asarray(frames, np.int64)
        objects = np.asarray(objects, np.int64)
        found = np.zeros(objects.shape, np.int64)
        for number in np.intersect1d(objects, list(self.tracks)).tolist():
            seen, corrected = self.tracks[number]
            own = np.flatnonzero(objects == number)
            row = np.searchsorted(seen, frames.flat[own])
            own, row = own[row < len(seen)], row[row < len(seen)]
            is_seen = seen[row] == frames.flat[own]
            found.flat[own[is_seen]] = corrected[row[is_seen]]
        return found


@dataclass(frozen=True)
class TrackedVideo:
    """One video with its tracks.

    Attributes:
        name: Name of the sequence.
        width: Width of the frames in pixels.
        height: Height of the frames in pixels.
        fps: Frames per second.
        count: Number of processed frames.
        tracks: One per object, sorted by number; positions in pixels are never missing.
        masks: Folder of the masks; None if they were not written.
        crossings: Crossings, in which objects touched or hid each other.
        processed: Numbers of the processed frames; None to find them in the tracks.
        numbers: Corrected numbers of the objects in the masks; None without corrections.
    """

    name: str
    width: int
    height: int
    fps: float
    count: int
    tracks: list[Track]
    masks: Path | None = None
    crossings: list[Crossing] = field(default_factory=list)
    processed: Frames | None = None
    numbers: Numbers | None = None

    @property
    def frames(self) -> Frames:
        """Numbers of the processed frames, with and without objects.

        The table has no rows for frames without objects. If there are such frames, all frames from
        the first one on were processed, or every n-th one, unless the table shows otherwise.
        """
        if self.processed is not None:
            return self.processed
        listed = _union(self.tracks)
        if len(listed) == self.count:
            return listed
        step = int(np.gcd.reduce(np.diff(listed))) if len(listed) > 1 else 1
        if not len(listed) or (listed[0] % step == 0 and listed[-1] < self.count * step):
            return np.arange(self.count) * step
        return np.arange(listed[0], listed[-1] + 1, step)

    def labels(self, frame: int) -> Labels | None:
        """Return the object number of each pixel, 0 for the background; None without a mask."""
        path = None if self.masks is None else self.masks / f"{frame:06d}.png"
        if path is None or not path.exists():
            return None
        if self.numbers is not None:
            every = np.arange(MAX_PALETTE_OBJECTS + 1)
            lookup = self.numbers(np.full_like(every, frame), every).astype(np.uint8)
            return lookup[read_labels(path, single=self.numbers.first)]
        return read_labels(path, single=self.tracks[0].object if self.tracks else 1)


def sure(track: Track) -> NDArray[np.bool_]:
    """Return which rows have a position with a confidence of at least 0.5."""
    found: NDArray[np.bool_] = (track.confidence >= SURE) & np.isfinite(track.x_px + track.y_px)
    return found


def object_name(track: Track) -> str:
    """Return the name of an object in other programs.

    >>> object_name(Track("a", 2, {"frame": np.zeros(0, int)}))
    'object_2'
    """
    return f"object_{track.object}"


def on_frames(track: Track, values: Floats, frames: Frames) -> Floats:
    """Return one value per frame, NaN where the track has no row.

    Args:
        track: The track.
        values: (rows, ...) values of the track.
        frames: Sorted frame numbers, including those of the track.
    """
    filled = np.full((len(frames), *values.shape[1:]), np.nan)
    filled[np.searchsorted(frames, track.frame)] = values
    return filled


def positions(video: TrackedVideo, frames: Frames) -> tuple[Floats, Floats]:
    """Return x, y (frames, objects, 2) in pixels and confidences (frames, objects).

    Args:
        video: The video.
        frames: Sorted frame numbers, including those of all tracks.
    """
    places = [
        on_frames(track, np.stack([track.x_px, track.y_px], 1), frames) for track in video.tracks
    ]
    confidences = [on_frames(track, track.confidence, frames) for track in video.tracks]
    return np.stack(places, 1), np.stack(confidences, 1)


def cut_video(video: TrackedVideo, first: int | None, last: int | None) -> TrackedVideo:
    """Return a range of frames of a video, with its tracks and crossings.

    Args:
        video: The video.
        first: First frame; None for the beginning.
        last: Last frame; None for the end.
    """
    start = -1 if first is None else first
    end = int(video.frames[-1]) if last is None else last
    frames = video.frames[(video.frames >= start) & (video.frames <= end)]
    tracks = [_cut(track, start, end) for track in video.tracks]
    return replace(
        video,
        count=len(frames),
        processed=frames,
        tracks=[track for track in tracks if len(track.frame)],
        crossings=[c for c in video.crossings if c.last_frame >= start and c.first_frame <= end],
    )


def _cut(track: Track, first: int, last: int) -> Track:
    kept = (track.frame >= first) & (track.frame <= last)
    return track.changed(**{name: values[kept] for name, values in track.columns.items()})


def read_videos(
    folder: Path, read: Callable[[Path], list[Track]] = read_tracks
) -> list[TrackedVideo]:
    """Read the results of `ul learn` or `ul apply`, sorted by name.

    Args:
        folder: Results folder.
        read: Function that reads the tracks.

    Raises:
        RunError: A file is missing or damaged.
    """
    if not (folder / "tracks.csv").exists() and (folder / "codes.csv").exists():
        raise RunError(f"{folder}: has codes and no positions; use a run with --task locate")
    tracks = read(folder / "tracks.csv")
    summary = folder / "summary.json"
    try:
        entries = [_entry(entry) for entry in read_json(summary)["sequences"]]
    except FileNotFoundError:
        raise RunError(
            f"{summary}: is missing, and with it the size of the frames; write it with ul apply"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"{summary}: is damaged; write it again with --force") from error
    crossings = read_crossings(folder / CROSSINGS)
    _check_complete(folder / "tracks.csv", tracks, entries)
    videos = [_video(folder, entry[:5], tracks, crossings) for entry in sorted(entries)]
    unknown = {track.sequence for track in tracks} - {video.name for video in videos}
    if unknown:
        raise RunError(f"{summary}: has no entry for {min(unknown)}; write it again with --force")
    return videos


def _check_complete(
    path: Path, tracks: list[Track], entries: list[tuple[str, int, int, float, int, int]]
) -> None:
    """Refuse a table with missing rows; older versions do not store the number of rows."""
    for name, *_, expected in entries:
        rows = sum(len(track.frame) for track in tracks if track.sequence == name)
        if expected >= 0 and rows != expected:
            raise RunError(
                f"{path}: has {rows} of {expected} rows of {name}; write it again with --force"
            )


def _entry(entry: Mapping[str, Any]) -> tuple[str, int, int, float, int, int]:
    name = entry["name"]
    width = int(entry["width"])
    height = int(entry["height"])
    fps, count = float(entry["fps"]), int(entry["frames"])
    if not isinstance(name, str) or name != Path(name).name:  # it is used in paths
        raise ValueError("expected the name of a sequence")
    sides = 1 <= min(width, height) <= max(width, height) <= MAX_SIDE
    if not sides or not 0 < fps < np.inf or not 0 <= count <= MAX_FRAMES:
        raise ValueError("expected name, width, height, fps and frames of each sequence")
    return name, width, height, fps, count, int(entry.get("rows", -1))


def _video(
    folder: Path,
    entry: tuple[str, int, int, float, int],
    tracks: list[Track],
    crossings: list[Crossing],
) -> TrackedVideo:
    name, width, height, fps, count = entry
    own = [_in_pixels(track, width, height) for track in tracks if track.sequence == name]
    masks = folder / "masks" / name
    return TrackedVideo(
        name,
        width,
        height,
        fps,
        count,
        own,
        masks=masks if masks.is_dir() else None,
        crossings=[crossing for crossing in crossings if crossing.sequence == name],
    )


def _in_pixels(track: Track, width: int, height: int) -> Track:
    """Add the columns in pixels to a table of version 0.1."""
    if np.isfinite(track.x_px).any():
        return track
    return track.changed(x_px=track.x * width, y_px=track.y * height)


def _union(tracks: list[Track]) -> Frames:
    """Return the numbers of all frames, without sorting if one track has all of them."""
    seen = [track.frame for track in tracks if len(track.frame)]
    first = min((int(frame[0]) for frame in seen), default=0)
    last = max((int(frame[-1]) for frame in seen), default=-1)
    if any(len(frame) == last - first + 1 for frame in seen):
        return np.arange(first, last + 1)
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(track.frame for track in tracks)]))


@dataclass(frozen=True)
class BoxedObject:
    """An object in one frame.

    Attributes:
        frame: Number of the frame.
        object: Number of the object.
        confidence: From 0.5 to 1.
        box: (4,) left, top, width and height in pixels.
        area: Pixels of the mask, or the area in the table; NaN if unknown.
        mask: (height, width); None if there are no masks.
    """

    frame: int
    object: int
    confidence: float
    box: Floats
    area: float
    mask: NDArray[np.bool_] | None = None


def boxed_objects(video: TrackedVideo) -> Iterator[BoxedObject]:
    """Yield the objects with a confidence of at least 0.5, frame by frame.

    Boxes come from the masks if the folder has masks, otherwise from an ellipse with the object's
    length, width and heading. Objects without a mask or a size are left out.

    Raises:
        Error: There are neither masks nor sizes.
    """
    if video.masks is not None:
        yield from _from_masks(video)
        return
    if not has_sizes(video):
        raise Error(
            f"{video.name}: boxes need masks, or length and width in tracks.csv; write them with "
            "ul apply --masks"
        )
    found = [item for track in video.tracks for item in _from_sizes(video, track)]
    yield from sorted(found, key=lambda item: (item.frame, item.object))


def has_sizes(video: TrackedVideo) -> bool:
    """Return whether the table has lengths and widths of objects."""
    return any(np.isfinite(track.length + track.width).any() for track in video.tracks)


def _from_masks(video: TrackedVideo) -> Iterator[BoxedObject]:
    rows: dict[int, list[tuple[int, float]]] = {}
    for track in video.tracks:
        clear = sure(track)
        for frame, confidence in zip(
            track.frame[clear].tolist(), track.confidence[clear].tolist(), strict=True
        ):
            rows.setdefault(frame, []).append((track.object, confidence))
    for frame in sorted(rows):
        labels = video.labels(frame)
        if labels is None:
            continue
        for number, confidence in sorted(rows[frame]):
            mask = labels == number
            if mask.any():
                box = np.array(label_box(mask), np.float64)
                yield BoxedObject(frame, number, confidence, box, float(mask.sum()), mask)


def _from_sizes(video: TrackedVideo, track: Track) -> Iterator[BoxedObject]:
    boxes = ellipse_boxes(track, video.width, video.height)
    for row in np.flatnonzero(sure(track) & np.isfinite(boxes).all(1)):
        yield BoxedObject(
            int(track.frame[row]),
            track.object,
            float(track.confidence[row]),
            boxes[row],
            float(track.area[row]),
        )


def ellipse_boxes(track: Track, width: int, height: int) -> Floats:
    """Return the bounding box of an ellipse with the axes of the object, inside the frame.

    Args:
        track: A track with lengths and widths. Where its heading is unknown, the ellipse is a
            circle between both axes.
        width: Width of the frames in pixels.
        height: Height of the frames in pixels.

    Returns:
        (rows, 4) left, top, width and height in pixels; NaN where the size is unknown.
    """
    turned = np.radians(track.heading)
    across, along = np.cos(turned) ** 2, np.sin(turned) ** 2
    round_ = np.isnan(track.heading)
    across[round_] = along[round_] = 0.5
    long, short = track.length**2, track.width**2
    wide = np.sqrt(long * across + short * along)
    high = np.sqrt(long * along + short * across)
    left, right = ((track.x_px + sign * wide / 2).clip(0, width) for sign in (-1, 1))
    top, bottom = ((track.y_px + sign * high / 2).clip(0, height) for sign in (-1, 1))
    return np.stack([left, top, right - left, bottom - top], 1)


def overlap(first: Floats, second: Floats) -> Floats:
    """Return the intersection over union of all pairs of boxes.

    Args:
        first: (n, 4) left, top, width and height.
        second: (m, 4) likewise.

    Returns:
        (n, m) from 0 to 1.

    Example:
        >>> overlap(np.array([[0.0, 0, 2, 1]]), np.array([[1.0, 0, 2, 1]])).round(3).tolist()
        [[0.333]]
    """
    start = np.maximum(first[:, None, :2], second[None, :, :2])
    end = np.minimum((first[:, :2] + first[:, 2:])[:, None], (second[:, :2] + second[:, 2:])[None])
    shared = (end - start).clip(min=0).prod(2)
    both = first[:, 2:].prod(1)[:, None] + second[:, 2:].prod(1)[None] - shared
    share: Floats = np.divide(shared, both, out=np.zeros_like(shared), where=both > 0)
    return share
