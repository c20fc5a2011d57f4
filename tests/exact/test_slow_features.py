"""SlowFeatures: agrees with its definition, for any chunks, and handles degenerate input."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import eigh
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import ullayers.exact.slow_features as estimator
import ullayers.exact.slow_moments as slow_moments
from tests.command import run_code
from ullayers.exact.slow_features import Floats, RankError, SlowFeatures

SEEDS = st.integers(0, 2**32 - 1)


@contextmanager
def small_blocks() -> Iterator[None]:
    """Blocks of about twelve rows and tiles of eight, so that small data crosses their edges."""
    with patch.object(estimator, "BLOCK_VALUES", 64), patch.object(slow_moments, "TILE_VALUES", 40):
        yield


def slow_sources(n_rows: int, n_fast: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Return three slow sinusoids, and the same with white noise features."""
    rng, t = np.random.default_rng(seed), np.arange(n_rows)[:, None]
    slow = np.sin(2 * np.pi * t / np.array([1000.0, 700.0, 450.0]) + np.array([0.1, 0.5, 1.0]))
    return slow, np.hstack([slow, rng.standard_normal((n_rows, n_fast))])


def rotation(n: int, seed: int) -> Floats:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]


def walk(n_rows: int, n: int, seed: int) -> Floats:
    """Well-conditioned data with features of different speed."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n_rows, n))
    memory = np.linspace(0.0, 0.8, n)
    for t in range(1, n_rows):
        x[t] += memory * x[t - 1]
    return x @ rotation(n, seed + 1)


def read_out_r2(features: Floats, truth: Floats) -> float:
    """Worst R2 of a linear read-out, fitted on the first half and scored on the second."""
    half = len(features) // 2
    known = np.column_stack([features / features.std(axis=0), np.ones(len(features))])
    weights = np.linalg.lstsq(known[:half], truth[:half], rcond=None)[0]
    error = ((truth[half:] - known[half:] @ weights) ** 2).sum(axis=0)
    total = ((truth[half:] - truth[half:].mean(axis=0)) ** 2).sum(axis=0)
    return float((1 - error / total).min())


def held_out_r2(X: Floats, truth: Floats, **parameters: Any) -> float:
    """Slow features learned on the first half alone, then `read_out_r2`."""
    model = SlowFeatures(3, **parameters).fit(X[: len(X) // 2])
    return read_out_r2(model.transform(X), truth)


def brute_force(sequences: list[Floats], k: int, weights: Floats | None = None) -> Any:
    """(lambda, outputs up to sign) from the definition, by a dense generalised eigenproblem."""
    x = np.concatenate(sequences)
    w = np.ones(len(x)) if weights is None else weights
    d = np.concatenate([np.diff(s, axis=0) for s in sequences])
    inner = np.concatenate([np.r_[False, np.ones(len(s) - 1, dtype=bool)] for s in sequences])
    centred = x - np.average(x, axis=0, weights=w)
    cov = (centred.T * w) @ centred / w.sum()
    step = (d.T * w[inner]) @ d / w[inner].sum()
    values, vectors = eigh(step, cov)
    return values[:k] / 2, centred @ (vectors[:, :k] / np.sqrt(values[:k]))


def assert_same_outputs(y: Floats, expected: Floats, rtol: float = 1e-7) -> None:
    signs = np.sign((y * expected).sum(axis=0))
    scale = np.abs(expected).max(axis=0)
    assert_allclose(y * signs / scale, expected / scale, atol=rtol)


def cut(x: Floats, edges: list[int]) -> list[Floats]:
    return [part for part in np.split(x, sorted(e % len(x) for e in edges)) if len(part)]


MODELS = [SlowFeatures(), SlowFeatures(degree=2), SlowFeatures(half_life=50.0)]


@parametrize_with_checks(MODELS)  # type: ignore[untyped-decorator]
def test_scikit_learn_conventions(estimator: BaseEstimator, check: Any) -> None:
    check(estimator)


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    edges=st.lists(st.integers(1, 10**6), max_size=12),
    half=st.sampled_from([None, 30.0]),
)
def test_any_chunks_equal_the_whole(seed: int, edges: list[int], half: float | None) -> None:
    x = walk(120, 5, seed)
    with small_blocks():
        whole = SlowFeatures(3, half_life=half).fit(x)
        chunked = SlowFeatures(3, half_life=half)
        for part in cut(x, edges):
            chunked.partial_fit(part)
        assert_allclose(chunked.components_, whole.components_, rtol=1e-9, atol=1e-12)
        assert_allclose(chunked.mean_, whole.mean_, atol=1e-12)
    assert chunked.n_samples_seen_ == 120
    unblocked = SlowFeatures(3, half_life=half).fit(x)
    assert_allclose(chunked.eigenvalues_, unblocked.eigenvalues_, rtol=1e-8)
    assert_same_outputs(chunked.transform(x), unblocked.transform(x))


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, edges=st.lists(st.integers(1, 10**6), max_size=8))
def test_any_chunks_equal_the_whole_on_ill_conditioned_data(seed: int, edges: list[int]) -> None:
    x = walk(200, 6, seed) * np.logspace(0, -7, 6) @ rotation(6, seed + 2)
    with small_blocks():
        chunked = SlowFeatures(3)
        for part in cut(x, edges):
            chunked.partial_fit(part)
        assert_same_outputs(chunked.transform(x), SlowFeatures(3).fit_transform(x), 1e-6)
    assert_same_outputs(chunked.transform(x), SlowFeatures(3).fit_transform(x), 1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, lengths=st.lists(st.integers(1, 30), min_size=1, max_size=9), data=st.data())
def test_sequences_never_leak(seed: int, lengths: list[int], data: st.DataObject) -> None:
    lengths = [25, *lengths, 2]
    half = data.draw(st.sampled_from([None, 40.0]))
    rng = np.random.default_rng(seed)
    sequences = [walk(n, 4, seed + i) + 30 * rng.standard_normal(4) for i, n in enumerate(lengths)]
    x = np.concatenate(sequences)
    weights = None if half is None else 0.5 ** (np.arange(len(x))[::-1] / half)
    values, outputs = brute_force(sequences, 2, weights)
    with small_blocks():
        listed = SlowFeatures(2, half_life=half).fit(sequences)
        packed = SlowFeatures(2, half_life=half).fit(x, lengths=lengths)
        parted = SlowFeatures(2, half_life=half).partial_fit(sequences[:1])
        parted.partial_fit(tuple(sequences[1:]))
    for model in (listed, packed, parted):
        assert_allclose(model.eigenvalues_, values, rtol=1e-6)
        assert_same_outputs(model.transform(x), outputs, 1e-5)
    assert [len(y) for y in listed.transform(sequences)] == lengths


def test_arrays_continue_and_sequences_do_not() -> None:
    a, b, c = (walk(40, 3, seed) + 5 * seed for seed in range(3))
    joined = SlowFeatures(2).partial_fit(a).partial_fit(b)
    assert_array_equal(joined.components_, SlowFeatures(2).fit(np.concatenate([a, b])).components_)
    apart = SlowFeatures(2).partial_fit([a]).partial_fit(b).partial_fit([c])
    assert_array_equal(apart.components_, SlowFeatures(2).fit([a, b, c]).components_)
    assert np.abs(joined.eigenvalues_ - SlowFeatures(2).fit([a, b]).eigenvalues_).max() > 1e-3


def test_iterators_stream() -> None:
    x = walk(500, 4, 0)
    buffer = np.empty((50, 4))

    def reuse_one_buffer() -> Iterator[Floats]:
        for part in np.split(x, 10):
            buffer[:] = part
            yield buffer

    with small_blocks():
        streamed = SlowFeatures().fit(reuse_one_buffer())
        assert streamed._n_waiting < 20  # memory is bounded for a stream of any length
        assert_allclose(streamed.components_, SlowFeatures().fit(x).components_, rtol=1e-9)
        apart = SlowFeatures().fit([part] for part in np.split(x, 10))
        assert_allclose(apart.eigenvalues_, SlowFeatures().fit(np.split(x, 10)).eigenvalues_)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, scale=st.floats(-9, 9), offset=st.floats(-1e4, 1e4))
def test_units_and_origin_do_not_matter(seed: int, scale: float, offset: float) -> None:
    x = walk(150, 4, seed)
    units = 10.0 ** (scale * np.array([1.0, -1.0, 0.5, 0.0]))
    model, moved = SlowFeatures(2).fit(x), SlowFeatures(2).fit((x + offset) * units)
    assert_allclose(moved.eigenvalues_, model.eigenvalues_, rtol=1e-7)
    assert_same_outputs(moved.transform((x + offset) * units), model.transform(x), 1e-6)


def mixtures() -> dict[str, Floats]:
    _, sources = slow_sources(10_000, 47)
    mixed = sources @ np.random.default_rng(1).standard_normal((50, 50))
    spectrum = np.logspace(0, -7.2, 50)
    small = (mixed / mixed.std() * 1e-6 + 1e-3).astype(np.float32).astype(np.float64)
    padded = np.hstack([mixed, mixed[:, :7], np.full((len(mixed), 2), 1234.5678), mixed[:, :1] * 3])
    return {
        "well conditioned": mixed,
        "condition 1.6e7": sources @ (rotation(50, 2) * spectrum) @ rotation(50, 3),
        "condition 1.6e7, offset": sources @ (rotation(50, 2) * spectrum) @ rotation(50, 3) + 1.0,
        "scale 1e-6": mixed * 1e-6,
        "float32, scale 1e-6, offset 1e3 deviations": small,
        "duplicate and constant columns": padded,
    }


@pytest.mark.parametrize("name", list(mixtures()))
def test_slow_sources_are_recovered(name: str) -> None:
    slow, _ = slow_sources(10_000, 47)
    x = mixtures()[name]
    dtype = np.float32 if "float32" in name else np.float64
    assert held_out_r2(x.astype(dtype), slow) >= 0.999
    assert SlowFeatures(3).fit(x).rank_ == 50


def test_slow_sources_are_recovered_from_an_ill_conditioned_stream() -> None:
    slow, _ = slow_sources(10_000, 47)
    x = mixtures()["condition 1.6e7"]
    with patch.multiple(estimator, BLOCK_VALUES=50 * 300):
        model = SlowFeatures(3).fit(iter(np.array_split(x, 77)))
    assert read_out_r2(model.transform(x), slow) >= 0.999
    assert_allclose(np.square(np.diff(model.transform(x), axis=0)).mean(axis=0), 1.0, rtol=1e-6)


def test_fewer_rows_than_features() -> None:
    slow = np.sin(np.arange(40) / 10)[:, None]
    x = slow + 0.1 * np.random.default_rng(0).standard_normal((40, 100))
    model = SlowFeatures(2).fit(x)
    assert model.rank_ == 39
    assert_allclose(np.square(np.diff(model.transform(x), axis=0)).mean(axis=0), 1.0, rtol=1e-6)


def test_rank_errors_name_both_numbers() -> None:
    x = np.outer(np.sin(np.arange(50)), [1.0, 2.0, 3.0])
    with pytest.raises(RankError, match=r"rank_=1 .*n_components=2"):
        SlowFeatures(2).fit(x)
    with pytest.raises(RankError, match="every feature is constant"):
        SlowFeatures(1).fit(np.full((50, 3), 0.1))
    assert SlowFeatures(1).fit(x).rank_ == 1


def test_an_offset_far_from_the_first_row_costs_no_digits() -> None:
    x = walk(5000, 4, 0)
    far = x + 1e6
    far[0] = 0.0
    expected = SlowFeatures(2).fit([far[:1], x[1:] + 1e6])
    values, _ = brute_force([far[:1] - 1e6, x[1:]], 2)
    assert_allclose(expected.eigenvalues_, values, rtol=1e-6)


def test_eq5_scaling_objective_and_optimum() -> None:
    x = walk(3000, 6, 3) + 10.0
    model = SlowFeatures(3).fit(x)

    def objective(y: Floats) -> float:
        step = np.square(np.diff(y, axis=0)).sum(axis=1).mean()
        return float(step - np.linalg.slogdet(np.cov(y.T, ddof=0))[1])

    y = model.transform(x)
    assert_allclose(np.square(np.diff(y, axis=0)).mean(axis=0), 1.0, rtol=1e-9)
    assert_allclose(y.var(axis=0), 1 / (2 * model.eigenvalues_), rtol=1e-9)
    assert_allclose(y.mean(axis=0), 0.0, atol=1e-9)
    assert_allclose(model.objective_, objective(y), rtol=1e-9)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 1e-1, 1.0):
        for _ in range(50):
            nudge = size * rng.standard_normal(model.components_.shape)
            assert objective((x - model.mean_) @ (model.components_ + nudge).T) > model.objective_


def test_quadratic_features_find_a_hidden_product() -> None:
    rng, t = np.random.default_rng(0), np.arange(6000)
    carrier = rng.choice([-1.0, 1.0], t.size) * (1 + rng.random(t.size))
    slow = np.sin(2 * np.pi * t / 1500)
    x = np.column_stack([carrier, (2 + slow) / carrier]) + 1e8
    assert held_out_r2_of(SlowFeatures(1, degree=2), x, slow) >= 0.999
    assert held_out_r2_of(SlowFeatures(1), x, slow) < 0.5
    whole = SlowFeatures(1, degree=2).fit(x)
    chunked = SlowFeatures(1, degree=2)
    for part in np.array_split(x, 23):
        chunked.partial_fit(part)
    assert_allclose(chunked.components_, whole.components_, rtol=1e-9)
    assert whole.components_.shape == (1, 5)


def held_out_r2_of(model: SlowFeatures, x: Floats, truth: Floats) -> float:
    model.fit(x[: len(x) // 2])
    return read_out_r2(model.transform(x), truth[:, None])


def test_half_life_follows_a_change_of_mixing() -> None:
    slow, sources = slow_sources(20_000, 5)
    x = np.concatenate([sources[:10_000] @ rotation(8, 1), sources[10_000:] @ rotation(8, 2)])
    forgets, keeps = (SlowFeatures(3, half_life=h).fit(x) for h in (700.0, None))
    assert read_out_r2(forgets.transform(x[10_000:]), slow[10_000:]) >= 0.999
    assert read_out_r2(keeps.transform(x[10_000:]), slow[10_000:]) < 0.99


def test_a_feature_that_never_changes_inside_sequences() -> None:
    mixing = rotation(4, 0)
    sequences = [np.hstack([np.full((60, 1), i), walk(60, 3, i)]) @ mixing for i in range(5)]
    model = SlowFeatures(2).fit(sequences)
    label = np.repeat(np.arange(5.0), 60)
    y = np.concatenate(model.transform(sequences))
    assert abs(np.corrcoef(y[:, 0], label)[0, 1]) > 1 - 1e-9
    assert_allclose(2 * model.eigenvalues_[0], np.finfo(float).eps)
    assert_allclose(y[:, 0].std(), 6.7e7, rtol=0.01)
    assert np.isfinite(model.objective_)


def test_signs_are_fixed_and_results_repeat() -> None:
    x = walk(400, 5, 7)
    model = SlowFeatures(4).fit(x)
    decisive = np.abs(model.components_).argmax(axis=1)
    assert (model.components_[np.arange(4), decisive] > 0).all()
    assert_array_equal(model.components_, SlowFeatures(4).fit(x).components_)
    assert_allclose(SlowFeatures(4).fit(-x).components_, model.components_, rtol=1e-9)
    assert_array_equal(model.components_, SlowFeatures(4).fit(np.asfortranarray(x)).components_)


def test_pickle_clone_and_pipeline() -> None:
    x = walk(300, 4, 0)
    model = SlowFeatures(2).partial_fit(x[:100])
    revived = pickle.loads(pickle.dumps(model)).partial_fit(x[100:])
    assert_array_equal(revived.components_, SlowFeatures(2).fit(x).components_)
    assert not hasattr(clone(model), "components_")
    piped = make_pipeline(StandardScaler(), SlowFeatures(2)).fit(x)
    assert_same_outputs(piped.transform(x), SlowFeatures(2).fit_transform(x))
    assert list(piped.get_feature_names_out()) == ["slowfeatures0", "slowfeatures1"]


def test_solution_is_computed_on_first_use() -> None:
    x = walk(50, 3, 0)
    with patch.object(estimator, "solve", wraps=slow_moments.solve) as solve:
        model = SlowFeatures(2).partial_fit(x[:20]).partial_fit(x[20:])
        assert solve.call_count == 0
        assert model.transform(x).shape == (50, 2)
        assert model.rank_ == 3
        assert solve.call_count == 1
    with pytest.raises(NotFittedError, match="call fit first"):
        SlowFeatures().transform(x)
    with pytest.raises(NotFittedError, match="at least two consecutive rows"):
        _ = SlowFeatures().partial_fit(x[:1]).components_
    assert_array_equal(
        SlowFeatures().partial_fit(x[:1]).partial_fit(x[1:]).mean_, SlowFeatures().fit(x).mean_
    )


GOOD = walk(60, 3, 0)
HOLED = np.where(np.arange(180).reshape(60, 3) == 100, np.nan, GOOD)
BAD: dict[str, tuple[Any, Any, str]] = {
    "features": (np.ones((5, 4)), None, "4 features.*expecting 3"),
    "nan": (HOLED, None, "NaN"),
    "infinity": (np.where(np.isnan(HOLED), np.inf, HOLED), None, "infinity"),
    "too large": (GOOD * 1e200, None, "squares"),
    "one axis": (np.ones(3), None, "Expected 2D array"),
    "empty": (np.ones((0, 3)), None, "0 sample"),
    "lengths": (GOOD, [30, 31], "60 rows, got 61"),
    "zero length": (GOOD, [0, 60], "positive integers"),
    "lengths twice": ([GOOD], [60], "list of sequences"),
    "one row each": ([GOOD[:1], GOOD[:1]], None, "two rows"),
    "bad second": ([GOOD, HOLED], None, "NaN"),
    "unequal": ([GOOD, GOOD[:, :2]], None, "2 features.*expecting 3"),
    "iterator": (iter([GOOD]), None, "iterator"),
}


@pytest.mark.parametrize("name", list(BAD))
@pytest.mark.parametrize("block", [2**19, 64])
def test_bad_input_changes_nothing(name: str, block: int) -> None:
    x, lengths, message = BAD[name]
    with patch.multiple(estimator, BLOCK_VALUES=block):
        model, control = SlowFeatures(2).partial_fit(GOOD), SlowFeatures(2).partial_fit(GOOD)
        before = model.components_.copy()
        with pytest.raises(ValueError, match=message):
            model.partial_fit(x, lengths=lengths)
        assert_array_equal(model.components_, before)
        if name not in ("features", "iterator"):  # these are valid for fit
            with pytest.raises(ValueError, match=message):
                model.fit(x, lengths=lengths)
        assert (model.n_samples_seen_, model.n_features_in_) == (60, 3)
        more = walk(70, 3, 5)
        assert_array_equal(
            model.partial_fit(more).components_, control.partial_fit(more).components_
        )


@pytest.mark.parametrize(
    "parameters",
    [{"n_components": 0}, {"n_components": 1.5}, {"degree": 0}, {"half_life": -1.0}, {"tol": "x"}],
)
def test_bad_parameters(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"expected {next(iter(parameters))}"):
        SlowFeatures(**parameters).fit(GOOD)
    with pytest.raises(ValueError, match="n_samples=1"):
        SlowFeatures().fit(GOOD[:1])


def test_tol_cuts_narrow_directions_of_any_input() -> None:
    rng = np.random.default_rng(0)
    walk = rng.standard_normal(3000).cumsum()
    X = np.c_[walk, walk + 1e-3 * walk.std() * rng.standard_normal(3000)]
    assert SlowFeatures(1).fit(X).rank_ == 2
    assert SlowFeatures(1, tol=0.1).fit(X).rank_ == 1
    with pytest.raises(ValueError, match="tol < 1"):
        SlowFeatures(1, tol=2.0).fit(X)


def test_parameters_changed_on_the_way() -> None:
    X = np.random.default_rng(0).standard_normal((50, 3))
    model = SlowFeatures(1).partial_fit(X)
    model.degree = 2
    with pytest.raises(ValueError, match="degree"):
        model.partial_fit(X)
    with pytest.raises(ValueError, match="degree"):
        model.transform(X)
    model.degree = 1
    assert model.transform(X).shape == (50, 1)
    model.n_components = 2
    assert model.transform(X).shape == (50, 2)
    model.n_components = 0
    with pytest.raises(ValueError, match="n_components"):
        model.transform(X)


def test_spent_iterators_and_empty_lists() -> None:
    X = np.random.default_rng(0).standard_normal((50, 3))
    with pytest.raises(ValueError, match="iterator"):
        SlowFeatures(1).fit_transform(iter([X, X]))
    with pytest.raises(ValueError, match="empty list"):
        SlowFeatures(1).fit([])


def test_tensors_that_require_gradients() -> None:
    x = walk(40, 3, 0)
    tensor = torch.tensor(x, requires_grad=True)
    expected = SlowFeatures().fit_transform(x)
    assert_array_equal(SlowFeatures().fit_transform(tensor), expected)
    model = SlowFeatures().partial_fit(list(tensor[None]))
    assert_array_equal(model.transform([tensor])[0], expected)


@given(SEEDS, st.integers(1, 4), st.booleans())
def test_components_without_the_estimator_are_the_same(seed: int, n: int, dependent: bool) -> None:
    x = walk(60, 4, seed)
    if dependent:  # so that sums of squares are replaced by roots
        x = np.column_stack([x, x[:, 0] * (1 + 1e-9)])
    parts = [x[:20], x[20:21], x[21:]]
    components = slow_moments.slowest_components(parts, n)
    assert_array_equal(components, SlowFeatures(n).fit(parts).components_)


def test_components_without_the_estimator_refuse_the_same() -> None:
    x = np.outer(np.arange(9.0), [1, 2])
    with pytest.raises(RankError, match="rank_=1"):
        slow_moments.slowest_components([x], 2)
    for bad in ([x[:1], x[1:2]], [np.full((3, 2), np.nan)], [np.full((3, 2), 1e200)]):
        with np.errstate(over="ignore"), pytest.raises(ValueError, match="expected"):
            slow_moments.slowest_components(bad, 1)
    with pytest.raises(ValueError, match="need at least one array"):
        slow_moments.slowest_components([], 1)


def test_a_missing_scikit_learn_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['sklearn'] = None\n"
        "import ullayers as ul\n"
        "try: ul.SlowFeatures\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    found = run_code(code, bare=True)
    expected = "SlowFeatures needs the package scikit-learn: pip install 'ullayers[sklearn]'\n"
    assert found[:2] == (0, expected)
