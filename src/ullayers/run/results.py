"""All outputs of `ul learn` after training: results, measures, report and model card."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.footage import count_frames
from ullayers.run.apply import answers
from ullayers.run.folder import CARD
from ullayers.run.plan import Run, csv_name, fresh_net
from ullayers.run.summary import (
    Exported,
)
from ullayers.run.write import ExportOptions, export, unfinished_sources
from ullayers.tracks.behaviour import measure_folder, write_behaviour
from ullayers.tracks.store import has_partial_tables
from ullayers.tracks.table import Answer
from ullayers.video.reader import Source

Floats = NDArray[np.floating[Any]]
OVERLAY_FRAMES = 1500
MEASURES = ("behaviour.csv", "zones.csv")


def score(run: Run, source: Source, found: Answer, truth: Path) -> list[tuple[str, str]]:
    """Compare a track with the ground truth.

    Args:
        run: The run of the track.
        source: The video.
        found: The track.
        truth: A CSV with the columns x and y for every frame.

    Returns:
        Names and values of the scores, also for the network before training.
    """
    with open(truth, encoding="utf-8", newline="") as file:
        rows = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]
    expected = np.array(rows)[found.index]
    info = source.probe()
    aspect = info.height / info.width
    learned = distances(found.values, expected, aspect)
    untrained = distances(_untrained(run, source), expected, aspect)
    correlation = [np.corrcoef(found.values[:, i], expected[:, i])[0, 1] for i in range(2)]
    return [
        ("median distance, of the frame width", f"{np.median(learned):.2%}"),
        ("90 % of the frames are within", f"{np.quantile(learned, 0.9):.2%}"),
        ("correlation of x", f"{correlation[0]:.4f}"),
        ("correlation of y", f"{correlation[1]:.4f}"),
        ("median with an untrained network", f"{np.median(untrained):.2%}"),
        ("90 % with an untrained network", f"{np.quantile(untrained, 0.9):.2%}"),
    ]


def distances(found: Floats, expected: Floats, aspect: float) -> Floats:
    """Return the distance of each position from the true one, in frame widths.

    Args:
        found: (time, 2 or more) x and y in 0..1.
        expected: (time, 2) x and y in 0..1.
        aspect: Height divided by width of the frames.

    Example:
        >>> distances(np.array([[0.5, 0.5]]), np.array([[0.1, 0.1]]), aspect=0.75).tolist()
        [0.5]
    """
    dx = found[:, 0] - expected[:, 0]
    dy = (found[:, 1] - expected[:, 1]) * aspect
    distance: Floats = np.hypot(dx, dy)
    return distance


def _untrained(run: Run, source: Source) -> Floats:
    parts = answers(replace(run, net=fresh_net(run)), source)
    return np.concatenate([part.values for part in parts])


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
    from ullayers.run.reports import report_run, write_card

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
