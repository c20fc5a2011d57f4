"""Video files, cameras, streams and URLs, opened with PyAV."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullayers.errors import MissingPackageError
from ullayers.video.clips import (
    IMAGE_SUFFIXES,
    MAX_PIXELS,
    VideoError,
    check_pixels,
    check_regular,
    natural_key,
    suffix_of,
)

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
EXTRA = "'ullayers[remote]'"  # fsspec and what it needs for web servers


def is_url(path: str) -> bool:
    """Return whether a path is a URL, not a local file with a similar name.

    >>> is_url("s3://bucket/a.mp4"), is_url("a.mp4")
    (True, False)
    """
    return "://" in path and not os.path.exists(path)


def absolute_path(path: str) -> str:
    """Return an absolute path; a URL is returned unchanged."""
    return path if is_url(path) else os.path.abspath(path)


def without_password(path: str) -> str:
    """Remove the user name and password from a URL, for messages."""
    return re.sub(r"://.*@", "://", path)


def is_pattern(url: str) -> bool:
    """Return whether a URL is a pattern; `?` starts the query of a web address.

    >>> is_pattern("s3://bucket/**/*.mp4"), is_pattern("https://example.org/a.mp4?key=1")
    (True, False)
    """
    wildcards = "*[" if url.startswith(("http:", "https:")) else "*[?"
    return any(character in url for character in wildcards)


def match_urls(pattern: str) -> list[str]:
    """Return the URLs that a pattern matches, in natural order.

    Raises:
        VideoError: The store cannot be listed.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/day/a10.mp4": b"", "/day/a2.mp4": b""})
        >>> match_urls("memory://day/*.mp4")
        ['memory://day/a2.mp4', 'memory://day/a10.mp4']
    """
    with _one_line_errors(pattern):
        system, path = _load_fsspec().core.url_to_fs(pattern)
        names = system.glob(path)
        # A leading slash would be taken for an empty host.
        found = [re.sub(":///+", "://", system.unstrip_protocol(name)) for name in names]
    return sorted(found, key=natural_key)


class RemoteFile:
    """A file at a URL that PyAV can read; errors of any store become VideoError.

    Args:
        url: URL of the file.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/a.bin", b"abcdef")
        >>> file = RemoteFile("memory://a.bin")
        >>> file.seek(2), file.read(3), file.tell()
        (2, b'cde', 5)
        >>> file.close()
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with _one_line_errors(url):
            system, path = _load_fsspec().core.url_to_fs(url)
            self.file: Any = system.open(path, "rb")
            self.can_seek = bool(self.file.seekable())

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes."""
        with _one_line_errors(self.url):
            content: bytes = self.file.read(size)
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position and return it."""
        with _one_line_errors(self.url):
            position: int = self.file.seek(offset, whence)
        return position

    def tell(self) -> int:
        """Return the position."""
        position: int = self.file.tell()
        return position

    def seekable(self) -> bool:
        """Return whether the store can read from any position."""
        return self.can_seek

    def close(self) -> None:
        """Close the connection."""
        self.file.close()


def _load_fsspec() -> ModuleType:
    """Import fsspec on first use."""
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"reading URLs needs the package fsspec: pip install {EXTRA}"
        ) from error
    module: ModuleType = fsspec
    return module


@contextmanager
def _one_line_errors(url: str) -> Iterator[None]:
    """Convert errors of a store, of any class, to ours."""
    shown = without_password(url)
    try:
        yield
    except (VideoError, MissingPackageError):
        raise
    except FileNotFoundError as error:
        # fsspec raises the same error for servers that cannot be reached.
        cause = error.__cause__
        if cause is not None and getattr(cause, "status", None) != 404:
            raise _unreadable(shown, cause) from error
        raise VideoError(f"{shown}: does not exist; check the spelling") from error
    except ImportError as error:
        raise _missing_package(shown, error) from error
    except Exception as error:  # each store has its own exceptions
        raise _unreadable(shown, error) from error


def _missing_package(shown: str, error: ImportError) -> MissingPackageError:
    """Return an error that names the package to install."""
    module = getattr(error.__cause__ or error, "name", None)
    if not module:
        return MissingPackageError(f"{shown}: a package is missing: {error}")
    package = module.split(".")[0]
    install = EXTRA if package == "aiohttp" else package
    return MissingPackageError(f"{shown}: needs the package {package}: pip install {install}")


def _unreadable(shown: str, error: BaseException) -> VideoError:
    reason = without_password(" ".join(str(error).split())) or type(error).__name__
    return VideoError(
        f"{shown}: cannot be read ({reason}); check the address, the network and your access"
    )


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
