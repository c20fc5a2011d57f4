"""Progress: a bar on a terminal and in a notebook, regular lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from ullayers.run.pipeline import Event

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
        from tqdm.auto import tqdm

        self.title = title
        self.unit = unit
        self.total = total
        self.period = period
        self.stream = stream or sys.stderr
        self.in_log = not quiet and not self.stream.isatty() and tqdm.__module__ == "tqdm.asyncio"
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


class Bars:
    """Progress of the pipeline: one bar after the other, for each stage.

    Args:
        quiet: Show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.stage = ""
        self.bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def show(self, event: Event) -> None:
        """Show what the pipeline has just done."""
        if event.stage != self.stage:
            self.close()
            self.stage = event.stage
            unit = {"reading": "frames", "training": "steps", "applying": "frames"}.get(self.stage)
            if unit is not None:
                self.bar = Progress(self.stage, unit, event.total, quiet=self.quiet)
        if self.bar is not None:
            self.bar.total = event.total
            self.bar.to(event.done, _note(event))

    def close(self) -> None:
        """Close the current bar."""
        if self.bar is not None:
            self.bar.bar.close()
            self.bar = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


def _note(event: Event) -> str:
    """Return J of a step and its trial, because J of the next trial starts high again."""
    learner, record = event.learner, event.record
    if learner is None or record is None:
        return ""
    if len(learner.plan) == 1:
        name = ""
    elif record.step > learner.trial_steps:
        name = "best trial: "
    else:
        name = f"trial {record.trial + 1} of {len(learner.plan)}: "
    is_shown = record.held_out is not None and learner.trials[record.trial].comparable
    held_out = f", {record.held_out:.2f} on held-out frames" if is_shown else ""
    return f"{name}J {record.objective:.2f} ({record.kind}){held_out}"
