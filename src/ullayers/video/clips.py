"""Clips of frames, how to read them, and the errors and limits shared by all readers."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from ullayers.errors import Error
from ullayers.video.region import Cut, Region, RegionError

IMAGE_SUFFIXES = frozenset(".png .jpg .jpeg .bmp .tif .tiff .webp .pgm .ppm".split())
VIDEO_SUFFIXES = frozenset(
    ".mp4 .m4v .mov .avi .mkv .webm .mpg .mpeg .wmv .flv .ts .mts .gif".split()
)
DEFAULT_FPS = 25.0  # frame rate of image folders and of videos that state none
MAX_PIXELS = 2**26  # per image or frame (8192 x 8192); a tiny file can declare far more
TimedFrame = tuple[Tensor, float, int]  # (channels, height, width) pixels, seconds, frame number
Kind = Literal["video", "images", "live"]
Render = Callable[[tuple[int, int]], Tensor]  # a frame in colour at any (height, width)
KEEP_HINT = "; use --skip-bad to keep them"


class VideoError(Error):
    """A video, image or folder cannot be used; the one-line message says what to do."""

    @property
    def reason(self) -> str:
        """The message for users who have given --skip-bad: without a hint to use it."""
        return str(self).removesuffix(KEEP_HINT)

    def with_skip_hint(self, count: int) -> VideoError:
        """Return this error, with a hint to use --skip-bad if it concerns one of several inputs."""
        if count < 2 or "--skip-bad" in str(self):
            return self
        separator = "" if str(self).endswith("?") else ";"
        return VideoError(f"{self}{separator} --skip-bad leaves such files out")


@dataclass(frozen=True)
class Clip:
    """Consecutive frames of one source.

    Attributes:
        frames: (time, channels, height, width) uint8, with three channels (RGB) or one (grey).
        seconds: (time,) float64 presentation times as in the file, even at a variable frame rate.
        index: (time,) int64 frame numbers in the source; skipped frames count.
        crops: (time, 4) left, top, right and bottom of the crops in 0..1; None for whole frames.
    """

    frames: Tensor
    seconds: Tensor
    index: Tensor
    crops: Tensor | None = None

    @classmethod
    def join(cls, clips: Sequence[Clip]) -> Clip:
        """Concatenate consecutive clips."""
        crops = [clip.crops for clip in clips if clip.crops is not None]
        return cls(
            torch.cat([clip.frames for clip in clips]),
            torch.cat([clip.seconds for clip in clips]),
            torch.cat([clip.index for clip in clips]),
            torch.cat(crops) if crops else None,
        )

    def rows(self, rows: slice) -> Clip:
        """Return the selected frames."""
        crops = None if self.crops is None else self.crops[rows]
        return Clip(self.frames[rows], self.seconds[rows], self.index[rows], crops)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options for reading frames.

    Attributes:
        size: (height, width) to resize frames to; None keeps the size in the file.
        longest: Alternatively, the length of the longer side. The aspect ratio is kept, both sides
            become even, and frames are never enlarged.
        grey: Read one channel instead of three.
        start: Use frames from this time on, in seconds; not for cameras and streams.
        end: Use frames before this time; None for no limit. Cameras and streams count from their
            first frame.
        first: Number of the first frame to keep; ignored by cameras.
        stride: Keep every `stride`-th frame.
        max_frames: Stop after this many kept frames.
        roi: Use only this part of the frames: crop them to its bounding box before they are
            resized, and make everything outside the region black. None for whole frames.
        mixed: Whether images of one folder may differ in size if `size` is given.
        follow: Whether to crop to a square around the moving object after reading (see
            `camera.following`).
        tap: Called in the reader's thread for each kept frame of a file, with a function that
            renders the whole frame at another size. This avoids decoding the file again.
        passing: The same for each frame of a video file, including those that `stride` leaves out.
        timed: Called in the reader's thread with the number and the time of each decoded frame of a
            video file, including those that are left out; see `access.FrameTimes`.
        interleaved: Whether the colours of a pixel are adjacent in memory (`channels_last`), as in
            OpenCV. The shape of the frames is the same.

    Example:
        >>> Reading(longest=64).target(height=480, width=640)
        (48, 64)
    """

    size: tuple[int, int] | None = None
    longest: int | None = None
    grey: bool = False
    start: float = 0.0
    end: float | None = None
    first: int = 0
    stride: int = 1
    max_frames: int | None = None
    roi: Region | None = None
    mixed: bool = True
    follow: bool = False
    tap: Callable[[Render], None] | None = field(default=None, compare=False)
    passing: Callable[[Render], None] | None = field(default=None, compare=False)
    timed: Callable[[int, float], None] | None = field(default=None, compare=False)
    interleaved: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.size is not None and self.longest is not None:
            raise ValueError("expected size or longest, got both")
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"expected a size of at least 1 x 1, got {self.size}")
        for name, least in (("longest", 2), ("stride", 1), ("max_frames", 1), ("first", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"expected {name} of at least {least}, got {value}")
        if not 0 <= self.start < math.inf or (self.end is not None and not self.end > self.start):
            raise ValueError(f"expected 0 <= start < end, got {self.start} and {self.end}")

    @property
    def channels(self) -> int:
        """Number of channels of the frames."""
        return 1 if self.grey else 3

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) at which a frame of this size is read."""
        if self.roi is not None:
            cut = self.roi.fit(height, width)
            height, width = cut.height, cut.width
        if self.longest is None:
            return self.size or (height, width)
        longest = self.longest // 2 * 2
        scale = longest / max(height, width, longest)
        half_height = min(round(height * scale / 2), height // 2)
        half_width = min(round(width * scale / 2), width // 2)
        return 2 * max(half_height, 1), 2 * max(half_width, 1)

    def cut(self, path: str, height: int, width: int) -> Cut | None:
        """Return the region of interest in the frames of a source; None for whole frames.

        Raises:
            VideoError: The region does not fit.
        """
        try:
            return None if self.roi is None else self.roi.fit(height, width)
        except RegionError as error:
            raise VideoError(f"{path}: {error}") from error

    def no_frames(self, path: str, last: float | None) -> VideoError:
        """Return the error for a source without a frame between `start` and `end`.

        Args:
            path: Path of the source.
            last: Time of its last frame, if known.
        """
        until = "" if self.end is None else f" to {self.end:g} s"
        ends = "" if last is None else f"; its last frame is at {last:.2f} s"
        return VideoError(
            f"{path}: has no frame from {self.start:g} s{until}{ends}; change --start or --end"
        )


READ_AS_IS = Reading()


@dataclass(frozen=True)
class Info:
    """Properties of a source known before reading it.

    Attributes:
        width: Frame width in pixels, after rotation.
        height: Frame height in pixels, after rotation.
        rate: Frames per second, if known.
        frames: Number of frames, if known.
    """

    width: int
    height: int
    rate: float | None
    frames: int | None


def info_between(info: Info, start: float = 0.0, end: float | None = None) -> Info:
    """Return the properties of a source restricted to a time range.

    Args:
        info: Properties of the whole source.
        start: First time in seconds.
        end: Time before which frames are used; None for no limit.

    Example:
        >>> info_between(Info(64, 48, 25.0, 100), start=1.0).frames
        75
    """
    if not start and end is None:
        return info
    if info.rate is None:
        return replace(info, frames=None)
    first = _frames_before(start, info.rate)
    stops = [] if info.frames is None else [info.frames]
    if end is not None:
        stops.append(_frames_before(end, info.rate))
    return replace(info, frames=max(0, min(stops) - first) if stops else None)


def _frames_before(seconds: float, rate: float) -> int:
    return math.ceil(seconds * rate - 1e-6)  # 0.28 * 25 is a little more than 7


def check_pixels(path: str, width: int, height: int) -> None:
    """Raise VideoError if a frame of this size has more than `MAX_PIXELS` pixels."""
    if width * height > MAX_PIXELS:
        raise too_large(path, f"{width} x {height} pixels")


def too_large(path: str, size: str) -> VideoError:
    """Return the error for an image or video whose frames have too many pixels."""
    limit = f"{MAX_PIXELS / 1e6:.0f} million pixels"
    return VideoError(f"{path}: {size}, but the limit is {limit}; resize or remove this file")


def check_regular(file: str) -> None:
    """Refuse files whose reading may never end: pipes, devices and those that the system makes up.

    Raises:
        VideoError: It is such a file. Files of the system, as in /proc, have a size of 0.
    """
    try:
        state = os.stat(file)
    except OSError:
        return  # opening it says why
    if not stat.S_ISREG(state.st_mode):
        raise VideoError(f"{file}: is not a file but a pipe or a device; save it to a file first")
    if not state.st_size:
        raise VideoError(f"{file}: cannot be read (empty, or made up by the system)")


def kept_frames(max_frames: int | None, stride: int) -> int | None:
    """Return how many of the first `max_frames` frames a stride keeps; None for no limit.

    >>> kept_frames(10, 4), kept_frames(None, 4)
    (3, None)
    """
    return None if max_frames is None else -(-max_frames // stride)


def natural_key(text: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that orders numbers in names by value.

    >>> sorted(["img10", "img2", "Img1"], key=natural_key)
    ['Img1', 'img2', 'img10']
    """
    parts = re.split(r"(\d+)", text.casefold())
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), text


def suffix_of(file: str) -> str:
    """Return the suffix of a file name in lower case, with its dot."""
    return os.path.splitext(file)[1].lower()


def list_folder(folder: str) -> list[str]:
    """Return the paths in a folder in natural order, without hidden ones."""
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError as error:
        raise VideoError(f"{folder}: {error.strerror}") from error
    return [os.path.join(folder, name) for name in sorted(names, key=natural_key)]
