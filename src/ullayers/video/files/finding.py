"""Finding the sequences in files, folders and patterns."""

from __future__ import annotations

import glob
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from functools import cache
from itertools import chain, takewhile
from itertools import count as count_from
from pathlib import Path
from typing import NamedTuple

from ullayers.video.clips import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    Kind,
    VideoError,
    check_regular,
    list_folder,
    natural_key,
    suffix_of,
)
from ullayers.video.files.opening import (
    UNPAUSED,
    is_pattern,
    is_url,
    match_urls,
    open_video,
    without_password,
)
from ullayers.video.parallel import read_ahead

MAX_TRIED = 10_000  # files that are opened although their names are not those of videos
MAX_SECONDS = 60.0  # in which they are opened
Place = tuple[Kind, str]  # a sequence that has no name yet
# Tables of results, complete or not, and how each of them begins.
TABLE_START = b"sequence,frame,"
DATABASE_START = b"SQLite format 3\0"
TABLES = {
    "tracks.csv": TABLE_START,
    "codes.csv": TABLE_START,
    "tracks.partial.sqlite": DATABASE_START,
    "codes.partial.sqlite": DATABASE_START,
}


class FoundSequence(NamedTuple):
    """A sequence of frames: its unique name, path and kind."""

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
            # In a thread: PyAV loses a Ctrl-C that arrives while a file cannot be opened.
            stop = threading.Event()
            [places] = read_ahead(_found(os.path.expanduser(os.fspath(path)), bad, stop), stop=stop)
        except VideoError as error:
            if bad is None:
                raise error.with_skip_hint(len(paths)) from None
            bad.setdefault(path, str(error))
            continue
        for kind, place in places:
            real = place if is_url(place) else os.path.realpath(place)
            found.setdefault(real, (kind, place))
    names = _names([_named_after(kind, place) for kind, place in found.values()])
    return [
        FoundSequence(name, place, kind)
        for name, (kind, place) in zip(names, found.values(), strict=True)
    ]


def safe_name(name: str) -> str:
    """Return a name that is safe in file names, tables and shells."""
    return re.sub(r"[^\w.+-]+", "_", name).strip("._-")[:100] or "video"


def _found(
    path: str, bad: dict[str, str] | None, stop: threading.Event
) -> Generator[list[Place], None, None]:
    """Yield the sequences of one path, for `read_ahead`."""
    end = time.monotonic() + MAX_SECONDS

    def may_go_on(_: int) -> bool:
        return not stop.is_set() and time.monotonic() < end

    yield _find(path, bad, takewhile(may_go_on, range(MAX_TRIED)))


def _find(path: str, bad: dict[str, str] | None, tries: Iterator[int]) -> list[Place]:
    """Find the sequences of one path.

    Args:
        path: A file, folder, pattern or URL.
        bad: As in `reader.find_sources`.
        tries: One number for each file that may be opened although its name is not that of a video.
    """
    if os.path.isfile(path):
        with open_video(path):
            return [("video", path)]
    if os.path.isdir(path):
        return _find_in_folder(path, bad, tries)
    if is_url(path):
        return _find_remote(path)
    if glob.has_magic(path):
        return _match(path, bad, tries)
    check_regular(path)  # each file is read several times, which a pipe does not allow
    raise VideoError(f"{path}: does not exist; check the spelling")


def _find_remote(url: str) -> list[Place]:
    """Find the videos of a URL; they are opened only when they are read, which takes longer."""
    shown = without_password(url)
    if url.startswith(UNPAUSED):
        raise VideoError(f"{shown}: is a live stream; use ul watch, or record it to a file")
    if not is_pattern(url):
        return [("video", url)]
    found = [match for match in match_urls(url) if suffix_of(match) in VIDEO_SUFFIXES]
    if not found:
        raise VideoError(f"{shown}: no video matches this pattern")
    return [("video", match) for match in found]


def _find_in_folder(folder: str, bad: dict[str, str] | None, tries: Iterator[int]) -> list[Place]:
    entries = list_folder(folder)
    found = _find_among(folder, entries, bad, tries)
    for entry in entries:
        if os.path.isdir(entry) and not _has_results(entry):
            found += _find_among(entry, list_folder(entry), bad, tries)
    if not found:
        what = "contains no images or videos" if entries else "is an empty folder"
        raise VideoError(f"{folder}: {what}; give a video file or a folder of images or videos")
    return found


def _has_results(folder: str) -> bool:
    """Return whether a folder contains results of `ul`, whose overlay and masks are not inputs."""

    def has(*names: str) -> bool:
        return all(os.path.isfile(os.path.join(folder, name)) for name in names)

    if has("config.json", "metrics.jsonl") or has("summary.json", "overlay.mp4"):
        return True
    if has("config.json") and _is_config(os.path.join(folder, "config.json")):
        return True
    return any(has(name) and _starts(os.path.join(folder, name), TABLES[name]) for name in TABLES)


def _is_config(file: str) -> bool:
    """Return whether a config.json is that of a run."""
    try:
        with open(file, encoding="utf-8") as opened:
            content = json.load(opened)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.keys() >= {"inputs", "learn", "reading"}


def _starts(file: str, start: bytes) -> bool:
    """Return whether a file begins with these bytes."""
    try:
        with open(file, "rb") as opened:
            return opened.read(len(start)) == start
    except OSError:
        return False


def _match(pattern: str, bad: dict[str, str] | None, tries: Iterator[int]) -> list[Place]:
    matches = sorted(_expand(pattern), key=natural_key)
    if not matches:
        raise VideoError(f"{pattern}: nothing matches this pattern")
    matches = _without_results(pattern, matches)
    folders: dict[str, list[str]] = {}
    for file in filter(os.path.isfile, matches):
        folders.setdefault(os.path.dirname(file), []).append(file)
    found: list[Place] = []
    for folder, files in folders.items():
        place = os.path.join(glob.escape(folder), os.path.basename(pattern))
        found += _find_among(place, files, bad, tries)
    for match in matches:
        if os.path.isdir(match) and match.rstrip("/") not in folders:
            found += _find(match, bad, tries)
    if not found:
        raise VideoError(f"{pattern}: matches no images or videos")
    return found


def _expand(pattern: str) -> set[str]:
    """Return the matches of a pattern; `**` does not follow links to folders (possible loops)."""
    parts = pattern.split("/")
    if "**" not in parts:
        return set(glob.glob(pattern))
    stars = parts.index("**")
    start = "".join(f"{part}/" for part in parts[:stars])
    rest = parts[stars + 1 :]
    found: set[str] = set()
    for top in glob.glob(start) if start else [""]:
        for folder, files in _walk(top):
            if rest:
                found |= _expand(os.path.join(glob.escape(folder), "/".join(rest)))
            else:
                found.update([folder] if folder else [])
                found.update(os.path.join(folder, name) for name in files)
    return {match for match in found if not (os.path.islink(match) and os.path.isdir(match))}


def _walk(top: str) -> Iterator[tuple[str, list[str]]]:
    """Yield `top` and the folders below it with the names of their files, without hidden ones."""
    for folder, folders, files in os.walk(top or "./"):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield folder if top else folder[2:], [name for name in files if not name.startswith(".")]


def _without_results(pattern: str, matches: list[str]) -> list[str]:
    """Leave out results folders and their content, unless they are given by name."""
    named = next(part for part in _prefixes(pattern) if glob.has_magic(part)).count("/")
    has_results = cache(_has_results)

    def is_result(match: str) -> bool:
        folders = [part for part in _prefixes(match) if part.count("/") >= named]
        return any(has_results(folder) for folder in folders if os.path.isdir(folder))

    return [match for match in matches if not is_result(match)]


def _prefixes(path: str) -> Iterator[str]:
    """Yield the leading parts of a path, the whole path last."""
    parts = path.rstrip("/").split("/")
    return ("/".join(parts[:end]) for end in range(1, len(parts) + 1))


def _find_among(
    place: str, entries: list[str], bad: dict[str, str] | None, tries: Iterator[int]
) -> list[Place]:
    """Find the sequences among the files of one folder; images are known by their suffix."""
    files = [entry for entry in entries if os.path.isfile(entry)]
    if not any(suffix_of(file) in IMAGE_SUFFIXES for file in files):
        return [("video", file) for file in files if _is_video(file, bad, len(files), tries)]
    if any(suffix_of(file) in VIDEO_SUFFIXES for file in files):
        pattern = os.path.join(os.path.dirname(files[0]), "*.mp4")
        raise VideoError(
            f"{place}: contains both images and videos; choose with a pattern such as '{pattern}'"
        )
    return [("images", place)]


def _is_video(file: str, bad: dict[str, str] | None, count: int, tries: Iterator[int]) -> bool:
    if suffix_of(file) not in VIDEO_SUFFIXES and next(tries, None) is None:
        raise VideoError(
            f"{os.path.dirname(file)}: too many files here are not named like videos; choose with "
            "a pattern such as '*.mp4'"
        )
    try:
        with open_video(file):
            return True
    except VideoError as error:
        # Other files in a folder are ignored, but leaving out a damaged video would hide a loss.
        if suffix_of(file) in VIDEO_SUFFIXES:
            if bad is None:
                raise error.with_skip_hint(count) from None
            bad[file] = str(error)
        return False


def _named_after(kind: Kind, place: str) -> str:
    """Return the file or folder that gives a sequence its name."""
    if is_url(place):
        return re.sub(r"^.*?://|[?#].*", "", place)
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
