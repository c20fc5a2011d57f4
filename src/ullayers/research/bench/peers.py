"""SlowFeatures and learning by gradients beside other packages; none of them is ever needed."""

from __future__ import annotations

from collections.abc import Iterator

import ullayers.research.bench.batch as batch
import ullayers.research.bench.learners as learners
from ullayers.research.bench.timing import How, Row


def rows(how: How) -> Iterator[Row]:
    """What is solved at once, then what learns; a peer that is not installed is named once."""
    named = set()
    for part in (batch, learners):
        for row in part.rows(how):
            if row.get("package") not in named:
                yield row
            if "package" in row:
                named.add(row["package"])


def line(row: Row) -> str:
    """A row of either table."""
    return batch.line(row) if row["kind"] == "slow features" else learners.line(row)
