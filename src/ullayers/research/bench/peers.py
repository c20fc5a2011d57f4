"""SlowFeatures and gradient-based learning compared with other packages, all of them optional."""

from __future__ import annotations

from collections.abc import Iterator

import ullayers.research.bench.batch as batch
import ullayers.research.bench.learners as learners
from ullayers.research.bench.timing import BenchOptions, Row


def rows(options: BenchOptions) -> Iterator[Row]:
    """Yield batch solvers, then learners; a package that is not installed is reported once."""
    reported = set()
    for part in (batch, learners):
        for row in part.rows(options):
            if row.get("package") not in reported:
                yield row
            if "package" in row:
                reported.add(row["package"])


def line(row: Row) -> str:
    """Format a row of either table."""
    return batch.line(row) if row["kind"] == "slow features" else learners.line(row)
