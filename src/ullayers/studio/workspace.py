"""The folder of a studio: uploads, recordings, runs, jobs, and the token of the page."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ullayers.errors import Error
from ullayers.files import partial_path, sweep
from ullayers.run.folder import LOCK_FILE, check_writable
from ullayers.video.files.finding import safe_name

SETTINGS = "studio.json"
FOLDERS = ("uploads", "recordings", "runs", "jobs")
MAX_NAME = 60  # characters of a name that a user chose


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
