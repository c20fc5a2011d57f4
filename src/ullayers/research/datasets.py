"""The public data sets of the paper's experiments, read from a folder in their upstream layout.

Truth is there to score with, and for what is said to be supervised; nothing else learns from it.
"""

from __future__ import annotations

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

from ullayers.video.frames import DEFAULT_FPS
from ullayers.video.reader import Clip, VideoError

Floats = NDArray[np.floating[Any]]

HALF = 320  # DaSide: pixels of the half of a 640 x 480 frame that a picture shows
SHORTEST_WALK = 16  # frames; what is shorter was cut off by the recording


@dataclass(frozen=True)
class Sequence:
    """Pictures in the order in which they are shown, with what is known of each.

    Attributes:
        name: of the sequence.
        files: one picture each.
        truth: for scoring: a number per picture by name ("x", "angle", ...), nan where unknown.
        boxes: (time, 4) left, top, right, bottom of the thing in each picture, in pixels, if given.
        group: whom or what it shows, for splits by person or object.
    """

    name: str
    files: tuple[Path, ...]
    truth: dict[str, Floats] = field(default_factory=dict)
    boxes: Floats | None = None
    group: str = ""

    def __len__(self) -> int:
        return len(self.files)


def walking(folder: str | Path) -> list[Sequence]:
    """Walking people (`labelfree/DaSide`): truth "x", the box's centre in 0..1 of the width.

    A new sequence begins where the prefix or the number jumps; those under 16 frames are left out.
    """
    place = _there(folder, "labelfree/DaSide")
    try:
        with open(place / "daside.json", encoding="utf-8") as file:
            rects = {entry["image_path"]: entry["rects"] for entry in json.load(file)}
    except (ValueError, KeyError, TypeError) as error:
        raise VideoError(f"{place / 'daside.json'}: is damaged; get it again") from error
    name = re.compile(r"(?P<half>\d)_(?P<scene>.+)-(?P<number>\d+)\.png")
    found = []
    for files in _runs(place.glob("*.png"), name, ("half", "scene")):
        if len(files) >= SHORTEST_WALK:
            half = int(files[0].name[0])
            x = np.array([_centre(rects.get(file.name[2:], []), half) for file in files])
            found.append(Sequence(files[0].stem, files, {"x": x}))
    return found


def _centre(rects: list[dict[str, float]], half: int) -> float:
    """Of the boxes of the whole frame the one that lies in this half."""
    centres = [((r["x1"] + r["x2"]) / 2 - HALF * half) / HALF for r in rects]
    return min(centres, key=lambda x: abs(x - 0.5), default=np.nan)


def thrown_pillow(folder: str | Path) -> list[Sequence]:
    """A pillow thrown in a room (`labelfree/cushion`): runs of consecutive numbers, no truth."""
    place = _there(folder, "labelfree/cushion")
    name = re.compile(r"(?P<what>\w+)-(?P<number>\d+)\.jpg")
    return [Sequence(files[0].stem, files) for files in _runs(place.glob("*.jpg"), name, ("what",))]


def head_poses(folder: str | Path) -> list[Sequence]:
    """Pointing'04: for each person, series and tilt the pans in order; truth "pan" in degrees."""
    place = _there(folder, "pointing04")
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
    """Rendered heads (`heads3d/pan`), one sequence each, in order of their truth "pan"."""
    return _heads(_there(folder, "heads3d/pan"), r"yaw_([+-]\d+)\.png", "pan")


def turning_head(folder: str | Path) -> list[Sequence]:
    """A head that turns in the plane of the picture (`heads3d/inplane`); truth "angle"."""
    return _heads(_there(folder, "heads3d/inplane"), r"roll_(\d+)\.png", "angle")


def _heads(place: Path, pattern: str, what: str) -> list[Sequence]:
    heads = [head for head in sorted(place.iterdir()) if head.is_dir()]
    return [_turning(head.name, head.glob("*.png"), pattern, what) for head in heads]


def turntable(folder: str | Path) -> list[Sequence]:
    """COIL-20: objects on a turntable; truth "angle", five degrees a picture."""
    place = _there(folder, "coil20")
    objects: dict[int, list[Path]] = {}
    for file in place.glob("obj*__*.png"):
        objects.setdefault(int(re.findall(r"\d+", file.name)[0]), []).append(file)
    found = []
    for number, files in sorted(objects.items()):
        views = _turning(f"object{number}", files, r"obj\d+__(\d+)\.png", "angle")
        found.append(Sequence(views.name, views.files, {"angle": 5 * views.truth["angle"]}))
    return found


def _turning(name: str, files: Iterable[Path], pattern: str, what: str) -> Sequence:
    matches = ((re.fullmatch(pattern, file.name), file) for file in files)
    entries = sorted((float(m[1]), file) for m, file in matches if m)
    if not entries:
        raise VideoError(f"{name}: holds no picture named like {pattern}")
    angles, ordered = zip(*entries, strict=True)
    return Sequence(name, ordered, {what: np.array(angles)}, group=name)


def load(sequence: Sequence, size: tuple[int, int], *, grey: bool = False) -> Clip:
    """The pictures of a sequence as frames.

    Args:
        sequence: what to read.
        size: (height, width) of the frames.
        grey: one channel instead of three.
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


def _there(folder: str | Path, part: str) -> Path:
    place = Path(folder, part)
    if not place.is_dir():
        raise VideoError(f"{place}: does not exist; give --data the folder that holds {part}")
    return place


def _runs(
    files: Iterable[Path], name: re.Pattern[str], same: tuple[str, ...]
) -> list[tuple[Path, ...]]:
    """Files whose numbers follow each other and whose other parts are the same."""
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
