"""SlowFeatures beside what others offer for the same answer: time to a solution, and its R2.

Every round runs each method in turn. A method that solves nothing until it is asked is asked.
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
from typing import Any

import numpy as np
import scipy.linalg

from ullayers.exact.slow_features import Floats, SlowFeatures
from ullayers.research.bench.sources import SLOW, mixture, read_out_r2
from ullayers.research.bench.timing import How, Row, missing

Method = Callable[[Floats], Callable[[Floats], Any]]  # from rows to what transforms rows

ILL = 1.5e7
# rows, features, condition of the mixing, rounds
SIZES = [(10_000, 50, None, 20), (10_000, 50, ILL, 10), (10_000, 500, None, 5),
         (10_000, 2000, None, 2)]  # fmt: skip
SMALL = [(500, 10, None, 1), (500, 10, 1e4, 1)]
CHUNKS = 10
FAST = 0.1  # seconds


def rows(how: How) -> Iterator[Row]:
    """A row for each method at each size."""
    methods: dict[str, Method] = {**own_methods(), **sklearn_methods()}
    for package, peers in PEERS.items():
        try:
            methods |= peers()
        except ModuleNotFoundError:
            yield missing(package)
    for n_rows, n_features, condition, rounds in SMALL if how.quick else SIZES:
        x = mixture(n_rows, n_features, condition)
        name = f"{n_rows} x {n_features}" + (f", condition {condition:.1e}" if condition else "")
        found = compare(methods, x, rounds)
        if how.mdp:
            found["MDP SFANode"] = _mdp(how, x, rounds)
        best = found["ullayers fit"][0]
        for method, (seconds, quality) in found.items():
            known = seconds < np.inf  # JSON has no infinity
            yield {
                "kind": "slow features", "data": name, "method": method, "r2": quality,
                "milliseconds": round(1e3 * seconds, 3) if known else None,
                "times ours": round(seconds / best, 3) if known else None,
            }  # fmt: skip


def compare(methods: dict[str, Method], x: Floats, rounds: int) -> dict[str, tuple[float, Any]]:
    """Seconds of the fastest round, and R2 or the error's name, of each method."""
    best, quality = dict.fromkeys(methods, np.inf), dict[str, Any]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn of their own numerics
        for _ in range(rounds):
            for name, method in methods.items():
                try:
                    seconds, transform = _turn(method, x)
                    best[name] = min(best[name], seconds)
                    if name not in quality:
                        quality[name] = round(read_out_r2(np.real(transform(x))), 4)
                except Exception as error:
                    quality[name] = type(error).__name__  # a result too
    return {name: (best[name], quality[name]) for name in methods}


def _turn(method: Method, x: Floats) -> tuple[float, Callable[[Floats], Any]]:
    """Fast ones run a few times in a row: the first pays for memory that another has given back."""
    best, runs = np.inf, 0
    while runs == 0 or (best < FAST and runs < 4):
        begin = time.perf_counter()
        transform = method(x)
        best, runs = min(best, time.perf_counter() - begin), runs + 1
    return best, transform


def own_methods() -> dict[str, Method]:
    """`fit` at once, and in chunks."""

    def streamed(x: Floats) -> Any:
        model = SlowFeatures(SLOW)
        for chunk in np.array_split(x, CHUNKS):
            model.partial_fit(chunk)
        _ = model.components_
        return model.transform

    return {
        "ullayers fit": lambda x: SlowFeatures(SLOW).fit(x).transform,
        f"ullayers partial_fit x {CHUNKS}": streamed,
    }


def sklearn_methods() -> dict[str, Method]:
    """What can be had without a package for it."""
    from sklearn.decomposition import PCA

    def raw_eigh(x: Floats) -> Any:
        centred, steps = x - x.mean(axis=0), np.diff(x, axis=0)
        _, vectors = scipy.linalg.eigh(steps.T @ steps / len(steps), centred.T @ centred / len(x))
        return lambda rows: rows @ vectors[:, :SLOW]

    def pipeline(x: Floats) -> Any:
        white = PCA(whiten=True).fit(x)
        steps = PCA().fit(np.diff(white.transform(x), axis=0))
        return lambda rows: white.transform(rows) @ steps.components_[-SLOW:].T

    return {"scipy eigh, two covariances": raw_eigh, "scikit-learn, PCA twice": pipeline}


def deeptime_methods() -> dict[str, Method]:
    """TICA and VAMP at a lag of one.

    By default they leave out what has less than 1e-6 of the variance, and with it the slow sources
    of ill-conditioned data (R2 0.15 and 0.14).
    """
    from deeptime.decomposition import TICA, VAMP

    def method(kind: Any) -> Method:
        def run(x: Floats) -> Any:
            model = kind(lagtime=1, dim=SLOW, epsilon=1e-18).fit(x).fetch_model()
            _ = model.singular_values  # deeptime solves when asked
            return model.transform

        return run

    return {"deeptime TICA": method(TICA), "deeptime VAMP": method(VAMP)}


def sksfa_methods() -> dict[str, Method]:
    """At once, and in chunks, which are solved by the first `transform`."""
    from sksfa import SFA

    def streamed(x: Floats) -> Any:
        model = SFA(SLOW)
        for chunk in np.array_split(x, CHUNKS):
            model.partial(chunk)
        model.transform(x[:2])
        return model.transform

    return {
        "sklearn-sfa fit": lambda x: SFA(SLOW).fit(x).transform,
        f"sklearn-sfa partial x {CHUNKS}": streamed,
    }


PEERS: dict[str, Callable[[], dict[str, Method]]] = {
    "deeptime": deeptime_methods,
    "sklearn-sfa": sksfa_methods,
}

MDP = """
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


def _mdp(how: How, x: Floats, rounds: int) -> tuple[float, Any]:
    """MDP needs an old numpy, so it runs in another Python, back to back with the others."""
    assert how.mdp is not None
    with tempfile.TemporaryDirectory() as folder:
        given, taken = (str(Path(folder, name)) for name in ("x.npy", "y.npy"))
        np.save(given, x)
        count = str(how.threads)
        alone = {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
        command = [how.mdp, "-W", "ignore", "-c", MDP, given, taken, str(SLOW), str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | alone)
        if done.returncode:
            told = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", done.stderr, re.MULTILINE)
            return float("inf"), (told or ["failed"])[-1][:60]
        return json.loads(done.stdout)["seconds"], round(read_out_r2(np.load(taken)), 4)


def line(row: Row) -> str:
    """A row of the table."""
    if row["milliseconds"] is None:
        return f"{row['data']:30} {row['method']:30} failed: {row['r2']}"
    r2 = row["r2"] if isinstance(row["r2"], str) else f"R2 {row['r2']:.4f}"
    return (
        f"{row['data']:30} {row['method']:30} {row['milliseconds']:10.2f} ms"
        f" {row['times ours']:8.2f} x ours  {r2}"
    )
