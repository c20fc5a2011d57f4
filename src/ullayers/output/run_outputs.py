"""All outputs of `ul learn` after training: results, measures, report and model card."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ullayers.learn.folders import CARD
from ullayers.learn.footage import count_frames
from ullayers.learn.results import Answer
from ullayers.learn.runs import Run, csv_name
from ullayers.output.behaviour import measure_folder, write_behaviour
from ullayers.output.export import export
from ullayers.output.export_options import ExportOptions
from ullayers.output.exported import Exported
from ullayers.output.scores import score
from ullayers.output.tables import has_partial_tables, unfinished_sources
from ullayers.video.reader import Source

OVERLAY_FRAMES = 1500
MEASURES = ("behaviour.csv", "zones.csv")


def frames_to_apply(run: Run, sources: Sequence[Source], *, resume: bool) -> int | None:
    """Return the number of frames that `apply_to_inputs` will read; None if unknown.

    Args:
        run: The run.
        sources: Its sources.
        resume: Whether finished sequences are kept.
    """
    remaining = unfinished_sources(sources, run.folder, run.masks) if resume else sources
    return count_frames(remaining, replace(run.reading, stride=1, max_frames=run.max_frames))


def apply_to_inputs(
    run: Run,
    sources: Sequence[Source],
    *,
    resume: bool = False,
    progress: Callable[[int], None] = lambda count: None,
    seen: Callable[[Answer], None] = lambda part: None,
) -> Exported:
    """Apply a run to the videos it was trained on; do not replace existing files.

    Args:
        run: A finished run.
        sources: Its sources.
        resume: Keep the rows of a partial table.
        progress: Called with the number of frames processed so far.
        seen: Called with the results of some frames, with masks, as soon as they are known.

    Raises:
        RunError: The folder of the run cannot be used.
        VideoError: A source cannot be read.
    """
    missing = run.missing()
    options = ExportOptions(
        max_frames=run.max_frames,
        masks=run.masks,
        overlay=OVERLAY_FRAMES if "overlay.mp4" in missing else None,
        samples="report.html" in missing,
        skip_bad=run.skip_bad,
        resume=resume,
        keep_scenes=True,
        objects=run.config.objects,
        teaching=run.teaching,
    )
    if csv_name(run) in missing or (resume and has_partial_tables(run.folder)):
        return export(run, sources, run.folder, options, progress, seen)
    # A table is always written together with the other files: write all of them elsewhere, and keep
    # only those that were missing.
    with tempfile.TemporaryDirectory(dir=run.folder, prefix=".missing-") as folder:
        exported = export(run, sources, folder, options, progress, seen)
        for name in missing:
            if name not in ("report.html", CARD, *MEASURES):
                (Path(folder) / name).rename(run.folder / name)
    return exported


def write_reports(
    run: Run, sources: Sequence[Source], exported: Exported, truth: Path | None = None
) -> list[tuple[str, str]]:
    """Write the measures, the report and the model card that are missing.

    Args:
        run: The run.
        sources: Its sources.
        exported: From `apply_to_inputs`.
        truth: Table of true positions to compare with.

    Returns:
        Names and values of the scores; empty without ground truth.
    """
    # Imported here, because they import matplotlib, which would delay training.
    from ullayers.output.model_card import write_card
    from ullayers.output.run_report import report_run

    missing = run.missing()
    scores = [] if truth is None else score(run, sources[0], exported.answers[0], truth)
    scenes = []
    if run.config.task == "locate":
        scenes = measure_folder(run.folder, exported.sequences)
        if not set(MEASURES).isdisjoint(missing):
            write_behaviour(run.folder, scenes, run.zones, run.mm_per_pixel)
    if "report.html" in missing:
        report_run(run, sources, exported, scores=scores, scenes=scenes)
    if CARD in missing:
        write_card(run, exported)
    return scores
