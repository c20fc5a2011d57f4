"""Folders that are written to: whose they are, and what in them may be replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Container, Sequence
from contextlib import suppress
from pathlib import Path

from ullayers.learn.checkpoint import RunError
from ullayers.video.atomic_files import sweep
from ullayers.video.reader import Source

# The last one is what makes a folder a run: it is removed last, and written first.
OURS = (
    "model.safetensors", "checkpoint/[ab].safetensors", "checkpoint/state.json", "metrics.jsonl",
    "tensorboard/events.out.tfevents.*", "report.html", "overlay.mp4", "tracks.csv", "codes.csv",
    "summary.json", "tracks.partial.*", "codes.partial.*", "config.json",
)  # fmt: skip
NAMES = {*(pattern.split("/")[0] for pattern in OURS), "masks"}
TABLES = ("tracks.csv", "codes.csv", "truth.csv")
MASK = "[0-9][0-9][0-9][0-9][0-9][0-9]*.png"


def check_apart(folder: str | os.PathLike[str], sources: Sequence[Source]) -> None:
    """Refuse to write where an input lies: it might be replaced."""
    place = Path(os.path.realpath(folder))
    for source in sources:
        if Path(os.path.realpath(source.path)).is_relative_to(place):
            raise RunError(f"{folder}: {source.path} lies in it; give another folder with --out")


def check_free(folder: str | os.PathLike[str], force: bool, names: Collection[str] = NAMES) -> None:
    """Refuse a folder that holds something, unless `force` would replace nothing but our own.

    Args:
        folder: to write into.
        force: whether what is there may be replaced.
        names: of what will be written.
    """
    place = Path(folder)
    if any("\ud800" <= sign <= "\udfff" for sign in str(place.absolute())):
        raise RunError(f"{folder}: this name is not UTF-8; give another folder with --out")
    nearest = next(path for path in (place, *place.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise RunError(f"{nearest}: is a file; give a folder to write into with --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise RunError(f"{nearest}: cannot be written to; give another folder with --out")
    there = {entry.name for entry in place.iterdir()} if nearest == place else set()
    if not there:
        return
    begun = "config.json" in there or any(".partial." in name for name in there)
    if not force:
        hint = "go on with --resume, replace it" if begun else "write into it"
        hint += " with --force, or give another folder with --out"
        raise RunError(f"{folder}: is not empty; {hint}")
    clash = there.intersection(names)
    if clash and not _is_ours(place):
        has = f"has a {min(clash)} that is not of a run"
        raise RunError(f"{folder}: {has}; give another folder with --out")


def _is_ours(folder: Path) -> bool:
    """Whether it is a run, or has a table as we write them."""
    if (folder / "config.json").exists():
        return is_run(folder)
    return any(folder.glob("*.partial.*")) or any(_is_table(folder / name) for name in TABLES)


def _is_table(path: Path) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(20) in (b"", b"sequence,frame,time,")  # empty if it was killed at once
    return False


def is_run(folder: Path) -> bool:
    """Whether config.json is of a run, or was before it was damaged."""
    try:
        return "learn" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError):
        return (folder / "metrics.jsonl").exists()


def clear_run(folder: Path) -> None:
    """Remove what a run before has left. Files of others stay, and folders that hold some."""
    if not is_run(folder):
        return
    clear_masks(folder)
    sweep(folder)
    sweep(folder / "checkpoint")
    for pattern in OURS:
        for path in folder.glob(pattern):
            path.unlink()
    for name in ("checkpoint", "tensorboard"):
        with suppress(OSError):
            (folder / name).rmdir()


def clear_masks(folder: Path, kept: Container[str] = ()) -> None:
    """Remove the masks of sequences that are not to be kept, and what was left half written."""
    for place in folder.glob("masks/*"):
        sweep(place)
        for path in place.glob(MASK) if place.name not in kept else ():
            path.unlink()
        with suppress(OSError):
            place.rmdir()
    with suppress(OSError):
        (folder / "masks").rmdir()
