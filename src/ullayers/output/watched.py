"""README.md and summary.json of `ul watch`, written when it ends."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from typing import Any

from ullayers.learn.results import SURE
from ullayers.learn.runs import Run, load_run
from ullayers.learn.sightings import WatchResult
from ullayers.output.model_card import sure_frames, write_watch_card
from ullayers.output.summary import MAX_UNSURE
from ullayers.video.atomic_files import write_json
from ullayers.video.frames import DEFAULT_FPS
from ullayers.video.reader import VideoError


def keep_results(
    sightings: Generator[WatchResult, None, None], folder: str | os.PathLike[str]
) -> Generator[WatchResult, None, None]:
    """Yield the results of `watch`, and write README.md and summary.json when it ends.

    With summary.json, its tracks can be exported and corrected like those of `ul learn`.

    Args:
        sightings: Results of `watch`; the generator is closed at the end.
        folder: The folder of `watch`. A README.md of the user is kept.
    """
    first = last = None
    try:
        with closing(sightings):
            for sighting in sightings:
                first, last = first or sighting, sighting
                yield sighting
    except (GeneratorExit, VideoError):  # `watch` has saved the network
        if first and last:
            _write(folder, first, last)
        raise
    if first and last:
        _write(folder, first, last)


def _write(folder: str | os.PathLike[str], first: WatchResult, last: WatchResult) -> None:
    run = load_run(folder, "cpu")
    write_watch_card(run)
    if last.size is None:  # codes need no frame size
        return
    write_json(run.folder / "summary.json", _summary(run, first, last))


def _summary(run: Run, first: WatchResult, last: WatchResult) -> dict[str, Any]:
    frames = run.outcome.frames or 0
    found = sure_frames(run) / frames if frames else 0.0
    reasons = []
    if run.outcome.objective is None:
        reasons.append("The network was never trained.")
    if 1 - found > MAX_UNSURE:
        reasons.append(f"The confidence is below {SURE} in {1 - found:.1%} of the frames.")
    assert last.size is not None
    width, height = last.size
    seconds = last.seconds - first.seconds
    fps = (last.frame - first.frame) / seconds if seconds > 0 else DEFAULT_FPS
    sequence = {"name": last.sequence, "frames": frames, "width": width, "height": height}
    return {
        "task": run.config.task,
        "frames": frames,
        "found": found,
        "trusted": not reasons,
        "reasons": reasons,
        "sequences": [sequence | {"fps": fps}],
    }
