"""Small training frames in bounded memory, with the background of moving objects."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.learning.config import LongMean as LongMean
from ullayers.video.camera.following import follow
from ullayers.video.camera.motion import backdrop, find_path, foreground
from ullayers.video.clips import info_between, kept_frames
from ullayers.video.sources import Clip, Info, Reading, Source, VideoError, find_sources

T = TypeVar("T")

PIECE = 256  # frames of a piece, which has its own background
MIN_PIECE_FRAMES = 3
MAX_PIECE_BYTES = 2**24
MAX_KEPT_BYTES = 2**28
TARGET_RATE = 6.0  # frames per second, enough to follow a moving object
ENOUGH_FRAMES = 500  # a stride leaves at least this many frames of a source


class Spread(Generic[T]):
    """An evenly spaced sample of a stream of items.

    Args:
        most: Largest number of items to keep.

    Example:
        >>> kept = Spread[str](4)
        >>> kept.extend("abcdefghij")
        >>> kept.items
        {0: 'a', 4: 'e', 8: 'i'}
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.every = 1
        self.count = 0
        self.items: dict[int, T] = {}

    def extend(self, items: Iterable[Any], prepare: Callable[[Any], T] = lambda item: item) -> None:
        """Add the next items of the stream.

        Args:
            items: The items.
            prepare: Called for the items that are kept.
        """
        for item in items:
            if self.count % self.every == 0:
                self.items[self.count] = prepare(item)
            self.count += 1
            if len(self.items) > self.most:
                self.every *= 2
                self.items = {n: kept for n, kept in self.items.items() if n % self.every == 0}


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of one source, with the path of the camera and the background.

    Attributes:
        source: Number of the source.
        clip: The frames.
        path: (time, 2) path of the camera, from `find_path`; None for a static camera.
        behind: Background of this piece.
    """

    source: int
    clip: Clip
    path: Tensor | None
    behind: Tensor

    def __len__(self) -> int:
        return len(self.clip.index)

    def foreground(self, rows: slice = slice(None), behind: Tensor | None = None) -> Tensor:
        """Return the foreground, in 0..1.

        Args:
            rows: Frames to return.
            behind: Background to use instead of the piece's own. It is ignored if the camera moves,
                because the background depends on its direction.
        """
        frames = self.clip.frames[rows].float() / 255
        if self.path is not None:
            return foreground(frames, self.behind, self.path[rows])
        return foreground(frames, self.behind if behind is None else behind)


@dataclass(frozen=True)
class TaughtFrame:
    """A frame corrected by the user.

    Attributes:
        piece: The frame, with the camera's position and the background of the frames around it.
        place: (2,) x and y of the object in 0..1; NaN if the frame is empty.
    """

    piece: Piece
    place: NDArray[np.float64]


@dataclass
class Footage:
    """Pieces of one or more sources.

    Attributes:
        names: Names of the sources.
        pieces: Pieces in the order of the recording.
        bad: Name and error of each source that could not be read completely.
        seen: Number of frames read; not all of them are kept.
        readings: How each source was read, by its number.
        taught: Frames corrected by the user, used for training.
    """

    names: list[str]
    pieces: list[Piece] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    seen: int = 0
    readings: dict[int, Reading] = field(default_factory=dict)
    taught: list[TaughtFrame] = field(default_factory=list)

    def size(self) -> int:
        """Return the number of bytes of all frames."""
        return sum(piece.clip.frames.numel() for piece in self.pieces)

    @property
    def complete(self) -> bool:
        """Whether every frame of every source was read and kept."""
        return sum(map(len, self.pieces)) == self.seen and not self.bad

    def of_source(self, number: int) -> list[Piece]:
        """Return the pieces of one source."""
        return [piece for piece in self.pieces if piece.source == number]

    def backdrops(self) -> dict[int, Tensor]:
        """Return the background of each source with a still camera."""
        numbers = sorted({piece.source for piece in self.pieces})
        found = {number: common_background(self.of_source(number)) for number in numbers}
        return {number: behind for number, behind in found.items() if behind is not None}


def common_background(pieces: Sequence[Piece]) -> Tensor | None:
    """Return the median background of the pieces with a static camera; None if there is none."""
    still = [piece.behind for piece in pieces if piece.path is None]
    return torch.stack(still).median(0).values if still else None


def cut(
    source: Source, reading: Reading, length: int = PIECE, room: int = MAX_PIECE_BYTES
) -> Generator[Clip, None, None]:
    """Yield a source in clips of about `length` frames; a short rest is added to the last clip.

    A damaged source yields the readable frames and then raises VideoError.

    Args:
        source: The source.
        reading: How to read it.
        length: Frames per clip, if memory allows.
        room: Bytes that a clip may take.
    """
    height, width = reading.size or reading.target(*_size(source))
    frame_bytes = reading.channels * height * width
    length = max(MIN_PIECE_FRAMES, min(length, room // frame_bytes))
    finish = follow if reading.follow else lambda clip: clip
    waiting: Clip | None = None
    error: VideoError | None = None
    clips = source.clips(length, reading, ahead=1)  # one clip waits here, too
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
    """Find the path of the camera and the background of a clip.

    Args:
        number: Number of the source.
        clip: Consecutive frames.
    """
    frames = clip.frames.float() / 255
    # Squares that follow an object do not show the motion of the camera.
    path = find_path(frames) if clip.crops is None else None
    return Piece(number, clip, path, backdrop(frames, path))


def gather(
    sources: Sequence[Source],
    reading: Reading,
    *,
    natural: bool = False,
    skip_bad: bool = False,
    room: int = MAX_KEPT_BYTES,
) -> Footage:
    """Read each source once, as `gathering` does, and return the footage."""
    steps = gathering(sources, reading, natural=natural, skip_bad=skip_bad, room=room)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            footage: Footage = end.value
            return footage


def gathering(
    sources: Sequence[Source],
    reading: Reading,
    *,
    natural: bool = False,
    skip_bad: bool = False,
    room: int = MAX_KEPT_BYTES,
) -> Generator[int, None, Footage]:
    """Read each source once and keep evenly spaced pieces that fit into `room` bytes.

    Memory is bounded for recordings of any length: when it is full, every second piece is dropped,
    and from then on every second new one. Which pieces are kept depends only on their position.

    Args:
        sources: From `find_sources`.
        reading: How to read them; `size` is required if they differ in size.
        natural: Choose the stride of each source by `natural_reading`.
        skip_bad: List unreadable sources in `bad` instead of raising.
        room: Bytes of frames to keep.

    Yields:
        The number of frames read so far.

    Returns:
        The footage.

    Example:
        >>> import tempfile, numpy as np
        >>> from ullayers.video.sources import find_sources
        >>> from ullayers.video.files.writing import VideoWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with VideoWriter(f"{folder}/a.mp4", fps=10) as video:
        ...         for t in range(20):
        ...             video.write(np.full((48, 64, 3), 10 * t, np.uint8))
        ...     footage = gather(find_sources([folder]), Reading(longest=32))
        >>> footage.seen, [tuple(p.clip.frames.shape) for p in footage.pieces]
        (20, [(20, 3, 24, 32)])
    """
    footage = Footage([source.name for source in sources])
    every = 1
    count = 0
    for number, source in enumerate(sources):
        try:
            for own, clip in _cut_with_reading(source, reading, natural):
                footage.readings[number] = replace(own, passing=None)
                footage.seen += len(clip.index)
                yield footage.seen
                if len(clip.index) < MIN_PIECE_FRAMES:
                    continue
                if count % every == 0:
                    footage.pieces.append(make_piece(number, clip))
                count += 1
                while len(footage.pieces) > 1 and footage.size() > room:
                    footage.pieces = footage.pieces[::2]
                    every *= 2
        except VideoError as error:
            if not skip_bad:
                raise error.with_skip_hint(len(sources)) from None
            footage.bad[source.name] = error.reason
    return footage


def _cut_with_reading(
    source: Source, reading: Reading, natural: bool
) -> Generator[tuple[Reading, Clip], None, None]:
    """Yield the clips of a source and how they were read."""
    own = natural_reading(reading, source.probe()) if natural else reading
    if natural and own.stride > 1:
        waiting: list[Clip] = []
        seen = 0
        try:
            for clip in cut(source, own):
                waiting.append(clip)
                seen += len(clip.index)
                if seen * own.stride >= ENOUGH_FRAMES:
                    yield from ((own, clip) for clip in waiting)
                    waiting = []
        except VideoError:
            if not waiting:
                raise
        if not waiting:
            return
        # There are fewer frames than the header says: read all of them.
        own = replace(reading, passing=None)
    yield from ((own, clip) for clip in cut(source, own))


def open_sources(
    paths: Sequence[str], *, skip_bad: bool = False
) -> tuple[list[Source], list[Info], dict[str, str]]:
    """Find all sequences in `paths` and read their headers.

    Args:
        paths: Files, folders and patterns.
        skip_bad: Leave out unreadable inputs.

    Returns: The sequences that can be opened, the content of their headers, and the paths that
    cannot be opened, with their errors.

    Raises:
        VideoError: An input cannot be read and `skip_bad` is not given, or no input can be read.
    """
    bad: dict[str, str] = {}
    sources = []
    infos = []
    found = find_sources(paths, bad if skip_bad else None)
    for source in found:
        try:
            infos.append(source.probe())
            sources.append(source)
        except VideoError as error:
            if not skip_bad:
                raise error.with_skip_hint(len(found)) from None
            bad[source.path] = error.reason
    if not sources:
        raise VideoError(next(iter(bad.values())))
    return sources, infos, bad


def natural_reading(reading: Reading, info: Info) -> Reading:
    """Return a reading with the stride that leaves about six frames per second of a source.

    The stride is smaller if fewer than 500 frames would be left; shorter sources are not thinned.

    Args:
        reading: How to read all frames.
        info: Header of the source.

    Example:
        >>> natural_reading(Reading(), Info(640, 480, 30.0, 10_000)).stride
        5
        >>> natural_reading(Reading(), Info(64, 48, 25.0, 600)).stride
        1
    """
    used = info_between(info, reading.start, reading.end)
    rate = used.rate or TARGET_RATE
    frames = used.frames or ENOUGH_FRAMES * rate
    if reading.max_frames is not None:
        frames = min(frames, reading.max_frames)
    stride = max(1, min(round(rate / TARGET_RATE), int(frames // ENOUGH_FRAMES)))
    return replace(reading, stride=stride, max_frames=kept_frames(reading.max_frames, stride))


def expected_frames(infos: Sequence[Info], reading: Reading) -> int | None:
    """Return the number of frames that a reading of these sources gives, for a progress bar.

    Args:
        infos: Headers of the sources.
        reading: How they will be read.

    Returns:
        The number of frames, or None if a header does not contain it.

    Example:
        >>> film = Info(64, 48, 25.0, 100)
        >>> expected_frames([film, film], Reading(stride=3)), expected_frames([film], Reading())
        (68, 100)
        >>> expected_frames([film], Reading(stride=3, max_frames=10))
        10
    """
    total = 0
    for info in infos:
        frames = info_between(info, reading.start, reading.end).frames
        if frames is None:
            return None
        kept = max(0, -(-(frames - reading.first) // reading.stride))
        total += kept if reading.max_frames is None else min(kept, reading.max_frames)
    return total


def _size(source: Source) -> tuple[int, int]:
    info = source.probe()
    return info.height, info.width


def count_frames(sources: Iterable[Source], reading: Reading) -> int | None:
    """Return the number of frames that will be read; None if a header does not contain it.

    Args:
        sources: Sequences that will be read.
        reading: How they will be read.
    """
    return expected_frames([source.probe() for source in sources], reading)
