"""The run folder: where files may be written, who may write them, and what config.json says."""

from __future__ import annotations

import base64
import glob
import io
import math
import os
import shutil
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from PIL import Image

from ullayers.errors import Error, RunError
from ullayers.files import (
    check_inside,
    from_json,
    open_regular,
    parse_json,
    read_json,
    read_regular,
    sweep,
)
from ullayers.learning.config import Config
from ullayers.learning.footage import LongMean
from ullayers.learning.teaching import Teaching
from ullayers.tracks.behaviour import Zones
from ullayers.tracks.corrections import CORRECTIONS
from ullayers.tracks.formats.names import EXPORT_FOLDER
from ullayers.tracks.masks import MASK_FILES
from ullayers.video.clips import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    Reading,
    VideoError,
    check_pixels,
    kept_frames,
    list_folder,
    suffix_of,
)
from ullayers.video.files.finding import TABLE_START, find_sequences
from ullayers.video.files.opening import is_url
from ullayers.video.region import MaskRegion, Rectangle, Region
from ullayers.video.sources import Source

LOCK_FILE = ".lock"
CARD = "README.md"
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
APPLY_FILES = (*RESULT_FILES, "overlays/*.mp4")
PARTS = "parts"  # folder of the results of single videos, until they are joined
PART_NOTE = "part.json"  # in each part, written last
OVERLAYS = "overlays"  # of single videos
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
RUN_NAMES = {
    *(pattern.split("/")[0] for pattern in (*RUN_FILES, *APPLY_FILES)),
    "masks",
    PARTS,
}
DEMO_FILES = ("scene.mp4", "truth.csv")
TRUTH_START = TABLE_START + b"time,x,y,angle\n"  # of the demo
ATTEMPTS = 10  # another process may remove its lock, and an empty folder, while we lock
MAX_TRAINING_PIXELS = 2**20  # of a frame
MAX_STEP_PIXELS = 2**25  # of all frames of a training step, which needs about 170 bytes for each
MAX_MM_PER_PIXEL = 1e9
MAX_METRICS_BYTES = 2**30
PNG_URL = "data:image/png;base64,"
RegionEntry = tuple[int, int, int, int] | str
# Settings to which memory is proportional.
MAX_SETTINGS = {"restarts": 10_000, "batch": 10_000, "clip": 100_000}


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
    written = place.iterdir() if place.is_dir() else ()
    own = [path for path in written if _is_result_name(path.name) and path.is_file()]
    check_outputs(own, [source.path for source in sources])


def check_outputs(
    outputs: Iterable[Path],
    read: Iterable[str | os.PathLike[str]],
    run: str | os.PathLike[str] | None = None,
) -> None:
    """Refuse to write a file that the command reads, whatever link leads to it.

    Args:
        outputs: Files to write.
        read: Files, folders of images and patterns that the command reads.
        run: Folder of a run that the command reads; its files and its inputs are refused too.

    Raises:
        RunError: An output would replace such a file.

    Example:
        >>> check_outputs([Path("found.json")], ["truth.csv"])
        >>> check_outputs([Path("run/tracks.csv")], ["truth.csv"], run="run")
        Traceback (most recent call last):
        ullayers.errors.RunError: run/tracks.csv: is a file of the run; give another one
    """
    outputs = list(outputs)
    if run is not None:
        for path in outputs:
            if _is_result(path, Path(run)):
                raise RunError(f"{path}: is a file of the run; give another one")
    existing = {_identity(path): path for path in outputs if path.exists()}
    files = [file for path in read for file in _files_of(path)] if existing else []
    if existing and run is not None:
        files += _inputs_of(Path(run))
        # Links other than hard links have been found by their real path.
        is_linked = any(path.stat().st_nlink > 1 for path in existing.values())
        files += _result_files(Path(run)) if is_linked else []
    for file in files:
        if (replaced := existing.get(_identity(file))) is not None:
            raise RunError(f"{replaced}: is the input {file}; give another file to write")


def check_not_replaced(folder: str | os.PathLike[str] | None, *read: object) -> None:
    """Refuse files that the command reads and that results in a folder would replace.

    Args:
        folder: Folder of the results; None for none.
        read: Files, such as those of zones and regions; anything that is no path is ignored.

    Raises:
        RunError: A result would replace one.
    """
    for path in read if folder is not None else ():
        if isinstance(path, str | os.PathLike) and _is_result(Path(path), Path(str(folder))):
            raise RunError(f"{path}: would be replaced by a result; move it, or give another --out")


def check_files(
    files: Sequence[Path], read: Iterable[str], run: str | os.PathLike[str], force: bool
) -> None:
    """Refuse files that cannot be written, or that replace others unintentionally.

    Args:
        files: Files to write.
        read: Files that the command reads, besides those of the run.
        run: The run that the command reads.
        force: Whether existing files may be replaced; never those that the command reads, a video
            or an image.

    Raises:
        Error: A file cannot be used.
    """
    if len({os.path.realpath(file) for file in files}) < len(files):
        raise Error(f"{files[0]}: is given twice; use a separate file for each")
    for file in files:
        real = Path(os.path.realpath(file))
        if not real.parent.is_dir():
            raise Error(f"{file}: its folder does not exist; create it, or give another file")
        if real.is_dir():
            raise Error(f"{file}: is a folder; give a file to write")
        if real.exists() and not real.is_file():
            raise Error(f"{file}: is a device or a pipe; give a file to write")
        if not os.access(real.parent, os.W_OK):
            raise Error(f"{file}: its folder is not writable; give another file")
    check_outputs(files, read, run)
    for file in files:
        if file.exists() and suffix_of(str(file)) in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
            raise Error(f"{file}: is a video or an image; give another file to write")
        if file.exists() and not force:
            raise Error(f"{file}: exists; replace it with --force, or give another file")


def _identity(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return what all names of a file have in common."""
    with suppress(OSError):  # it has been removed meanwhile
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return -1, -1


def _is_result(path: Path, folder: Path) -> bool:
    """Return whether a path is that of a result in a folder, or in a folder of results there."""
    real, place = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if not real.is_relative_to(place) or real == place:
        return False
    return _is_result_name(real.relative_to(place).parts[0])


def _is_result_name(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in RUN_NAMES)


def _result_files(run: Path) -> list[str]:
    files = [path for path in run.rglob("*") if path.is_file()]
    return [str(path) for path in files if _is_result(path, run)]


def _files_of(path: str | os.PathLike[str]) -> list[str]:
    """Return a file, or the files of a folder or pattern."""
    path = os.fspath(path)
    if is_url(path):
        return []
    if os.path.isdir(path):
        return list_folder(path)
    return [path] if os.path.lexists(path) else glob.glob(path)


def _inputs_of(run: Path) -> list[str]:
    """Return the files of the inputs of a run; the results of `ul apply` do not know theirs."""
    try:
        sequences = find_sequences(read_config(run).inputs, {})
    except (RunError, VideoError):
        return []
    return [file for sequence in sequences for file in _files_of(sequence.path)]


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


def is_begun(folder: Path) -> bool:
    """Return whether a folder is empty, or has nothing but parts and what they are joined into."""
    return has_parts(folder) or _contents(folder) <= {PARTS}


def _holds_only_a_lock(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    return [entry.name for entry in path.iterdir()] == [LOCK_FILE]


def _how_to_proceed(found: Collection[str]) -> str:
    started = not {"config.json", PARTS}.isdisjoint(found) or any(".partial." in n for n in found)
    proceed = "continue with --resume, replace it" if started else "write into it"
    return f"{proceed} with --force, or give another folder with --out"


def check_links(folder: Path) -> None:
    """Refuse a folder in which writing or clearing a run would follow a link to the outside."""
    check_inside(folder, *_written(folder))


def _written(folder: Path) -> Iterator[Path]:
    """Yield each path of a run that is opened in place or in which files are deleted."""
    folders = ("checkpoint", "tensorboard", "masks", PARTS, OVERLAYS)
    for name in ("metrics.jsonl", "tracks.csv", "codes.csv", *folders):
        yield folder / name
    yield from folder.glob("*.partial.*")
    if not (folder / "masks").is_symlink():
        yield from (path for path in folder.glob("masks/*") if path.is_symlink())


def _own_names(folder: Path) -> set[str]:
    """Return the names in a folder that a run, `ul apply` or `ul demo` has written there."""
    own = set(DEMO_FILES) if _begins_with(folder / "truth.csv", TRUTH_START) else set()
    if is_run(folder):
        return own | (RUN_NAMES if is_own_card(folder) else RUN_NAMES - {CARD})
    if (folder / "config.json").exists() or not _is_applied(folder):
        return own
    applied = {path.name for pattern in APPLY_FILES for path in folder.glob(pattern)}
    return own | applied | {"masks", PARTS, OVERLAYS}


def _is_applied(folder: Path) -> bool:
    """Return whether `ul apply` has written, or started to write, its results here."""
    started = [*folder.glob("tracks.partial.*"), *folder.glob("codes.partial.*")]
    return bool(started or has_parts(folder)) or any(
        _is_table(folder / name) for name in ("tracks.csv", "codes.csv")
    )


def has_parts(folder: Path) -> bool:
    """Return whether some videos of an unfinished fleet are finished."""
    return any(folder.glob(f"{PARTS}/*/{PART_NOTE}"))


def is_own_card(folder: Path) -> bool:
    """Return whether README.md was written by a run, or is not there."""
    return _begins_with(folder / CARD, CARD_START) or not os.path.lexists(folder / CARD)


def _is_table(path: Path) -> bool:
    """Return whether a file is a table of results, which is empty if killed at the start."""
    return _begins_with(path, TABLE_START) or (path.is_file() and path.stat().st_size == 0)


def _begins_with(path: Path, start: bytes) -> bool:
    with suppress(OSError, ValueError), open_regular(path) as file:
        return file.read(len(start)) == start
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
    clear_parts(folder)
    _clear_exports(folder / EXPORT_FOLDER)
    sweep(folder)
    sweep(folder / "checkpoint")
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink()
    for name in ("checkpoint", "tensorboard", OVERLAYS):
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
    """Remove the results of single videos from a results folder; keep other files.

    Raises:
        RunError: A link leads out of the folder; nothing has been removed.
    """
    check_inside(folder, folder / PARTS)
    for part in (folder / PARTS).glob("*/"):
        clear_part(part)
    with suppress(OSError):
        (folder / PARTS).rmdir()


def clear_part(part: Path) -> None:
    """Remove the results of a single video, also of a process that was killed; keep other files."""
    if not part.is_symlink() and ((part / PART_NOTE).exists() or _is_applied(part)):
        shutil.rmtree(part)
    with suppress(OSError):
        part.rmdir()


def clear_masks(folder: Path, kept: Container[str] = ()) -> None:
    """Remove masks and unfinished files.

    Args:
        folder: A results folder.
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


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes out of a folder; the system releases the lock if the process dies.

    The folder is created if needed. When the block ends, the lock file and the folders that were
    created and are still empty are removed.

    Args:
        folder: Folder to lock.

    Raises:
        RunError: The folder cannot be written to, or another process holds its lock.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with locked(f"{place}/run"):
        ...         print(os.listdir(f"{place}/run"))
        ...     os.listdir(place)
        ['.lock']
        []
    """
    check_writable(folder)
    place = Path(folder).absolute()
    _check_own(place / LOCK_FILE)
    created = [path for path in (place, *place.parents) if not path.exists()]
    try:
        lock = _acquire(place)
    except Timeout as error:
        raise RunError(f"{folder}: another process is writing here; wait for it") from error
    try:
        yield
    finally:
        _release(lock, place / LOCK_FILE)
        for path in created:
            with suppress(OSError):  # no longer empty
                path.rmdir()


def _check_own(path: Path) -> None:
    """Refuse a file that is not one of our locks, which are empty."""
    if path.is_file() and not path.is_symlink() and path.stat().st_size > 0:
        raise RunError(f"{path}: this name is used for a lock; rename the file")


def _acquire(place: Path) -> FileLock:
    lock = FileLock(place / LOCK_FILE, timeout=0)
    for attempt in range(ATTEMPTS):
        place.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
            break
        except FileNotFoundError:  # another process has just removed the empty folder
            if attempt == ATTEMPTS - 1:
                raise
        except OSError as error:
            if (place / LOCK_FILE).is_symlink():
                raise RunError(f"{place / LOCK_FILE}: is a link; remove it") from error
            raise
    return lock


def _release(lock: FileLock, path: Path) -> None:
    # The file is removed while the lock is held: a process that has opened it sees that it is gone
    # and tries again. Windows cannot remove open files; there, filelock removes it after the
    # release.
    if sys.platform != "win32":
        with suppress(OSError):
            path.unlink()
    lock.release()


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The outcome of learning or watching; unknown values are None.

    Attributes:
        kind: Reference mean for long-term variation: of each clip, or of the whole stream.
        seed: Seed of the trial that won.
        trial: Number of the trial that won.
        objective: Evaluation J of the trained network on training frames; while watching, J of the
            last step.
        held_out_objective: J on held-out frames; None if there are too few to compare it with J on
            training frames.
        held_out_frames: Number of held-out frames; 0 if there were too few.
        held_out_correlation: Correlation of held-out frames with their neighbours in time, for each
            number of the code.
        folded: Share of the frames of closed loops whose code also belongs to a different frame;
            None if there are no loops.
        start: Evaluation J before training.
        scores: J used to compare trials; None where it is not finite.
        steps: Optimizer steps of the winner; while watching, frames.
        frames: Number of frames read.
        trained_frames: Number of frames trained on: neither held out nor dropped to save memory.
            None in runs of version 0.1, which used all frames it kept.
        sources: Names of the sources.
        strides: Stride with which each source was read, by its name.
        bad: Inputs that could not be read, with their errors.
        camera: Whether the camera moves in some source.
        torch: Version of PyTorch.
        agreement: Share of what moves in held-out frames that the network of single frames sees
            there, less the share of the background; None if there is no such network.

    Example:
        >>> result = RunResult(kind="clip", objective=-1.0, frames=40)
        >>> result.objective, result.start, result.sources
        (-1.0, None, [])
    """

    kind: LongMean
    seed: int | None = None
    trial: int | None = None
    objective: float | None = None
    held_out_objective: float | None = None
    held_out_frames: int | None = None
    held_out_correlation: list[float] | None = None
    folded: float | None = None
    start: float | None = None
    scores: list[float | None] | None = None
    steps: int | None = None
    frames: int | None = None
    trained_frames: int | None = None
    sources: list[str] = field(default_factory=list)
    strides: dict[str, int] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    camera: bool | None = None
    torch: str | None = None
    agreement: float | None = None


def clean_result(content: Any) -> Any:
    """Convert the JSON of a result to that of `RunResult`: {} is none, NaN and infinity are null.

    Version 0.1 wrote scores that were not finite unchanged.
    """
    if not content:
        return None
    if not isinstance(content, dict) or not isinstance(content.get("scores"), list):
        return content
    scores = [finite(v) if isinstance(v, float) else v for v in content["scores"]]
    return {**content, "scores": scores}


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def region_to_json(region: Region) -> RegionEntry:
    """Return X, Y, width and height of a rectangle, or a mask as the data URL of a PNG.

    >>> region_to_json(Rectangle(16, 8, 32, 24))
    (16, 8, 32, 24)
    """
    if isinstance(region, Rectangle):
        return region.x, region.y, region.width, region.height
    file = io.BytesIO()
    Image.fromarray(region.inside).save(file, "png", optimize=True)
    return PNG_URL + base64.b64encode(file.getvalue()).decode()


def region_from_json(entry: RegionEntry) -> Region:
    """Return the region of an entry in config.json.

    Raises:
        ValueError: The entry is damaged.
    """
    if isinstance(entry, str):
        return MaskRegion.from_array(_decode_png(entry))
    return Rectangle(*entry)


def _decode_png(url: str) -> NDArray[np.bool_]:
    if not url.startswith(PNG_URL):
        raise ValueError("roi: expected a PNG as a data URL")
    content = base64.b64decode(url.removeprefix(PNG_URL), validate=True)
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            check_pixels("roi", *image.size)
            return np.asarray(image.convert("L")) >= 128
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # of damaged PNG files
        raise ValueError("roi: its mask is not a PNG") from error


@dataclass(frozen=True)
class ReadingEntry:
    """The entry "reading" of config.json; see `Run` and `Reading` for its values."""

    size: tuple[int, int]
    grey: bool
    stride: int | None
    max_frames: int | None
    mixed: bool = True
    follow: bool = False
    start: float = 0.0
    end: float | None = None
    roi: RegionEntry | None = None  # see `region_to_json`

    @classmethod
    def of(cls, reading: Reading, stride: int | None, max_frames: int | None) -> ReadingEntry:
        """Return the entry of a reading.

        Args:
            reading: How the videos are read.
            stride: Stride of all sources; None if each has its own.
            max_frames: Number of frames to use from each source, before the stride.
        """
        assert reading.size is not None
        return cls(
            size=reading.size,
            grey=reading.grey,
            stride=stride,
            max_frames=max_frames,
            mixed=reading.mixed,
            follow=reading.follow,
            start=reading.start,
            end=reading.end,
            roi=None if reading.roi is None else region_to_json(reading.roi),
        )

    def reading(self) -> Reading:
        """Return the reading of an entry.

        Raises:
            ValueError: A value is out of range.
        """
        stride = 1 if self.stride is None else self.stride
        return Reading(
            size=self.size,
            grey=self.grey,
            start=self.start,
            end=self.end,
            stride=stride,
            max_frames=kept_frames(self.max_frames, stride),
            roi=None if self.roi is None else region_from_json(self.roi),
            mixed=self.mixed,
            follow=self.follow,
        )


@dataclass(frozen=True)
class MetricsEntry:
    """A line of metrics.jsonl; see `Record` for its values. NaN is written as null."""

    trial: int
    step: int
    kind: LongMean
    seed: int
    objective: float | None
    rank: float | None
    features: int
    seconds: float
    training: float | None = None
    held_out: float | None = None


@dataclass(frozen=True)
class ConfigEntries:
    """The entries of config.json. Entries with a default may be missing in version 0.1."""

    inputs: list[str]
    skip_bad: bool
    reading: ReadingEntry
    learn: Config
    result: RunResult | None
    masks: bool = False
    zones: Zones | None = None
    mm_per_pixel: float | None = None
    semi_supervised: Teaching | None = None


def read_config(folder: Path) -> ConfigEntries:
    """Read and check the config.json of a run folder.

    Raises:
        RunError: The folder is not a run, its config.json is damaged, or exceeds a limit.
    """
    try:
        return _parse(read_json(folder / "config.json"))
    except FileNotFoundError as error:
        missing = "does not exist; give the folder of a run"
        if folder.exists():
            missing = "is not a run, it has no config.json; give a folder written by ul learn"
        raise RunError(f"{folder}: {missing}") from error
    except NotADirectoryError as error:
        raise RunError(f"{folder}: is a file; give the folder of a run") from error
    except OSError as error:
        raise RunError(f"{folder}: its config.json cannot be read ({error.strerror})") from error
    except ValueError as error:
        text = " ".join(str(error).split())
        raise RunError(f"{folder}: its config.json is damaged ({text}); learn again") from error


def _parse(content: Any) -> ConfigEntries:
    if isinstance(content, dict):
        content = {**content, "result": clean_result(content.get("result"))}
    entries = from_json(ConfigEntries, content)
    if not entries.inputs or any("\0" in path for path in entries.inputs):
        raise ValueError("expected inputs that are paths")
    scale = entries.mm_per_pixel
    if scale is not None and not 0 < scale < MAX_MM_PER_PIXEL:
        raise ValueError(f"mm_per_pixel: expected a number above 0 and below 1e9, got {scale}")
    check_size(entries.reading.size)
    check_settings(entries.learn)
    return entries


def check_size(size: tuple[int, int]) -> None:
    """Refuse frames that are too large for training.

    Raises:
        RunError: There are too many pixels.
    """
    height, width = size
    if height * width > MAX_TRAINING_PIXELS:
        raise RunError(
            f"--size {height}x{width}: expected at most {MAX_TRAINING_PIXELS:,} pixels; "
            "give a smaller one"
        )


def check_step(config: Config, size: tuple[int, int]) -> None:
    """Refuse settings with which a training step needs too much memory.

    Raises:
        RunError: There are too many pixels.
    """
    height, width = size
    pixels = config.batch * config.clip * height * width
    if pixels > MAX_STEP_PIXELS:
        raise RunError(
            f"--size {height}x{width}: a training step of {config.batch} clips of {config.clip} "
            f"frames has {pixels:,} pixels, expected at most {MAX_STEP_PIXELS:,}; give a smaller "
            "size or fewer clips"
        )


def check_settings(config: Config) -> None:
    """Refuse settings that need too much memory.

    Raises:
        RunError: A setting is too large.
    """
    for name, most in MAX_SETTINGS.items():
        if getattr(config, name) > most:
            raise RunError(f"expected {name} of at most {most:,}, got {getattr(config, name):,}")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read and check the metrics.jsonl of a run folder.

    Raises:
        RunError: The file is missing or damaged.
    """
    path = folder / "metrics.jsonl"
    records = []
    try:
        text = read_regular(path, MAX_METRICS_BYTES).decode()
        for number, line in enumerate(io.StringIO(text), 1):
            records.append(_parse_record(line, number))
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise RunError(f"{path}: is damaged ({text}); learn again with --force") from error
    return records


def _parse_record(line: str, number: int) -> dict[str, Any]:
    try:
        return vars(from_json(MetricsEntry, parse_json(line)))
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
