"""Quantiles, the same as NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ullayers.locate.scene.still import medians, quantiles

VALUES = arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 40)),
    elements=st.floats(0, 255, width=32),
)


@given(VALUES)
def test_medians_are_those_of_numpy(values: np.ndarray) -> None:
    np.testing.assert_array_equal(medians(values), np.median(values, axis=-1))


@given(VALUES, st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: np.ndarray, share: float) -> None:
    expected = np.quantile(values.astype(float), share, axis=-1)
    np.testing.assert_allclose(quantiles(values, share), expected, rtol=1e-5, atol=1e-5)


def test_many_values_are_selected_exactly() -> None:
    values = np.random.default_rng(0).normal(size=19_200).astype(np.float32)
    assert medians(values) == np.median(values)
    assert float(quantiles(values, 0.8)) == pytest.approx(np.quantile(values, 0.8), rel=1e-6)
