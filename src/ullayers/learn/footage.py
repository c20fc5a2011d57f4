"""Small frames to learn from: as much of the video as fits a fixed room, with what is behind it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ullayers.learn.config import LongMean as LongMean
from ullayers.video.camera_motion import backdrop, find_path, foreground
from ullayers.video.follow import follow
from ullayers.video.reader import Clip, Info, Reading, Source, VideoError, find_sources

T = TypeVar("T")

PIECE = 256  # frames that are taken as one stretch of time, with a backdrop of their own
SHORTEST = 3  # frames of a piece that something can be learned from
LARGEST = 2**24  # bytes of a piece
ROOM = 2**28  # bytes of all pieces that are kept
PACE = 6.0  # frames a second that are enough to follow a thing that moves
FEW = 500  # frames below which none is left out


class Spread(Generic[T]):
    """Keeps some of endless items, evenly spread, by their number.

    Example:
        >>> kept = Spread[str](4)
        >>> kept.extend("abcdefghij")
        >>> kept.items
        {0: 'a', 4: 'e', 8: 'i'}
    """

    def __init__(self, most: int) -> None:
        self.most, self.every, self.count = most, 1, 0
        self.items: dict[int, T] = {}

    def extend(self, items: Iterable[T]) -> None:
        """See the next items."""
        for item in items:
            if self.count % self.every == 0:
                self.items[self.count] = item
            self.count += 1
            if len(self.items) > self.most:
                self.every *= 2
                self.items = {n: kept for n, kept in self.items.items() if n % self.every == 0}


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of one source, the camera's path through them, and what is behind.

    Attributes:
        source: number of the source.
        clip: the frames.
        path: (time, 2) from `find_path`; None for a static camera.
        behind: the piece's own backdrop.
    """

    source: int
    clip: Clip
    path: Tensor | None
    behind: Tensor

    def __len__(self) -> int:
        return len(self.clip.index)

    def foreground(self, rows: slice = slice(None), behind: Tensor | None = None) -> Tensor:
        """What moves, in 0..1; before its own backdrop unless another one is given.

        A piece in which the camera moves keeps its own, as another camera position has another.
        """
        frames = self.clip.frames[rows].float() / 255
        if self.path is not None:
            return foreground(frames, self.behind, self.path[rows])
        return foreground(frames, self.behind if behind is None else behind)


@dataclass
class Footage:
    """Pieces of many sources.

    Attributes:
        names: of the sources.
        pieces: in the order of the recording.
        bad: name and error of every source that could not be read, or not to its end.
        seen: how many frames were read; not all are kept.
    """

    names: list[str]
    pieces: list[Piece] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    seen: int = 0

    def size(self) -> int:
        """Bytes of all frames."""
        return sum(piece.clip.frames.numel() for piece in self.pieces)

    def backdrops(self) -> dict[int, Tensor]:
        """Of every source the backdrop over all its pieces with a static camera."""
        sources = {p.source for p in self.pieces if p.path is None}
        return {
            s: torch.stack(
                [p.behind for p in self.pieces if p.source == s and p.path is None]
            ).median(0).values
            for s in sorted(sources)
        }  # fmt: skip


def cut(source: Source, reading: Reading, length: int = PIECE) -> Generator[Clip, None, None]:
    """The source in stretches of about `length` frames; none is a short rest at the end.

    A broken source gives what can be read and then raises VideoError.
    """
    height, width = reading.size or reading.target(*_size(source))
    length = max(SHORTEST, min(length, LARGEST // (reading.channels * height * width)))
    finish = follow if reading.follow else lambda clip: clip
    waiting: Clip | None = None
    error: VideoError | None = None
    clips = source.clips(length, reading)
    try:
        for clip in clips:
            if waiting is not None and 2 * len(clip.index) < length:
                waiting = Clip.join([waiting, clip])
                continue
            if waiting is not None:
                yield finish(waiting)
            waiting = clip
    except VideoError as caught:
        error = caught
    finally:
        clips.close()
    if waiting is not None:
        yield finish(waiting)
    if error is not None:
        raise error


def make_piece(number: int, clip: Clip) -> Piece:
    """Find the camera's path and the backdrop of these frames."""
    frames = clip.frames.float() / 255
    path = find_path(frames)
    return Piece(number, clip, path, backdrop(frames, path))


def gather(
    sources: Sequence[Source],
    reading: Reading,
    *,
    skip_bad: bool = False,
    room: int = ROOM,
    progress: Callable[[int], None] = lambda seen: None,
) -> Footage:
    """Read every source once and keep pieces, spread evenly, that fit into `room` bytes.

    However long the recording is, memory stays bounded: when the room is full every second piece
    goes, and from then on every second one that comes. Which are kept depends on nothing but the
    frames' places.

    Args:
        sources: from `find_sources`.
        reading: how to read them; `size` must be given if they differ in size.
        skip_bad: list unreadable sources in `bad` instead of raising.
        room: bytes of frames to keep.
        progress: called with the number of frames read so far.

    Example:
        >>> import tempfile, numpy as np
        >>> from ullayers.video.reader import VideoWriter, find_sources
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with VideoWriter(f"{folder}/a.mp4", fps=10) as video:
        ...         for t in range(20):
        ...             video.write(np.full((48, 64, 3), 10 * t, np.uint8))
        ...     footage = gather(find_sources([folder]), Reading(longest=32))
        >>> footage.seen, [tuple(p.clip.frames.shape) for p in footage.pieces]
        (20, [(20, 3, 24, 32)])
    """
    footage, every, count = Footage([s.name for s in sources]), 1, 0
    for number, source in enumerate(sources):
        try:
            for clip in cut(source, reading):
                footage.seen += len(clip.index)
                progress(footage.seen)
                if len(clip.index) < SHORTEST:
                    continue
                if count % every == 0:
                    footage.pieces.append(make_piece(number, clip))
                count += 1
                while len(footage.pieces) > 1 and footage.size() > room:
                    footage.pieces, every = footage.pieces[::2], 2 * every
        except VideoError as error:
            if not skip_bad:
                raise error.among(len(sources)) from None
            footage.bad[source.name] = str(error)
    return footage


def open_sources(
    paths: Sequence[str], *, skip_bad: bool = False
) -> tuple[list[Source], list[Info], dict[str, str]]:
    """Every sequence in `paths` that opens, what its header says, and the others with their errors.

    Raises:
        VideoError: something cannot be read and `skip_bad` is not given, or nothing can.
    """
    bad: dict[str, str] = {}
    sources, infos = [], []
    found = find_sources(paths, bad if skip_bad else None)
    for source in found:
        try:
            infos.append(source.probe())
            sources.append(source)
        except VideoError as error:
            if not skip_bad:
                raise error.among(len(found)) from None
            bad[source.path] = str(error)
    if not sources:
        raise VideoError(next(iter(bad.values())))
    return sources, infos, bad


def natural_stride(infos: Sequence[Info], max_frames: int | None = None) -> int:
    """About six frames a second, if that leaves enough of them.

    >>> natural_stride([Info(640, 480, 30.0, 10_000)]), natural_stride([Info(64, 48, 25.0, 600)])
    (5, 1)
    """
    rate = max(info.rate or PACE for info in infos)
    most = max_frames or 10**9
    total = sum(min(info.frames or FEW * rate, most) for info in infos)
    return max(1, min(round(rate / PACE), int(total // FEW)))


def _size(source: Source) -> tuple[int, int]:
    info = source.probe()
    return info.height, info.width
