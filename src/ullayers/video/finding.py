"""Finding the sequences that files, folders and patterns stand for."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from itertools import count as count_from
from pathlib import Path
from typing import NamedTuple

from ullayers.video.decoding import open_video, without_password
from ullayers.video.frames import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    Kind,
    VideoError,
    list_folder,
    natural_key,
    suffix_of,
)

Place = tuple[Kind, str]  # a sequence that has no name yet


class FoundSequence(NamedTuple):
    """A sequence of frames: its unique name, its path and what it is."""

    name: str
    path: str
    kind: Kind


def find_sequences(paths: Sequence[str], bad: dict[str, str] | None) -> list[FoundSequence]:
    """Return the sequences of all paths; see `reader.find_sources`."""
    if not paths:
        raise VideoError("expected at least one video file, folder or pattern")
    found: dict[str, Place] = {}  # by real path: a file named twice is read once
    for path in paths:
        try:
            places = _find(os.path.expanduser(os.fspath(path)), bad)
        except VideoError as error:
            if bad is None:
                raise error.with_skip_hint(len(paths)) from None
            bad.setdefault(path, str(error))
            continue
        for kind, place in places:
            found.setdefault(os.path.realpath(place), (kind, place))
    names = _names([_named_after(kind, place) for kind, place in found.values()])
    return [
        FoundSequence(name, place, kind)
        for name, (kind, place) in zip(names, found.values(), strict=True)
    ]


def safe_name(name: str) -> str:
    """Return a name that is safe in file names, tables and shells."""
    return re.sub(r"[^\w.+-]+", "_", name).strip("._-")[:100] or "video"


def _find(path: str, bad: dict[str, str] | None) -> list[Place]:
    """Find the sequences of one path."""
    if os.path.isfile(path):
        with open_video(path):
            return [("video", path)]
    if os.path.isdir(path):
        return _find_in_folder(path, bad)
    if glob.has_magic(path):
        return _match(path, bad)
    if "://" in path:
        raise VideoError(
            f"{without_password(path)}: is a URL; download it to a file, or use ul watch"
        )
    if os.path.exists(path):  # each file is read several times, which a pipe does not allow
        raise VideoError(f"{path}: is not a file but a pipe or a device; save it to a file first")
    raise VideoError(f"{path}: does not exist; check the spelling")


def _find_in_folder(folder: str, bad: dict[str, str] | None) -> list[Place]:
    entries = list_folder(folder)
    found = _find_among(folder, entries, bad)
    for entry in entries:
        if os.path.isdir(entry) and not _is_run(entry):
            found += _find_among(entry, list_folder(entry), bad)
    if not found:
        what = "contains no images or videos" if entries else "is an empty folder"
        raise VideoError(f"{folder}: {what}; give a video file or a folder of images or videos")
    return found


def _is_run(folder: str) -> bool:
    """Return whether this is a run folder, whose overlay video is not an input."""
    return all(os.path.exists(f"{folder}/{name}") for name in ("config.json", "metrics.jsonl"))


def _match(pattern: str, bad: dict[str, str] | None) -> list[Place]:
    matches = sorted(glob.glob(pattern, recursive=True), key=natural_key)
    if not matches:
        raise VideoError(f"{pattern}: nothing matches this pattern")
    folders: dict[str, list[str]] = {}
    for file in filter(os.path.isfile, matches):
        folders.setdefault(os.path.dirname(file), []).append(file)
    found: list[Place] = []
    for folder, files in folders.items():
        place = os.path.join(glob.escape(folder), os.path.basename(pattern))
        found += _find_among(place, files, bad)
    for match in matches:
        if os.path.isdir(match) and match.rstrip("/") not in folders:
            found += _find(match, bad)
    if not found:
        raise VideoError(f"{pattern}: matches no images or videos")
    return found


def _find_among(place: str, entries: list[str], bad: dict[str, str] | None) -> list[Place]:
    """Find the sequences among the files of one folder; images are known by their suffix."""
    files = [entry for entry in entries if os.path.isfile(entry)]
    if not any(suffix_of(file) in IMAGE_SUFFIXES for file in files):
        return [("video", file) for file in files if _is_video(file, bad, len(files))]
    if any(suffix_of(file) in VIDEO_SUFFIXES for file in files):
        raise VideoError(
            f"{place}: contains both images and videos; choose with a pattern such as '*.mp4'"
        )
    return [("images", place)]


def _is_video(file: str, bad: dict[str, str] | None, count: int) -> bool:
    try:
        with open_video(file):
            return True
    except VideoError as error:
        # Other files in a folder may be anything, but leaving out a broken video would hide a loss.
        if suffix_of(file) in VIDEO_SUFFIXES:
            if bad is None:
                raise error.with_skip_hint(count) from None
            bad[file] = str(error)
        return False


def _named_after(kind: Kind, place: str) -> str:
    """Return the file or folder that gives a sequence its name."""
    if kind == "images" and not os.path.isdir(place):  # a pattern
        return os.path.dirname(place)
    return place


def _names(paths: list[str]) -> list[str]:
    """Return short unique names; duplicates get the name of their folder, then a number."""
    absolute = [Path(os.path.abspath(path)) for path in paths]
    short = [safe_name(path.name if path.is_dir() else path.stem) for path in absolute]
    counts = Counter(name.casefold() for name in short)  # some file systems ignore case
    names: dict[str, str] = {}
    for name, path in zip(short, absolute, strict=True):
        if counts[name.casefold()] > 1:
            name = safe_name(f"{path.parent.name}_{name}")
        candidates = chain([name], (f"{name}-{number}" for number in count_from(2)))
        unique = next(one for one in candidates if one.casefold() not in names)
        names[unique.casefold()] = unique
    return list(names.values())
