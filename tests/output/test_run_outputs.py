"""What follows training, as a function call: progress and parts of the results as they come."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ullayers.run.plan import Run, load_run, sources_of
from ullayers.run.results import apply_to_inputs, frames_to_apply, write_reports
from ullayers.tracks.table import Answer

pytestmark = pytest.mark.usefixtures("full_reports")


def test_everything_that_learn_writes(
    either: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(either.folder, tmp_path / "run")
    run = load_run(tmp_path / "run")
    sources = sources_of(run)
    counts: list[int] = []
    parts: list[Answer] = []
    exported = apply_to_inputs(run, sources, progress=counts.append, seen=parts.append)
    assert run.missing(), "the report is not written yet"
    assert write_reports(run, sources, exported) == []
    assert run.finished
    assert counts == sorted(counts)
    assert counts[-1] == frames_to_apply(run, sources, resume=False)
    [answer] = exported.answers
    assert np.array_equal(np.concatenate([part.index for part in parts]), answer.index)
    assert all((part.masks is not None) == (run.config.task == "locate") for part in parts)
    assert capsys.readouterr() == ("", "")
