"""Dataclasses from untrusted JSON, with each value checked against its type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")

MAX_INTEGER = 2**63
AnyFloat = Annotated[float, "may be NaN or infinite"]


def from_json(kind: type[T], content: Any) -> T:
    """Build a dataclass from a JSON object.

    Args:
        kind: The dataclass. Its fields may be int, float, str, bool, None, literals, and lists,
            tuples, dictionaries and dataclasses of these.
        content: The JSON object. Fields with a default may be missing.

    Raises:
        ValueError: A field is missing, unknown or of the wrong type, or a number is not finite and
            not an `AnyFloat`.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Point:
        ...     x: float
        ...     name: str | None = None
        >>> from_json(Point, {"x": 1})
        Point(x=1.0, name=None)
        >>> from_json(Point, {"x": "1"})
        Traceback (most recent call last):
        ValueError: x: expected float, got '1'
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"expected a JSON object, got {_shown(content)}")
    known: dict[str, Field[Any]] = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"unknown entry {_shown(unknown[0])}")
    required = (name for name, field in known.items() if _is_required(field))
    missing = [name for name in required if name not in content]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: convert(name, value, hints[name]) for name, value in content.items()})


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def convert(name: str, value: Any, hint: Any) -> Any:
    """Convert a JSON value to the type of a hint.

    Args:
        name: Name of the value, for the error message.
        value: The JSON value.
        hint: The type.

    Raises:
        ValueError: The value has the wrong type.

    Example:
        >>> convert("size", [48, 64], tuple[int, int])
        (48, 64)
        >>> convert("size", True, int)
        Traceback (most recent call last):
        ValueError: size: expected int, got True
    """
    origin, choices = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _convert_union(name, value, hint, choices)
    if origin is Annotated:
        return value if type(value) is float else convert(name, value, choices[0])
    if is_dataclass(hint):
        return from_json(cast(type[Any], hint), value)
    if origin is Literal and isinstance(value, str) and value in choices:
        return value
    if origin in (list, tuple) and isinstance(value, list):
        return _convert_items(name, value, hint)
    if origin is dict and isinstance(value, dict):
        return {key: convert(name, item, choices[1]) for key, item in value.items()}
    if origin is None and _is_plain(value, hint):
        return float(value) if hint is float else value
    raise ValueError(f"{name}: expected {_name(hint)}, got {_shown(value)}")


def _convert_items(name: str, value: list[Any], hint: Any) -> list[Any] | tuple[Any, ...]:
    """Return a JSON array as a list, or as a tuple of a fixed or any length."""
    choices = get_args(hint)
    if get_origin(hint) is list:
        return [convert(name, item, choices[0]) for item in value]
    if choices[-1] is ...:
        return tuple(convert(name, item, choices[0]) for item in value)
    if len(value) != len(choices):
        raise ValueError(f"{name}: expected {_name(hint)}, got {_shown(value)}")
    pairs = zip(value, choices, strict=True)
    return tuple(convert(name, item, choice) for item, choice in pairs)


def _convert_union(name: str, value: Any, hint: Any, choices: tuple[Any, ...]) -> Any:
    if value is None and NoneType in choices:
        return None
    others = [choice for choice in choices if choice is not NoneType]
    if len(others) == 1:
        return convert(name, value, others[0])
    for choice in others:
        try:
            return convert(name, value, choice)
        except ValueError:
            continue
    raise ValueError(f"{name}: expected {_name(hint)}, got {_shown(value)}")


def _is_plain(value: Any, hint: Any) -> bool:
    """Return whether this is a str, bool, None or finite number of the type of the hint."""
    if hint is float:
        return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    if hint is int:
        return type(value) is int and abs(value) < MAX_INTEGER
    return type(value) is (NoneType if hint is None else hint)


def _name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(str(choice) for choice in get_args(hint))
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _shown(value: Any) -> str:
    """Return a short text for a value of any length."""
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]}..."
