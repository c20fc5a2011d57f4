"""`ul apply`: apply the network of a run to other video."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from ullayers.cli.checks import given_reading, given_zones
from ullayers.cli.failures import resumable, say
from ullayers.cli.fleet import check_options, has_parts, spread
from ullayers.cli.options import wanted_objects
from ullayers.cli.progress import Progress
from ullayers.cli.summary import print_summary
from ullayers.errors import UserError
from ullayers.learn.config import default_of
from ullayers.learn.footage import count_frames, open_sources
from ullayers.run.folder import check_apart, check_free, clear_parts
from ullayers.run.plan import Run, check_region, load_run
from ullayers.run.summary import Exported, Results
from ullayers.run.write import ExportOptions, export, unfinished_sources
from ullayers.tracks.behaviour import check_measures, measure_folder, write_behaviour
from ullayers.tracks.corrections import CORRECTIONS
from ullayers.tracks.masks import OUTLINES
from ullayers.tracks.store import has_partial_tables
from ullayers.video.frames import kept_frames
from ullayers.video.reader import Reading

ALL_FRAMES = 10**12
RESULTS = (
    "tracks.csv",
    "codes.csv",
    "crossings.csv",
    "behaviour.csv",
    "zones.csv",
    OUTLINES,
    CORRECTIONS,
    "overlay.mp4",
    "tracks.parquet",
    "codes.parquet",
)


def run(arguments: Namespace) -> None:
    """Apply the network and write the table."""
    if arguments.ray is not None:
        check_options(arguments)
    device = "cpu" if arguments.ray is not None else arguments.device or default_of("device")
    applied = load_run(arguments.run, device)
    if arguments.resume and _is_finished(arguments):
        say("apply", f"{arguments.out}: is already finished; process it again with --force")
        return
    _check(arguments, applied)
    applied.reading = _reading(arguments, applied.reading)
    out = Path(arguments.out)
    exported: Results
    with resumable(lambda: _is_started(arguments)):
        if arguments.ray is not None:
            exported, bad = spread(arguments, applied)
        else:
            exported, bad = _export(arguments, applied)
    if arguments.force:
        _remove_stale(out, exported)
    print_summary(arguments, applied, exported, bad=bad | exported.bad)
    if not arguments.quiet:
        print("wrote " + ", ".join(str(file) for file in exported.files))


def _check(arguments: Namespace, applied: Run) -> None:
    """Refuse options that do not apply to the run, and folders that must not be written to."""
    if _wants_masks(arguments) and applied.config.task != "locate":
        option = "--soft-masks" if arguments.soft_masks else "--masks"
        raise UserError(f"{arguments.run}: this run has codes and no masks; leave {option} out")
    if arguments.soft_masks and (wanted_objects(arguments, applied.config) or 1) > 1:
        raise UserError(
            "--soft-masks is for one object; use --masks, whose pixels are the numbers of objects"
        )
    out = Path(arguments.out)
    if arguments.resume and has_parts(out) and arguments.ray is None:
        raise UserError(f"{out}: was started with --ray; continue it with --ray")
    if arguments.resume and has_partial_tables(out) and arguments.ray is not None:
        raise UserError(f"{out}: was started without --ray; continue it without")
    if not (arguments.resume and _is_started(arguments)):
        check_free(out, arguments.force)
    if (out / "model.safetensors").exists():
        raise UserError(f"{out}: is a run, whose table must not be replaced; give another --out")


def _reading(arguments: Namespace, own: Reading) -> Reading:
    """Return how the run reads video, with the time range and region of the command line."""
    given = given_reading(arguments)
    start, end = given.get("start", 0.0), given.get("end")
    return replace(own, start=start, end=end, roi=given.get("roi", own.roi))


def _wants_masks(arguments: Namespace) -> bool:
    return bool(arguments.masks or arguments.soft_masks)


def _is_started(arguments: Namespace) -> bool:
    """Return whether there is something to resume, even an empty table."""
    out = Path(arguments.out)
    return has_partial_tables(out) if arguments.ray is None else has_parts(out)


def _is_finished(arguments: Namespace) -> bool:
    """Return whether a command without --ray has finished: its table and summary are there."""
    out = Path(arguments.out)
    tables = any((out / name).exists() for name in ("tracks.csv", "codes.csv"))
    is_run = (out / "model.safetensors").exists()
    complete = tables and (out / "summary.json").exists() and not is_run
    return complete and arguments.ray is None and not _is_started(arguments)


def _export(arguments: Namespace, applied: Run) -> tuple[Exported, dict[str, str]]:
    """Apply a run in this process; returns the results, and inputs that cannot be read."""
    sources, infos, bad = open_sources(arguments.inputs, skip_bad=arguments.skip_bad)
    applied.bad = bad
    check_region(applied.reading.roi, sources, infos, skip_bad=arguments.skip_bad)
    zones = given_zones(arguments)
    mm_per_pixel = arguments.mm_per_pixel
    check_measures(applied.config.task, zones, mm_per_pixel, sources, infos)
    check_apart(arguments.out, sources)
    stride: int = arguments.stride
    max_frames = kept_frames(arguments.max_frames, stride)
    options = ExportOptions(
        stride=stride,
        max_frames=max_frames,
        masks=_wants_masks(arguments),
        soft=arguments.soft_masks,
        overlay=ALL_FRAMES if arguments.overlay else None,
        skip_bad=arguments.skip_bad,
        resume=arguments.resume,
        objects=wanted_objects(arguments, applied.config),
    )
    remaining = sources
    if arguments.resume:
        remaining = unfinished_sources(sources, Path(arguments.out), _wants_masks(arguments))
    reading = replace(applied.reading, stride=stride, max_frames=max_frames)
    total = count_frames(remaining, reading)

    def measure(exported: Exported) -> list[Path]:
        if applied.config.task != "locate":
            return []
        scenes = measure_folder(Path(arguments.out), exported.sequences)
        return write_behaviour(Path(arguments.out), scenes, zones, mm_per_pixel)

    with Progress("applying", "frames", total, quiet=arguments.quiet) as progress:
        report = progress.to
        exported = export(applied, sources, arguments.out, options, report, measure=measure)
    return exported, bad


def _remove_stale(out: Path, exported: Results) -> None:
    """Remove results of an earlier run that this one has not replaced."""
    for stale in {out / name for name in RESULTS} - set(exported.files):
        if stale.suffix == ".parquet":
            clear_parts(stale)
        else:
            stale.unlink(missing_ok=True)
