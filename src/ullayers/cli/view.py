"""Live view on a terminal: position, trail and training progress."""

from __future__ import annotations

import math
import shutil
import time
import unicodedata
from collections import deque
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from ullayers.run.watch import WatchResult
from ullayers.video.region import Box

MAX_COLUMNS, MAX_ROWS = 48, 16  # of the canvas
SHADES = " .:*"  # of a mask
HISTORY = 200  # positions that set the range of a code
TRAIL = 40  # positions that are drawn
PERIOD = 0.1  # seconds between two pictures


class View:
    """Draws over its last picture, at most ten times a second, clipped to the terminal.

    Args:
        screen: Output stream.
        period: Seconds between two pictures.

    Example:
        >>> import io
        >>> screen = io.StringIO()
        >>> view = View(screen, period=0.0)
        >>> view.show(WatchResult("door", 7, 0.28, ("x", "y", "confidence"), (0.5, 0.5, 0.9), -1.0))
        >>> "O" in screen.getvalue(), "J -1.00" in screen.getvalue()
        (True, True)
    """

    def __init__(self, screen: TextIO, period: float = PERIOD) -> None:
        self.screen = screen
        self.period = period
        self.positions: dict[int, deque[tuple[float, float]]] = {}  # by the number of the object
        self.started = self.drawn = time.monotonic()
        self.count = 0
        self.lines = 0  # of the picture on the screen
        self.waiting: WatchResult | None = None

    def show(self, sighting: WatchResult) -> None:
        """Add the result of a frame; draw it if the period has passed."""
        self.count += 1
        places = _places(sighting)
        for number in places.keys() | self.positions.keys():
            if number in places:
                self.positions.setdefault(number, deque(maxlen=HISTORY)).append(places[number])
            else:  # it has left
                del self.positions[number]
        self.waiting = sighting
        if self.lines == 0 or time.monotonic() - self.drawn >= self.period:
            self.drawn = time.monotonic()
            self.waiting = None
            self._draw(sighting)

    def close(self) -> None:
        """Draw the last result if it is not on the screen yet."""
        if self.waiting is not None:
            self._draw(self.waiting)
            self.waiting = None

    def _draw(self, sighting: WatchResult) -> None:
        width, height = _room()
        status = self._status(sighting)
        columns = min(MAX_COLUMNS, width - 2)
        rows = min(MAX_ROWS, height - len(status) - 2)
        lines = status[:height]
        if columns >= 1 and rows >= 1:
            edge = "+" + "-" * columns + "+"
            lines = [edge, *self._canvas(sighting, rows, columns), edge, *status]
        if self.lines:
            self.screen.write(f"\x1b[{self.lines}F")
        self.screen.write("".join(f"{clip(line, width)}\x1b[K\n" for line in lines))
        if len(lines) < self.lines:
            self.screen.write("\x1b[J")  # the terminal has shrunk: erase the rest
        self.screen.flush()
        self.lines = len(lines)

    def _status(self, sighting: WatchResult) -> list[str]:
        rate = self.count / max(1e-6, time.monotonic() - self.started)
        if sighting.objects is None:
            named = zip(sighting.columns, sighting.values, strict=True)
            numbers = "  ".join(f"{name} {value:.3f}" for name, value in named)
        else:
            numbers = f"objects {len(sighting.objects)}"
        state = "learning" if sighting.learning else "settled"
        # NaN before the first training step.
        objective = "-" if math.isnan(sighting.objective) else f"{sighting.objective:.2f}"
        return [
            f"{sighting.sequence}  frame {sighting.frame}  {sighting.seconds:.1f} s  "
            f"{rate:.0f} frames/s",
            f"{numbers}  J {objective}  {state}  (Ctrl-C stops)",
        ]

    def _canvas(self, sighting: WatchResult, rows: int, columns: int) -> list[str]:
        cells = np.full((rows, columns), " ")
        if sighting.columns[0] == "x" and sighting.mask is not None:
            mask = sighting.mask
            if sighting.labels is not None:
                mask = np.where(sighting.labels > 0, 255, 0).astype(np.uint8)
            cells = _shaded(mask, sighting.box, rows, columns)
        marks = {}
        for number, history in self.positions.items():
            positions = np.array(history)
            if sighting.columns[0] != "x":  # a code has no natural range: use its range so far
                low = positions.min(0)
                high = positions.max(0)
                positions = (positions - low) / np.maximum(high - low, 1e-9)
            column = np.clip(positions[:, 0] * columns, 0, columns - 1).astype(int)
            row = np.clip(positions[:, 1] * rows, 0, rows - 1).astype(int)
            cells[row[-TRAIL:-1], column[-TRAIL:-1]] = "o"
            marks[row[-1], column[-1]] = "O" if number == 0 else str(number % 10)
        for place, mark in marks.items():
            cells[place] = mark
        return ["|" + "".join(line) + "|" for line in cells]


def _places(sighting: WatchResult) -> dict[int, tuple[float, float]]:
    """Return positions by object number; 0 for a single object, or a code."""
    if sighting.objects is not None:
        return {each.number: (each.x, each.y) for each in sighting.objects}
    return {0: (sighting.values[0], sighting.values[1] if len(sighting.values) > 1 else 0.0)}


def clip(text: str, width: int) -> str:
    """Clip a text to `width` columns of a terminal.

    >>> clip("position", 3), clip("日本", 3)
    ('pos', '日')
    """
    used = 0
    for number, character in enumerate(text):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > width:
            return text[:number]
    return text


def _room() -> tuple[int, int]:
    """Return the columns and lines available for a picture; one of each is for the cursor."""
    size = shutil.get_terminal_size()
    return max(1, size.columns - 1), max(1, size.lines - 1)


def _shaded(mask: NDArray[np.uint8], box: Box | None, rows: int, columns: int) -> NDArray[np.str_]:
    """Draw a mask that covers a part of the canvas, or all of it."""
    left, top, width, height = box or (0.0, 0.0, 1.0, 1.0)
    row = ((np.arange(rows) + 0.5) / rows - top) / height * mask.shape[0]
    column = ((np.arange(columns) + 0.5) / columns - left) / width * mask.shape[1]
    around = np.pad(mask, 1)  # nothing is outside
    row = (row + 1).clip(0, mask.shape[0] + 1).astype(int)
    column = (column + 1).clip(0, mask.shape[1] + 1).astype(int)
    level = around[np.ix_(row, column)].astype(int) * len(SHADES) // 256
    shaded: NDArray[np.str_] = np.array(list(SHADES))[level]
    return shaded
