"""`ul reproduce laplacian`: worlds, scores, and learning in a small world."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import experiments.paper.gridworlds as gridworlds
import experiments.paper.laplacian as laplacian
import experiments.paper.slow_training as slow_training
from experiments.common import Outcome, Setting
from experiments.paper.gridworlds import (
    NAMES,
    Truth,
    cosines,
    gridworld,
    overlap,
    truth,
)
from experiments.paper.slow_training import (
    ALLO,
    DISCOUNT,
    FRESH,
    GDO,
    GGDO,
    SLOW,
    TRACE,
    UNTRAINED,
    Perceptrons,
    Run,
    Samples,
    complete,
    train,
)
from tests.command import run_code

SMALL = ("GridRoom-1", "GridRoom-16", "GridMaze-9", "GridMaze-19")


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_can_be_reached(name: str) -> None:
    world = gridworld(name)
    seen, waiting = {0}, deque([0])
    while waiting:
        new = set(world.neighbours[waiting.popleft()].tolist()) - seen
        seen |= new
        waiting.extend(new)
    assert len(seen) == len(world.cells)


def test_rooms_are_as_many_as_the_name_says() -> None:
    for name in gridworlds.ROOMS:
        heights, widths, _ = gridworlds.ROOMS[name]
        assert len(heights) * len(widths) == int(name.split("-")[1])


def test_the_chain_is_the_walk() -> None:
    world = gridworld("GridMaze-9")
    chain, n = world.chain(), len(world.cells)
    assert np.allclose(chain.sum(1), 1)
    assert np.array_equal(chain, chain.T)
    states = gridworlds.walk(world, 200_000, seed=0)
    assert states.shape == (4000, gridworlds.EPISODE)
    counts = gridworlds.step_counts(states, n)
    assert counts.sum() == 4000 * (gridworlds.EPISODE - 1)
    sampled = counts / counts.sum(1, keepdims=True)
    assert np.abs(sampled - chain).max() < 6 * np.sqrt(0.25 / (counts.sum() / n))


@pytest.mark.parametrize("name", SMALL)
def test_true_eigenvectors(name: str) -> None:
    world = gridworld(name)
    true = truth(world, SLOW)
    assert np.allclose(true.vectors.T @ true.vectors, np.eye(true.vectors.shape[1]))
    assert np.allclose(world.chain() @ true.vectors, true.vectors * true.eigenvalues)
    assert np.allclose(true.vectors.sum(0), 0)
    assert sum(map(len, true.groups())) == len(true.eigenvalues) >= SLOW


def test_a_square_room_has_equal_eigenvalues() -> None:
    sizes = [len(group) for group in truth(gridworld("GridRoom-1"), SLOW).groups()]
    assert sizes == [2, 1, 2, 2, 1, 2]


@pytest.mark.parametrize("name", SMALL)
def test_scores_of_truth_and_of_chance(name: str) -> None:
    true = truth(gridworld(name), SLOW)
    found = true.vectors[:, :SLOW] * np.linspace(-3, 2, SLOW) + 5  # no sign, length or mean counts
    assert np.allclose(cosines(found, true), 1)
    assert overlap(found, true) == pytest.approx(1)
    chance = np.random.default_rng(0).standard_normal(found.shape)
    n = len(found)
    assert cosines(chance, true).mean() < 3 * np.sqrt(2 / n)  # about what two dimensions give
    assert overlap(chance, true) < 2 * SLOW / n
    assert cosines(np.zeros_like(found), true).tolist() == [0] * SLOW


def test_equal_eigenvalues_are_compared_as_subspaces() -> None:
    true = truth(gridworld("GridRoom-1"), SLOW)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    inside, across = true.vectors.copy(), true.vectors.copy()
    inside[:, :2] = inside[:, :2] @ turn
    across[:, 1:3] = across[:, 1:3] @ turn
    assert np.allclose(cosines(inside, true), 1)
    assert cosines(across, true).min() == pytest.approx(0.6)
    assert overlap(across, true) == pytest.approx(1)


def test_a_multiple_eigenvalue_at_the_end_counts_whole() -> None:
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((20, 5)))[0]
    vectors = np.linalg.qr(vectors - vectors.mean(0))[0]
    true = Truth(np.array([0.9, 0.8, 0.5, 0.5, 0.5]), vectors, 3)
    found = np.column_stack([vectors[:, :2], vectors[:, 3] + vectors[:, 4]])
    assert np.allclose(cosines(found, true), 1)
    assert overlap(found, true) == pytest.approx(1)


def test_linear_maps_of_the_outputs_are_undone() -> None:
    world = gridworld("GridMaze-19")
    true = truth(world, SLOW)
    random = np.random.default_rng(0)
    mixed = true.vectors @ random.standard_normal((SLOW, SLOW)) + random.standard_normal(SLOW)
    found = gridworlds.slowest(mixed, world.chain(), SLOW)
    assert np.allclose(cosines(found, true), 1)
    two = gridworlds.slowest(mixed[:, [0, 1, 1]], world.chain(), SLOW)
    assert np.array_equal(np.abs(two).sum(0) > 0, np.arange(SLOW) < 2)  # they span two directions
    assert not gridworlds.slowest(np.full_like(mixed, np.nan), world.chain(), SLOW).any()


@pytest.mark.parametrize("name", ["GridMaze-9", "GridMaze-19"])
def test_samples_tell_the_eigenvectors(name: str) -> None:
    ((cosine, shared),) = laplacian.closed_form_scores(Run(name, FRESH, (0,)))
    assert cosine > 0.99
    assert shared > 0.99


def test_pairs_are_a_geometric_number_of_steps_apart() -> None:
    times = np.arange(40 * gridworlds.EPISODE).reshape(1, 40, gridworlds.EPISODE)
    clips, alone = Samples(times, [0], torch.device("cpu")).draw(20)
    assert alone.shape == (20, 1, 2, 1024)
    first, second = clips.flatten(0, 2).T
    apart = (second - first).double()
    assert bool((first // gridworlds.EPISODE == second // gridworlds.EPISODE).all())
    assert apart.min() == 1
    early = apart[first % gridworlds.EPISODE == 0]  # hardly cut off by the end of the episode
    limit = 5 * early.std() / np.sqrt(len(early)) + 50 * DISCOUNT**49
    assert abs(early.mean() - 1 / (1 - DISCOUNT)) < limit


def test_networks_side_by_side_are_those_of_one_seed() -> None:
    both, second = Perceptrons([3, 4], 5), Perceptrons([4], 5)
    states = torch.rand(1, 7, 2)
    torch.testing.assert_close(both(states.expand(2, -1, -1))[1:], second(states))


def test_worlds_side_by_side_are_those_alone() -> None:
    worlds = ("GridMaze-9", "GridRoom-1")
    runs = [Run(world, ALLO, (0, 1), steps=20, samples=5000) for world in worlds]
    for both, run in zip(train(runs, "cpu"), runs, strict=True):
        (alone,) = train([run], "cpu")
        assert both.run == run
        assert np.allclose(both.cosines, alone.cosines, atol=1e-3)


def test_networks_learn_from_pictures() -> None:
    run = Run("GridMaze-9", FRESH, (0,), pixels=True, steps=200, samples=50_000)
    (found,) = train([run], "cpu")
    assert np.mean(found.cosines) > 0.9


@dataclass(frozen=True)
class Small:
    """The small version of the experiment, run once for all tests of this module."""

    folder: Path
    outcome: Outcome
    progress: list[str]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("laplacian")
    progress: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)  # each worker process takes seconds to start
        outcome = laplacian.run(Setting(Path(), folder, (0,), quick=True, progress=progress.append))
    return Small(folder, outcome, progress)


@pytest.mark.parametrize(
    ("row", "least"), [(FRESH, 0.95), (TRACE, 0.95), (GDO, 0.6), (GGDO, 0.6), (ALLO, 0.6)]
)
def test_networks_learn_a_small_maze(row: str, least: float, small: Small) -> None:
    run = Run("GridMaze-9", row, (0,), steps=300, samples=50_000)
    finished = slow_training.load(small.folder)
    (untrained,) = (found for found in finished.values() if found.run.row == UNTRAINED)
    found = finished.get(run.key) or train([run], "cpu")[0]
    assert found.run == run
    assert np.mean(found.cosines) > least > np.mean(untrained.cosines)


def test_finished_runs_are_not_repeated(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = laplacian._quick_runs((0,))
    stored = slow_training.load(small.folder)
    monkeypatch.setattr(slow_training, "train", None)
    again = complete(runs, small.folder, "cpu", 1)
    assert [found.run for found in again] == runs
    assert again == [stored[run.key] for run in runs]
    assert replace(runs[0], steps=runs[0].steps + 1).key != runs[0].key


def test_training_needs_torch_and_numpy_only() -> None:
    code = (
        "import sys, experiments.paper.slow_training\n"
        "print([m for m in ('scipy', 'sklearn', 'matplotlib', 'av') if m in sys.modules])"
    )
    assert run_code(code, bare=True)[:2] == (0, "[]\n")


def test_small_version_from_end_to_end(small: Small) -> None:
    assert len(small.progress) == 5
    assert all(claim.met for claim in small.outcome.claims), small.outcome.claims
    for picture in small.outcome.pictures:
        assert (small.folder / picture.file).stat().st_size > 5000
