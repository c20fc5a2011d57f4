"""Options of the command line: types of values, options generated from those of `ul.learn`."""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any, Protocol

from ullayers.errors import Error
from ullayers.learning.config import (
    MAX_COUNT,
    OPTIONS,
    Config,
    Setting,
    default_of,
    kind_of,
    option_name,
    setting,
)

EVERY_FRAME = (None, None)  # first and last frame of --frames
FLAG_OR_NOT: dict[str, Any] = {"action": argparse.BooleanOptionalAction, "default": None}
READING = ("size", "stride", "max_frames", "grey", "start", "end", "roi")


class OptionGroup(Protocol):
    """A parser or a group of its options."""

    def add_argument(self, *names: str, **details: Any) -> argparse.Action:
        """Add an option."""


def add_command(
    commands: Any, name: str, *, help: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command and return its parser.

    Args:
        commands: Commands of the main parser.
        name: Name of the command.
        help: One line in the list of commands.
        description: What the command does.
        examples: Command lines, each indented by two spaces.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_option(
    group: OptionGroup,
    name: str,
    *,
    text: str = "",
    default: str = "",
    choices: tuple[str, ...] = (),
) -> None:
    """Add an option of `ul.learn`, as it is described in `learning/config.py`.

    Args:
        group: Parser or group of options.
        name: Name of the option.
        text: Help; that of the definition if empty.
        default: Description of the default; that of the definition if empty.
        choices: Some of the choices; all of them if empty.
    """
    kind, all_choices = kind_of(name)
    about, value = setting(name), default_of(name)
    plain = "" if value is None or value is False else _shown(value)
    shown = default or about.if_none or plain
    details: dict[str, Any] = {"help": f"{text or about.help} (default: {shown})"}
    if not shown:
        details["help"] = text or about.help
    if kind is bool:
        details |= {"action": "store_true"} if value is False else FLAG_OR_NOT
    elif all_choices:
        details |= {"choices": choices or all_choices}
    else:
        numbers = _number(kind, about) if kind in (int, float) else str
        details |= {"type": CONVERTERS.get(name, numbers), "metavar": about.metavar}
    if name == "out":  # always there, because its folder is locked
        details |= {"default": value}
    group.add_argument(option_name(name), **details)


def add_options(parser: argparse.ArgumentParser, title: str, **texts: dict[str, str]) -> None:
    """Add all options of `ul.learn` under a heading, in the order of their definition.

    Args:
        parser: Parser of a command.
        title: The heading; empty for those without.
        **texts: Texts of `add_option` by the name of the option.
    """
    group = parser.add_argument_group(title) if title else parser
    for name in OPTIONS:
        if setting(name).group == title:
            add_option(group, name, **texts.get(name, {}))  # type: ignore[arg-type]


def number_of_objects(text: str) -> int | str:
    """Convert a number of objects, or auto.

    >>> number_of_objects("auto"), number_of_objects("3")
    ('auto', 3)
    """
    if text == "auto":
        return text
    try:
        return int(_number(int, setting("objects"))(text))
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}; or auto") from None


def wanted_objects(arguments: Namespace, config: Config) -> int | None:
    """Return the number of objects to track; None to find it.

    Args:
        arguments: Parsed command line of `ul apply`.
        config: Settings of the run.
    """
    if arguments.objects is None:
        return config.objects
    return None if arguments.objects == "auto" else int(arguments.objects)


def add_out_option(parser: argparse.ArgumentParser, default: str, metavar: str) -> None:
    """Add --out with a default folder."""
    parser.add_argument(
        "--out",
        type=path,
        default=default,
        metavar=metavar,
        help="Folder to write to. (default: %(default)s)",
    )


def whole_number(text: str) -> int:
    """Convert a whole number from 1 to 1e9."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= MAX_COUNT:
        raise ArgumentTypeError(f"expected a whole number from 1 to 1e9, got {text!r}")
    return value


def seconds(text: str) -> float:
    """Convert a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ArgumentTypeError(f"expected seconds of at least 0, got {text!r}")
    return value


def clock_time(text: str) -> float:
    """Convert a time in the video to seconds.

    >>> clock_time("12.5"), clock_time("1:30"), clock_time("1:00:02.5")
    (12.5, 90.0, 3602.5)
    """
    found = re.fullmatch(r"(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d*)?|\.\d+)", text)
    hours, minutes, rest = (float(part or 0) for part in found.groups()) if found else (0, 0, -1)
    value = 3600 * hours + 60 * minutes + rest
    if not 0 <= value < 1e9 or (":" in text and rest >= 60) or (hours and minutes >= 60):
        raise ArgumentTypeError(f"expected seconds, MM:SS or HH:MM:SS, got {text!r}")
    return value


def part_number(text: str) -> tuple[int, int]:
    """Convert K/N to the numbers of a part and of all parts.

    >>> part_number("3/20")
    (3, 20)
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ArgumentTypeError(f"expected K/N with K from 1 to N, such as 3/20: {text!r}")
    return int(found[1]), int(found[2])


def frame_range(text: str) -> tuple[int | None, int | None]:
    """Convert A:B to the first and the last frame; either may be left out.

    >>> frame_range("100:200"), frame_range("100:"), frame_range(":200")
    ((100, 200), (100, None), (None, 200))
    """
    found = re.fullmatch(r"(\d{0,15}):(\d{0,15})", text)
    first, last = (int(part) if part else None for part in found.groups()) if found else (1, 0)
    if (first, last) == EVERY_FRAME or (first is not None and last is not None and first > last):
        raise ArgumentTypeError(f"expected FIRST:LAST, such as 100:200, got {text!r}")
    return first, last


def region(text: str) -> str | tuple[int, int, int, int]:
    """Convert X,Y,W,H to numbers; any other text is the path of a mask image.

    >>> region("100,50,640,480"), region("arena.png")
    ((100, 50, 640, 480), 'arena.png')
    """
    if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*){3}", text):
        return path(text)
    x, y, width, height = (int(part) for part in text.split(","))
    return x, y, width, height


def pixels(text: str) -> float:
    """Convert a distance in pixels."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise ArgumentTypeError(f"expected pixels, more than 0, got {text!r}")
    return value


def path(text: str) -> str:
    """Convert a path, which must not be empty."""
    if not text:
        raise ArgumentTypeError("expected a name, got an empty one; is a shell variable unset?")
    return text


def frame_size(text: str) -> int | tuple[int, int]:
    """Convert the longer side of a frame, or its height and width.

    >>> frame_size("64"), frame_size("48x64")
    (64, (48, 64))
    """
    try:
        sides = [int(part) for part in text.lower().split("x")]
    except ValueError:
        sides = []
    about = setting("size")
    if len(sides) not in (1, 2) or any(about.problem(side) for side in sides):
        least, most = about.at_least, about.at_most
        raise ArgumentTypeError(f"expected 64 or 48x64, sides from {least} to {most}, got {text!r}")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _number(kind: type, about: Setting) -> Callable[[str], float]:
    """Return a function that converts and checks the value of a setting."""
    noun = "whole number" if kind is int else "number"

    def convert(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            raise ArgumentTypeError(f"expected a {noun}, got {text!r}") from None
        if problem := about.problem(value):
            raise ArgumentTypeError(f"expected a {noun} {problem}, got {text!r}")
        return value

    return convert


def _shown(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


CONVERTERS: dict[str, Callable[[str], Any]] = {
    "objects": number_of_objects,
    "size": frame_size,
    "start": clock_time,
    "end": clock_time,
    "roi": region,
    "out": path,
    "zones": path,
    "corrections": path,
}


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
    # Imported here, because they load torch, which `ul --help` does not need.
    from ullayers.run.folder import check_not_replaced
    from ullayers.run.plan import load_region

    values = {name: getattr(arguments, name, None) for name in READING}
    values = {name: value for name, value in values.items() if value is not None}
    start, end = values.get("start", 0.0), values.get("end")
    if end is not None and end <= start:
        raise Error(f"--end {end:g} is not after --start {start:g}")
    if "roi" in values:
        check_not_replaced(arguments.out, values["roi"])
        values["roi"] = load_region(values["roi"])
    return values
