"""Video files, cameras and streams, opened with PyAV."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullayers.errors import MissingPackageError
from ullayers.video.frames import (
    IMAGE_SUFFIXES,
    MAX_PIXELS,
    VideoError,
    check_pixels,
    check_regular,
    suffix_of,
)
from ullayers.video.remote import RemoteFile, is_url, without_password

if TYPE_CHECKING:
    from av.container import InputContainer
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
HEAD_BYTES = 4096  # enough to distinguish text from binary files


def load_av() -> ModuleType:
    """Import PyAV on first use."""
    try:
        import av
    except ModuleNotFoundError as error:
        raise MissingPackageError("reading video needs the package av: pip install av") from error
    return av


def has_cameras() -> bool:
    """Return whether this build of PyAV reads the cameras of this system."""
    return CAMERAS.get(sys.platform, ("",))[0] in _format_names()


def is_camera(path: str) -> bool:
    """Return whether a live source is a camera, not a file with the name of one."""
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

    @property
    def has_times(self) -> bool:
        """Whether the times of frames in the file are those at which they are shown.

        An AVI file has the order of decoding only, which is another one if there are B-frames.
        """
        return self.container.format.name != "avi" or not self.stream.codec_context.has_b_frames


@contextmanager
def open_video(path: str, live: bool = False) -> Iterator[OpenVideo]:
    """Open the first video stream of a file, camera or URL.

    Text, sound, single images and, unless given as a URL, playlists are refused.
    """
    with _opened(path, live) as container:
        stream = _first_stream(path, container)
        if stream.codec_context is None:
            raise VideoError(
                f"{without_password(path)}: has a codec that cannot be decoded; convert it to H.264"
            )
        width, height = stream.width, stream.height
        if not live and width * height == 0:  # also how FFmpeg reports a size above the limit
            width, height = _declared_size(path)
        check_pixels(without_password(path), width, height)
        stream.thread_type = "AUTO"
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        yield OpenVideo(path, live, container, stream)


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
        if remote is None:
            check_regular(path)
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
    """Return the error for a container that FFmpeg cannot open."""
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
    several = {".webp": "an animation", ".tif": "a stack", ".tiff": "a stack"}.get(suffix_of(path))
    hint = f"; convert {several} to mp4" if several else ""
    return VideoError(
        f"{without_password(path)}: is text or a single image, not a video; "
        f"for images give their folder{hint}"
    )


def _first_stream(path: str, container: InputContainer) -> VideoStream:
    """Return the first video stream that is not a cover image."""
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
