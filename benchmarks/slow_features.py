"""SlowFeatures against its peers: time to a solution and R2, side by side, on one thread.

Every round runs each method once, so that a busy machine disturbs all alike; the least time counts.
sklearn-sfa's `partial` solves nothing until `transform`, so it is listed with and without that.
R2 is the worst of three sources, read out linearly: fitted on the first half, scored on the second.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from ullayers.estimator import Floats, SlowFeatures

K = 3  # slow sources, and components asked for
Fit = Callable[[Floats], Any]
Transform = Callable[[Any, Floats], Floats]
Method = tuple[Fit, Transform | None]  # no transform: the method has nothing to show yet


def slow_sources(n_rows: int) -> Floats:
    t = np.arange(n_rows)[:, None]
    return np.asarray(
        np.sin(2 * np.pi * t / np.array([2500.0, 1700.0, 1100.0]) + np.array([0.1, 0.5, 1.0]))
    )


def mixture(n_rows: int, n_features: int, spectrum: Floats | None = None) -> Floats:
    """Mix the slow sources with white noises: by a Gaussian matrix, or by one of given spectrum."""
    rng = np.random.default_rng(0)
    slow = slow_sources(n_rows)
    sources = np.hstack([slow, rng.standard_normal((n_rows, n_features - K))])
    mixing = rng.standard_normal((n_features, n_features))
    if spectrum is not None:
        left, _, right = np.linalg.svd(mixing)
        mixing = (left * spectrum) @ right
    return sources @ mixing


def read_out_r2(features: Floats, truth: Floats) -> float:
    half = len(features) // 2
    spread = features.std(axis=0)
    known = np.column_stack([features / np.where(spread > 0, spread, 1), np.ones(len(features))])
    weights = np.linalg.lstsq(known[:half], truth[:half], rcond=None)[0]
    error = ((truth[half:] - known[half:] @ weights) ** 2).sum(axis=0)
    total = ((truth[half:] - truth[half:].mean(axis=0)) ** 2).sum(axis=0)
    return float((1 - error / total).min())


def raw_eigh(x: Floats) -> Floats:
    centred, steps = x - x.mean(axis=0), np.diff(x, axis=0)
    _, vectors = scipy.linalg.eigh(steps.T @ steps / len(steps), centred.T @ centred / len(x))
    return np.asarray(vectors[:, :K])


def streamed(x: Floats) -> SlowFeatures:
    model = SlowFeatures(K)
    for chunk in np.array_split(x, 10):
        model.partial_fit(chunk)
    _ = model.components_
    return model


def by_transform(model: Any, x: Floats) -> Floats:
    return np.asarray(model.transform(x))


def own_methods() -> dict[str, Method]:
    return {
        "ullayers fit": (lambda x: SlowFeatures(K).fit(x), by_transform),
        "ullayers partial_fit x 10": (streamed, by_transform),
        "scipy eigh, two covariances": (raw_eigh, lambda vectors, x: x @ vectors),
    }


def deeptime_methods() -> dict[str, Method]:
    from deeptime.decomposition import TICA, VAMP

    def fit(kind: Any) -> Fit:
        def run(x: Floats) -> Any:
            model = kind(lagtime=1, dim=K).fit(x).fetch_model()
            _ = model.singular_values  # deeptime solves when asked
            return model

        return run

    return {"deeptime TICA": (fit(TICA), by_transform), "deeptime VAMP": (fit(VAMP), by_transform)}


def sksfa_methods() -> dict[str, Method]:
    from sksfa import SFA

    def partial(x: Floats) -> Any:
        model = SFA(K)
        for chunk in np.array_split(x, 10):
            model.partial(chunk)
        return model

    def partial_solved(x: Floats) -> Any:
        model = partial(x)
        model.transform(x[:2])
        return model

    return {
        "sklearn-sfa fit": (lambda x: SFA(K).fit(x), by_transform),
        "sklearn-sfa partial x 10": (partial_solved, by_transform),
        "sklearn-sfa partial x 10, unsolved": (partial, None),
    }


def all_methods() -> dict[str, Method]:
    methods = own_methods()
    for package, peers in (("deeptime", deeptime_methods), ("sklearn-sfa", sksfa_methods)):
        try:
            methods |= peers()
        except ModuleNotFoundError as error:
            print(f"{package} is left out ({error}); `pip install 'ullayers[peers]'` brings it")
    return methods


def attempt(fit: Fit, x: Floats) -> tuple[float, Any]:
    """Seconds and result of one run; a method that fails has its error for a result."""
    start = time.perf_counter()
    try:
        result = fit(x)
    except Exception as error:
        return np.inf, error
    return time.perf_counter() - start, result


def quality(transform: Transform | None, result: Any, x: Floats) -> str:
    if transform is None:
        return "-"
    if isinstance(result, Exception):
        return f"failed: {type(result).__name__}"
    try:
        return f"{read_out_r2(np.real(transform(result, x)), slow_sources(len(x))):.4f}"
    except Exception as error:
        return f"failed: {type(error).__name__}"


def compare(title: str, x: Floats, rounds: int) -> None:
    methods = all_methods()
    best = dict.fromkeys(methods, np.inf)
    results: dict[str, Any] = {}
    for _ in range(rounds):
        for name, (fit, _) in methods.items():
            seconds, results[name] = attempt(fit, x)
            best[name] = min(best[name], seconds)
    print(f"\n{title}; {rounds} rounds\n  {'':36s} {'ms':>10s}   R2")
    for name, (_, transform) in methods.items():
        score = quality(transform, results[name], x)
        print(f"  {name:36s} {1e3 * best[name]:10.2f}   {score}")


def main() -> None:
    warnings.simplefilter("ignore")  # peers warn of their own numerics
    with threadpool_limits(limits=1):
        compare("T = 10000, d = 50", mixture(10_000, 50), rounds=50)
        ill = mixture(10_000, 50, np.logspace(0, -7.2, 50))
        compare("T = 10000, d = 50, condition 1.6e7", ill, rounds=5)
        compare("T = 10000, d = 500", mixture(10_000, 500), rounds=5)
        compare("T = 10000, d = 2000", mixture(10_000, 2000), rounds=1)


if __name__ == "__main__":
    main()
