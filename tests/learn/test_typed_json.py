"""JSON is turned into dataclasses only if every value has its type."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from ullayers.files import AnyFloat, from_json


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
    values: list[AnyFloat]


def test_some_numbers_may_be_nan_or_infinite() -> None:
    content = json.loads('{"values": [NaN, 1e400, -Infinity, 3, 0.5]}')
    values = from_json(Measured, content).values
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 3.0, 0.5]
    assert all(isinstance(value, float) for value in values)


@pytest.mark.parametrize("value", ["1", None, True, [], 10**400])
def test_such_numbers_are_still_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="values: expected float"):
        from_json(Measured, {"values": [value]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": "3"}, "count: expected int, got '3'"),
        ({"count": True}, "count: expected int"),
        ({"count": 3.0}, "count: expected int"),
        ({"count": 10**30}, "count: expected int"),
        ({"count": None}, "count: expected int, got None"),
        ({"kind": "x"}, "kind: expected clip or stream, got 'x'"),
        ({"rate": "x"}, "rate: expected float"),
        ({"rate": math.nan}, "rate: expected float, got nan"),
        ({"rate": math.inf}, "rate: expected float"),
        ({"rate": False}, "rate: expected float"),
        ({"name": 5}, "name: expected str"),
        ({"name": ["x" * 1000]}, "name: expected str, got list"),
        ({"kind": "x" * 1000}, r"kind: expected .*clip.*, got 'x+\.\.\."),
        ({"kind": ["clip"]}, "kind: expected"),
        ({"flag": []}, "flag: expected bool, got list"),
        ({"flag": 1}, "flag: expected bool"),
        ({"scores": [1, "x"]}, "scores: expected float"),
        ({"scores": {}}, "scores: expected list"),
        ({"bad": {"a": 1}}, "bad: expected str"),
        ({"bad": []}, "bad: expected dict"),
        ({"inner": {"size": [4, 5, 6]}}, "size: expected tuple"),
        ({"inner": {"size": "45"}}, "size: expected tuple"),
        ({"inner": []}, "expected a JSON object, got list"),
        ({"inner": {}}, "size is missing"),
        ({"other": 1}, "unknown entry 'other'"),
    ],
)
def test_values_of_another_type_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        from_json(Outer, {"count": 1, **change})
    assert len(str(error.value)) < 200
