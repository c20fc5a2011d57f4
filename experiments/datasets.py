"""The public data sets of the experiments, read from a folder in their original layout.

The truth is for scores and for methods that are marked as supervised.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ullayers.video.clips import DEFAULT_FPS
from ullayers.video.sources import Clip, VideoError

Floats = NDArray[np.floating[Any]]

HALF_WIDTH = 320  # DaSide: width of the half of a 640 x 480 frame that a picture shows
MIN_WALK = 16  # frames; shorter sequences were cut off by the recording
COIL_STEP = 5  # degrees between two pictures


@dataclass(frozen=True)
class Sequence:
    """A sequence of picture files with its truth.

    Attributes:
        name: Name of the sequence.
        files: Picture files in order.
        truth: Values per picture by name ("x", "angle", ...), NaN where unknown.
        boxes: Left, top, right and bottom of the object in pixels, (time, 4), if known.
        group: Person or object, for splits.
    """

    name: str
    files: tuple[Path, ...]
    truth: dict[str, Floats] = field(default_factory=dict)
    boxes: Floats | None = None
    group: str = ""

    def __len__(self) -> int:
        return len(self.files)


def walking(folder: str | Path) -> list[Sequence]:
    """Return walking people (`labelfree/DaSide`): truth "x", the box's centre in 0..1.

    A new sequence starts where the prefix or the number jumps; sequences of less than 16 frames
    are left out.
    """
    place = _subfolder(folder, "labelfree/DaSide")
    try:
        with open(place / "daside.json", encoding="utf-8") as file:
            rects = {entry["image_path"]: entry["rects"] for entry in json.load(file)}
    except (ValueError, KeyError, TypeError) as error:
        raise VideoError(f"{place / 'daside.json'}: is damaged; download it again") from error
    name = re.compile(r"(?P<half>\d)_(?P<scene>.+)-(?P<number>\d+)\.png")
    found = []
    for files in _runs(place.glob("*.png"), name, ("half", "scene")):
        if len(files) >= MIN_WALK:
            half = int(files[0].name[0])
            x = np.array([_centre(rects.get(file.name[2:], []), half) for file in files])
            found.append(Sequence(files[0].stem, files, {"x": x}))
    return found


def _centre(rects: list[dict[str, float]], half: int) -> float:
    """Return the centre of the box that lies in this half of the frame."""
    centres = [((r["x1"] + r["x2"]) / 2 - HALF_WIDTH * half) / HALF_WIDTH for r in rects]
    return min(centres, key=lambda x: abs(x - 0.5), default=np.nan)


def thrown_pillow(folder: str | Path) -> list[Sequence]:
    """Return a pillow thrown in a room (`labelfree/cushion`), one sequence per throw.

    The published data have no truth. Truth "x" and "y", in 0..1 of the frame, is read from
    `labelfree/cushion_truth.csv` (columns image, x, y) if there is one, and NaN elsewhere.
    """
    place = _subfolder(folder, "labelfree/cushion")
    name = re.compile(r"(?P<what>\w+)-(?P<number>\d+)\.jpg")
    known = _pillow_truth(place.with_name("cushion_truth.csv"))
    found = []
    for files in _runs(place.glob("*.jpg"), name, ("what",)):
        x, y = np.array([known.get(file.name, (np.nan, np.nan)) for file in files]).T
        found.append(Sequence(files[0].stem, files, {"x": x, "y": y}))
    return found


def _pillow_truth(file: Path) -> dict[str, tuple[float, float]]:
    if not file.exists():
        return {}
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            return {
                row["image"]: (float(row["x"]), float(row["y"])) for row in csv.DictReader(opened)
            }
    except (ValueError, KeyError, TypeError) as error:
        raise VideoError(f"{file}: expected columns image, x and y") from error


def head_poses(folder: str | Path) -> list[Sequence]:
    """Return Pointing'04, one pan sweep per person, series and tilt; truth "pan" in degrees."""
    place = _subfolder(folder, "pointing04")
    name = re.compile(
        r"person(?P<person>\d\d)(?P<series>\d)(?P<count>\d\d)(?P<tilt>[+-]\d+)(?P<pan>[+-]\d+)\.jpg"
    )
    groups: dict[tuple[str, ...], list[tuple[float, Path]]] = {}
    for file in place.rglob("*.jpg"):
        if m := name.fullmatch(file.name):
            key = (m["person"], m["series"], m["tilt"])
            groups.setdefault(key, []).append((float(m["pan"]), file))
    found = []
    for (person, series, tilt), entries in sorted(groups.items()):
        pans, files = zip(*sorted(entries), strict=True)
        boxes = np.array([_face(file.with_suffix(".txt")) for file in files])
        title = f"person{person}-{series}-tilt{tilt}"
        found.append(Sequence(title, files, {"pan": np.array(pans)}, boxes, person))
    return found


def _face(file: Path) -> tuple[float, ...]:
    x, y, width, height = (float(line) for line in file.read_text().split()[-4:])
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def panning_heads(folder: str | Path) -> list[Sequence]:
    """Return rendered heads (`heads3d/pan`), one sequence per head; truth "pan"."""
    return _heads(_subfolder(folder, "heads3d/pan"), r"yaw_([+-]\d+)\.png", "pan")


def turning_head(folder: str | Path) -> list[Sequence]:
    """Return a head that rotates in the picture plane (`heads3d/inplane`); truth "angle"."""
    return _heads(_subfolder(folder, "heads3d/inplane"), r"roll_(\d+)\.png", "angle")


def _heads(place: Path, pattern: str, truth: str) -> list[Sequence]:
    heads = [head for head in sorted(place.iterdir()) if head.is_dir()]
    return [_by_angle(head.name, head.glob("*.png"), pattern, truth) for head in heads]


def turntable(folder: str | Path) -> list[Sequence]:
    """Return COIL-20, objects on a turntable; truth "angle", five degrees per picture."""
    place = _subfolder(folder, "coil20")
    objects: dict[int, list[Path]] = {}
    for file in place.glob("obj*__*.png"):
        objects.setdefault(int(re.findall(r"\d+", file.name)[0]), []).append(file)
    found = []
    for number, files in sorted(objects.items()):
        views = _by_angle(f"object{number}", files, r"obj\d+__(\d+)\.png", "angle")
        angles = COIL_STEP * views.truth["angle"]
        found.append(Sequence(views.name, views.files, {"angle": angles}))
    return found


def _by_angle(name: str, files: Iterable[Path], pattern: str, truth: str) -> Sequence:
    """Return the files that match a pattern in order of its number, which is their truth."""
    matches = ((re.fullmatch(pattern, file.name), file) for file in files)
    entries = sorted((float(m[1]), file) for m, file in matches if m)
    if not entries:
        raise VideoError(f"{name}: contains no picture that matches {pattern}")
    angles, ordered = zip(*entries, strict=True)
    return Sequence(name, ordered, {truth: np.array(angles)}, group=name)


def load(sequence: Sequence, size: tuple[int, int], *, grey: bool = False) -> Clip:
    """Load the pictures of a sequence.

    Args:
        sequence: Sequence to load.
        size: (height, width) of the frames.
        grey: Load one channel instead of three.
    """
    frames = []
    for file in sequence.files:
        with Image.open(file) as picture:
            small = picture.convert("L" if grey else "RGB").resize(
                size[::-1], Image.Resampling.BILINEAR, reducing_gap=3.0
            )
        frames.append(torch.from_numpy(np.array(small)))
    stack = torch.stack(frames)
    stack = stack[:, None] if grey else stack.permute(0, 3, 1, 2).contiguous()
    count = torch.arange(len(stack))
    return Clip(stack, count.double() / DEFAULT_FPS, count)


def _subfolder(folder: str | Path, part: str) -> Path:
    place = Path(folder, part)
    if not place.is_dir():
        raise VideoError(f"{place}: does not exist; give --data the folder that contains {part}")
    return place


def _runs(
    files: Iterable[Path], name: re.Pattern[str], same: tuple[str, ...]
) -> list[tuple[Path, ...]]:
    """Group files with consecutive numbers whose other parts (`same`) are equal."""
    matched = ((name.fullmatch(file.name), file) for file in files)
    keyed = sorted(
        ((tuple(m[part] for part in same), int(m["number"])), file) for m, file in matched if m
    )
    runs: list[list[Path]] = []
    last = None
    for (key, number), file in keyed:
        if last != (key, number - 1):
            runs.append([])
        runs[-1].append(file)
        last = (key, number)
    return [tuple(run) for run in runs]
