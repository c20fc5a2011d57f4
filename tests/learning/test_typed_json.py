"""JSON is turned into dataclasses only if every value has its type."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from ullayers.files import from_json


@dataclass(frozen=True)
class Inner:
    size: tuple[int, int]


@dataclass(frozen=True)
class Outer:
    count: int
    rate: float = 0.5
    name: str | None = None
    kind: Literal["clip", "stream"] = "clip"
    flag: bool = False
    scores: list[float | None] | None = None
    bad: dict[str, str] = field(default_factory=dict)
    inner: Inner | None = None


def test_values_of_the_right_type_are_taken() -> None:
    content = {
        "count": 3,
        "rate": 1,
        "name": "a",
        "kind": "stream",
        "flag": True,
        "scores": [1, None],
        "bad": {"a": "b"},
        "inner": {"size": [4, 5]},
    }
    found = from_json(Outer, content)
    assert found == Outer(3, 1.0, "a", "stream", True, [1.0, None], {"a": "b"}, Inner((4, 5)))
    assert isinstance(found.rate, float)
    assert from_json(Outer, {"count": 0}) == Outer(0)


@dataclass(frozen=True)
class Measured:
    values: list[float]


def test_some_numbers_may_be_nan_or_infinite() -> None:
    content = json.loads('{"values": [NaN, 1e400, -Infinity, 3, 0.5]}')
    values = from_json(Measured, content, finite=False).values
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 3.0, 0.5]
    assert all(isinstance(value, float) for value in values)


@pytest.mark.parametrize("value", ["1", None, True, [], 10**400])
def test_such_numbers_are_still_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected (float|smaller whole numbers)"):
        from_json(Measured, {"values": [value]}, finite=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": "3"}, "count: expected int, got str"),
        ({"count": True}, "count: expected int, got bool"),
        ({"count": 3.5}, "count: expected int, got float"),
        ({"count": 10**30}, "expected smaller whole numbers"),
        ({"count": None}, "count: expected int, got null"),
        ({"kind": "x"}, "kind: invalid enum value 'x'"),
        ({"rate": "x"}, "rate: expected float, got str"),
        ({"rate": math.nan}, "expected finite numbers, got nan"),
        ({"rate": math.inf}, "expected finite numbers, got inf"),
        ({"rate": False}, "rate: expected float, got bool"),
        ({"name": 5}, "name: expected str | null, got int"),
        ({"name": ["x" * 1000]}, "name: expected str | null, got array"),
        ({"kind": ["clip"]}, "kind: expected str, got array"),
        ({"flag": []}, "flag: expected bool, got array"),
        ({"flag": 1}, "flag: expected bool, got int"),
        ({"scores": [1, "x"]}, "scores[1]: expected float | null, got str"),
        ({"scores": {}}, "scores: expected array | null, got object"),
        ({"bad": {"a": 1}}, "bad[...]: expected str, got int"),
        ({"bad": []}, "bad: expected object, got array"),
        ({"inner": {"size": [4, 5, 6]}}, "inner.size: expected array of length 2, got 3"),
        ({"inner": {"size": "45"}}, "inner.size: expected array, got str"),
        ({"inner": []}, "inner: expected object | null, got array"),
        ({"inner": {}}, "inner: size is missing"),
        ({"inner": {"size": [4, 5], "more": 1}}, "unknown entry 'more'"),
        ({"other": 1}, "unknown entry 'other'"),
    ],
)
def test_values_of_another_type_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        from_json(Outer, {"count": 1, **change})
    assert len(str(error.value)) < 200
