"""Reading config.json and metrics.jsonl, which may be damaged or hostile, within limits."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ullayers.learn.checkpoint import RunError, parse_json, read_json
from ullayers.learn.config import Config
from ullayers.learn.footage import LongMean
from ullayers.learn.regular_files import read_regular
from ullayers.learn.run_result import RunResult, clean_result
from ullayers.learn.teaching import Teaching
from ullayers.learn.typed_json import from_json
from ullayers.learn.zones import Zones
from ullayers.video.frames import Reading, check_pixels, kept_frames
from ullayers.video.region import MaskRegion, Rectangle, Region

MAX_TRAINING_PIXELS = 2**20  # of a frame
MAX_STEP_PIXELS = 2**25  # of all frames of a training step, which needs about 170 bytes for each
MAX_MM_PER_PIXEL = 1e9
MAX_METRICS_BYTES = 2**30
PNG_URL = "data:image/png;base64,"

RegionEntry = tuple[int, int, int, int] | str
# Settings to which memory is proportional.
MAX_SETTINGS = {"restarts": 10_000, "batch": 10_000, "clip": 100_000}


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
