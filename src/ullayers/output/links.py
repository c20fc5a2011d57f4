"""Protection against symbolic links in an output folder, which may lead to other people's files."""

from __future__ import annotations

from pathlib import Path

from ullayers.learn.checkpoint import RunError


def refuse_link(path: Path) -> Path:
    """Return `path`, unless it is a symbolic link: we never create links where we write.

    Raises:
        RunError: `path` is a symbolic link.
    """
    if path.is_symlink():
        raise RunError(
            f"{path}: is a symbolic link, and writing through it could change files elsewhere; "
            "remove it, or give another folder with --out"
        )
    return path


def refuse_mask_links(folder: Path) -> None:
    """Refuse a folder whose masks/ is, or contains, a symbolic link.

    Raises:
        RunError: There is such a link.
    """
    masks = refuse_link(folder / "masks")
    for path in masks.glob("*"):
        refuse_link(path)
