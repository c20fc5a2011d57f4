"""Comparison with other packages: correct data, fair scores, and no package is required."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import experiments.bench.peers as batch
import experiments.bench.peers as learners
import experiments.bench.peers as peers
from experiments.bench.peers import mixture, read_out_r2, slow_sources
from experiments.bench.timing import BenchOptions
from ullayers.exact.slow_features import Floats

PACKAGES = ("deeptime", "sksfa", "cebra")


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no peer were installed."""
    for name in [*PACKAGES, *sys.modules]:
        if name.split(".")[0] in PACKAGES:
            monkeypatch.setitem(sys.modules, name, None)


def test_mixtures_have_their_condition_and_hold_the_sources() -> None:
    x = mixture(3000, 8, condition=1e5)
    sizes = np.linalg.svd(x - x.mean(0), compute_uv=False)
    assert 3e4 < sizes[0] / sizes[-1] < 3e5
    assert read_out_r2(mixture(9000, 8)) == pytest.approx(1)


def test_r2_is_of_the_worst_source() -> None:
    truth = slow_sources(9000)
    assert read_out_r2(truth @ np.array([[1.0, 2, 0], [0, 1, 1], [1, 0, 1]])) == pytest.approx(1)
    assert read_out_r2(truth[:, :2]) < 0.2
    assert read_out_r2(np.zeros((9000, 2))) < 0.2
    assert np.isnan(read_out_r2(np.full((9000, 2), np.nan)))


def test_own_methods_find_the_sources() -> None:
    x = mixture(6000, 12, batch.ILL_CONDITIONED)
    found = batch.compare({**batch.own_methods(), **batch.sklearn_methods()}, x, rounds=1)
    assert {quality for _, quality in found.values()} == {1.0}
    assert all(0 < seconds < np.inf for seconds, _ in found.values())


def test_a_method_that_fails_has_its_error_for_a_result() -> None:
    def failing(x: Floats) -> None:
        raise ZeroDivisionError

    found = batch.compare({"a": failing}, mixture(50, 4), rounds=1)  # type: ignore[dict-item]
    assert found == {"a": (np.inf, "ZeroDivisionError")}


@pytest.mark.usefixtures("_alone")
def test_peers_that_are_not_installed_are_named_once_and_left_out() -> None:
    rows = list(peers.rows(BenchOptions(quick=True)))
    notes = [row["note"] for row in rows if "note" in row]
    assert notes == [
        f"{name} is not installed: `make bench` installs it"
        for name in ("deeptime", "sklearn-sfa", "cebra")
    ]
    measured = [row for row in rows if "note" not in row]
    assert {row["kind"] for row in measured} == {"slow features", "learning"}
    for row in measured:
        name = row.get("method") or row["learner"]
        assert name in peers.line(row)
        assert ("R2 - " in peers.line(row)) == (row["kind"] == "learning")  # nothing is learned yet
        assert not name.lower().startswith(("deeptime", "vampnet", "sklearn-sfa", "cebra"))


class Pupil:
    """A learner whose noise shrinks with each slice of training."""

    def __init__(self) -> None:
        self.noise = 4.0

    def learn(self) -> None:
        self.noise /= 8

    def features(self) -> Floats:
        truth = slow_sources(9000)
        return truth + self.noise * np.random.default_rng(0).standard_normal(truth.shape)


def test_learning_is_followed_to_its_goal() -> None:
    found = learners.learning_curve(Pupil, budget=1e9)
    assert found["r2"] >= learners.ENOUGH
    reached = [seconds for seconds, r2 in found["course"] if r2 >= learners.GOAL]
    assert found["seconds to goal"] == reached[0]
    assert learners.learning_curve(Pupil, budget=0)["seconds to goal"] is None


def test_our_learner_reaches_the_goal() -> None:
    x = mixture(6000, 10, batch.ILL_CONDITIONED)
    learner = learners.own_learners(x)["ullayers Whiten + linear, tuned"]()
    for _ in range(60):
        learner.learn()
    assert read_out_r2(learner.features()) >= learners.GOAL
