"""Checks of output folders: where files may be written, and which belong to a run."""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ullayers.learn.checkpoint import RunError, read_json
from ullayers.learn.regular_files import open_regular
from ullayers.video.atomic_files import sweep
from ullayers.video.finding import TABLE_START
from ullayers.video.reader import Source
from ullayers.video.remote import is_url

LOCK_FILE = ".lock"
CARD = "README.md"
CORRECTIONS = "corrections.json"  # corrections of the tracks in this folder
CARD_START = b"---\nlibrary_name: ullayers\n"  # a README.md that starts otherwise is the user's own
RESULT_FILES = (  # results that `ul learn` and `ul apply` write alike
    "overlay.mp4",
    "tracks.csv",
    "codes.csv",
    "crossings.csv",
    "behaviour.csv",
    "zones.csv",
    "outlines.sqlite",
    "outlines.partial.*",
    "tracks.columns",
    "codes.columns",
    CORRECTIONS,
    "summary.json",
    "tracks.partial.*",
    "codes.partial.*",
)
# config.json makes a folder a run: it is removed last and written first.
RUN_FILES = (
    "model.safetensors",
    "scenes.safetensors",
    "checkpoint/[ab].safetensors",
    "checkpoint/state.json",
    "metrics.jsonl",
    "tensorboard/events.out.tfevents.*",
    "report.html",
    CARD,
    *RESULT_FILES,
    "config.json",
)
APPLY_FILES = (*RESULT_FILES, "tracks.parquet", "codes.parquet")
EXPORT_FOLDER = "export"
EXPORT_FILES = (  # what `ul export --format` writes to this folder
    "tracks*.csv",
    "*crossings.csv",
    "*.movement.nc",
    "*.slp",
    "*.dlc.csv",
    "*.mot.txt",
    "*.coco.json",
    "*.nwb",
    "*.napari.csv",
    "tracks*.parquet",
    "report.html",
    "*.codes.csv",
)
RUN_NAMES = {*(pattern.split("/")[0] for pattern in (*RUN_FILES, *APPLY_FILES)), "masks"}
DEMO_FILES = ("scene.mp4", "truth.csv")
MASK_FILES = "[0-9][0-9][0-9][0-9][0-9][0-9]*.png"


def check_apart(folder: str | os.PathLike[str], sources: Sequence[Source]) -> None:
    """Refuse to write into a folder that contains an input, which might be overwritten."""
    place = Path(os.path.realpath(folder))
    for source in sources:
        if is_url(source.path):
            continue
        if Path(os.path.realpath(source.path)).is_relative_to(place):
            raise RunError(
                f"{folder}: the input {source.path} is in this folder; give another one with --out"
            )


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder that cannot be created or written to.

    Raises:
        RunError: The path is not UTF-8, it or a parent is a file, or it is read-only.
    """
    place = Path(folder)
    if any("\ud800" <= character <= "\udfff" for character in str(place.absolute())):
        raise RunError(f"{folder}: this name is not UTF-8; give another folder with --out")
    existing = next(path for path in (place, *place.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise RunError(f"{existing}: is a file; give a folder to write into with --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunError(f"{existing}: cannot be written to; give another folder with --out")


def check_free(
    folder: str | os.PathLike[str], force: bool, names: Collection[str] = RUN_NAMES - {CARD}
) -> None:
    """Refuse a folder that is not empty, unless `force` is given and would replace only a run.

    Args:
        folder: Folder to write into.
        force: Whether existing results may be replaced.
        names: Names of the files and folders that will be written; only `ul learn` needs a card.

    Raises:
        RunError: The folder cannot be used.
    """
    check_writable(folder)
    place = Path(folder)
    found = _contents(place)
    if not found:
        return
    if not force:
        raise RunError(f"{folder}: is not empty; {_how_to_proceed(found)}")
    foreign = found.intersection(names) - _own_names(place)
    if foreign:
        raise RunError(
            f"{folder}: contains a {min(foreign)} that does not belong to a run; "
            "give another folder with --out"
        )
    check_links(place)


def _contents(folder: Path) -> set[str]:
    """Return the names in a folder, without lock files and folders that contain only a lock."""
    if not folder.exists():
        return set()
    entries = [entry for entry in folder.iterdir() if entry.name != LOCK_FILE]
    return {entry.name for entry in entries if not _holds_only_a_lock(entry)}


def _holds_only_a_lock(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    return [entry.name for entry in path.iterdir()] == [LOCK_FILE]


def _how_to_proceed(found: Collection[str]) -> str:
    started = "config.json" in found or any(".partial." in name for name in found)
    proceed = "continue with --resume, replace it" if started else "write into it"
    return f"{proceed} with --force, or give another folder with --out"


def check_inside(folder: str | os.PathLike[str], *paths: str | os.PathLike[str]) -> None:
    """Refuse paths that lead out of a folder through a symbolic link.

    Args:
        folder: A folder, which may itself be reached through a link.
        paths: Files or folders in it that will be written to or deleted; they need not exist.

    Raises:
        RunError: A path resolves to a location outside the folder.
    """
    real = Path(os.path.realpath(folder))
    for path in paths:
        if not Path(os.path.realpath(path)).is_relative_to(real):
            raise RunError(f"{path}: is a link that leads out of {folder}; remove the link")


def check_links(folder: Path) -> None:
    """Refuse a folder in which writing or clearing a run would follow a link to the outside."""
    check_inside(folder, *_written(folder))


def _written(folder: Path) -> Iterator[Path]:
    """Yield each path of a run that is opened in place or in which files are deleted."""
    tables = ("tracks.csv", "codes.csv", "tracks.parquet", "codes.parquet")
    for name in ("metrics.jsonl", *tables, "checkpoint", "tensorboard", "masks"):
        yield folder / name
    yield from folder.glob("*.partial.*")
    if not (folder / "masks").is_symlink():
        yield from (path for path in folder.glob("masks/*") if path.is_symlink())


def _own_names(folder: Path) -> set[str]:
    """Return the names in a folder that a run, `ul apply` or `ul demo` has written there."""
    own = set(DEMO_FILES) if _is_table(folder / "truth.csv") else set()
    if is_run(folder):
        return own | (RUN_NAMES if is_own_card(folder) else RUN_NAMES - {CARD})
    if (folder / "config.json").exists() or not _is_applied(folder):
        return own
    applied = {path.name for pattern in APPLY_FILES for path in folder.glob(pattern)}
    return own | applied | {"masks"}


def _is_applied(folder: Path) -> bool:
    """Return whether `ul apply` has written, or started to write, its results here."""
    started = [*folder.glob("tracks.partial.*"), *folder.glob("codes.partial.*")]
    return bool(started) or any(_is_table(folder / name) for name in ("tracks.csv", "codes.csv"))


def is_own_card(folder: Path) -> bool:
    """Return whether README.md was written by a run, or is not there."""
    with suppress(OSError, ValueError), open_regular(folder / CARD) as file:
        return file.read(len(CARD_START)) == CARD_START
    return not os.path.lexists(folder / CARD)


def _is_table(path: Path) -> bool:
    with suppress(OSError, ValueError), open_regular(path) as file:
        return file.read(len(TABLE_START)) in (b"", TABLE_START)  # empty if killed at the start
    return False


def is_run(folder: Path) -> bool:
    """Return whether config.json is that of a run, or was before it was damaged."""
    try:
        content = read_json(folder / "config.json")
        return isinstance(content, dict) and isinstance(content.get("learn"), dict)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError):
        return (folder / "metrics.jsonl").exists()


def clear_run(folder: Path) -> None:
    """Remove the files of an earlier run, or of `ul apply`.

    Other files are kept, and so are folders that contain some.

    Raises:
        RunError: A link leads out of the folder; nothing has been removed.
    """
    run = is_run(folder)
    if not run and not _is_applied(folder):
        return
    patterns = [
        pattern
        for pattern in (RUN_FILES if run else APPLY_FILES)
        if pattern != CARD or is_own_card(folder)
    ]
    check_links(folder)
    clear_masks(folder)
    _clear_exports(folder / EXPORT_FOLDER)
    sweep(folder)
    sweep(folder / "checkpoint")
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.suffix == ".parquet":
                clear_parts(path)
            else:
                path.unlink()
    for name in ("checkpoint", "tensorboard"):
        with suppress(OSError):
            (folder / name).rmdir()


def _clear_exports(folder: Path) -> None:
    """Remove exported tracks of the earlier run; keep other files."""
    if folder.is_symlink():
        return
    for pattern in EXPORT_FILES:
        for path in folder.glob(pattern):
            if path.is_file():
                path.unlink()
    with suppress(OSError):
        folder.rmdir()


def clear_parts(folder: Path) -> None:
    """Remove a folder of Parquet files, one per video, and masks; keep other files."""
    sweep(folder)
    clear_masks(folder)
    for path in folder.glob("*.parquet"):
        path.unlink()
    with suppress(OSError):
        folder.rmdir()


def clear_masks(folder: Path, kept: Container[str] = ()) -> None:
    """Remove masks and unfinished files.

    Args:
        folder: A run folder, or a folder of Parquet files.
        kept: Names of the sequences whose masks are kept.

    Raises:
        RunError: A link leads out of the folder; nothing has been removed.
    """
    sequences = [] if (folder / "masks").is_symlink() else sorted(folder.glob("masks/*"))
    check_inside(folder, folder / "masks", *sequences)
    for place in sequences:
        sweep(place)
        if place.name not in kept:
            for path in place.glob(MASK_FILES):
                path.unlink()
        with suppress(OSError):
            place.rmdir()
    with suppress(OSError):
        (folder / "masks").rmdir()
