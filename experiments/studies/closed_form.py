"""Time, memory and accuracy of the closed form on a million states, compared with plain Lanczos.

    python -m experiments.studies.closed_form [states]

Each row runs in a separate process, which gives its peak memory, and is stopped after TIMEOUT
seconds.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, eigsh

from experiments.bench.growth import grid
from ullayers.exact.markov import closed_form, transitions

TIMEOUT = 120  # seconds
D = 4
MODULE = "experiments.studies.closed_form"


def random_graph(states: int) -> Any:
    """Return counts of one sequence of random states: six pairs per state, mixes fast."""
    return transitions(np.random.default_rng(0).integers(states, size=6 * states + 1), n=states)


def ours(counts: Any) -> dict[str, Any]:
    result = closed_form(counts, D)
    return {
        "steps": result.iterations,
        "residual": result.residual,
        "eigenvalues": result.eigenvalues.tolist(),
    }


def plain_eigsh(counts: Any) -> dict[str, Any]:
    """Compute the largest eigenvalues of the normalised walk with scipy's Lanczos solver."""
    pairs = sp.csr_array(counts + counts.T, dtype=float)
    visited = np.flatnonzero(pairs.sum(axis=1))
    pairs = pairs[visited][:, visited]
    scale = sp.diags_array(1 / np.sqrt(pairs.sum(axis=1)))
    walk = sp.csr_array(scale @ pairs @ scale)
    calls = 0

    def step(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return walk @ x

    operator = LinearOperator(walk.shape, step, dtype=float)
    start = np.random.default_rng(0).standard_normal(walk.shape[0])
    top, vectors = eigsh(operator, D + 1, which="LA", tol=1e-6, v0=start)
    values = 1 - top[:-1]
    error = np.linalg.norm(
        vectors[:, :-1] - walk @ vectors[:, :-1] - vectors[:, :-1] * values, axis=0
    )
    return {
        "steps": calls,
        "residual": float((error / values).max()),
        "eigenvalues": values[::-1].tolist(),
    }


GRAPHS: dict[str, Callable[[int], Any]] = {"random": random_graph, "grid": grid}
SOLVERS: dict[str, Callable[[Any], dict[str, Any]]] = {"ours": ours, "eigsh": plain_eigsh}


def measure(graph: str, solver: str, states: int) -> None:
    """Measure one row and print it as JSON for the parent process."""
    counts = GRAPHS[graph](states)
    before = time.perf_counter()
    row = SOLVERS[solver](counts)
    row["seconds"] = time.perf_counter() - before
    row["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(row))


def main(states: int) -> None:
    print(f"{states} states, six pairs per state, d = {D}")
    print("graph   solver  seconds  peak GB  steps  residual  eigenvalues")
    for graph in GRAPHS:
        for solver in SOLVERS:
            command = [sys.executable, "-m", MODULE, graph, solver, str(states)]
            try:
                done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=True)
            except subprocess.TimeoutExpired:
                print(f"{graph:7} {solver:7} stopped after {TIMEOUT} s")
                continue
            row = json.loads(done.stdout)
            values = " ".join(f"{value:.7g}" for value in row["eigenvalues"])
            print(
                f"{graph:7} {solver:7} {row['seconds']:7.1f} {row['gigabytes']:8.2f} "
                f"{row['steps']:6} {row['residual']:9.1e}  {values}",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) == 2 else 1_000_000)
