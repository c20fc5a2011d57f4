"""The page, the goals, and the small version of each experiment on real data."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from experiments.common import (
    Claim,
    Outcome,
    Setting,
    Table,
    correlation,
    decode_angle,
    window_score,
)
from experiments.datasets import thrown_pillow, walking
from experiments.paper import NAMES
from experiments.runner import load_result, reproduce
from tests.command import UlCommand
from tests.experiments.conftest import check_refused
from tests.films import column, read_table
from tests.real_data import DATA

TRACKED = {"walk": walking, "pillow": thrown_pillow}  # the small versions use some sequences
RESULTS_PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def found(setting: Setting, value: float = 0.9) -> Outcome:
    table = Table("points", ["error", "overlap"], ["low", "high"])
    table.add("ours", [0.1, 0.3], 0.5)
    table.add("theirs", 0.15, [0.75, 0.25])
    figure = Figure()
    figure.subplots().plot([1, 2])
    pictures = [
        setting.picture(figure, "curve", "A curve."),
        setting.picture(figure, "faces", "Some faces.", of_data=True),
    ]
    claims = [Claim("overlap", value, at_least=0.8), Claim("error", 0.2, at_most=0.1, aim=True)]
    return Outcome("Points (synthetic)", "What was done.", [table], pictures, claims)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An experiment that takes no time."""
    experiment = importlib.import_module("experiments.paper.synthetic")
    monkeypatch.setattr(experiment, "run", found)
    return monkeypatch


def test_the_page_says_everything(tmp_path: Path, made_up: pytest.MonkeyPatch) -> None:
    result = reproduce("synthetic", Path(), tmp_path, [3, 4], quick=True)
    page = (tmp_path / "results.md").read_text()
    assert "| ours | 0.200 ± 0.100 | **0.500** |" in page
    assert "| theirs | **0.150** | **0.500 ± 0.250** |" in page
    assert "| overlap | 0.9 | at least 0.8 | met |" in page
    assert "| error | 0.2 | at most 0.1 (aim) | **not met** |" in page
    assert "![A curve.](results/synthetic/curve.png)" in page
    assert (tmp_path / "results" / "synthetic" / "curve.png").stat().st_size > 1000
    assert "![Some faces.]" not in page  # frames of the data are named, not shown
    assert "results/synthetic/frames_faces.png" in page
    assert re.search(r"`python -m experiments synthetic --quick`, seeds 3, 4, \d+ s, commit", page)
    assert load_result(tmp_path, "synthetic") == result
    assert not result.failed  # an aim that is missed is no failure


def test_goals_that_are_missed_are_failures(
    tmp_path: Path, made_up: pytest.MonkeyPatch, experiments: UlCommand
) -> None:
    made_up.setattr("experiments.paper.synthetic.run", lambda setting: found(setting, np.nan))
    code, _, errors = experiments("synthetic", "--out", tmp_path / "out")
    assert code == 1
    assert "synthetic: does not hold: overlap: nan" in errors


def test_what_is_there_is_kept(
    tmp_path: Path, made_up: pytest.MonkeyPatch, experiments: UlCommand
) -> None:
    out = tmp_path / "out"
    assert experiments("synthetic", "--out", out)[0] == 0
    check_refused(experiments("synthetic", "--out", out), "--resume", "--force")
    kept = out / "results" / "synthetic" / "outcome.json"
    before = kept.stat().st_mtime_ns
    assert experiments("synthetic", "--out", out, "--resume")[0] == 0
    assert kept.stat().st_mtime_ns == before
    assert experiments("synthetic", "--out", out, "--resume", "--seeds", 2)[0] == 0
    assert kept.stat().st_mtime_ns > before  # other seeds are another experiment


def test_data_must_be_given_and_be_there(
    tmp_path: Path, experiments: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ULLAYERS_DATA", raising=False)
    check_refused(experiments("walk", "--out", tmp_path / "a"), "--data")
    nowhere = experiments("walk", "--data", tmp_path, "--out", tmp_path / "b", "--quick")
    check_refused(nowhere, "labelfree/DaSide", "--data")
    check_refused(experiments("nothing"), "invalid choice")
    check_refused(experiments("synthetic", "--seeds", "0"), "at least 1")


def test_numbers_that_are_scored_with() -> None:
    angles = np.arange(-90, 91, 15.0)
    circle = np.stack([np.sin(np.radians(angles)), np.cos(np.radians(angles))], 1)
    mixed = circle @ np.array([[2.0, 1.0], [-1.0, 0.5]]) + 3
    assert np.allclose(decode_angle(mixed, angles, mixed), circle)
    assert correlation(np.ones(5), np.arange(5.0)) == 0
    ramp = np.arange(9.0)
    ramp_with_gap = np.where(ramp == 8, np.nan, ramp)
    assert window_score([-ramp], [ramp_with_gap]) == pytest.approx(1)  # signs do not count


@pytest.fixture
def _one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run jobs in this process, with one thread as in a worker: starting workers takes seconds."""

    @contextmanager
    def pool(count: int) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(map=map)

    monkeypatch.setattr("experiments.common.worker_pool", pool)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check_learned(name: str, out: Path) -> None:
    """Check that all goals of an experiment are met and that its files are complete."""
    page = (out / "results.md").read_text()
    assert "not met" not in page.replace("(aim) | **not met**", "")
    result = load_result(out, name)
    assert result is not None
    assert result.outcome.claims
    for picture in result.outcome.pictures:
        assert (out / "results" / name / picture.file).stat().st_size > 5000


@pytest.mark.data  # it needs none, but belongs to the other experiments
@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_experiment_learns_in_worker_processes(tmp_path: Path, experiments: UlCommand) -> None:
    out = tmp_path / "out"
    code, _, errors = experiments("synthetic", "--data", DATA, "--quick", "--out", out)
    assert code == 0, errors
    check_learned("synthetic", out)


# The ablations and the eigenvectors have tests of their own.
@pytest.mark.data
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("synthetic", "parts", "laplacian")]
)
def test_every_experiment_learns(name: str, tmp_path: Path, experiments: UlCommand) -> None:
    out = tmp_path / "out"
    code, _, errors = experiments(name, "--data", DATA, "--quick", "--out", out)
    assert code == 0, errors
    check_learned(name, out)
    if name in TRACKED:
        tracks = out / "results" / name / "tracks.csv"
        sequences = {sequence.name: len(sequence) for sequence in TRACKED[name](DATA)}
        counts = Counter(row["sequence"] for row in read_table(tracks))
        assert counts.items() <= sequences.items(), "every frame of a sequence has one row"
        assert len(counts) >= len(sequences) / 2
        values = column(tracks, "x", "y", "confidence")
        assert 0 <= values.min() <= values.max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_the_results_page_has_the_text_of_the_experiment(name: str) -> None:
    experiment = importlib.import_module(f"experiments.paper.{name}")
    page = RESULTS_PAGE.read_text(encoding="utf-8")
    assert experiment.TEXT.strip() in page
    assert getattr(experiment, "NOTE", "").strip() in page


def test_what_is_damaged_or_of_another_source_is_run_again(
    tmp_path: Path, made_up: pytest.MonkeyPatch, experiments: UlCommand
) -> None:
    out = tmp_path / "out"
    assert experiments("synthetic", "--out", out)[0] == 0
    other = out / "results" / "pan" / "outcome.json"
    other.parent.mkdir()
    other.write_text("{}")  # of another experiment, and damaged: it costs its section, no more
    made_up.setattr("experiments.runner._commit", lambda: "1234567")
    assert experiments("synthetic", "--out", out, "--resume")[0] == 0
    page = (out / "results.md").read_text()
    assert "commit 1234567" in page
    assert "Head pan" not in page
    check_refused(experiments("synthetic", "--out", out, "--resume", "--force"), "--force")
    check_refused(experiments("synthetic", "--out", out, "--force", "--seed", -1), "from 0")
