"""How far it has come: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

PERIOD = 15.0  # seconds between lines in a log


class Progress:
    """Counts up to a total that may be unknown.

    Args:
        what: is done.
        unit: of the count, in the plural.
        total: of the count.
        quiet: show nothing.
        period: seconds between two lines where there is no terminal.

    Example:
        >>> with Progress("reading", "frames", total=200, period=0.0) as progress:
        ...     progress.to(100)
        reading: 100 of 200 frames
    """

    def __init__(
        self, what: str, unit: str, total: int | None = None, *, quiet: bool = False,
        period: float = PERIOD,
    ) -> None:  # fmt: skip
        from tqdm import tqdm

        self.what, self.unit, self.total, self.period = what, unit, total, period
        self.plain = not quiet and not sys.stderr.isatty()
        self.last, self.count = time.monotonic(), 0
        off = quiet or self.plain
        self.bar = tqdm(desc=what, total=total, unit=f" {unit}", disable=off, leave=False)

    def __enter__(self) -> Progress:
        return self

    def to(self, count: int, note: str = "") -> None:
        """So many are done."""
        self.bar.total = self.total
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(count - self.bar.n)
        if self.plain and time.monotonic() - self.last >= self.period:
            self.last = time.monotonic()
            of = f"{count:,}" if self.total is None else f"{count:,} of {self.total:,}"
            print(f"{self.what}: {of} {self.unit}" + f", {note}" * bool(note), flush=True)

    def one(self, note: str = "") -> None:
        """One more is done."""
        self.count += 1
        self.to(self.count, note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.bar.close()
