"""SlowFeatures with the tools of scikit-learn: pipelines, data frames, lists of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from ullayers.exact.slow_features import Floats, SlowFeatures

LENGTHS = [30, 45, 20]
NAMES = ["slowfeatures0", "slowfeatures1"]


@pytest.fixture
def walks() -> list[Floats]:
    """Sequences of unequal length that start far from each other."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, 4)).cumsum(axis=0) + 20 * i for i, n in enumerate(LENGTHS)]


@pytest.fixture
def frames(walks: list[Floats]) -> list[pd.DataFrame]:
    """The same as data frames, numbered on from 100."""
    return [pd.DataFrame(x, np.arange(len(x)) + 100, list("abcd")) for x in walks]


def test_a_list_becomes_a_list_of_data_frames(walks: list[Floats]) -> None:
    plain = SlowFeatures(2).fit(walks)
    model = SlowFeatures(2).set_output(transform="pandas")
    for found in (model.fit_transform(walks), model.transform(walks)):
        assert [list(frame.columns) for frame in found] == [NAMES] * 3
        for frame, expected in zip(found, plain.transform(walks), strict=True):
            assert isinstance(frame, pd.DataFrame)
            assert_array_equal(frame.to_numpy(), expected)


def test_index_and_names_of_data_frames_are_kept(frames: list[pd.DataFrame]) -> None:
    model = SlowFeatures(2).set_output(transform="pandas").fit(frames)
    assert list(model.feature_names_in_) == list("abcd")
    found = model.transform(frames)
    assert all(y.index.equals(x.index) for x, y in zip(frames, found, strict=True))
    one = model.transform(frames[0])
    assert one.index.equals(frames[0].index)
    assert list(one.columns) == list(model.get_feature_names_out()) == NAMES
    reordered = [frames[0], frames[1][list("bacd")]]
    with pytest.raises(ValueError, match="feature names"):
        SlowFeatures(2).fit(reordered)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(reordered)


def test_global_output_setting_applies_to_lists(walks: list[Floats]) -> None:
    with sklearn.config_context(transform_output="pandas"):
        assert all(isinstance(y, pd.DataFrame) for y in SlowFeatures(2).fit_transform(walks))
    assert all(isinstance(y, np.ndarray) for y in SlowFeatures(2).fit_transform(walks))


@pytest.mark.parametrize("output", ["default", "pandas"])
def test_lists_pass_through_a_pipeline(walks: list[Floats], output: str) -> None:
    def halved(sequences: list[Any]) -> list[Any]:
        return [x / 2 for x in sequences]

    pipe = make_pipeline(FunctionTransformer(halved), SlowFeatures(3), SlowFeatures(2))
    pipe[1:].set_output(transform=output)
    found = pipe.fit(walks).transform(walks)
    assert [len(y) for y in found] == LENGTHS
    expected = SlowFeatures(2).fit_transform(SlowFeatures(3).fit_transform(halved(walks)))
    for y, same in zip(found, expected, strict=True):
        assert_allclose(np.asarray(y), same)


def test_lengths_reach_the_step_of_a_pipeline(walks: list[Floats]) -> None:
    x = np.concatenate(walks)
    pipe = make_pipeline(StandardScaler(), PCA(), SlowFeatures(2))
    piped = pipe.fit_transform(x, slowfeatures__lengths=LENGTHS)
    expected = SlowFeatures(2).fit(walks).transform(x)  # invariant to the linear steps before it
    signs = np.sign((piped * expected).sum(axis=0))
    assert_allclose(piped * signs, expected, rtol=1e-6, atol=1e-8)
    assert list(pipe.get_feature_names_out()) == NAMES
    with sklearn.config_context(enable_metadata_routing=True):
        routed = make_pipeline(StandardScaler(), SlowFeatures(2).set_fit_request(lengths=True))
        routed.fit(x, lengths=LENGTHS)
    assert_allclose(np.abs(routed.transform(x)), np.abs(expected), rtol=1e-6, atol=1e-8)


def test_slow_features_feed_a_regression(walks: list[Floats]) -> None:
    x = np.concatenate(walks)
    target = x @ np.array([1.0, -2.0, 0.5, 3.0])
    pipe = make_pipeline(StandardScaler(), SlowFeatures(4), LinearRegression())
    pipe.fit(x, target, slowfeatures__lengths=LENGTHS)
    assert pipe.score(x, target) > 1 - 1e-9  # four features span the input
