"""Zones: named polygons in which the time of an object is measured."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import UserError
from ullayers.learn.regular_files import read_regular
from ullayers.learn.typed_json import from_json
from ullayers.video.reader import Info, Source

MAX_BYTES = 2**20
MAX_ZONES, MAX_CORNERS = 200, 500
MIN_AREA = 1e-9  # of the square of a polygon's longest side; smaller polygons are lines

Floats = NDArray[np.float64]
Corners = list[tuple[float, float]]


class ZoneError(UserError):
    """A file of zones cannot be used, or a zone does not fit into the frames."""


@dataclass(frozen=True)
class Zones:
    """Named polygons.

    Attributes:
        zones: Corners (x, y) of each polygon by its name, from the top left corner of the frame.
        units: Whether corners are in pixels of the video or in 0..1.

    Example:
        >>> zones = Zones({"left": [(0, 0), (0.5, 0), (0.5, 1), (0, 1)]}, "frame")
        >>> zones.polygons(width=640, height=480)["left"].tolist()
        [[0.0, 0.0], [320.0, 0.0], [320.0, 480.0], [0.0, 480.0]]
        >>> Zones({"bow": [(0, 0), (9, 9), (9, 0), (0, 9)]})
        Traceback (most recent call last):
        ullayers.learn.zones.ZoneError: zone 'bow': its sides cross each other; give the corners in
        order around it
    """

    zones: dict[str, Corners] = field(default_factory=dict)
    units: Literal["pixels", "frame"] = "pixels"

    def __post_init__(self) -> None:
        if len(self.zones) > MAX_ZONES:
            raise ZoneError(f"expected at most {MAX_ZONES} zones, got {len(self.zones)}")
        for name, corners in self.zones.items():
            _check_name(name)
            _check_polygon(name, corners)

    def polygons(self, width: int, height: int) -> dict[str, Floats]:
        """Return the corners of each zone in pixels of frames of this size, (corners, 2).

        Raises:
            ZoneError: A zone extends beyond the frames.
        """
        size = np.array([width, height], np.float64)
        scale = 1.0 if self.units == "pixels" else size
        found = {
            name: np.array(corners, np.float64) * scale for name, corners in self.zones.items()
        }
        for name, corners in found.items():
            if (corners < 0).any() or (corners > size).any():
                unit = "pixels" if self.units == "pixels" else "0 to 1"
                raise ZoneError(
                    f"zone {name!r} reaches beyond the frames of {width} x {height} pixels; give "
                    f"corners inside them, in {unit}"
                )
        return found


def read_zones(path: str | os.PathLike[str]) -> Zones:
    """Read a JSON file of zones, such as {"zones": {"nest": [[10, 10], [90, 10], [50, 80]]}}.

    With an entry "units": "frame", corners are in 0..1 instead of pixels.

    Raises:
        ZoneError: The file cannot be read, or a zone is not a polygon.
    """
    try:
        text = read_regular(path, MAX_BYTES).decode()
        content = json.loads(text, object_pairs_hook=_without_duplicates)
        zones = from_json(Zones, content)
    except FileNotFoundError:
        raise ZoneError(f"--zones {path}: does not exist") from None
    except OSError as error:
        raise ZoneError(f"--zones {path}: cannot be read ({error.strerror})") from error
    except ZoneError as error:
        raise ZoneError(f"--zones {path}: {error}") from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ZoneError(
            f'--zones {path}: expected JSON such as {{"zones": {{"nest": [[10, 10], [90, 10], '
            f"[50, 80]]}}}} ({reason})"
        ) from error
    if not zones.zones:
        raise ZoneError(f"--zones {path}: has no zone; add one or leave --zones out")
    return zones


def check_measures(
    task: str,
    zones: Zones | None,
    mm_per_pixel: float | None,
    sources: Sequence[Source],
    infos: Sequence[Info],
) -> None:
    """Refuse measures that a task does not support, and zones that do not fit into the frames.

    Args:
        task: The task.
        zones: Zones to measure; None for none.
        mm_per_pixel: Size of a pixel; None for none.
        sources: Sources to read.
        infos: Their headers.

    Raises:
        ZoneError: The task finds no positions, or a zone extends beyond the frames of a source.
    """
    for option, value in {"--zones": zones, "--mm-per-pixel": mm_per_pixel}.items():
        if value is not None and task != "locate":
            raise ZoneError(f"--task {task} has no positions to measure; leave out {option}")
    if zones is None:
        return
    for source, info in zip(sources, infos, strict=True):
        try:
            zones.polygons(info.width, info.height)
        except ZoneError as error:
            raise ZoneError(f"--zones: {source.name}: {error}") from None


def contains(corners: Floats, x: Floats, y: Floats) -> NDArray[np.bool_]:
    """Return which points lie inside a polygon; False for NaN.

    A point on a side shared by two polygons is inside one of them.

    Args:
        corners: (corners, 2) of a polygon whose sides do not cross.
        x: (points,) horizontal positions.
        y: (points,) vertical positions.

    Example:
        >>> square = np.array([[0.0, 0], [2, 0], [2, 2], [0, 2]])
        >>> contains(square, np.array([1.0, 3.0, np.nan]), np.array([1.0, 1.0, 1.0])).tolist()
        [True, False, False]
    """
    inside = np.zeros(len(x), bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, 0), strict=True):
        if y0 != y1:
            crosses = (y0 <= y) != (y1 <= y)
            inside ^= crosses & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    return inside & np.isfinite(x) & np.isfinite(y)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, and refuse duplicate names, which would hide a value."""
    names = [name for name, _ in pairs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ZoneError(f"two zones are named {twice[0]!r}; rename one of them")
    return dict(pairs)


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > 60:
        raise ZoneError(f"expected names of 1 to 60 printable characters, got {name[:60]!r}")


def _check_polygon(name: str, corners: Corners) -> None:
    if not 3 <= len(corners) <= MAX_CORNERS:
        raise ZoneError(
            f"zone {name!r}: expected 3 to {MAX_CORNERS} corners [x, y], got {len(corners)}"
        )
    if not all(math.isfinite(value) and abs(value) < 1e6 for point in corners for value in point):
        raise ZoneError(f"zone {name!r}: expected finite numbers below 1e6 as corners")
    points = np.array(corners, np.float64)
    sides = np.roll(points, -1, 0) - points
    if (sides == 0).all(1).any():
        raise ZoneError(f"zone {name!r}: two corners in a row are the same; remove one of them")
    area = 0.5 * abs(float(_cross(points, np.roll(points, -1, 0)).sum()))
    if _crosses_itself(points):
        raise ZoneError(
            f"zone {name!r}: its sides cross each other; give the corners in order around it"
        )
    if area <= MIN_AREA * float((sides**2).sum(1).max()):
        raise ZoneError(f"zone {name!r}: has no area; give corners that are not on a line")


def _cross(first: Floats, second: Floats) -> Floats:
    product: Floats = first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]
    return product


def _crosses_itself(points: Floats) -> bool:
    """Return whether sides that are not neighbours share a point, or neighbours overlap."""
    ends = np.roll(points, -1, 0)
    count = len(points)

    def side_of(point: Floats) -> Floats:
        """Return on which side of line i the point j lies, (i, j)."""
        return np.sign(_cross((ends - points)[:, None], point[None] - points[:, None]))

    low, high = np.minimum(points, ends), np.maximum(points, ends)
    meet = ((low[:, None] <= high[None]) & (low[None] <= high[:, None])).all(2)
    starts, stops = side_of(points), side_of(ends)
    crossing = meet & (starts * stops <= 0) & (starts * stops <= 0).T
    apart = (np.arange(count)[:, None] - np.arange(count)) % count
    crossing[(apart <= 1) | (apart == count - 1)] = False
    # A side that turns back onto the one before it.
    sides = ends - points
    following = np.roll(sides, -1, 0)
    back = (_cross(sides, following) == 0) & ((sides * following).sum(1) < 0)
    return bool(crossing.any() or back.any())
