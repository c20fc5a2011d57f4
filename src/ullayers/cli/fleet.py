"""`ul apply --ray`: many videos on a Ray cluster."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path

from ullayers.cli.options import wanted_objects
from ullayers.errors import UserError
from ullayers.run.fleet import FleetResults, cluster, export_fleet
from ullayers.run.folder import check_apart
from ullayers.run.plan import Run
from ullayers.run.progress import Progress
from ullayers.run.write import ExportOptions
from ullayers.video.clips import kept_frames
from ullayers.video.sources import find_sources

UNSUPPORTED = ("overlay", "zones", "mm_per_pixel")


def check_options(arguments: Namespace) -> None:
    """Refuse options that do not work on a cluster."""
    for name in UNSUPPORTED:
        if getattr(arguments, name):
            option = "--" + name.replace("_", "-")
            raise UserError(f"--ray writes tables and masks; leave {option} out")
    if arguments.device not in (None, "auto", "cpu"):
        raise UserError(f"--ray uses CPUs; leave --device {arguments.device} out")


def has_parts(out: Path) -> bool:
    """Return whether some but not all videos are finished."""
    return any(out.glob("*.partial.parquet/*.parquet"))


def spread(arguments: Namespace, applied: Run) -> tuple[FleetResults, dict[str, str]]:
    """Apply a run on a cluster; returns the results, and inputs that cannot be read."""
    bad: dict[str, str] = {}
    # The workers open the videos; opening them one by one would take hours for a large archive.
    sources = find_sources(arguments.inputs, bad if arguments.skip_bad else None)
    if not sources:
        raise UserError(next(iter(bad.values())))
    check_apart(arguments.out, sources)
    applied.bad = bad
    objects = wanted_objects(arguments, applied.config)
    options = ExportOptions(
        stride=arguments.stride,
        max_frames=kept_frames(arguments.max_frames, arguments.stride),
        skip_bad=arguments.skip_bad,
        resume=arguments.resume,
        objects=objects,
        masks=arguments.masks or arguments.soft_masks,
        soft=arguments.soft_masks,
    )
    with (
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),  # Ray prints its own message for each worker that dies
        cluster(arguments.ray),
        Progress("applying", "videos", len(sources), quiet=arguments.quiet) as progress,
    ):
        rate = _Rate(len(sources))
        results = export_fleet(
            applied,
            sources,
            arguments.out,
            options,
            lambda videos, frames: progress.to(videos, rate.note(videos, frames)),
        )
    return results, bad | results.unopened


class _Rate:
    """Speed and remaining time.

    Args:
        total: Number of videos.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.started = time.monotonic()
        self.before: int | None = None  # videos finished earlier

    def note(self, videos: int, frames: int) -> str:
        """Return frames per second and the remaining time, from the videos finished so far."""
        if self.before is None:
            self.before = videos - 1
        seconds = max(1e-9, time.monotonic() - self.started)
        left = seconds / (videos - self.before) * (self.total - videos)
        return f"{frames / seconds:,.0f} frames/s, {timedelta(seconds=round(left))} left"
