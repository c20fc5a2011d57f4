"""Progress on stderr: a bar on a terminal, regular lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

LOG_PERIOD = 15.0  # seconds between two lines in a log


class Progress:
    """Count of finished items.

    Args:
        title: Description of the task.
        unit: Name of the items, in the plural.
        total: Number of items; None if unknown.
        quiet: Show nothing.
        period: Seconds between two lines without a terminal.
        stream: Output stream; None for stderr.

    Example:
        >>> with Progress("reading", "frames", 200, period=0.0, stream=sys.stdout) as progress:
        ...     progress.to(100)
        reading: 100 of 200 frames
    """

    def __init__(
        self,
        title: str,
        unit: str,
        total: int | None = None,
        *,
        quiet: bool = False,
        period: float = LOG_PERIOD,
        stream: TextIO | None = None,
    ) -> None:
        from tqdm import tqdm

        self.title = title
        self.unit = unit
        self.total = total
        self.period = period
        self.stream = stream or sys.stderr
        self.in_log = not quiet and not self.stream.isatty()
        self.last_line = time.monotonic()
        self.count = 0
        self.bar = tqdm(
            desc=title,
            total=total,
            unit=f" {unit}",
            disable=quiet or self.in_log,
            leave=False,
            file=self.stream,
        )

    def __enter__(self) -> Self:
        return self

    def to(self, count: int, note: str = "") -> None:
        """Set the number of finished items.

        Args:
            count: Number of finished items.
            note: Text to show beside it.
        """
        self.count = count
        self.bar.total = self.total
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(count - self.bar.n)
        if self.in_log and time.monotonic() - self.last_line >= self.period:
            self.last_line = time.monotonic()
            print(self._line(note), file=self.stream, flush=True)

    def one(self, note: str = "") -> None:
        """Count one more item."""
        self.to(self.count + 1, note)

    def _line(self, note: str) -> str:
        total = "" if self.total is None else f" of {self.total:,}"
        line = f"{self.title}: {self.count:,}{total} {self.unit}"
        return f"{line}, {note}" if note else line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.bar.close()
