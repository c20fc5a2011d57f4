"""Objects of one video, recognised in another one."""

from __future__ import annotations

import numpy as np
import pytest

from ullayers.locate.tracking.identity import APPEARANCE, KnownObjects, Portrait

WITHIN = 0.5  # standard deviation of an appearance between blocks of frames


def portrait(shade: float, blocks: int = 20, seed: int = 0) -> Portrait:
    """Return the portrait of an object that differs from others by a shade of grey."""
    rng = np.random.default_rng([seed, int(100 * shade)])
    usual = np.array([shade, 5.0, shade, 5.0, shade, 5.0, 6.0, 1.5, 1.0])
    noise = np.array([WITHIN] * 6 + [0.02] * 3)
    means = usual + noise * rng.normal(size=(blocks, APPEARANCE))
    apart = means - means.mean(0)
    return Portrait(means.mean(0).tolist(), (apart.T @ apart).ravel().tolist(), blocks)


def test_objects_are_recognised_whatever_their_order() -> None:
    known = KnownObjects()
    assert known.meet([portrait(60), portrait(70), portrait(80)], "a") == ([1, 2, 3], [])
    shades = (80, 60, 70)
    numbers, recognised = known.meet([portrait(each, seed=1) for each in shades], "b")
    assert numbers == [3, 1, 2]
    assert [each.object for each in recognised] == numbers
    assert {each.video for each in recognised} == {"a"}
    assert min(each.confidence for each in recognised) > 0.99


def test_objects_that_look_the_same_are_not() -> None:
    known = KnownObjects()
    known.meet([portrait(60, seed=k) for k in range(3)], "a")
    numbers, recognised = known.meet([portrait(60, seed=k) for k in range(3, 6)], "b")
    assert (numbers, recognised) == ([1, 2, 3], [])


def test_one_that_differs_is_recognised_among_two_that_do_not() -> None:
    known = KnownObjects()
    known.meet([portrait(60), portrait(60, seed=1), portrait(90)], "a")
    again = [portrait(90, seed=2), portrait(60, seed=3), portrait(60, seed=4)]
    numbers, [recognised] = known.meet(again, "b")
    assert numbers == [3, 1, 2]
    assert recognised.object == 3


def test_one_that_is_new_has_a_number_that_nobody_had() -> None:
    known = KnownObjects()
    known.meet([portrait(60), portrait(70)], "a")
    numbers, recognised = known.meet([portrait(120), portrait(70, seed=1)], "b")
    assert numbers == [3, 2]
    assert [each.object for each in recognised] == [2]
    numbers, recognised = known.meet([portrait(120, seed=2), portrait(60, seed=2)], "c")
    assert numbers == [3, 1]
    assert [(each.object, each.video) for each in recognised] == [(3, "b"), (1, "a")]


def test_a_single_object() -> None:
    """It may be one of several that are known, but is no reference for others."""
    known = KnownObjects()
    assert known.meet([portrait(70)], "alone") == ([1], [])
    assert known.meet([portrait(60), portrait(70, seed=1)], "a") == ([1, 2], [])
    assert known.meet([portrait(70, seed=2)], "b")[0] == [2]
    assert known.meet([portrait(120)], "c") == ([1], [])
    assert known.meet([], "d") == ([], [])


def test_too_little_seen_and_numbers_that_are_used_up() -> None:
    known = KnownObjects()
    known.meet([portrait(60), portrait(70)], "a")
    assert known.meet([Portrait(), portrait(70, seed=1)], "b")[0] == [1, 2]
    known.portraits[255], known.videos[255] = portrait(200), "z"
    numbers, recognised = known.meet([portrait(120), portrait(200, seed=1)], "c")
    assert numbers == [1, 255]
    assert [each.object for each in recognised] == [255]


def test_a_damaged_portrait_is_refused() -> None:
    with pytest.raises(ValueError, match="numbers"):
        Portrait([1.0, 2.0], [0.0], 5)
