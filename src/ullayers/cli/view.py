"""A live view for a terminal: where it is now, where it was, and how learning goes."""

from __future__ import annotations

import time
from collections import deque
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.online import Sighting

COLUMNS, ROWS = 48, 16
SHADES = " .:*"  # of a mask
TRAIL = 200  # places that are remembered
PERIOD = 0.1  # seconds between pictures


class View:
    """Draws over itself, ten times a second at most.

    Args:
        screen: where to draw.
        period: seconds between two pictures.

    Example:
        >>> import io
        >>> screen = io.StringIO()
        >>> view = View(screen, period=0.0)
        >>> view.show(Sighting("door", 7, 0.28, ("x", "y", "confidence"), (0.5, 0.5, 0.9), -1.0))
        >>> "O" in screen.getvalue(), "J -1.00" in screen.getvalue()
        (True, True)
    """

    def __init__(self, screen: TextIO, period: float = PERIOD) -> None:
        self.screen, self.period = screen, period
        self.trail: deque[tuple[float, float]] = deque(maxlen=TRAIL)
        self.began = self.drawn = time.monotonic()
        self.count, self.lines = 0, 0
        self.waiting: Sighting | None = None

    def show(self, found: Sighting) -> None:
        """Take in what was found; draw if it is time."""
        self.count += 1
        second = found.values[1] if len(found.values) > 1 else 0.0
        self.trail.append((found.values[0], second))
        self.waiting = found
        if self.lines == 0 or time.monotonic() - self.drawn >= self.period:
            self.drawn, self.waiting = time.monotonic(), None
            self._draw(found)

    def close(self) -> None:
        """Draw what was found last."""
        if self.waiting is not None:
            self._draw(self.waiting)

    def _draw(self, found: Sighting) -> None:
        rate = self.count / max(1e-6, time.monotonic() - self.began)
        numbers = "  ".join(
            f"{name} {value:.3f}" for name, value in zip(found.columns, found.values, strict=True)
        )
        how = "learning" if found.learning else "settled"
        status = [
            f"{found.sequence}  frame {found.frame}  {found.seconds:.1f} s  {rate:.0f} frames/s",
            f"{numbers}  J {found.objective:.2f}  {how}  (Ctrl-C stops)",
        ]
        lines = [
            "+" + "-" * COLUMNS + "+",
            *self._canvas(found),
            "+" + "-" * COLUMNS + "+",
            *status,
        ]
        if self.lines:
            self.screen.write(f"\x1b[{self.lines}F")
        self.screen.write("".join(f"{line}\x1b[K\n" for line in lines))
        self.screen.flush()
        self.lines = len(lines)

    def _canvas(self, found: Sighting) -> list[str]:
        cells = np.full((ROWS, COLUMNS), " ")
        places = np.array(self.trail)
        if found.columns[0] == "x":
            if found.mask is not None:
                cells = _shaded(found.mask)
        else:  # a code has no frame of its own: its range so far is the frame
            low, high = places.min(0), places.max(0)
            places = (places - low) / np.maximum(high - low, 1e-9)
        column = np.clip(places[:, 0] * COLUMNS, 0, COLUMNS - 1).astype(int)
        row = np.clip(places[:, 1] * ROWS, 0, ROWS - 1).astype(int)
        cells[row[-40:-1], column[-40:-1]] = "o"
        cells[row[-1], column[-1]] = "O"
        return ["|" + "".join(line) + "|" for line in cells]


def _shaded(mask: NDArray[np.uint8]) -> NDArray[np.str_]:
    rows = np.linspace(0, mask.shape[0] - 1, ROWS).round().astype(int)
    columns = np.linspace(0, mask.shape[1] - 1, COLUMNS).round().astype(int)
    level = mask[np.ix_(rows, columns)].astype(int) * len(SHADES) // 256
    shaded: NDArray[np.str_] = np.array(list(SHADES))[level]
    return shaded
