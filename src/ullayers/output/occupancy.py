"""Heat maps and paths of objects over a frame, with zones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import cv2
import matplotlib
import numpy as np
from matplotlib.font_manager import findfont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ullayers.output.behaviour import Scene
from ullayers.output.identity_colours import identity_colour

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]

CELLS = 64  # of a heat map along the longer side of the frame
BLUR = 1.2  # cells
BACKDROP_LIGHT = 115  # brightness of the bright parts of the frame behind a map, out of 255
MAX_GAIN = 2.0  # largest gain for a dark frame
EMPTY_COLOUR = 38  # grey behind a map if there is no frame
MAX_HEIGHT = 4000  # pixels of a picture; JPEG has a limit too
MAX_OPACITY = 0.9
SHIFT = 4  # bits after the binary point of coordinates


def time_per_cell(scene: Scene, numbers: Sequence[int]) -> Floats:
    """Return the seconds that objects spent in each cell of the frame, slightly blurred.

    Args:
        scene: The objects of one sequence.
        numbers: Indices of its tracks, from 0.

    Returns:
        (rows, columns) with about square cells, `CELLS` along the longer side.
    """
    longer = max(scene.width, scene.height)
    rows = max(1, round(CELLS * scene.height / longer))
    columns = max(1, round(CELLS * scene.width / longer))
    total = np.zeros((rows, columns))
    for number in numbers:
        track, sure = scene.tracks[number], scene.sure[number]
        x = (track.x[sure] * columns).astype(int).clip(0, columns - 1)
        y = (track.y[sure] * rows).astype(int).clip(0, rows - 1)
        np.add.at(total, (y, x), scene.durations[number][sure])
    blurred = cv2.GaussianBlur(total, (0, 0), BLUR, borderType=cv2.BORDER_REFLECT)
    return np.asarray(blurred, np.float64)


def heat_map(
    scene: Scene,
    numbers: Sequence[int],
    frame: Pixels | None,
    zones: Mapping[str, Floats],
    width: int = 640,
) -> Pixels:
    """Draw where objects spent their time, over a darkened frame.

    Args:
        scene: The objects of one sequence.
        numbers: Indices of its tracks, from 0.
        frame: (height, width, 3) uint8 of any size; None for a plain background.
        zones: Corners in pixels of the video by name.
        width: Width of the picture; it is narrower if it would be too tall.
    """
    picture = _backdrop(scene, frame, width)
    height, width = picture.shape[:2]
    seconds = time_per_cell(scene, numbers)
    level = np.sqrt(seconds / (seconds.max() or 1))  # a linear scale would show only resting places
    large = cv2.resize(level, (width, height), interpolation=cv2.INTER_CUBIC).clip(0, 1)
    colours = _heat_colours()[(255 * large).astype(int)]
    opacity = (MAX_OPACITY * np.minimum(1, 3 * large))[..., None]
    mixed = picture + opacity * (colours - picture)
    return _with_zones(mixed.astype(np.uint8), scene, zones)


def path_map(
    scene: Scene, frame: Pixels | None, zones: Mapping[str, Floats], width: int = 640
) -> Pixels:
    """Draw the path of each object in its colour, over a darkened frame.

    Args:
        scene: The objects of one sequence.
        frame: (height, width, 3) uint8 of any size; None for a plain background.
        zones: Corners in pixels of the video by name.
        width: Width of the picture; it is narrower if it would be too tall.
    """
    picture = _backdrop(scene, frame, width)
    scale = np.array([picture.shape[1], len(picture)])
    for track, motion in zip(scene.tracks, scene.motions, strict=True):
        places = np.stack([track.x, track.y], 1) * scale
        steps = (places[motion.rows].clip(-1e4, 1e4) * 2**SHIFT).round().astype(np.int32)
        colour = identity_colour(track.object)
        cv2.polylines(picture, list(steps), False, colour, 1, cv2.LINE_AA, SHIFT)
    return _with_zones(picture, scene, zones)


def _backdrop(scene: Scene, frame: Pixels | None, width: int) -> Pixels:
    width = max(1, min(width, round(MAX_HEIGHT * scene.width / scene.height)))
    height = max(1, round(width * scene.height / scene.width))
    if frame is None:
        return np.full((height, width, 3), EMPTY_COLOUR, np.uint8)
    grey = frame if frame.ndim == 2 else frame.mean(2)
    resized = cv2.resize(grey.astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)
    gain = min(MAX_GAIN, BACKDROP_LIGHT / max(1.0, float(np.percentile(resized, 99))))
    return np.repeat((gain * resized).clip(0, 255).astype(np.uint8)[..., None], 3, 2)


def _with_zones(picture: Pixels, scene: Scene, zones: Mapping[str, Floats]) -> Pixels:
    """Outline the zones in white and write their names into them."""
    if not zones:
        return picture
    scale = picture.shape[1] / scene.width, picture.shape[0] / scene.height
    outlines = {name: corners * scale for name, corners in zones.items()}
    for corners in outlines.values():
        fixed = [(corners * 2**SHIFT).round().astype(np.int32)]
        for colour, thickness in (((0, 0, 0), 4), ((255, 255, 255), 2)):
            cv2.polylines(picture, fixed, True, colour, thickness, cv2.LINE_AA, SHIFT)
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    font = ImageFont.truetype(findfont("DejaVu Sans"), max(10, picture.shape[1] / 42))
    for name, corners in outlines.items():
        middle = tuple((corners.min(0) + corners.max(0)) / 2)
        draw.text(middle, name, (255, 255, 255), font, "mm", stroke_width=2, stroke_fill=(0, 0, 0))
    return np.array(image)


@cache
def _heat_colours() -> Floats:
    """Return 256 colours from low to high, 0 to 255."""
    colours: Floats = 255 * np.asarray(matplotlib.colormaps["inferno"](np.linspace(0.2, 1, 256)))
    return colours[:, :3]


def heat_gradient() -> list[str]:
    """Return CSS colours of a heat map, from low to high.

    >>> len(heat_gradient())
    5
    """
    return ["rgb({:.0f},{:.0f},{:.0f})".format(*_heat_colours()[i]) for i in (0, 64, 128, 192, 255)]
