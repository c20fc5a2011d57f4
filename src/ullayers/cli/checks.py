"""Checks of a command line against the run folder that it names."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from ullayers.cli.options import config_values, option_name, reading_values
from ullayers.errors import UserError
from ullayers.learn.config import Config
from ullayers.learn.runs import Run, absolute, check_device, small_size
from ullayers.video.reader import Info


def make_config(arguments: Namespace) -> Config:
    """Return the settings that are given on the command line, with defaults for the others."""
    config = Config(**config_values(arguments))
    check_device(config.device)
    return config


def check_same_inputs(inputs: list[str], run: Run) -> None:
    """Refuse inputs that differ from those of the run to resume."""
    if inputs and absolute(inputs) != run.inputs:
        raise UserError(f"this run learns from {' '.join(run.inputs)}; leave the inputs out")


def check_same_options(arguments: Namespace, run: Run, probe: Callable[[], Info]) -> None:
    """Refuse options that differ from those of the run to resume; they would have no effect.

    Args:
        arguments: Parsed command line.
        run: The run to resume.
        probe: Returns the size of the first input, which turns --size into height and width.
    """
    own = {**vars(run.reading), **vars(run.config), "max_frames": run.max_frames}
    given = {**config_values(arguments), **reading_values(arguments)}
    given.pop("device", None)  # a run may continue on another device
    for name, value in given.items():
        if name == "size" and isinstance(value, int):
            value = small_size(value, probe())
        if value != own[name]:
            raise UserError(
                f"this run has {_described(name, own[name])}; leave {option_name(name)} out, or "
                "start again with --force"
            )


def _described(name: str, value: Any) -> str:
    option = option_name(name)
    if value is None or value is False:
        return f"no {option}"
    if value is True:
        return option
    shown = "x".join(map(str, value)) if isinstance(value, tuple) else value
    return f"{option} {shown}"
