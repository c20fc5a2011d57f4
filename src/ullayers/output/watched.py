"""README.md and summary.json of `ul watch`, written when it ends."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Generator
from contextlib import closing
from typing import Any

import numpy as np

from ullayers.learn.runs import Run, load_run
from ullayers.learn.sightings import WatchResult
from ullayers.output.model_card import sure_frames, write_watch_card
from ullayers.output.summary import MAX_UNSURE, NEVER_TRAINED, unsure_reason
from ullayers.video.atomic_files import write_json
from ullayers.video.frames import DEFAULT_FPS
from ullayers.video.reader import VideoError

RATE_FRAMES = 1000  # the latest frames, whose rate is that of the source


def keep_results(
    sightings: Generator[WatchResult, None, None], folder: str | os.PathLike[str]
) -> Generator[WatchResult, None, None]:
    """Yield the results of `watch`, and write README.md and summary.json when it ends.

    With summary.json, its tracks can be exported and corrected like those of `ul learn`.

    Args:
        sightings: Results of `watch`; the generator is closed at the end.
        folder: The folder of `watch`. A README.md of the user is kept.
    """
    last = None
    times: deque[tuple[int, float]] = deque(maxlen=RATE_FRAMES)
    try:
        with closing(sightings):
            for sighting in sightings:
                last = sighting
                times.append((sighting.frame, sighting.seconds))
                yield sighting
    except (GeneratorExit, VideoError):  # `watch` has saved the network
        if last:
            _write(folder, last, _rate(times))
        raise
    if last:
        _write(folder, last, _rate(times))


def _rate(times: Collection[tuple[int, float]]) -> float:
    """Return the frames per second, by the median: a camera may pause."""
    steps = np.diff(np.array(times), axis=0)
    steps = steps[steps[:, 1] > 0] if len(times) > 1 else np.zeros((0, 2))
    return float(np.median(steps[:, 0] / steps[:, 1])) if len(steps) else DEFAULT_FPS


def _write(folder: str | os.PathLike[str], last: WatchResult, fps: float) -> None:
    run = load_run(folder, "cpu")
    write_watch_card(run)
    if last.size is not None:  # codes need no frame size
        write_json(run.folder / "summary.json", _summary(run, last, fps))


def _summary(run: Run, last: WatchResult, fps: float) -> dict[str, Any]:
    frames = run.outcome.frames or 0
    found = sure_frames(run) / frames if frames else 0.0
    reasons = []
    if run.outcome.objective is None:
        reasons.append(NEVER_TRAINED)
    if 1 - found > MAX_UNSURE:
        reasons.append(unsure_reason(1 - found))
    assert last.size is not None
    width, height = last.size
    sequence = {"name": last.sequence, "frames": frames, "width": width, "height": height}
    return {
        "task": run.config.task,
        "frames": frames,
        "found": found,
        "trusted": not reasons,
        "reasons": reasons,
        "sequences": [sequence | {"fps": fps}],
    }
