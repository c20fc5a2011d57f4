"""Several processes give the same weights, gradients and statistics as one."""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ullayers as ul
from tests.nn.process_cases import CASES, FAILURES, serve, train

PROCESSES = 4
STEPS = range(20)  # at the end, one stream is left for all processes
SOME = ("clips", "streams", "shared, NaN", "whiten", "maps, shared")  # with 1 to 3 processes
PER_STREAM = ("short_mean", "long_mean", "short_evidence", "long_evidence")

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"
)


class Processes:
    """Processes that wait for training runs; starting them takes seconds."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.nn.process_cases"])
        self.folder, self.stores = folder, 0
        self.results: Any = context.Queue()
        self.requests: list[Any] = [context.Queue() for _ in range(PROCESSES)]
        self.workers = [
            context.Process(target=serve, args=(rank, queue, self.results), daemon=True)
            for rank, queue in enumerate(self.requests)
        ]
        for worker in self.workers:
            worker.start()

    def run(self, world: int, jobs: list[tuple[str, Any]]) -> list[list[Any]]:
        """Return the results of each rank."""
        self.stores += 1
        store = str(self.folder / f"store{self.stores}")
        for queue in self.requests[:world]:
            queue.put((world, store, jobs))
        found: dict[int, Any] = dict(self.results.get(timeout=120) for _ in range(world))
        for each in found.values():
            assert isinstance(each, bytes), each
        return [torch.load(io.BytesIO(found[rank])) for rank in range(world)]

    def stop(self) -> None:
        for queue in self.requests:
            queue.put(None)
        for worker in self.workers:
            worker.join(timeout=10)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    started = Processes(tmp_path_factory.mktemp("stores"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """Return the result of each training run in a single process."""
    return {name: train(case, 0, 1, STEPS) for name, case in CASES.items()}


def assert_same(found: dict[str, Any], expected: dict[str, Any], limit: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if not name.endswith((*PER_STREAM, *(f"{each}_rest" for each in PER_STREAM))):
            torch.testing.assert_close(found[name], value, rtol=limit, atol=limit, msg=name)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_processes_train_as_one_does(
    world: int, processes: Processes, alone: dict[str, dict[str, Any]]
) -> None:
    names = list(CASES) if world == PROCESSES else SOME
    ranks = processes.run(world, [(name, (STEPS,)) for name in names])
    for number, name in enumerate(names):
        limit, expected = CASES[name].limit, alone[name]
        for results in ranks:
            assert_same(results[number], expected, limit)
        # The one stream that is left belongs to rank 0.
        means, *others = (results[number]["second.1.short_mean"] for results in ranks)
        torch.testing.assert_close(
            means, expected["second.1.short_mean"], rtol=limit, atol=limit, msg=name
        )
        assert all(not bool(other.any()) for other in others)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (1, 3)])
def test_training_resumes_with_another_number_of_processes(
    before: int, after: int, processes: Processes, alone: dict[str, dict[str, Any]]
) -> None:
    names = ["clips", "whiten", "maps, checkpoints"]
    begun, *_ = processes.run(before, [(name, (STEPS[:3],)) for name in names])
    states = [{k: v for k, v in each.items() if not k.startswith("grad")} for each in begun]
    jobs = [(name, (STEPS[3:], state)) for name, state in zip(names, states, strict=True)]
    for results in processes.run(after, jobs):
        for name, result in zip(names, results, strict=True):
            assert_same(result, alone[name], 1e-10)


def test_differing_calls_name_the_rank(processes: Processes) -> None:
    names = list(FAILURES)
    for results in processes.run(2, [(name, ()) for name in names]):
        errors = dict(zip(names, results, strict=True))
        assert "weight=1.0" in errors["weight"]
        assert "weight=0.5" in errors["weight"]
        assert "reduction='sum'" in errors["reduction"]
        assert "statistics='fresh'" in errors["statistics"]
        assert "on rank 0 module 6" in errors["features"]
        assert "and on rank 1 module" in errors["features"]
        assert "frames of 3" in errors["features"]
        assert "on rank 0 module 8" in errors["layers"]
        assert "and on rank 1 module 7" in errors["layers"]
        assert "synchronize=False" in errors["running"]
        assert "at least 32 frames" in errors["too few"]
        assert "got none in all 2 processes" in errors["none left"]
        assert "compile the parts" in errors["compiled"]
        assert errors["alone"] == ""


def test_one_process_needs_frames() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        ul.UL1d(2)(torch.zeros(0, 2))
