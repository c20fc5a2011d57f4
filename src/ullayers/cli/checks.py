"""Options given on a command line."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ullayers.errors import UserError
from ullayers.learn.config import OPTIONS
from ullayers.run.folder import check_not_replaced
from ullayers.run.plan import load_region

READING = ("size", "stride", "max_frames", "grey", "start", "end", "roi")


def given_options(arguments: Namespace) -> dict[str, Any]:
    """Return the options of `ul.learn` that were given."""
    values = {name: getattr(arguments, name, None) for name in OPTIONS}
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in values.items():
        if (value is False and name != "follow") or (name, value) == ("objects", "auto"):
            del given[name]
    return given


def given_reading(arguments: Namespace) -> dict[str, Any]:
    """Return the given settings for reading video, with --roi as a region."""
    values = {name: getattr(arguments, name, None) for name in READING}
    values = {name: value for name, value in values.items() if value is not None}
    start, end = values.get("start", 0.0), values.get("end")
    if end is not None and end <= start:
        raise UserError(f"--end {end:g} is not after --start {start:g}")
    if "roi" in values:
        check_not_replaced(arguments.out, values["roi"])
        values["roi"] = load_region(values["roi"])
    return values
