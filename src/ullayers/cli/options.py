"""Command-line options: value types, options generated from `Config`, and shared groups."""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any, Protocol

from ullayers.learn.config import (
    DEFAULT_SIZE,
    MAX_COUNT,
    Config,
    Setting,
    default_of,
    kind_of,
    option_name,
    setting,
)

MIN_SIDE, MAX_SIDE = 8, 8192  # pixels of --size
EVERY_FRAME = (None, None)  # first and last frame of --frames


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


def add_config_option(
    group: OptionGroup, name: str, choices: tuple[str, ...] = (), text: str = ""
) -> None:
    """Add the option of a field of `Config`.

    Args:
        group: Parser or group of options.
        name: Name of the field.
        choices: Some of the field's choices; all of them if empty.
        text: Help; that of the field if empty.
    """
    kind, all_choices = kind_of(name)
    about = setting(name)
    help = f"{text or about.help} (default: {about.if_none or _shown(default_of(name))})"
    if all_choices:
        group.add_argument(option_name(name), choices=choices or all_choices, help=help)
    else:
        convert = _number(kind, about) if kind in (int, float) else str
        group.add_argument(option_name(name), type=convert, metavar=about.metavar, help=help)


def add_objects_option(parser: OptionGroup, default: str) -> None:
    """Add --objects.

    Args:
        parser: Parser of a command.
        default: Description of the default.
    """
    parser.add_argument(
        "--objects",
        type=number_of_objects,
        metavar=setting("objects").metavar,
        help=f"{setting('objects').help} (default: {default})",
    )


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


def add_reading_options(
    parser: argparse.ArgumentParser, stride: str, max_frames: str
) -> OptionGroup:
    """Add the options for reading video, and return their group.

    Args:
        parser: Parser of a command.
        stride: Help of --stride.
        max_frames: Help of --max-frames.
    """
    group = parser.add_argument_group("reading")
    group.add_argument(
        "--size",
        type=frame_size,
        metavar="N|HxW",
        help="Frame size for training: the longer side, or height x width such as 48x64. "
        f"(default: {DEFAULT_SIZE})",
    )
    group.add_argument("--stride", type=whole_number, metavar="N", help=stride)
    group.add_argument("--max-frames", type=whole_number, metavar="N", help=max_frames)
    add_part_options(group)
    group.add_argument(
        "--grey", action="store_true", default=None, help="Read frames without colour."
    )
    return group


def add_part_options(group: OptionGroup, roi: str = "the whole frame") -> None:
    """Add the options for using a part of the video: --start, --end and --roi.

    Args:
        group: Parser or group of options.
        roi: Description of the default of --roi.
    """
    group.add_argument(
        "--start",
        type=clock_time,
        metavar="TIME",
        help="Use frames from this time on: seconds, MM:SS or HH:MM:SS, such as 90, 1:30 or "
        "0:01:30.5. Tables keep the frame numbers and times of the whole video. (default: the "
        "beginning)",
    )
    group.add_argument(
        "--end",
        type=clock_time,
        metavar="TIME",
        help="Use frames before this time only. (default: the end)",
    )
    group.add_argument(
        "--roi",
        type=region,
        metavar="X,Y,W,H|FILE",
        help="Region of interest: ignore everything outside it. A rectangle in pixels of the "
        "video, such as 100,50,640,480 (640 x 480 pixels, 100 from the left and 50 from the top), "
        "or a mask image, white inside and black outside. Positions and masks refer to the "
        f"whole frame. (default: {roi})",
    )


def add_measure_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for measuring behaviour: --zones and --mm-per-pixel."""
    group = parser.add_argument_group("measuring")
    group.add_argument(
        "--zones",
        type=path,
        metavar="FILE",
        help="Measure the time of each object in named polygons and write zones.csv. A JSON file "
        'such as {"zones": {"nest": [[10, 10], [90, 10], [50, 80]]}}, corners in pixels of the '
        'video, or in 0..1 of the frame with "units": "frame".',
    )
    group.add_argument(
        "--mm-per-pixel",
        type=positive,
        metavar="F",
        help="Size of a pixel of the video in millimetres, for distances and speeds in mm.",
    )


def add_out_option(parser: argparse.ArgumentParser, default: str, metavar: str) -> None:
    """Add --out with a default folder."""
    parser.add_argument(
        "--out",
        type=path,
        default=default,
        metavar=metavar,
        help="Folder to write to. (default: %(default)s)",
    )


def add_skip_bad_option(parser: argparse.ArgumentParser) -> None:
    """Add --skip-bad."""
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="Skip unreadable inputs and list them, instead of stopping.",
    )


def add_general_options(parser: argparse.ArgumentParser, resume: str) -> None:
    """Add the options shared by all commands on video.

    Args:
        parser: Parser of a command.
        resume: Help of --resume.
    """
    group = parser.add_argument_group("general")
    add_config_option(group, "seed")
    add_config_option(group, "device")
    add_output_options(group, resume)


def add_output_options(group: OptionGroup, resume: str) -> None:
    """Add --quiet, --force and --resume."""
    group.add_argument("--quiet", action="store_true", help="Show no progress and no summary.")
    group.add_argument("--force", action="store_true", help="Replace earlier results in --out.")
    group.add_argument("--resume", action="store_true", help=resume)


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


def positive(text: str) -> float:
    """Convert a positive number.

    >>> positive("0.25")
    0.25
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise ArgumentTypeError(f"expected a number above 0 and below 1e9, got {text!r}")
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
    if len(sides) not in (1, 2) or not all(MIN_SIDE <= side <= MAX_SIDE for side in sides):
        raise ArgumentTypeError(
            f"expected 64 or 48x64, sides from {MIN_SIDE} to {MAX_SIDE}, got {text!r}"
        )
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
