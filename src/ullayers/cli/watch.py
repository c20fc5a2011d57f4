"""`ul watch`: learn while frames arrive, with a live view on a terminal."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
import unicodedata
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from ullayers.cli.messages import resumable, say
from ullayers.cli.options import given_options, given_reading
from ullayers.errors import Error
from ullayers.run.plan import check_same_options, given_config, load_plan
from ullayers.run.stopping import stop_at_checks
from ullayers.run.watch import WatchResult, follows_several, keep_results, watch
from ullayers.run.watcher import keep_outlines
from ullayers.video.region import Box
from ullayers.video.sources import Info, find_sources, open_live

MAX_COLUMNS, MAX_ROWS = 48, 16  # of the canvas
SHADES = " .:*"  # of a mask
HISTORY = 200  # positions that set the range of a code
TRAIL = 40  # positions that are drawn
PERIOD = 0.1  # seconds between two pictures
NOTHING = (
    "no object was found: nothing has moved away from the place where it was first seen; use "
    "--objects 1 for a position in every frame"
)
Show = Callable[[WatchResult], None]


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


def run(arguments: Namespace) -> None:
    """Watch the source until it ends or a stop signal arrives."""
    if arguments.resume:
        _check_resume(arguments)
    config = given_config(given_options(arguments))
    if arguments.objects is not None and config.task != "locate":
        raise Error(f"--objects is for --task locate; leave it out for {config.task}")
    sightings = watch(
        arguments.source,
        config=config,
        objects=None if arguments.objects == "auto" else arguments.objects,
        folder=arguments.out,
        every=arguments.every,
        force=arguments.force,
        resume=arguments.resume,
        **given_reading(arguments),
    )
    if arguments.out is not None:
        sightings = keep_results(keep_outlines(sightings, arguments.out), arguments.out)
    with (
        resumable(lambda: _has_checkpoint(arguments)),
        stop_at_checks() as stop,
        closing(sightings),
        _output(arguments) as show,
    ):
        numbers: set[int] | None = None
        for sighting in sightings:
            if sighting.objects is not None:
                numbers = (numbers or set()) | {each.number for each in sighting.objects}
            show(sighting)
            stop.check()
    if numbers is not None and not numbers:
        say("watch", NOTHING)


def _check_resume(arguments: Namespace) -> None:
    """Refuse to resume a folder not written by `ul watch`, or with other options."""
    if arguments.out is None:
        raise Error("--resume needs --out, the folder of the run to continue")
    if Path(arguments.out, "metrics.jsonl").exists():
        raise Error(f"{arguments.out}: was written by ul learn; give another --out")
    run = load_plan(arguments.out)
    given = given_options(arguments)
    given.pop("max_frames", None)  # N more frames, any N
    check_same_options(given, run, lambda: _first_frame(arguments.source))
    auto = arguments.objects == "auto"
    if auto and not (follows_several(arguments.out) and run.config.objects is None):
        raise Error(
            "this run does not find the number of objects; leave --objects auto out, "
            "or start again with --force"
        )


def _first_frame(source: str) -> Info:
    found = find_sources([source])[0] if os.path.isdir(source) else open_live(source)
    return found.probe()


def _has_checkpoint(arguments: Namespace) -> bool:
    if arguments.out is None:
        return False
    return Path(arguments.out, "checkpoint", "state.json").exists()


@contextmanager
def _output(arguments: Namespace) -> Iterator[Show]:
    """Yield the function that shows a result: nothing, CSV lines or the live view."""
    if arguments.quiet:
        yield lambda sighting: None
    elif arguments.lines or not sys.stdout.isatty():
        yield _LinePrinter().show
    else:
        with closing(View(sys.stdout)) as view:
            yield view.show


class _LinePrinter:
    """Prints results as CSV, with a header before the first."""

    def __init__(self) -> None:
        self.has_header = False

    def show(self, sighting: WatchResult) -> None:
        """Print the lines of one frame."""
        if not self.has_header:
            print(sighting.header, end="")
            self.has_header = True
        print(sighting.lines(), end="", flush=True)
