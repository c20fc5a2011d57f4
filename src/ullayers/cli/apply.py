"""`ul apply`: apply the network of a run to other video."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from ullayers.cli.checks import given_reading
from ullayers.cli.failures import resumable, say
from ullayers.cli.fleet import check_options, has_parts, spread
from ullayers.cli.options import wanted_objects
from ullayers.cli.summary import print_summary
from ullayers.errors import UserError
from ullayers.run.folder import check_not_replaced
from ullayers.run.pipeline import apply_run, check_masks, check_out, follow, remove_stale
from ullayers.run.plan import Run, load_run, load_zones
from ullayers.run.progress import Bars
from ullayers.run.summary import Results
from ullayers.tracks.store import has_partial_tables


def run(arguments: Namespace) -> None:
    """Apply the network and write the table."""
    is_fleet = arguments.ray is not None
    if is_fleet:
        check_options(arguments)
    applied = load_run(arguments.run, "cpu" if is_fleet else arguments.device or "auto")
    out = Path(arguments.out)
    if arguments.resume and not is_fleet and _is_finished(out):
        say("apply", f"{out}: is already finished; process it again with --force")
        return
    _check_started(arguments, out)
    exported: Results
    started = has_parts if is_fleet else has_partial_tables
    with resumable(lambda: started(out)):
        if is_fleet:
            exported, bad = _spread(arguments, applied, out)
        else:
            exported, bad = _apply(arguments, applied, out)
    print_summary(arguments, applied, exported, bad=bad | exported.bad)
    if not arguments.quiet:
        print("wrote " + ", ".join(str(file) for file in exported.files))


def _apply(arguments: Namespace, applied: Run, out: Path) -> tuple[Results, dict[str, str]]:
    """Apply the run in this process; returns the results, and inputs that cannot be read."""
    given = given_reading(arguments)
    check_not_replaced(out, arguments.zones)
    with Bars(arguments.quiet) as bars:
        events = apply_run(
            applied,
            arguments.inputs,
            out,
            **given,
            objects=wanted_objects(arguments, applied.config),
            masks=arguments.masks,
            soft=arguments.soft_masks,
            overlay=arguments.overlay,
            skip_bad=arguments.skip_bad,
            zones=load_zones(arguments.zones),
            mm_per_pixel=arguments.mm_per_pixel,
            force=arguments.force,
            resume=arguments.resume,
        )
        exported = follow(events, bars.show)
    return exported, applied.bad


def _spread(arguments: Namespace, applied: Run, out: Path) -> tuple[Results, dict[str, str]]:
    """Apply the run on a cluster; returns the results, and inputs that cannot be read."""
    given, own = given_reading(arguments), applied.reading
    objects = wanted_objects(arguments, applied.config)
    check_masks(applied, arguments.masks, arguments.soft_masks, objects)
    check_out(out, started=has_parts(out), force=arguments.force, resume=arguments.resume)
    start, end = given.get("start", 0.0), given.get("end")
    applied.reading = replace(own, start=start, end=end, roi=given.get("roi", own.roi))
    results, bad = spread(arguments, applied)
    if arguments.force:
        remove_stale(out, results.files)
    return results, bad


def _check_started(arguments: Namespace, out: Path) -> None:
    """Refuse to continue results that were started differently."""
    if arguments.resume and has_parts(out) and arguments.ray is None:
        raise UserError(f"{out}: was started with --ray; continue it with --ray")
    if arguments.resume and has_partial_tables(out) and arguments.ray is not None:
        raise UserError(f"{out}: was started without --ray; continue it without")


def _is_finished(out: Path) -> bool:
    """Return whether the table and the summary are there, and nothing is left to resume."""
    tables = any((out / name).exists() for name in ("tracks.csv", "codes.csv"))
    is_run = (out / "model.safetensors").exists()
    complete = tables and (out / "summary.json").exists() and not is_run
    return complete and not has_partial_tables(out)
