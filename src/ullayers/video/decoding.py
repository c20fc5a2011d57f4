"""Video files and streams, opened and decoded with PyAV one frame at a time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ullayers.errors import MissingPackageError
from ullayers.video.frames import (
    DEFAULT_FPS,
    IMAGE_SUFFIXES,
    MAX_PIXELS,
    Info,
    VideoError,
    check_pixels,
    suffix_of,
)
from ullayers.video.remote import RemoteFile, is_url
from ullayers.video.remote import without_password as without_password

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.reformatter import VideoReformatter
    from av.video.stream import VideoStream

CAMERAS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}:none")}
# These protocols do not wait for a slow reader, so old frames are dropped; http does wait.
UNPAUSED = ("rtsp:", "rtmp:", "rtp:", "udp:", "srt:")
TIMEOUT = 10.0  # seconds without data after which a network stream counts as lost
# Demuxers that open more than the file they are given: other files, sockets, scripts.
REFERRING_FORMATS = frozenset(
    "applehttp avisynth concat concatf dash dvdvideo hls image2 imf lavfi rtp rtsp sap sdp "
    "vapoursynth vobsub webm_dash_manifest".split()
)
# A flag of swscale (SWS_ACCURATE_RND). Without it, a fast conversion of frames that keep their size
# leaves the last columns undefined if the width is not a multiple of 16.
ACCURATE_ROUNDING = 0x40000
HEAD_BYTES = 4096  # enough to tell a text file from a binary one


def load_av() -> ModuleType:
    """Import PyAV where it is used."""
    try:
        import av
    except ModuleNotFoundError as error:
        raise MissingPackageError("reading video needs the package av: pip install av") from error
    return av


def has_cameras() -> bool:
    """Return whether this build of PyAV reads the cameras of this system."""
    return CAMERAS.get(sys.platform, ("",))[0] in _format_names()


def is_camera(path: str) -> bool:
    """Return whether a live source is a camera, and not a file whose name looks like one."""
    named = path.isdecimal() or path.startswith("/dev/video") or path.endswith(":none")
    return named and not os.path.isfile(path)


def is_recorded(path: str) -> bool:
    """Return whether a source is a file, which starts at time 0 and can be read again."""
    return os.path.isfile(path)


def is_unpaused(path: str, live: bool) -> bool:
    """Return whether the source does not wait for its reader, like a camera."""
    return live and (is_camera(path) or path.startswith(UNPAUSED))


@dataclass(frozen=True)
class OpenVideo:
    """An open container and its first video stream."""

    path: str
    live: bool
    container: InputContainer
    stream: VideoStream

    @property
    def rate(self) -> float | None:
        """Frames per second, if known."""
        rate = self.stream.average_rate or self.stream.guessed_rate
        return float(rate) if rate else None


@contextmanager
def open_video(path: str, live: bool = False) -> Iterator[OpenVideo]:
    """Open the first video stream of a file, camera or URL.

    Text, sound, single images and, unless given as a URL, playlists are refused.
    """
    with _opened(path, live) as container:
        stream = _first_stream(path, container)
        width, height = stream.width, stream.height
        if not live and width * height == 0:  # also how FFmpeg reports a size above the limit
            width, height = _declared_size(path)
        check_pixels(without_password(path), width, height)
        stream.thread_type = "AUTO"
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        yield OpenVideo(path, live, container, stream)


def probe_video(path: str, live: bool = False) -> Info:
    """Read the header and decode the first frame."""
    with open_video(path, live) as video:
        frame, *_ = next(decode_frames(video, threading.Event()))
        height, width = upright_size(frame)
        frames = video.stream.frames  # zero in Matroska, whose header has a duration instead
        duration = video.container.duration
        if not frames and duration and video.rate and not live:
            frames = round(duration * 1e-6 * video.rate)
        return Info(width, height, video.rate, frames or None)


@dataclass(frozen=True)
class KeyFrame:
    """A frame from which decoding can start.

    Attributes:
        pts: Its time, in units of the stream.
        seek: The timestamp to seek to.
        number: Its frame number.
    """

    pts: int
    seek: int
    number: int


def decode_frames(
    video: OpenVideo, stop: threading.Event, key: KeyFrame | None = None
) -> Iterator[tuple[VideoFrame, float, int]]:
    """Yield every frame that can be decoded, with its time in seconds and its number.

    Args:
        video: The open video.
        stop: Set to stop reading.
        key: Key frame to start from, from `find_key_frame`; None to start from the beginning.

    Raises:
        VideoError: At the end, if some frames could not be decoded or the file is incomplete.
    """
    clock = _Clock(video.rate or DEFAULT_FPS, 0 if key is None else key.number)
    damage = _Damage()
    for packet in _read_packets(video, stop, damage, key):
        for frame in _decode_packet(packet, damage):
            if frame.is_corrupt:
                damage.note(clock.count)
            number = clock.count
            yield frame, clock.tick(frame), number
        if damage.in_packet:
            damage.note(clock.count)
    if not stop.is_set():
        _check_complete(video, clock, damage)


def quarter_turns(frame: VideoFrame) -> int:
    """Return the number of anticlockwise quarter turns that bring the frame upright."""
    return round(frame.rotation / 90) % 4


def upright_size(frame: VideoFrame) -> tuple[int, int]:
    """Return (height, width) of a frame after rotation."""
    if quarter_turns(frame) % 2:
        return frame.width, frame.height
    return frame.height, frame.width


def frame_to_tensor(
    path: str,
    reformatter: VideoReformatter,
    frame: VideoFrame,
    size: tuple[int, int],
    grey: bool,
    turns: int | None = None,
) -> Tensor:
    """Convert a decoded frame to an upright (channels, height, width) tensor of this size.

    Args:
        path: Path of the video, for messages.
        reformatter: Converts frames; one for all of a video is fastest.
        frame: The frame.
        size: (height, width) of the tensor.
        grey: Return one channel instead of three.
        turns: Anticlockwise quarter turns; None for those that the frame asks for.
    """
    turns = quarter_turns(frame) if turns is None else turns
    height, width = size[::-1] if turns % 2 else size
    layout = "gray" if grey else "gbrp"  # rgb24 would average colour over pairs of pixels
    method = int(load_av().video.reformatter.Interpolation.AREA)
    if (width, height) == (frame.width, frame.height) and width % 16:
        method |= ACCURATE_ROUNDING
    try:
        small = reformatter.reformat(frame, width, height, layout, interpolation=method, threads=1)
    except (load_av().FFmpegError, ValueError) as error:
        raise VideoError(
            f"{path}: frames of format {frame.format.name} cannot be converted"
        ) from error
    pixels = torch.from_numpy(small.to_ndarray())
    return torch.rot90(pixels[None] if grey else pixels.permute(2, 0, 1), turns, (1, 2))


# Opening


def _format_names() -> set[str]:
    # One entry may hold several names of a format, such as "video4linux2,v4l2".
    return {name for entry in load_av().formats_available for name in entry.split(",")}


@contextmanager
def _opened(path: str, live: bool, **options: str) -> Iterator[InputContainer]:
    """Open a container, and close it with the remote file that it reads from."""
    if live or not is_url(path):
        with _open_container(path, live, None, **options) as container:
            yield container
        return
    with (
        closing(RemoteFile(path)) as file,
        _open_container(path, live, file, **options) as container,
    ):
        yield container


def _open_container(
    path: str, live: bool, remote: RemoteFile | None, **options: str
) -> InputContainer:
    av = load_av()
    options = {"max_pixels": str(MAX_PIXELS), **options}
    where: dict[str, Any]
    if live and "://" in path:
        where = {"file": path, "timeout": TIMEOUT}
    elif live and is_camera(path):
        where = {"file": path, "format": CAMERAS[sys.platform][0]}
    else:
        # The prefix: a colon in a name is not a protocol.
        where = {"file": remote or f"file:{path}"}
        allowed = _format_names() - REFERRING_FORMATS
        options |= {"format_whitelist": ",".join(sorted(allowed)), "protocol_whitelist": "file"}
    try:
        # Titles and comments are often not UTF-8; they are not used, so any replacement will do.
        container: InputContainer = av.open(**where, options=options, metadata_errors="replace")
    except (av.FFmpegError, OSError) as error:
        raise _open_error(path, live, error) from error
    return container


def _open_error(path: str, live: bool, error: Any) -> VideoError:
    """Return what to tell the user if FFmpeg cannot open a container."""
    errors = load_av().error
    shown = without_password(path)
    reason = f"{error.strerror}".lower()
    if isinstance(error, errors.ExitError):
        reason = f"no answer within {TIMEOUT:g} seconds"
    if live and "://" in path:
        hint = "is the address right, the sender on, and the network there?"
    elif isinstance(error, errors.ArgumentError) and _is_text(path):  # a format not allowed
        return VideoError(
            f"{shown}: is a playlist that refers to other files or streams; "
            "give the video files themselves"
        )
    elif isinstance(error, errors.ArgumentError) and suffix_of(path) in IMAGE_SUFFIXES:
        return _not_a_video(path)
    else:
        hint = "it looks like a text file" if _is_text(path) else "is it complete?"
    return VideoError(f"{shown}: cannot be read as a video ({reason}); {hint}")


def _is_text(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    return bool(head) and b"\0" not in head


def _not_a_video(path: str) -> VideoError:
    hint = "; convert an animated one to mp4" if suffix_of(path) == ".webp" else ""
    return VideoError(
        f"{without_password(path)}: is text or a single image, not a video; "
        f"for images give their folder{hint}"
    )


def _first_stream(path: str, container: InputContainer) -> VideoStream:
    """Return the first stream that is a video and not the cover image of an album."""
    name = container.format.name
    if name.endswith("_pipe") or name in ("image2", "tty"):
        raise _not_a_video(path)
    cover = load_av().stream.Disposition.attached_pic
    for stream in container.streams.video:
        if not stream.disposition & cover:
            return stream
    raise VideoError(
        f"{without_password(path)}: has no video stream; give a video or a folder of images"
    )


def _declared_size(path: str) -> tuple[int, int]:
    """Return the (width, height) that a file declares, without decoding anything."""
    with _opened(path, live=False, codec_whitelist="none") as container:
        stream = _first_stream(path, container)
        return stream.width, stream.height


# Decoding


class _Clock:
    """Counts frames and gives their times, also to those for which the file has none."""

    def __init__(self, rate: float, first: int) -> None:
        self.rate = rate
        self.count = first
        self.seconds = 0.0  # of the last frame whose time is in the file
        self.at = first  # its number

    def tick(self, frame: VideoFrame) -> float:
        if frame.pts is not None:
            self.at = self.count
            self.seconds = float(frame.time)
        seconds = self.seconds + (self.count - self.at) / self.rate
        self.count += 1
        return seconds


@dataclass
class _Damage:
    """What went wrong while decoding."""

    first: int | None = None  # number of the first frame that is damaged or missing
    in_packet: bool = False  # whether the current packet is damaged
    lost: Exception | None = None  # the error that ended reading

    def note(self, number: int) -> None:
        if self.first is None:
            self.first = number


def _read_packets(
    video: OpenVideo, stop: threading.Event, damage: _Damage, key: KeyFrame | None
) -> Iterator[Packet[VideoStream]]:
    if key is not None:
        video.container.seek(key.seek, stream=video.stream)
    packets = video.container.demux(video.stream)
    while not stop.is_set():
        try:
            packet = next(packets, None)
        except load_av().FFmpegError as error:
            damage.lost = error
            return
        if packet is None:
            return
        # Frames shown before the key frame may need frames before it, even if they come after it.
        if key is None or packet.pts is None or packet.pts >= key.pts:
            yield packet


def _decode_packet(packet: Packet[VideoStream], damage: _Damage) -> list[VideoFrame]:
    damage.in_packet = packet.is_corrupt
    try:
        return packet.decode()
    except load_av().FFmpegError:
        damage.in_packet = True
        return []


def _check_complete(video: OpenVideo, clock: _Clock, damage: _Damage) -> None:
    """Raise VideoError if frames of a source that has ended are damaged or missing."""
    shown = without_password(video.path)
    if clock.count == 0:
        raise VideoError(f"{shown}: no frame can be decoded; is the file complete?")
    if video.live:  # one joins a stream midway, so its first frames may be damaged
        if damage.lost:
            raise VideoError(
                f"{shown}: the stream was lost after frame {clock.count}; is the sender still on?"
            ) from damage.lost
        return
    if damage.lost or _is_cut_short(video, clock.seconds + 1 / clock.rate):
        damage.note(clock.count)
    if damage.first is not None:
        raise VideoError(
            f"{shown}: broken after frame {damage.first}; "
            f"{clock.count} frames can be read; use --skip-bad to keep them"
        )


def _is_cut_short(video: OpenVideo, end: float) -> bool:
    """Return whether the file ends before its index or header says, which FFmpeg accepts."""
    container, entries = video.container, video.stream.index_entries
    last = entries[-1] if len(entries) else None
    if last and last.pos + last.size > container.size:
        return True
    # The index of Matroska is at the end and lost first; its duration is of the longest stream.
    if "matroska" not in container.format.name or len(container.streams) > 1:
        return False
    duration = (container.duration or 0) / 1e6
    return duration - end > max(0.5, 0.05 * duration)
