"""What follows training, as a function call: progress and parts of the results as they come."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ullayers.run.pipeline import Event, follow, work
from ullayers.run.plan import Plan, load_plan, sources_of

pytestmark = pytest.mark.usefixtures("full_reports")


def test_everything_that_learn_writes(
    either: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(either.folder, tmp_path / "run")
    run = load_plan(tmp_path / "run")
    sources = sources_of(run)
    events: list[Event] = []
    outcome = follow(work(run, sources), events.append)
    assert outcome.scores == []
    assert run.finished
    assert [event.stage for event in events[-2:]] == ["report", "report"]
    applied = events[:-2]
    assert {event.stage for event in applied} == {"applying"}
    assert [event.done for event in applied] == sorted(event.done for event in applied)
    assert applied[-1].done == applied[-1].total
    parts = [event.found for event in applied if event.found is not None]
    [answer] = outcome.exported.answers
    assert np.array_equal(np.concatenate([part.index for part in parts]), answer.index)
    assert all((part.masks is not None) == (run.config.task == "locate") for part in parts)
    assert capsys.readouterr() == ("", "")
