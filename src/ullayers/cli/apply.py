"""`ul apply`: apply the network of a run to other video."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from ullayers.cli.fleet import check_options, is_spread, spread
from ullayers.cli.messages import print_summary, resumable, say
from ullayers.cli.options import given_reading, wanted_objects
from ullayers.errors import Error
from ullayers.run.folder import check_not_replaced, has_parts, is_begun
from ullayers.run.parts import Joined
from ullayers.run.pipeline import apply_run, check_masks, check_out, follow, remove_stale
from ullayers.run.plan import Plan, load_plan, load_zones
from ullayers.run.progress import Bars
from ullayers.run.summary import Exported
from ullayers.tracks.store import has_partial_tables


def run(arguments: Namespace) -> None:
    """Apply the network and write the table."""
    check_options(arguments)
    device = "cpu" if arguments.ray is not None else arguments.device or "auto"
    applied = load_plan(arguments.run, device)
    out = Path(arguments.out)
    if (arguments.resume or arguments.part is not None) and _is_finished(out):
        again = "give another --out" if arguments.part else "process it again with --force"
        say("apply", f"{out}: is already finished; {again}")
        return
    _check_started(arguments, out)
    check_not_replaced(out, arguments.zones)
    started = has_parts if is_spread(arguments) else has_partial_tables
    exported: Exported | Joined | None
    with resumable(lambda: started(out)):
        if is_spread(arguments):
            exported = _spread(arguments, applied, out)
        else:
            exported = _apply(arguments, applied, out)
    if exported is None:  # other parts are not finished
        return
    print_summary(arguments, applied, exported, bad=applied.bad | exported.bad)
    if not arguments.quiet:
        print("wrote " + ", ".join(str(file) for file in exported.files))


def _apply(arguments: Namespace, applied: Plan, out: Path) -> Exported:
    """Apply the run in this process."""
    given = given_reading(arguments)
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
        return follow(events, bars.show)


def _spread(arguments: Namespace, applied: Plan, out: Path) -> Joined | None:
    """Apply the run on a cluster, or to one part of the videos."""
    given, own = given_reading(arguments), applied.reading
    objects = wanted_objects(arguments, applied.config)
    check_masks(applied, arguments.masks, arguments.soft_masks, objects)
    is_continued = arguments.part is not None and is_begun(out)
    resume = arguments.resume or is_continued
    check_out(out, started=has_parts(out) or is_continued, force=arguments.force, resume=resume)
    start, end = given.get("start", 0.0), given.get("end")
    applied.reading = replace(own, start=start, end=end, roi=given.get("roi", own.roi))
    joined = spread(arguments, applied)
    if arguments.force and joined is not None:
        remove_stale(out, joined.files)
    return joined


def _check_started(arguments: Namespace, out: Path) -> None:
    """Refuse to continue results that were started differently."""
    if arguments.resume and has_parts(out) and not is_spread(arguments):
        raise Error(f"{out}: was started with --ray or --part; continue it so")
    if arguments.resume and has_partial_tables(out) and is_spread(arguments):
        raise Error(f"{out}: was started without --ray and --part; continue it without")


def _is_finished(out: Path) -> bool:
    """Return whether the table and the summary are there, and nothing is left to resume."""
    tables = any((out / name).exists() for name in ("tracks.csv", "codes.csv"))
    is_run = (out / "model.safetensors").exists()
    complete = tables and (out / "summary.json").exists() and not is_run
    return complete and not has_partial_tables(out) and not has_parts(out)
