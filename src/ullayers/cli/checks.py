"""Checks of a command line against its run folder."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from ullayers.cli.options import config_values, option_name, reading_values
from ullayers.errors import UserError
from ullayers.learn.config import Config
from ullayers.run.plan import Run, absolute, check_device, small_size
from ullayers.tracks.behaviour import Zones, read_zones
from ullayers.video.images import read_mask
from ullayers.video.reader import Info
from ullayers.video.region import Rectangle, Region


def make_config(arguments: Namespace) -> Config:
    """Return the settings of the command line, with defaults for the others."""
    config = Config(**config_values(arguments))
    if config.objects is not None and config.task != "locate":
        raise UserError(f"--objects is for --task locate; leave it out for {config.task}")
    if config.device != "auto":
        check_device(config.device)
    return config


def given_reading(arguments: Namespace) -> dict[str, Any]:
    """Return the given settings for reading video, with --roi as a region."""
    values = reading_values(arguments)
    check_range(values.get("start"), values.get("end"))
    if "roi" in values:
        values["roi"] = load_region(values["roi"])
    return values


def given_zones(arguments: Namespace) -> Zones | None:
    """Return the zones of --zones; None without the option."""
    return None if arguments.zones is None else read_zones(arguments.zones)


def check_range(start: float | None, end: float | None) -> None:
    """Refuse an empty time range."""
    if end is not None and end <= (start or 0.0):
        raise UserError(f"--end {end:g} is not after --start {start or 0.0:g}")


def load_region(roi: str | tuple[int, int, int, int]) -> Region:
    """Return the region of --roi: a rectangle, or a mask image, which is read."""
    return read_mask(roi) if isinstance(roi, str) else Rectangle(*roi)


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
    own = {
        **vars(run.reading),
        **vars(run.config),
        "stride": run.stride,
        "max_frames": run.max_frames,
    }
    given = {**config_values(arguments), **given_reading(arguments)}
    given.pop("device", None)  # a run may continue on another device
    for name, value in given.items():
        if name == "size" and isinstance(value, int):
            value = small_size(value, probe(), run.reading.roi)
        if value != own[name]:
            raise UserError(
                f"this run has {_described(name, own[name])}; leave {option_name(name)} out, or "
                "start again with --force"
            )


def check_corrections_alone(arguments: Namespace) -> None:
    """Refuse inputs and settings with --corrections, which uses those of the corrected run."""
    given = [option_name(name) for name in (*config_values(arguments), *reading_values(arguments))]
    others = ("masks", "skip_bad", "zones", "mm_per_pixel")
    given += [option_name(name) for name in others if getattr(arguments, name)]
    given = [*arguments.inputs, *(name for name in given if name != "--device")]
    if given:
        raise UserError(
            f"--corrections uses the inputs and settings of the run that was corrected; leave "
            f"{given[0]} out"
        )


def _described(name: str, value: Any) -> str:
    option = option_name(name)
    if value is None or value is False:
        return f"no {option}"
    if value is True:
        return option
    shown = value
    if isinstance(value, tuple):
        shown = "x".join(map(str, value))
    elif isinstance(value, float):
        shown = f"{value:g}"
    return f"{option} {shown}"
