"""Result files of single videos, merged: the same table and errors as without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exports import sources_in
from tests.films import write_truncated
from ullayers.run.fleet import Parts, apply_to_video
from ullayers.run.plan import Run, csv_name
from ullayers.run.write import ExportOptions, export

pytest.importorskip("pyarrow", reason="needs pip install 'ullayers[ray]'")
SKIP = ExportOptions(skip_bad=True)


def test_merged_results_are_those_of_the_plain_export(either: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 12, 30)
    write_truncated(Path(sources[1].path))
    plain = export(either, sources, tmp_path / "plain", SKIP)
    (tmp_path / "out").mkdir()
    table = tmp_path / "out" / csv_name(either)
    parts = Parts(table, [], resume=False)
    for source in sources:
        content = apply_to_video(either, source, SKIP, [], parts.folder).content
        assert content is not None
        parts.write(source, content)
    merged = parts.merge(sources)
    assert merged.bad == plain.bad
    assert merged.sequences == plain.sequences
    assert merged.totals == plain.totals
    assert table.read_bytes() == plain.files[0].read_bytes()
