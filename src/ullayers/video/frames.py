"""Pictures and video streams, opened, checked and decoded one frame at a time."""

from __future__ import annotations

import glob
import os
import re
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ullayers.errors import MissingPackageError, UserError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.reformatter import VideoReformatter
    from av.video.stream import VideoStream

PICTURES = frozenset(".png .jpg .jpeg .bmp .tif .tiff .webp .pgm .ppm".split())
VIDEOS = frozenset(".mp4 .m4v .mov .avi .mkv .webm .mpg .mpeg .wmv .flv .ts .mts .gif".split())
PICTURE_RATE = 25.0  # frames a second where nothing says how fast they were taken
CAMERAS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}:none")}
# These senders do not wait for a slow reader, so old frames give way; http does wait.
UNPAUSED = ("rtsp:", "rtmp:", "rtp:", "udp:", "srt:")
LARGE = 2**28  # bytes of a chunk that are set aside before its frames are there
PATIENCE = 10.0  # seconds without data after which a network stream counts as lost

Item = tuple[Tensor, float, int]  # a picture (channels, height, width), its time, its number
Kind = Literal["video", "images", "live"]


class VideoError(UserError):
    """A video, picture or folder cannot be used; the message is one line that says what to do."""

    def among(self, count: int) -> VideoError:
        """The same, with a hint if it is of one of many, which could do without it."""
        known = count < 2 or "--skip-bad" in str(self)
        return self if known else VideoError(f"{self}; --skip-bad leaves such files out")


@dataclass(frozen=True)
class Clip:
    """Consecutive frames of one source.

    Attributes:
        frames: (time, channels, height, width) uint8; three channels (RGB) or one (grey).
        seconds: (time,) float64 presentation time as in the file, whatever its frame rate does.
        index: (time,) int64 number of the frame in the source, skipped frames counted.
    """

    frames: Tensor
    seconds: Tensor
    index: Tensor

    @classmethod
    def join(cls, clips: Sequence[Clip]) -> Clip:
        """Clips that follow each other, as one."""
        names = ("frames", "seconds", "index")
        return cls(*(torch.cat([getattr(clip, name) for clip in clips]) for name in names))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read.

    Attributes:
        size: (height, width) of the frames; None leaves them as in the file.
        longest: or the length of the longer side, aspect kept, both sides even, never enlarged.
        grey: one channel instead of three.
        stride: keep every `stride`-th frame.
        max_frames: stop after so many kept frames.
        start: number of the first frame to keep; a camera knows none.
        mixed: once `size` is given, pictures of one folder may differ in size.
        follow: then cut out a square around what moves, as `footage.cut` does.

    Example:
        >>> Reading(longest=64).target(height=480, width=640)
        (48, 64)
    """

    size: tuple[int, int] | None = None
    longest: int | None = None
    grey: bool = False
    stride: int = 1
    max_frames: int | None = None
    start: int = 0
    mixed: bool = True
    follow: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and self.longest is not None:
            raise ValueError("expected size or longest, got both")
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"expected a size of at least 1 x 1, got {self.size}")
        for name, least in (("longest", 2), ("stride", 1), ("max_frames", 1), ("start", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"expected {name} of at least {least}, got {value}")

    @property
    def channels(self) -> int:
        """Of the frames that are read."""
        return 1 if self.grey else 3

    def target(self, height: int, width: int) -> tuple[int, int]:
        """The (height, width) that a frame of this size is read at."""
        if self.longest is None:
            return self.size or (height, width)
        longest = self.longest // 2 * 2
        scale = longest / max(height, width, longest)
        half = [min(round(side * scale / 2), side // 2) for side in (height, width)]
        return 2 * max(half[0], 1), 2 * max(half[1], 1)


READ_AS_IS = Reading()


@dataclass(frozen=True)
class Info:
    """What is known before reading: size after rotation, frames a second, number of frames."""

    width: int
    height: int
    rate: float | None
    frames: int | None


def natural_key(text: str) -> tuple[tuple[str | int, ...], str]:
    """A sorting key that reads numbers as numbers.

    >>> sorted(["img10", "img2", "Img1"], key=natural_key)
    ['Img1', 'img2', 'img10']
    """
    parts = re.split(r"(\d+)", text.casefold())
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), text


def load_av() -> ModuleType:
    """PyAV, loaded where it is used."""
    try:
        import av
    except ModuleNotFoundError as error:
        raise MissingPackageError("reading video needs the package av: pip install av") from error
    return av


def _shown(path: str) -> str:
    return re.sub(r"://.*@", "://", path)  # no password of a URL in a message


def has_cameras() -> bool:
    """Whether PyAV, as it was built, reads this system's cameras."""
    # One entry may hold several names of a format, as "video4linux2,v4l2" does.
    known = {name for entry in load_av().formats_available for name in entry.split(",")}
    return CAMERAS.get(sys.platform, ("",))[0] in known


def is_camera(path: str) -> bool:
    """Whether a live source is a camera; it may also be a file whose name looks like one."""
    named = path.isdecimal() or path.startswith("/dev/video") or path.endswith(":none")
    return named and not os.path.isfile(path)


def is_unpaused(path: str, live: bool) -> bool:
    """Whether the source goes on while nobody reads it, as a camera does."""
    return live and (is_camera(path) or path.startswith(UNPAUSED))


@contextmanager
def open_video(path: str, live: bool = False) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open the first video stream. Text, sound and single pictures are refused."""
    av, shown = load_av(), _shown(path)
    if live and "://" in path:
        how: dict[str, Any] = {"file": path, "timeout": PATIENCE}
    elif live and is_camera(path):
        how = {"file": path, "format": CAMERAS[sys.platform][0]}
    else:
        how = {"file": f"file:{path}"}  # a colon in a name is no protocol
    try:
        container = av.open(**how)
    except (av.FFmpegError, OSError) as error:
        why, hint = f"{error.strerror}".lower(), "is it complete?"
        if isinstance(error, av.error.ExitError):
            why = f"no answer within {PATIENCE:g} seconds"
        if "://" in path and live:
            hint = "is the address right, the sender on, and the network there?"
        raise VideoError(f"{shown}: cannot be read as a video ({why}); {hint}") from error
    with container:
        if container.format.name.endswith("_pipe") or container.format.name in ("image2", "tty"):
            hint = ", an animated one make an mp4 first" * (suffix_of(path) == ".webp")
            raise VideoError(
                f"{shown}: is text or one picture, no video; for pictures give their folder{hint}"
            )
        cover = av.stream.Disposition.attached_pic
        streams = [stream for stream in container.streams.video if not stream.disposition & cover]
        if not streams:
            raise VideoError(
                f"{shown}: holds no moving pictures; give a video or a folder of pictures"
            )
        streams[0].thread_type = "AUTO"
        yield container, streams[0]


def quarter_turns(frame: VideoFrame) -> int:
    """Quarter turns anticlockwise that bring the frame upright."""
    return round(frame.rotation / 90) % 4


def decode_frames(
    path: str, live: bool, container: InputContainer, stream: VideoStream, stop: threading.Event
) -> Iterator[tuple[VideoFrame, float]]:
    """Every frame that can be decoded, with its time; then VideoError if some could not be."""
    failure = load_av().FFmpegError
    rate = float(stream.average_rate or stream.guessed_rate or PICTURE_RATE)
    count, broken, lost = 0, None, None
    known, since = 0, 0.0  # the last frame whose time is in the file
    packets = container.demux(stream)
    while not stop.is_set():
        try:
            packet = next(packets, None)
        except failure as error:
            lost, packet = error, None
        if packet is None:
            break
        bad = packet.is_corrupt
        try:
            frames = packet.decode()
        except failure:
            frames, bad = [], True
        for frame in frames:
            if frame.is_corrupt and broken is None:
                broken = count
            if frame.pts is not None:
                known, since = count, float(frame.time)
            yield frame, since + (count - known) / rate
            count += 1
        broken = count if bad and broken is None else broken
    if stop.is_set():
        return
    if count == 0:
        raise VideoError(f"{_shown(path)}: no frame can be decoded; is the file complete?")
    if lost and live:
        raise VideoError(
            f"{_shown(path)}: the stream was lost after frame {count}; is the sender still on?"
        ) from lost
    if broken is None and (lost or _is_cut_short(container, stream, since + 1 / rate)):
        broken = count
    if broken is not None and not live:  # one joins a live stream midway: its start may be broken
        can = f"{count} frames can be read, and are with --skip-bad"
        raise VideoError(f"{path}: broken after frame {broken}; {can}")


def _is_cut_short(container: InputContainer, stream: VideoStream, end: float) -> bool:
    """Whether the file ends before its own index or header says, which FFmpeg forgives."""
    last = stream.index_entries[-1] if len(stream.index_entries) else None
    if last and last.pos + last.size > container.size:
        return True
    # Matroska's index is at the end and lost first; its duration is the longest stream's.
    if "matroska" not in container.format.name or len(container.streams) > 1:
        return False
    duration = (container.duration or 0) / 1e6
    return duration - end > max(0.5, 0.05 * duration)


def read_video(
    path: str, live: bool, reading: Reading, stop: threading.Event
) -> Generator[Item, None, None]:
    """The frames of a video file or stream, with their times and numbers."""
    # One reformatter for all frames: a frame's own builds its tables anew, at a third the speed.
    reformatter = load_av().video.reformatter.VideoReformatter()
    with open_video(path, live) as (container, stream):
        decoded = enumerate(decode_frames(path, live, container, stream, stop))
        kept = islice(decoded, reading.start, None, reading.stride)
        target = None
        for index, (frame, seconds) in islice(kept, reading.max_frames):
            if target is None:  # later frames of another size are brought to that of the first
                swap = -1 if quarter_turns(frame) % 2 else 1
                target = reading.target(*(frame.height, frame.width)[::swap])
            yield to_picture(path, reformatter, frame, target, reading.grey), seconds, index


def to_picture(
    path: str, reformatter: VideoReformatter, frame: VideoFrame, size: tuple[int, int], grey: bool
) -> Tensor:
    """A decoded frame as (channels, height, width) of this size, upright."""
    turns = quarter_turns(frame)
    height, width = size[::-1] if turns % 2 else size
    layout = "gray" if grey else "gbrp"  # in "rgb24" two neighbours would share their colour
    try:
        small = reformatter.reformat(frame, width, height, layout, interpolation="AREA", threads=1)
    except (load_av().FFmpegError, ValueError) as error:
        raise VideoError(
            f"{path}: frames of format {frame.format.name} cannot be converted"
        ) from error
    pixels = torch.from_numpy(small.to_ndarray())
    return torch.rot90(pixels[None] if grey else pixels.permute(2, 0, 1), turns, (1, 2))


def list_folder(folder: str) -> list[str]:
    """The paths in a folder but the hidden ones, in natural order."""
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError as error:
        raise VideoError(f"{folder}: {error.strerror}") from error
    return [os.path.join(folder, name) for name in sorted(names, key=natural_key)]


def suffix_of(file: str) -> str:
    """The suffix in lower case, with its dot."""
    return os.path.splitext(file)[1].lower()


def list_pictures(place: str) -> list[str]:
    """The picture files of a folder or pattern, in natural order."""
    files = (
        list_folder(place) if os.path.isdir(place) else sorted(glob.glob(place), key=natural_key)
    )
    files = [file for file in files if suffix_of(file) in PICTURES]
    if not files:
        raise VideoError(f"{place}: holds no picture")
    return files


@contextmanager
def open_picture(file: str) -> Iterator[Image.Image]:
    """Open a picture; what Pillow cannot read becomes a VideoError."""
    try:
        with Image.open(file) as picture:
            if picture.format in ("TIFF", "WEBP") and getattr(picture, "n_frames", 1) > 1:
                raise VideoError(f"{file}: has several pages; save each as a picture of its own")
            if picture.mode == "F":
                raise VideoError(f"{file}: has floating point pixels; save it with 8 or 16 bits")
            yield picture
    except VideoError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise VideoError(f"{file}: cannot be read as a picture; replace or remove it") from error


def upright_size(picture: Image.Image) -> tuple[int, int]:
    """Width and height once the camera's orientation is undone."""
    sideways = picture.getexif().get(0x0112, 1) >= 5
    return (picture.height, picture.width) if sideways else picture.size


def read_pictures(
    place: str, reading: Reading, stop: threading.Event
) -> Generator[Item, None, None]:
    """The pictures of a folder or pattern, with times and numbers counted.

    Those that cannot be read are left out; then VideoError if there are some.
    """
    files = list_pictures(place)
    first: tuple[str, tuple[int, int]] | None = None
    bad: list[VideoError] = []
    for index in range(reading.start, len(files), reading.stride)[: reading.max_frames]:
        if stop.is_set():
            return
        try:
            with open_picture(files[index]) as picture:
                size = upright_size(picture)
                first = first or (files[index], size)
                fits = size == first[1] or (reading.size is not None and reading.mixed)
                pixels = _read_picture(picture, reading, size) if fits else None
        except VideoError as error:
            bad.append(error)
            continue
        if pixels is None:
            was, now = (f"{width} x {height}" for width, height in (first[1], size))
            raise VideoError(
                f"{files[index]}: {now} pixels, but {first[0]} has {was}; make them alike, "
                "or give a size, as height x width"
            )
        yield pixels, index / PICTURE_RATE, index
    if bad:
        more = f" (so it is with {len(bad)} of {len(files)} pictures)" if len(bad) > 1 else ""
        raise VideoError(f"{bad[0]}{more}")


def probe_pictures(place: str) -> Info:
    """Look at the first picture that can be read."""
    files = list_pictures(place)
    errors = []
    for file in files:
        try:
            with open_picture(file) as picture:
                return Info(*upright_size(picture), PICTURE_RATE, len(files))
        except VideoError as error:
            errors.append(error)
    raise errors[0]


def _read_picture(picture: Image.Image, reading: Reading, size: tuple[int, int]) -> Tensor:
    height, width = reading.target(size[1], size[0])
    if size == picture.size:
        picture.draft(None, (width, height))  # JPEG shrinks while it decodes
    upright = _eight_bit(ImageOps.exif_transpose(picture), "L" if reading.grey else "RGB")
    if upright.size != (width, height):
        upright = upright.resize((width, height), Image.Resampling.BOX)
    pixels = torch.from_numpy(np.array(upright))
    return pixels[None] if reading.grey else pixels.permute(2, 0, 1)


def _eight_bit(picture: Image.Image, mode: str) -> Image.Image:
    if picture.mode.startswith("I"):
        pixels = np.asarray(picture).astype(np.float32) / 257
        return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).convert(mode)
    if picture.has_transparency_data:
        clear = picture.convert("RGBA")
        picture = Image.new("RGB", picture.size)
        picture.paste(clear, mask=clear.getchannel("A"))
    return picture.convert(mode)
