"""`ul apply --ray` and `ul apply --part`: many videos, each a part of the results."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path

from ullayers.cli.options import wanted_objects
from ullayers.errors import Error, RunError
from ullayers.run.fleet import apply_fleet, cluster
from ullayers.run.folder import check_apart, has_parts, locked
from ullayers.run.parts import Joined, apply_part, finished_parts, join_parts, part_request
from ullayers.run.pipeline import ALL_FRAMES
from ullayers.run.plan import Plan, load_zones
from ullayers.run.progress import Progress
from ullayers.run.write import ExportOptions
from ullayers.tracks.behaviour import Zones, check_measures
from ullayers.video.clips import VideoError, kept_frames
from ullayers.video.sources import Source, find_sources


def is_spread(arguments: Namespace) -> bool:
    """Return whether the videos become parts of the results."""
    return arguments.ray is not None or arguments.part is not None


def check_options(arguments: Namespace) -> None:
    """Refuse options that do not work together."""
    if arguments.ray is not None and arguments.part is not None:
        raise Error("--part is for schedulers without Ray; leave --ray or --part out")
    if arguments.ray is not None and arguments.device not in (None, "auto", "cpu"):
        raise Error(f"--ray uses CPUs; leave --device {arguments.device} out")
    if arguments.part is not None and arguments.force:
        raise Error("--part keeps the parts of other calls; give another --out, not --force")


def spread(arguments: Namespace, applied: Plan) -> Joined | None:
    """Apply a run on a cluster, or to one part of the videos.

    Returns:
        The results; None if other parts are not finished.
    """
    bad: dict[str, str] = {}
    # The workers open the videos; opening them one by one would take hours for a large archive.
    sources = find_sources(arguments.inputs, bad if arguments.skip_bad else None)
    if not sources:
        raise Error(next(iter(bad.values())))
    check_apart(arguments.out, sources)
    zones, mm_per_pixel = load_zones(arguments.zones), arguments.mm_per_pixel
    check_measures(applied.config.task, zones, mm_per_pixel, [], [])
    with suppress(VideoError):  # reported when it is read
        check_measures(applied.config.task, zones, mm_per_pixel, sources[:1], [sources[0].probe()])
    applied.bad = bad
    options = ExportOptions(
        stride=arguments.stride,
        max_frames=kept_frames(arguments.max_frames, arguments.stride),
        skip_bad=arguments.skip_bad,
        objects=wanted_objects(arguments, applied.config),
        masks=arguments.masks or arguments.soft_masks,
        soft=arguments.soft_masks,
        overlay=ALL_FRAMES if arguments.overlay else None,
        resume=arguments.resume,
    )
    if arguments.part is not None:
        return _apply_part(arguments, applied, sources, options, zones)
    with (
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),  # Ray prints its own message for each worker that dies
        cluster(arguments.ray),
        Progress("applying", "videos", len(sources), quiet=arguments.quiet) as progress,
    ):
        show = _shown(progress, len(sources))
        out = Path(arguments.out)
        return apply_fleet(applied, sources, out, options, show, zones, mm_per_pixel)


def _apply_part(
    arguments: Namespace,
    applied: Plan,
    sources: list[Source],
    options: ExportOptions,
    zones: Zones | None,
) -> Joined | None:
    """Process the videos of one part that are not finished, and join all if this was the last."""
    out, (number, count) = Path(arguments.out), arguments.part
    request = part_request(applied, options)
    notes = finished_parts(sources, out, request, skip_bad=options.skip_bad)
    own = [source for source in sources[number - 1 :: count] if source.name not in notes]
    frames = 0
    with Progress("applying", "videos", len(own), quiet=arguments.quiet) as progress:
        show = _shown(progress, len(own))
        for done, source in enumerate(own, 1):
            note = apply_part(applied, source, options, out)
            if note.error is not None and not options.skip_bad:
                raise VideoError(note.error).with_skip_hint(len(sources))
            frames += note.frames
            show(done, frames)
    notes = finished_parts(sources, out, request, skip_bad=options.skip_bad)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(out))
            is_last = len(notes) == len(sources) and has_parts(out)
        except RunError:  # another part joins them
            is_last = False
        if is_last:
            return join_parts(applied, sources, out, notes, zones, arguments.mm_per_pixel)
    if notes and not arguments.quiet:  # without notes, another part has joined them
        print(f"{len(notes)} of {len(sources)} videos are finished; the last part joins them")
    return None


def _shown(progress: Progress, total: int) -> Callable[[int, int], None]:
    rate = _Rate(total)
    return lambda videos, frames: progress.to(videos, rate.note(videos, frames))


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
