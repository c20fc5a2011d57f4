"""All columns of the table as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ullayers.files import replacing
from ullayers.tracks.formats.packages import load
from ullayers.tracks.reading import NAMES
from ullayers.tracks.tracked_video import TrackedVideo

COLUMNS = ("frame", *NAMES)


def write_parquet(videos: Sequence[TrackedVideo], path: Path) -> None:
    """Write all rows, sorted by sequence, object and frame; unknown cells are null."""
    pyarrow, parquet = load("parquet", "pyarrow", "pyarrow.parquet")
    tracks = [track for video in videos for track in video.tracks]
    columns: dict[str, Any] = {
        "sequence": [track.sequence for track in tracks for _ in track.frame],
        "object": np.concatenate([np.full(len(track.frame), track.object) for track in tracks]),
    }
    for name in COLUMNS:
        columns[name] = np.concatenate([getattr(track, name) for track in tracks])
    arrays = {name: pyarrow.array(cells, from_pandas=True) for name, cells in columns.items()}
    with replacing(path, "wb") as file:
        parquet.write_table(pyarrow.table(arrays), file)
