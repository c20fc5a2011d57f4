"""The closed form agrees with the paper's equations, with scikit-learn and with itself."""

from collections.abc import Callable
from itertools import chain as joined
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.manifold import spectral_embedding

import ullayers.exact.eigen as eigen
import ullayers.exact.markov as spectral
from ullayers.exact.markov import DisconnectedError, Spectrum, closed_form, objective, transitions

Floats = NDArray[np.float64]


def random_chain(n: int = 12, seed: int = 0) -> Floats:
    """Joint probabilities of a dense chain that is far from reversible."""
    joint = np.random.default_rng(seed).random((n, n)) ** 3
    return np.asarray(joint / joint.sum())


def stochastic(n: int = 12, seed: int = 0) -> Floats:
    joint = random_chain(n, seed)
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def stationary_pairs(chain: Floats) -> Floats:
    """p_i T_ij with p from the textbook null space, by least squares."""
    n = len(chain)
    system = np.vstack([chain.T - np.eye(n), np.ones(n)])
    share = np.linalg.lstsq(system, np.append(np.zeros(n), 1), rcond=None)[0]
    return np.asarray(share[:, None] * chain)


def laplacian(pairs: Floats) -> tuple[Floats, Floats]:
    """L of Eq. 4, and p, from joint probabilities."""
    symmetric = (pairs + pairs.T) / 2
    share = symmetric.sum(axis=1)
    return np.diag(share) - symmetric, share


def eq3(y: Floats, pairs: Floats) -> float:
    """Eq. 3, term by term."""
    symmetric = (pairs + pairs.T) / 2
    share = symmetric.sum(axis=1)
    apart = ((y[:, None] - y[None]) ** 2).sum(axis=2)
    mean = share @ y
    covariance = (y.T * share) @ y - np.outer(mean, mean)
    return float((pairs * apart).sum() - np.linalg.slogdet(covariance)[1])


def edges(n: int, i: Any, j: Any, weight: Any = 1.0) -> Any:
    weights = np.broadcast_to(np.asarray(weight, dtype=float), np.shape(i))
    return sp.coo_array((weights, (i, j)), shape=(n, n)).tocsr()


def path(n: int) -> Any:
    return edges(n, np.arange(n - 1), np.arange(1, n))


def grid(rows: int, columns: int) -> Any:
    at = np.arange(rows * columns).reshape(rows, columns)
    i, j = [at[:, 1:], at[1:]], [at[:, :-1], at[:-1]]
    return edges(at.size, *(np.concatenate([x.ravel() for x in side]) for side in (i, j)))


def torus(side: int) -> Any:
    at = np.arange(side * side).reshape(side, side)
    to = np.concatenate([np.roll(at, 1, axis=axis).ravel() for axis in (0, 1)])
    return edges(at.size, np.tile(at.ravel(), 2), to)


def walk_at_random(n: int, steps: int) -> Any:
    return transitions(np.random.default_rng(1).integers(n, size=steps))


def path_with_revisits(n: int) -> Any:
    rng = np.random.default_rng(2)
    back = rng.integers(n, size=n // 50)
    return path(n) + edges(n, back, (back + rng.integers(2, 60, size=back.size)) % n)


def hubs(n: int) -> Any:
    """Return a chain in which a few states have most links, with weights over four decades."""
    rng = np.random.default_rng(3)
    hub = (n * rng.random(3 * n) ** 3).astype(int)
    return path(n) + edges(n, rng.integers(n, size=3 * n), hub, 10 ** (4 * rng.random(3 * n)))


FAMILIES: dict[str, Callable[[], Any]] = {
    "grid": lambda: grid(27, 24),
    "torus": lambda: torus(26),
    "random": lambda: walk_at_random(700, 4700),
    "path with revisits": lambda: path_with_revisits(800),
    "hubs": lambda: hubs(700),
    "star": lambda: edges(700, np.zeros(699, int), np.arange(1, 700), np.arange(1, 700) ** 1.2),
}


def projector(result: Spectrum) -> Floats:
    """The D-orthogonal projection on the embedding: the same for every rotation and sign."""
    seen = result.stationary > 0
    u = result.embedding[seen] * np.sqrt(2 * result.eigenvalues)
    u = u * np.sqrt(result.stationary[seen])[:, None]
    return np.asarray(u @ u.T)


# The optimum of Eq. 3


@pytest.mark.parametrize("d", [1, 3, 11])
def test_objective_at_the_optimum_is_d_plus_log_det(d: int) -> None:
    pairs = random_chain()
    result = closed_form(pairs, d)
    assert result.objective == pytest.approx(d + np.log(2 * result.eigenvalues).sum(), abs=1e-12)
    assert eq3(result.embedding, pairs) == pytest.approx(result.objective, abs=1e-10)
    assert (np.diff(result.eigenvalues) >= 0).all()


def test_eigenvalues_are_those_of_l_and_d() -> None:
    pairs = random_chain()
    laplace, share = laplacian(pairs)
    result = closed_form(pairs, 3)
    np.testing.assert_allclose(result.stationary, share, rtol=1e-12)
    left = laplace @ result.embedding
    right = share[:, None] * result.embedding * result.eigenvalues
    np.testing.assert_allclose(left, right, atol=1e-13)


def test_gradient_vanishes_at_the_optimum() -> None:
    pairs = random_chain()
    laplace, share = laplacian(pairs)
    y = closed_form(pairs, 4).embedding
    centred = np.diag(share) - np.outer(share, share)
    gradient = 4 * laplace @ y - 2 * centred @ y @ np.linalg.inv(y.T @ centred @ y)
    assert np.abs(gradient).max() < 1e-12
    moved = y + 0.01 * np.eye(*y.shape)
    off = 4 * laplace @ moved - 2 * centred @ moved @ np.linalg.inv(moved.T @ centred @ moved)
    assert np.abs(off).max() > 1e-5  # otherwise the line above would be trivial


@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0])
def test_no_perturbation_lowers_the_objective(size: float) -> None:
    pairs = random_chain()
    result = closed_form(pairs, 3)
    rng = np.random.default_rng(5)
    for _ in range(50):
        moved = result.embedding + size * rng.standard_normal(result.embedding.shape)
        assert eq3(moved, pairs) > result.objective


def test_a_rotation_leaves_the_objective() -> None:
    pairs = random_chain()
    result = closed_form(pairs, 3)
    rotation = np.linalg.qr(np.random.default_rng(6).standard_normal((3, 3)))[0]
    assert eq3(result.embedding @ rotation, pairs) == pytest.approx(result.objective, abs=1e-10)


def test_simulated_sequence_agrees_with_objective() -> None:
    chain, rng = stochastic(8), np.random.default_rng(7)
    cumulative, states = chain.cumsum(axis=1), [0]
    for draw in rng.random(5000):
        states.append(min(int(np.searchsorted(cumulative[states[-1]], draw)), 7))
    result = closed_form(transitions(states), 2)
    y = result.embedding[states]
    # The steps are the pairs that were counted. Only the covariance differs: with z the
    # embedding whitened under p, the T rows have second moment (1 - 1/T) I + the end points'
    # z z^T / 2T and a mean of (z_1 + z_T) / 2T, so no eigenvalue is further from 1 than this.
    ends = 2 * result.eigenvalues.max() * (y[[0, -1]] ** 2).sum()
    far = (1 + ends) / len(y)
    assert abs(objective(y) - result.objective) < -2 * np.log1p(-far)
    assert far < 0.01


def test_equals_normalised_cut_of_scikit_learn() -> None:
    affinity = random_chain(30)
    affinity = affinity + affinity.T
    np.fill_diagonal(affinity, 0)  # scikit-learn ignores it
    ours = closed_form(affinity, 3)
    theirs = spectral_embedding(affinity, n_components=3, drop_first=True, random_state=0)
    mix, *_ = np.linalg.lstsq(theirs, ours.embedding, rcond=None)
    np.testing.assert_allclose(theirs @ mix, ours.embedding, atol=1e-6 * np.abs(mix).max())


def test_pure_time_chain_gives_cosines_of_the_frame_index() -> None:
    n = 40
    result = closed_form(transitions(np.arange(n)), 3)
    for k in range(3):
        wave = np.cos((k + 1) * np.pi * np.arange(n) / (n - 1))
        np.testing.assert_allclose(result.eigenvalues[k], 1 - np.cos((k + 1) * np.pi / (n - 1)))
        wave /= np.sqrt(2 * result.eigenvalues[k] * (result.stationary @ wave**2))
        np.testing.assert_allclose(result.embedding[:, k], wave, atol=1e-9)


# Kinds of input


def test_counts_joint_probabilities_and_stochastic_matrix_agree() -> None:
    chain = stochastic()
    joint = stationary_pairs(chain)
    results = [closed_form(x, 3) for x in (chain, joint, 1e6 * joint, 1e300 * joint)]
    for result in results[1:]:
        np.testing.assert_allclose(result.embedding, results[0].embedding, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(result.stationary, results[0].stationary, rtol=1e-12)


def test_non_reversible_chain_equals_its_symmetrised_pairs() -> None:
    joint = stationary_pairs(stochastic())
    assert np.abs(joint - joint.T).max() > 1e-3
    one, two = closed_form(stochastic(), 3), closed_form((joint + joint.T) / 2, 3)
    np.testing.assert_allclose(one.embedding, two.embedding, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("convert", [sp.csr_array, sp.csc_matrix, sp.coo_array, sp.lil_matrix])
def test_sparse_and_dense_agree(convert: Callable[[Any], Any]) -> None:
    counts = np.round(100 * random_chain())
    one, two = closed_form(counts, 3), closed_form(convert(counts), 3)
    np.testing.assert_array_equal(one.embedding, two.embedding)


def test_the_input_is_not_changed() -> None:
    counts = sp.csr_array(np.array([[0.0, 2, 0], [2, 0, 1], [0, 1, 0]]))
    counts.data[0] = 0  # an explicit zero; the pair still counts in the other direction
    before = counts.copy()
    closed_form(counts, 1)
    np.testing.assert_array_equal(counts.data, before.data)
    np.testing.assert_array_equal(counts.indices, before.indices)


@pytest.mark.parametrize("kind", ["fast", "slow", "periodic"])
def test_stationary_distribution_of_a_large_chain(kind: str) -> None:
    n, rng = 2000, np.random.default_rng(8)
    i = np.arange(n)
    if kind == "fast":
        counts = sp.csr_array(rng.multinomial(20, np.full(n, 1 / n), size=n).astype(float))
    elif kind == "slow":  # a drift along a line, mostly forwards
        counts = edges(n, np.append(i[:-1], i[1:]), np.append(i[1:], i[:-1])) + 0.01 * path(n)
    else:
        counts = edges(n, i, (i + 1) % n) + edges(n, i[::4], (i[::4] + 5) % n)
    chain: Any = sp.csr_array(sp.diags_array(1 / counts.sum(axis=1)) @ counts)
    share = spectral._stationary(chain)
    np.testing.assert_allclose(share @ chain, share, atol=1e-13)
    assert share.sum() == pytest.approx(1)
    assert share.min() > 0


def test_unvisited_states_are_nan_and_change_nothing() -> None:
    joint = random_chain(6)
    holes = np.zeros((9, 9))
    seen = np.array([0, 2, 3, 5, 6, 8])
    holes[np.ix_(seen, seen)] = joint
    result, plain = closed_form(holes, 2), closed_form(joint, 2)
    np.testing.assert_array_equal(result.embedding[seen], plain.embedding)
    assert np.isnan(result.embedding[[1, 4, 7]]).all()
    np.testing.assert_array_equal(result.stationary[[1, 4, 7]], 0)


def test_transient_states_of_a_stochastic_matrix_are_nan() -> None:
    chain = np.array([[0.0, 0.5, 0.5], [0, 0.5, 0.5], [0, 0.25, 0.75]])
    result = closed_form(chain, 1)
    assert np.isnan(result.embedding[0]).all()
    np.testing.assert_allclose(result.stationary, [0, 1 / 3, 2 / 3], atol=1e-12)


# Errors


def test_disconnected_chain_names_its_parts() -> None:
    counts = transitions([[0, 1, 2, 0], [4, 5, 4]], n=6)
    with pytest.raises(DisconnectedError, match=r"2 parts of 3, 2 states") as caught:
        closed_form(counts, 1)
    np.testing.assert_array_equal(caught.value.labels, [0, 0, 0, -1, 1, 1])
    part = np.flatnonzero(caught.value.labels == 0)
    assert closed_form(counts[part][:, part], 1).embedding.shape == (3, 1)


def test_stochastic_matrix_with_two_recurrent_classes() -> None:
    chain = np.array([[1.0, 0, 0, 0], [0.3, 0.4, 0.3, 0], [0, 0, 0.5, 0.5], [0, 0, 1, 0]])
    with pytest.raises(DisconnectedError, match="2 parts") as caught:
        closed_form(chain, 1)
    labels = caught.value.labels
    assert labels[1] == -1
    assert labels[2] == labels[3] != labels[0]


@pytest.mark.parametrize(
    ("matrix", "d", "message"),
    [
        (np.ones((2, 3)), 1, r"square.*\(2, 3\)"),
        (np.ones(4), 1, r"square.*\(4,\)"),
        (np.ones((2, 2), dtype=complex), 1, "real.*complex"),
        ([[1, -1], [1, 1]], 1, ">= 0.*-1"),
        ([[1, np.nan], [1, 1]], 1, "finite.*nan"),
        ([[1, np.inf], [1, 1]], 1, "finite.*inf"),
        (np.zeros((3, 3)), 1, "not all zero"),
        (sp.csr_array((3, 3)), 1, "not all zero"),
        (np.ones((3, 3)), 0, "d <= 2.*got 0"),
        (np.ones((3, 3)), 3, "d <= 2.*got 3"),
        ([[1.0]], 1, "two states or more, got one state"),
    ],
)
def test_bad_matrices(matrix: Any, d: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        closed_form(matrix, d)


@pytest.mark.parametrize("scale", [1e-320, 1e308])
def test_the_scale_of_counts_does_not_matter(scale: float) -> None:
    counts = np.array([[1.0, 2, 0], [2, 1, 1], [0, 1, 4]])
    scaled = closed_form(counts / 4 * scale, 2)
    np.testing.assert_allclose(scaled.eigenvalues, closed_form(counts / 4, 2).eigenvalues, rtol=0.1)


def test_a_link_lost_in_rounding_is_an_error_not_garbage() -> None:
    weak = np.kron(np.eye(2), np.ones((5, 5)))
    weak[0, 9] = 1e-15
    with pytest.raises(RuntimeError, match="almost disconnected"):
        closed_form(weak, 1)


def test_missing_convergence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigen, "MAX_STEPS", 3)
    with pytest.raises(RuntimeError, match="after 3 steps"):
        closed_form(grid(50, 40), 2)


# Solvers


@pytest.mark.parametrize("family", FAMILIES)
def test_iterative_solvers_agree_with_the_dense_one(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = FAMILIES[family]()
    d = {"star": 2}.get(family, 4)
    results = {}
    for name, dense, fast in (("dense", 10**9, 0.1), ("ours", 0, 0.1), ("multilevel", 0, 9.0)):
        monkeypatch.setattr(eigen, "DENSE", dense)
        monkeypatch.setattr(eigen, "MIXES_FAST", fast)
        results[name] = closed_form(matrix, d)
        assert (results[name].iterations == 0) == (name == "dense")
    exact = results.pop("dense")
    for result in results.values():
        assert result.residual < 2 * eigen.TOLERANCE
        # An eigenvalue is off by no more than the square of its residual over the gap.
        np.testing.assert_allclose(result.eigenvalues, exact.eigenvalues, rtol=1e-8)
        np.testing.assert_allclose(result.objective, exact.objective, atol=1e-7)
        if family not in ("star", "torus"):  # their eigenspaces are larger than d or just d
            assert np.abs(projector(result) - projector(exact)).max() < 1e-3


def test_multiplicity_of_the_torus_is_found_whole() -> None:
    side = 50
    result = closed_form(torus(side), 9)
    wave = (1 - np.cos(2 * np.pi / side)) / 2
    expected = [wave] * 4 + [2 * wave] * 4 + [(1 - np.cos(4 * np.pi / side)) / 2]
    assert result.iterations > 0
    np.testing.assert_allclose(result.eigenvalues, expected, rtol=1e-8)


def test_multiplicity_of_a_fast_mixing_chain_is_found_whole() -> None:
    bits = 11  # a hypercube: eigenvalue 2/11 eleven times, then 4/11
    corner = np.arange(2**bits)
    to = np.concatenate([corner ^ (1 << bit) for bit in range(bits)])
    result = closed_form(edges(2**bits, np.tile(corner, bits), to), bits + 1)
    expected = np.append(np.full(bits, 2 / bits), 4 / bits)
    np.testing.assert_allclose(result.eigenvalues, expected, rtol=1e-8)


def test_two_runs_are_identical() -> None:
    for matrix in (grid(50, 40), walk_at_random(3000, 20000)):
        one, two = closed_form(matrix, 3), closed_form(matrix, 3)
        np.testing.assert_array_equal(one.embedding, two.embedding)
        assert one.objective == two.objective


def test_signs_are_fixed() -> None:
    embedding = closed_form(random_chain(), 4).embedding
    assert (embedding[np.abs(embedding).argmax(axis=0), np.arange(4)] > 0).all()


# The objective of a finished embedding


def test_objective_by_hand_and_with_boundaries() -> None:
    y = np.random.default_rng(9).standard_normal((30, 3))
    steps = np.delete(np.diff(y, axis=0), [11, 14], axis=0)
    spread = np.linalg.slogdet(np.cov(y.T, bias=True))[1]
    expected = (steps**2).sum(axis=1).mean() - spread
    assert objective(y, lengths=[12, 0, 3, 15]) == pytest.approx(expected, abs=1e-12)
    assert objective(torch.tensor(y, requires_grad=True), torch.tensor([12, 3, 15])) == (
        pytest.approx(expected, abs=1e-12)
    )
    assert objective(y[:, 0]) == objective(y[:, :1])
    rotation = np.linalg.qr(y[:3])[0]
    assert objective(y @ rotation) == pytest.approx(objective(y), abs=1e-12)


def test_offset_and_small_scale_do_not_spoil_the_objective() -> None:
    y = np.random.default_rng(10).standard_normal((500, 2))
    assert objective(y + 1e3) == pytest.approx(objective(y), abs=1e-11)
    small = objective(1e3 + y * [1, 1e-8])  # a spread of 1e-8 is 1e5 roundings of 1e3
    expected = (np.diff(y[:, 0]) ** 2).mean() - np.linalg.slogdet(np.cov(y.T, bias=True))[1]
    assert small == pytest.approx(expected - 2 * np.log(1e-8), abs=1e-4)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_degenerate_embeddings_cost_infinity(dtype: type) -> None:
    line = np.random.default_rng(11).standard_normal(100)
    for y in (
        np.full(100, 0.1),
        np.column_stack([line, 2.1 * line + 1e3]),
        np.column_stack([line, np.full(100, 1e3 / 3)]),
        np.random.default_rng(12).standard_normal((3, 3)),
    ):
        assert objective(y.astype(dtype)) == np.inf


@pytest.mark.parametrize(
    ("y", "lengths", "message"),
    [
        (np.ones((2, 2, 2)), None, r"\(T, d\).*\(2, 2, 2\)"),
        (np.ones((0, 2)), None, r"\(T, d\).*\(0, 2\)"),
        (3.0, None, r"\(T, d\)"),
        ([0.0, np.nan], None, "finite y, got 1 NaN or infinite$"),
        ([0.0, 1.0], [1, 1], "two rows"),
        ([0.0, 1.0], [1, 2], r"sum to 2.*\[1, 2\]"),
        ([0.0, 1.0], [3, -1], "integer lengths"),
        ([0.0, 1.0], [1.0, 1.0], "integer lengths"),
    ],
)
def test_bad_embeddings(y: Any, lengths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(y, lengths)


# Counting


@given(st.lists(st.lists(st.integers(0, 6), max_size=9), min_size=1, max_size=6))
def test_transitions_never_leak(sequences: list[list[int]]) -> None:
    expected = np.zeros((7, 7))
    for sequence in sequences:
        for a, b in pairwise(sequence):
            expected[a, b] += 1
    ids = np.array(list(joined(*sequences)), dtype=int)
    whole = transitions(ids, [len(sequence) for sequence in sequences], n=7)
    np.testing.assert_array_equal(whole.toarray(), expected)
    listed = transitions([np.array(sequence, dtype=int) for sequence in sequences], n=7)
    np.testing.assert_array_equal(listed.toarray(), expected)
    assert isinstance(whole, sp.csr_array)


def test_transitions_of_a_tensor_and_default_size() -> None:
    assert transitions(torch.tensor([0, 3, 3])).shape == (4, 4)
    assert transitions([2]).nnz == 0


@pytest.mark.parametrize(
    ("states", "options", "message"),
    [
        ([0.0, 1.0], {}, "integer.*float64"),
        ([True, False], {}, "integer.*bool"),
        (np.zeros((2, 2), int), {}, r"1-D.*\(2, 2\)"),
        ([0, -1], {}, r"got \[ 0 -1\]"),
        ([0, 5], {"n": 5}, r"n = 5.*got \[0 5\]"),
        ([], {}, r"got \[\]"),
        ([0, 1], {"lengths": [1, 2]}, r"sum to 2.*\[1, 2\]"),
        ([[0, 1], [1]], {"lengths": [2, 1]}, "lengths only"),
        ([0, 10**12], {}, r"2 ids with n = 1000000000001; .*np\.unique\(.*return_inverse=True"),
        ([0, 1], {"n": 10**12}, "2 ids with n = 1000000000000"),
    ],
)
def test_bad_states(states: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transitions(states, **options)


@pytest.mark.parametrize("how", ["float32", "rounded"])
def test_transition_matrices_of_few_digits(how: str) -> None:
    rng = np.random.default_rng(0)
    chain = rng.random((6, 6)) ** 3
    chain /= chain.sum(axis=1, keepdims=True)
    rough = chain.astype(np.float32) if how == "float32" else np.round(chain, 6)
    expected = closed_form(chain, 2)
    np.testing.assert_allclose(closed_form(rough, 2).stationary, expected.stationary, atol=1e-5)
    np.testing.assert_allclose(closed_form(rough, 2).eigenvalues, expected.eigenvalues, rtol=1e-4)


def test_whole_numbers_are_counts() -> None:
    counts = transitions([[0, 1], [1, 0], [2, 0]])
    assert np.isfinite(closed_form(counts, 1).embedding).all()
    once, twice = closed_form(counts, 1), closed_form(2 * counts, 1)
    np.testing.assert_allclose(once.embedding, twice.embedding)


@pytest.mark.parametrize("d", [1.0, 1.5, "1"])
def test_d_must_be_whole(d: object) -> None:
    with pytest.raises(ValueError, match="got"):
        closed_form([[0, 1], [1, 0]], d)  # type: ignore[arg-type]


def test_complex_numbers_and_text_raise() -> None:
    for wrong in (np.ones((5, 2)) * 1j, np.array(["a", "b"])):
        with pytest.raises(ValueError, match=f"expected numbers.* of {wrong.dtype}"):
            objective(wrong)
    with pytest.raises(ValueError, match="integer number of states"):
        transitions([0, 1], n=2.7)  # type: ignore[arg-type]
