"""The studio folder and its videos: uploads, recordings, runs, and what the page may show."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool

from ullayers.errors import Error
from ullayers.files import partial_path, sweep
from ullayers.run.folder import LOCK_FILE, check_writable
from ullayers.video.clips import DEFAULT_FPS
from ullayers.video.demo_films import write_scene
from ullayers.video.files.finding import safe_name
from ullayers.video.sources import Source, VideoError, find_sources, open_live

HEADER = struct.Struct("<II d")  # sequence number, zero, seconds; a JPEG follows
LENGTH = struct.Struct("<I")  # of a header with its JPEG, before it
MAX_FRAME_BYTES = 2**22
SETTINGS = "studio.json"
FOLDERS = ("uploads", "recordings", "runs", "jobs")
MAX_NAME = 60  # characters of a name that a user chose
Origin = Literal["opened", "upload", "recording", "demo"]
DEMO = "demo"
SPARE_BYTES = 2**28  # of the disk that an upload leaves free
SOURCES_KEPT = 256  # runs whose videos are known
MAX_SUFFIX = 5


@dataclass(frozen=True)
class Workspace:
    """A studio folder.

    Attributes:
        folder: The folder.
        token: Secret that the page must send.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     first = Workspace.open(f"{place}/studio")
        ...     again = Workspace.open(f"{place}/studio")
        >>> first.token == again.token
        True
    """

    folder: Path
    token: str

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Workspace:
        """Open a studio folder, and create it if needed.

        Raises:
            Error: The folder is used for something else, or cannot be written to.
        """
        place = Path(folder).absolute()
        settings = place / SETTINGS
        if not settings.exists() and _is_used(place):
            raise Error(f"{folder}: is not empty and not a studio folder; give another --out")
        check_writable(place)
        for name in FOLDERS:
            (place / name).mkdir(parents=True, exist_ok=True)
            if (place / name).is_symlink():
                raise Error(f"{place / name}: is a link; remove it")
            sweep(place / name)
        if not settings.exists():
            _write_secret(settings, {"token": secrets.token_urlsafe(24)})
        return cls(place, _read_token(settings))

    @property
    def uploads(self) -> Path:
        """Folder of uploaded files."""
        return self.folder / "uploads"

    @property
    def recordings(self) -> Path:
        """Folder of recordings of the browser's camera."""
        return self.folder / "recordings"

    @property
    def runs(self) -> Path:
        """Folder of run folders."""
        return self.folder / "runs"

    @property
    def jobs(self) -> Path:
        """Folder with one folder for each run started in the studio."""
        return self.folder / "jobs"


def _is_used(folder: Path) -> bool:
    return folder.is_dir() and any(entry.name != LOCK_FILE for entry in folder.iterdir())


def _write_secret(path: Path, content: Any) -> None:
    """Write a file that only its owner can read."""
    partial = partial_path(path)
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(content, file)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _read_token(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        token = json.loads(path.read_text())["token"]
        if isinstance(token, str) and len(token) >= 16 and token.isascii():
            return token
    raise Error(f"{path}: is damaged; remove it, and the page gets a new address")


def free_name(folder: Path, wanted: str, suffix: str = "") -> str:
    """Return a safe file name that is not used in a folder.

    Args:
        folder: The folder.
        wanted: Name that a user or a file suggests; may contain anything.
        suffix: Suffix of the name.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = Path(place, "mouse.mp4").write_text("")
        ...     free_name(Path(place), "../../mouse", ".mp4")
        'mouse-2.mp4'
    """
    stem = safe_name(os.path.basename(wanted.replace("\\", "/")))[:MAX_NAME].strip(". ") or "video"
    name, count = f"{stem}{suffix}", 1
    while os.path.lexists(folder / name):
        count += 1
        name = f"{stem}-{count}{suffix}"
    return name


def write_quickly(path: Path, content: Any) -> None:
    """Replace a JSON file that is written often; after a power failure it may be outdated."""
    partial = partial_path(path)
    try:
        partial.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


class TooLargeError(Error):
    """An upload is larger than allowed, or than the free space of the disk."""


@dataclass(frozen=True)
class Entry:
    """A video of the library.

    Attributes:
        id: Name of the video in URLs; it changes with the file.
        source: The video.
        origin: Origin of the video.
    """

    id: str
    source: Source
    origin: Origin

    def describe(self) -> dict[str, Any]:
        """Return the data of the video for the page; an unreadable file has an error."""
        entry: dict[str, Any] = {
            "id": self.id,
            "name": self.source.name,
            "kind": self.source.kind,
            "origin": self.origin,
            "width": None,
            "height": None,
            "fps": None,
            "frames": None,
            "seconds": None,
            "error": None,
        }
        if self.source.kind == "live":
            return entry
        try:
            info = self.source.probe()
        except VideoError as error:
            return entry | {"error": str(error)}
        fps = info.rate or DEFAULT_FPS
        seconds = None if info.frames is None else info.frames / fps
        size = {"width": info.width, "height": info.height}
        return entry | size | {"fps": fps, "frames": info.frames, "seconds": seconds}


class Library:
    """All videos that the page may show.

    Args:
        workspace: The studio folder.
        inputs: Videos, folders, cameras and run folders that were given to `ul studio`.
        upload_limit: Largest upload in bytes.

    Attributes:
        runs: Run folders among the inputs.

    Raises:
        Error: An input cannot be read.
    """

    def __init__(
        self, workspace: Workspace, inputs: Sequence[str] = (), upload_limit: int = 2**33
    ) -> None:
        self.workspace = workspace
        self.upload_limit = upload_limit
        self.runs = [Path(path).absolute() for path in inputs if is_run(path)]
        self._opened: dict[str, Entry] = {}
        self.open([path for path in inputs if not is_run(path)])

    def open(self, paths: Sequence[str]) -> None:
        """Add videos outside the studio folder.

        Args:
            paths: Videos, folders, patterns, cameras or URLs of live streams.
        """
        for path in paths:
            for source in [open_live(path)] if _is_camera(path) else find_sources([path]):
                self._add(source)

    def open_inputs(self, inputs: Sequence[str]) -> None:
        """Add the inputs of a run, without those that cannot be read.

        Args:
            inputs: As in `open`.
        """
        self.open([path for path in inputs if _is_camera(path)])
        for source in sources_of(tuple(path for path in inputs if not _is_camera(path))):
            self._add(source)

    def _add(self, source: Source) -> None:
        entry = _entry(source, "opened")
        self._opened[entry.id] = entry

    def entries(self) -> list[Entry]:
        """Return all videos."""
        found = list(self._opened.values())
        folders: list[tuple[Path, Origin]] = [
            (self.workspace.uploads, "upload"),
            (self.workspace.recordings, "recording"),
            (self.workspace.folder / DEMO, "demo"),
        ]
        for folder, origin in folders:
            for path in sorted(folder.glob("[!.]*")):
                if path.is_file() and not path.is_symlink() and path.suffix != ".csv":
                    found.append(_entry(Source(path.stem, str(path), "video"), origin))
        return found

    def get(self, id: str) -> Entry:
        """Return a video by its id.

        Raises:
            KeyError: There is no such video.
        """
        for entry in self.entries():
            if entry.id == id:
                return entry
        raise KeyError(id)

    def of_paths(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the ids of the videos with these paths, by path."""
        ids = {os.path.realpath(entry.source.path): entry.id for entry in self.entries()}
        return {path: ids[real] for path in paths if (real := os.path.realpath(path)) in ids}

    def add_demo(self) -> Entry:
        """Render the video of `ul demo`, unless it exists."""
        folder = self.workspace.folder / DEMO
        path = folder / "scene.mp4"
        if not path.exists():
            write_scene(folder)
        return _entry(Source(path.stem, str(path), "video"), "demo")

    async def upload(self, name: str, size: int | None, blocks: AsyncIterator[bytes]) -> Entry:
        """Store an uploaded video under a safe name; an unreadable upload is removed.

        Args:
            name: File name that the browser sent; may contain anything.
            size: Bytes that the browser announced; None if unknown.
            blocks: Content.

        Raises:
            TooLargeError: It is larger than allowed.
            VideoError: It is not a video.
        """
        self._check_size(size or 0)
        folder = self.workspace.uploads
        suffix = _safe_suffix(name)
        partial = partial_path(folder / "upload", suffix)
        try:
            with open(partial, "wb") as file:
                async for block in blocks:
                    self._check_size(file.tell() + len(block))
                    file.write(block)
            await run_in_threadpool(_check_video, partial, name)
            path = folder / free_name(folder, Path(name).stem, suffix)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        return _entry(Source(path.stem, str(path), "video"), "upload")

    def _check_size(self, size: int) -> None:
        if size > self.upload_limit:
            raise TooLargeError(
                f"the file is larger than {self.upload_limit / 2**30:.3g} GB; start "
                "ul studio with its path instead"
            )
        if size and size % 2**24 < 2**20:  # check occasionally
            free = shutil.disk_usage(self.workspace.folder).free
            if free < SPARE_BYTES:
                raise TooLargeError("the disk is full; remove files, then upload again")

    def remove(self, id: str) -> None:
        """Delete an upload, a recording or the demo.

        Raises:
            KeyError: There is no such video.
            Error: It was opened from elsewhere and must not be deleted.
        """
        entry = self.get(id)
        if entry.origin == "opened":
            raise Error(f"{entry.source.name}: was opened from elsewhere and is not deleted")
        Path(entry.source.path).unlink(missing_ok=True)


def sources_of(inputs: tuple[str, ...]) -> list[Source]:
    """Find the readable videos of a run; cached, because opening long videos takes time."""
    return _sources_of(inputs, tuple(map(os.path.exists, inputs)))


@lru_cache(maxsize=SOURCES_KEPT)
def _sources_of(inputs: tuple[str, ...], exist: tuple[bool, ...]) -> list[Source]:
    return find_sources(inputs, {}) if inputs else []


def is_run(path: str) -> bool:
    """Return whether a path is a run folder."""
    return os.path.isfile(os.path.join(path, "config.json"))


def _is_camera(path: str) -> bool:
    return path.isdecimal() or path.startswith("/dev/video") or "://" in path


def _entry(source: Source, origin: Origin) -> Entry:
    return Entry(_id(source.path, _changed(source.path)), source, origin)


def _changed(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=4096)
def _id(path: str, changed: tuple[int, int]) -> str:
    text = f"{os.path.realpath(path)}\0{changed}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _safe_suffix(name: str) -> str:
    suffix = Path(name).suffix.lower()
    return suffix if re.fullmatch(rf"\.[a-z0-9]{{1,{MAX_SUFFIX}}}", suffix) else ".video"


def _check_video(path: Path, name: str) -> None:
    """Raise VideoError, which names the upload, if a file is not a video."""
    try:
        [source] = find_sources([str(path)])
        source.probe()
    except VideoError as error:
        reason = str(error).replace(str(path), os.path.basename(name)[:100])
        raise VideoError(reason) from None
