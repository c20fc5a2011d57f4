"""Training again with the corrections of a run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import RunError
from ullayers.learn.teaching import Place, Teaching
from ullayers.run.folder import RUN_NAMES, check_apart, check_free
from ullayers.run.plan import Run, load_run, sources_of
from ullayers.tracks.corrections import CorrectedRows, corrected_rows, read_corrections
from ullayers.tracks.tracked_video import TrackedVideo, read_videos
from ullayers.video.reader import Source


def plan_relearning(
    folder: Path,
    out: str | os.PathLike[str],
    *,
    device: str | None = None,
    force: bool = False,
) -> tuple[Run, list[Source]]:
    """Plan a new run from the inputs, settings and corrections of a run; nothing is written yet.

    Train it with `learn_run`, and write its results with `apply_to_inputs` and `write_reports`.

    Args:
        folder: Folder of the corrected run; it is not changed.
        out: Folder of the new run.
        device: Device to train on, or "auto"; None for that of the run.
        force: Replace an existing run in `out`.

    Returns:
        The new run and its sources.

    Raises:
        RunError: The run cannot be used, or has no corrections to train with.
        UserError: A correction is invalid.
    """
    run = load_run(folder, device)
    if run.config.task != "locate" or run.watched:
        raise RunError(f"{folder}: expected a run of ul learn --task locate")
    _ = run.outcome  # raises an error if training has not finished
    teaching = read_teaching(folder)
    if os.path.realpath(out) == os.path.realpath(folder):
        raise RunError(f"{out}: is the run that was corrected; give another folder with --out")
    sources = sources_of(run)
    check_free(out, force, RUN_NAMES)
    check_apart(out, sources)
    planned = replace(
        run,
        folder=Path(out),
        config=replace(run.config, objects=1),  # other objects have been deleted
        result=None,
        net=None,
        fresh=True,
        pieces={},
        teaching=teaching,
    )
    return planned, sources


def read_teaching(folder: Path) -> Teaching:
    """Return the corrections of a results folder that can be used for training.

    These are moved positions and empty frames.

    Raises:
        RunError: There are no such corrections, or there are several objects.
        UserError: A correction is invalid.
    """
    corrections = read_corrections(folder)
    videos = read_videos(folder)
    rows = corrected_rows(videos, corrections)
    for video in videos:
        numbers = rows[video.name].number if video.name in rows else _numbers(video)
        if len(np.unique(numbers[numbers > 0])) > 1:
            raise RunError(
                f"{folder}: {video.name} has several objects, and one can be learned from "
                "corrections; delete the others, or learn with --objects 1"
            )
    places = {name: _places(rows[name]) for name in sorted(rows)}
    places = {name: each for name, each in places.items() if each}
    if not places:
        raise RunError(
            f"{folder}: has no corrections to learn from; move an object, or mark frames in which "
            "there is nothing"
        )
    return Teaching(os.path.abspath(folder), len(corrections.applied), places)


def _numbers(video: TrackedVideo) -> NDArray[np.int64]:
    return np.array([track.object for track in video.tracks], np.int64)


def _places(rows: CorrectedRows) -> list[Place]:
    """Return the corrected frames of a sequence, in ascending order."""
    told = np.flatnonzero(rows.placed & (rows.number > 0))
    told = told[np.argsort(rows.frame[told])]
    scaled = rows.places(told) / (rows.video.width, rows.video.height)
    return [
        (frame, None, None) if np.isnan(x) else (frame, x, y)
        for frame, (x, y) in zip(rows.frame[told].tolist(), scaled.tolist(), strict=True)
    ]
