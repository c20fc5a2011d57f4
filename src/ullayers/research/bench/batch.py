"""SlowFeatures compared with other solvers of the same problem: time to a solution, and its R2.

Every round runs each method in turn. Methods that solve lazily are made to solve.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from ullayers.exact.slow_features import Floats, SlowFeatures
from ullayers.research.bench.sources import SLOW, mixture, read_out_r2
from ullayers.research.bench.timing import BenchOptions, Row, missing

Method = Callable[[Floats], Callable[[Floats], Any]]  # fits rows, returns a function of rows

ILL_CONDITIONED = 1.5e7
CHUNKS = 10
FAST = 0.1  # seconds below which a method runs several times per round
MAX_RUNS = 4  # per round


class Problem(NamedTuple):
    """Size of a data set.

    Attributes:
        rows: Number of rows.
        features: Number of features.
        condition: Condition number of the mixing; None for a Gaussian mixing.
        rounds: Number of rounds.
    """

    rows: int
    features: int
    condition: float | None
    rounds: int

    @property
    def name(self) -> str:
        """Description for the table."""
        condition = f", condition {self.condition:.1e}" if self.condition else ""
        return f"{self.rows} x {self.features}{condition}"


PROBLEMS = [
    Problem(10_000, 50, None, 20),
    Problem(10_000, 50, ILL_CONDITIONED, 10),
    Problem(10_000, 500, None, 5),
    Problem(10_000, 2000, None, 2),
]
QUICK_PROBLEMS = [Problem(500, 10, None, 1), Problem(500, 10, 1e4, 1)]


def rows(options: BenchOptions) -> Iterator[Row]:
    """Yield a row for each method on each problem."""
    methods: dict[str, Method] = {**own_methods(), **sklearn_methods()}
    for package, peers in PEERS.items():
        try:
            methods |= peers()
        except ModuleNotFoundError:
            yield missing(package)
    for problem in QUICK_PROBLEMS if options.quick else PROBLEMS:
        x = mixture(problem.rows, problem.features, problem.condition)
        found = compare(methods, x, problem.rounds)
        if options.mdp:
            found["MDP SFANode"] = run_mdp(options.mdp, options.threads, x, problem.rounds)
        ours = found["ullayers fit"][0]
        for method, (seconds, quality) in found.items():
            solved = seconds < np.inf  # JSON has no infinity
            yield {
                "kind": "slow features",
                "data": problem.name,
                "method": method,
                "r2": quality,
                "milliseconds": round(1e3 * seconds, 3) if solved else None,
                "times ours": round(seconds / ours, 3) if solved else None,
            }


def compare(methods: dict[str, Method], x: Floats, rounds: int) -> dict[str, tuple[float, Any]]:
    """Return for each method the seconds of its fastest round, and its R2 or its error's name."""
    best = dict.fromkeys(methods, np.inf)
    quality: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other packages warn about their own numerics
        for _ in range(rounds):
            for name, method in methods.items():
                try:
                    seconds, transform = _fit(method, x)
                    best[name] = min(best[name], seconds)
                    if name not in quality:
                        quality[name] = round(read_out_r2(np.real(transform(x))), 4)
                except Exception as error:
                    quality[name] = type(error).__name__  # a failure is a result, too
    return {name: (best[name], quality[name]) for name in methods}


def _fit(method: Method, x: Floats) -> tuple[float, Callable[[Floats], Any]]:
    """Time a method; a fast one runs several times, as the first run may allocate memory."""
    best = np.inf
    runs = 0
    while runs == 0 or (best < FAST and runs < MAX_RUNS):
        begin = time.perf_counter()
        transform = method(x)
        best = min(best, time.perf_counter() - begin)
        runs += 1
    return best, transform


def own_methods() -> dict[str, Method]:
    """Return `SlowFeatures` fitted at once and in chunks."""

    def streamed(x: Floats) -> Any:
        model = SlowFeatures(SLOW)
        for chunk in np.array_split(x, CHUNKS):
            model.partial_fit(chunk)
        _ = model.components_  # solves
        return model.transform

    return {
        "ullayers fit": lambda x: SlowFeatures(SLOW).fit(x).transform,
        f"ullayers partial_fit x {CHUNKS}": streamed,
    }


def sklearn_methods() -> dict[str, Method]:
    """Return solutions written with scipy and scikit-learn only."""
    from sklearn.decomposition import PCA

    def raw_eigh(x: Floats) -> Any:
        centred = x - x.mean(axis=0)
        steps = np.diff(x, axis=0)
        _, vectors = scipy.linalg.eigh(steps.T @ steps / len(steps), centred.T @ centred / len(x))
        return lambda rows: rows @ vectors[:, :SLOW]

    def pipeline(x: Floats) -> Any:
        white = PCA(whiten=True).fit(x)
        steps = PCA().fit(np.diff(white.transform(x), axis=0))
        return lambda rows: white.transform(rows) @ steps.components_[-SLOW:].T

    return {"scipy eigh, two covariances": raw_eigh, "scikit-learn, PCA twice": pipeline}


def deeptime_methods() -> dict[str, Method]:
    """Return TICA and VAMP at a lag of one.

    By default they drop directions with less than 1e-6 of the variance, and with them the slow
    sources of ill-conditioned data (R2 0.15 and 0.14), so `epsilon` is lowered.
    """
    from deeptime.decomposition import TICA, VAMP

    def method(kind: Any) -> Method:
        def run(x: Floats) -> Any:
            model = kind(lagtime=1, dim=SLOW, epsilon=1e-18).fit(x).fetch_model()
            _ = model.singular_values  # solves
            return model.transform

        return run

    return {"deeptime TICA": method(TICA), "deeptime VAMP": method(VAMP)}


def sksfa_methods() -> dict[str, Method]:
    """Return sklearn-sfa fitted at once and in chunks."""
    from sksfa import SFA

    def streamed(x: Floats) -> Any:
        model = SFA(SLOW)
        for chunk in np.array_split(x, CHUNKS):
            model.partial(chunk)
        model.transform(x[:2])  # solves
        return model.transform

    return {
        "sklearn-sfa fit": lambda x: SFA(SLOW).fit(x).transform,
        f"sklearn-sfa partial x {CHUNKS}": streamed,
    }


PEERS: dict[str, Callable[[], dict[str, Method]]] = {
    "deeptime": deeptime_methods,
    "sklearn-sfa": sksfa_methods,
}

MDP_SCRIPT = """
import json, sys, time
import numpy as np, mdp
x, best = np.load(sys.argv[1]), float("inf")
for _ in range(int(sys.argv[4])):
    begin = time.perf_counter()
    node = mdp.nodes.SFANode(output_dim=int(sys.argv[3]))
    node.train(x)
    node.stop_training()
    best = min(best, time.perf_counter() - begin)
np.save(sys.argv[2], node.execute(x))
print(json.dumps({"seconds": best}))
"""


def run_mdp(python: str, threads: int, x: Floats, rounds: int) -> tuple[float, Any]:
    """Measure MDP in another Python, as it needs an old numpy; same result as in `compare`."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    with tempfile.TemporaryDirectory() as folder:
        inputs = str(Path(folder, "x.npy"))
        outputs = str(Path(folder, "y.npy"))
        np.save(inputs, x)
        arguments = [inputs, outputs, str(SLOW), str(rounds)]
        command = [python, "-W", "ignore", "-c", MDP_SCRIPT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | limits)
        if done.returncode:
            errors = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", done.stderr, re.MULTILINE)
            return float("inf"), (errors or ["failed"])[-1][:60]
        return json.loads(done.stdout)["seconds"], round(read_out_r2(np.load(outputs)), 4)


def line(row: Row) -> str:
    """Format a row of the table."""
    if row["milliseconds"] is None:
        return f"{row['data']:30} {row['method']:30} failed: {row['r2']}"
    r2 = row["r2"] if isinstance(row["r2"], str) else f"R2 {row['r2']:.4f}"
    return (
        f"{row['data']:30} {row['method']:30} {row['milliseconds']:10.2f} ms"
        f" {row['times ours']:8.2f} x ours  {r2}"
    )
