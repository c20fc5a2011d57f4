"""`watch`: learning while frames arrive, with one result per frame."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ullayers.errors import RunError
from ullayers.files import from_json, keep_beginning, open_regular, read_json, write_json
from ullayers.learning.checkpoint import load_state, save_state, write_tensors
from ullayers.learning.config import DEFAULT_SIZE, Config
from ullayers.learning.networks import weights
from ullayers.learning.survey import outline_reading, patience_of
from ullayers.locate.recording.windows import STILL_SIDE
from ullayers.locate.tracking.live import LiveObjects
from ullayers.run.folder import (
    RunResult,
    check_apart,
    check_free,
    check_links,
    check_settings,
    clear_run,
    finite,
)
from ullayers.run.plan import Plan, check_region, csv_name, load_plan, small_size
from ullayers.run.reports import sure_frames, write_watch_card
from ullayers.run.summary import MAX_UNSURE, NEVER_TRAINED, unsure_reason
from ullayers.run.watcher import MAX_FRAMES, Watcher, WatcherState
from ullayers.run.watcher import WatchResult as WatchResult
from ullayers.tracks.table import PIXELS, TRACK, header
from ullayers.video.clips import DEFAULT_FPS, kept_frames
from ullayers.video.files.opening import is_recorded
from ullayers.video.region import Region
from ullayers.video.sources import Info, Reading, Source, VideoError, find_sources, open_live

RATE_FRAMES = 1000  # the latest frames, whose rate is that of the source


@dataclass(frozen=True, kw_only=True)
class WatchState(WatcherState):
    """The state.json of `watch`.

    Attributes:
        table: Bytes of the table.
        frame: Number of the last frame; -1 before the first.
        several: Whether several objects are followed.
    """

    table: int
    frame: int
    several: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -1 <= self.frame <= MAX_FRAMES:
            raise ValueError(f"expected the number of a frame, got {self.frame}")


def watch(
    source: str | int | os.PathLike[str] | Source,
    *,
    config: Config | None = None,
    size: int | tuple[int, int] = DEFAULT_SIZE,
    stride: int = 1,
    max_frames: int | None = None,
    grey: bool = False,
    start: float = 0.0,
    end: float | None = None,
    roi: Region | None = None,
    objects: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    every: float = 60.0,
    force: bool = False,
    resume: bool = False,
) -> Generator[WatchResult, None, None]:
    """Learn from frames as they arrive, and yield a result for each.

    The network starts untrained, and results improve over time. The latest frames are stored, and
    the network is trained on clips of them (`ReplayMemory`), so memory is constant.

    Args:
        source: A video file, a folder of images, a camera (0 or /dev/video0), a URL, or a Source.
        config: Settings; the task is "locate" or "orient".
        size: Size of the training frames: the longer side, or (height, width). The images of a
            folder may differ in size only if both sides are given.
        stride: Learn from every `stride`-th frame.
        max_frames: Stop after this many frames, including those skipped by the stride; with
            `resume`, after this many more.
        grey: Learn without colour.
        start: Use the frames of a file or folder from this time on, in seconds.
        end: Stop before this time; None for no limit. A camera counts from its first frame.
        roi: Use only this part of the frames; None for all of them.
        objects: Number of objects to follow; None to find it. Unless it is 1, each result has all
            `objects`, and tables have a column `object` and any number of rows per frame. With 1,
            the main object is located by the network alone.
        folder: Folder for a table, checkpoints and the network; `ul apply` accepts it as a run.
        every: Seconds between checkpoints.
        force: Replace the results in the folder.
        resume: Continue from the last checkpoint in the folder, with its options. A file or a
            folder of images continues after the last frame used for training.

    Example:
        >>> import tempfile
        >>> from ullayers.video.demo_films import write_scene
        >>> with tempfile.TemporaryDirectory() as place:
        ...     for found in watch(str(write_scene(place, frames=30)), size=32):
        ...         pass
        >>> found.frame, found.columns
        (29, ('x', 'y', 'confidence'))
    """
    config = _with_objects(config or Config(), objects)
    several = objects != 1 and config.task == "locate"
    source = _opened(source)
    if start and not _is_recorded(source):
        raise VideoError("--start is for files and folders; a camera or stream starts now")
    if resume and folder:
        run = _resumed_run(folder, source, max_frames)
        several = follows_several(folder)
        info = source.probe()
    else:
        if folder:
            check_free(folder, force)
            check_apart(folder, [source] if _is_recorded(source) else [])
        info = source.probe()
        reading = Reading(
            size=_training_size(size, source, info, roi),
            grey=grey,
            start=start,
            end=end,
            stride=stride,
            max_frames=kept_frames(max_frames, stride),
            roi=roi,
            mixed=isinstance(size, tuple),
        )
        run = Plan(Path(folder or "."), [_path(source)], config, reading, max_frames)
    assert run.reading.size is not None
    live = (
        LiveObjects(run.config.objects, patience_of(info, run.reading.stride)) if several else None
    )
    watcher = Watcher(run.config, run.reading.channels, run.reading.size, live)
    run.config = watcher.config
    if folder is None:
        yield from _sightings(watcher, source, run.reading, info, _pixels(run, info))
    else:
        yield from _saved(_WatchFolder(run, watcher, source, info, resume), every)


def follows_several(folder: str | os.PathLike[str]) -> bool:
    """Return whether the run in a folder follows several objects."""
    try:
        state = read_json(Path(folder) / "checkpoint" / "state.json")
    except (OSError, ValueError):  # loading it reports the error
        return False
    return isinstance(state, dict) and state.get("several") is True


def _opened(source: str | int | os.PathLike[str] | Source) -> Source:
    """Return a source as it is, and the name of one as a source."""
    if isinstance(source, Source):
        return source
    if isinstance(source, bool) or not isinstance(source, int | str | os.PathLike):
        raise TypeError(
            "expected a video file, a folder of images, a camera (0, 1, ...), a URL or a Source, "
            f"got {source!r}"
        )
    name = str(source) if isinstance(source, int) else os.fsdecode(source)
    return find_sources([name])[0] if os.path.isdir(name) else open_live(name)


def _with_objects(config: Config, objects: int | None) -> Config:
    """Return the settings with a number of objects; refuse those that `watch` does not support."""
    if config.task == "locate":
        config = replace(config, objects=objects)
    elif objects not in (None, 1):
        raise VideoError(f"several objects are for locate; leave objects out for {config.task}")
    if config.task == "features":
        raise VideoError("slow features need the whole recording: use learn, or watch with orient")
    check_settings(config)
    return config


def _training_size(
    size: int | tuple[int, int], source: Source, info: Info, roi: Region | None
) -> tuple[int, int]:
    """Return the (height, width) of training frames, or refuse the region of interest."""
    check_region(roi, [source], [info], skip_bad=False)
    return small_size(size, info, roi)


def _resumed_run(folder: str | os.PathLike[str], source: Source, max_frames: int | None) -> Plan:
    """Load the run in a folder; `max_frames` replaces its own limit."""
    run = load_plan(folder)
    if not _is_same(run, source):
        names = ", ".join(run.inputs if run.result is None else run.result.sources)
        raise RunError(
            f"{folder}: has learned from another source ({names}); give that one, or another --out"
        )
    if max_frames is not None:
        run.max_frames = max_frames
        kept = kept_frames(max_frames, run.reading.stride)
        run.reading = replace(run.reading, max_frames=kept)
    return run


def _is_recorded(source: Source) -> bool:
    return source.kind == "images" or is_recorded(source.path)


def _path(source: Source) -> str:
    """Return an absolute path; URLs are not changed."""
    return os.path.abspath(source.path) if os.path.exists(source.path) else source.path


def _is_same(run: Plan, source: Source) -> bool:
    """Return whether the run has watched this source, ignoring password and query of a URL."""
    if os.path.exists(source.path):
        return _path(source) == run.inputs[0]
    return run.result is not None and [source.name] == run.result.sources


def _pixels(run: Plan, info: Info) -> tuple[int, int] | None:
    """Return (width, height) of the frames, to give positions in pixels; None for a code."""
    return (info.width, info.height) if run.config.task == "locate" else None


def _sightings(
    watcher: Watcher, source: Source, reading: Reading, info: Info, size: tuple[int, int] | None
) -> Generator[WatchResult, None, None]:
    cut = None
    if watcher.columns == TRACK:
        cut = reading.cut(source.path, info.height, info.width)
    several = watcher.several
    if several is not None:
        reading = outline_reading(info, reading, STILL_SIDE)
    clips = source.clips(1, reading)
    try:
        for clip in clips:
            values, mask = watcher.see(clip.frames[0])
            found = WatchResult(
                sequence=source.name,
                frame=int(clip.index[0]),
                seconds=float(clip.seconds[0]),
                columns=watcher.columns,
                values=values,
                objective=watcher.objective,
                rank=watcher.rank,
                learning=watcher.learning,
                mask=mask,
                size=size,
                objects=None if several is None else watcher.objects,
                labels=None if several is None else several.labels,
            )
            yield found if cut is None else found.placed(cut)
            watcher.catch_up()  # the result does not wait for it
    finally:
        clips.close()


def _saved(folder: _WatchFolder, every: float) -> Generator[WatchResult, None, None]:
    """Yield sightings, and write them and a checkpoint every few seconds."""
    last = time.monotonic()
    seen = False
    with folder.open_table() as table:
        try:
            for found in folder.sightings():
                table.write(found.lines())
                folder.frame = found.frame
                seen = True
                yield found
                if time.monotonic() - last >= every:
                    folder.save(table)
                    last = time.monotonic()
        except (GeneratorExit, VideoError):  # between two frames, so the state is consistent
            folder.save(table)
            raise
        folder.save(table)
    if folder.resume and not seen:
        raise RunError(
            f"{folder.source.path}: has no frame after {folder.frame}; start again with --force"
        )


class _WatchFolder:
    """The run folder of a watcher.

    Args:
        run: The run.
        watcher: The learner.
        source: The source.
        info: Size and frame rate of the source.
        resume: Continue from the checkpoint in the folder.
    """

    def __init__(
        self, run: Plan, watcher: Watcher, source: Source, info: Info, resume: bool
    ) -> None:
        self.run = run
        self.watcher = watcher
        self.source = source
        self.info = info
        self.resume = resume
        self.path = run.folder / csv_name(run)
        self.table_bytes = 0
        self.frame = -1
        self.size = _pixels(run, info)
        if resume:
            check_links(run.folder)
            self._load()
        else:
            run.folder.mkdir(parents=True, exist_ok=True)
            check_links(run.folder)
            clear_run(run.folder)

    def _load(self) -> None:
        folder = self.run.folder
        tensors, rest = load_state(folder / "checkpoint")
        try:
            state = from_json(WatchState, rest, finite=False)  # J may be NaN
            self.watcher.load(tensors, state)
            self.frame = state.frame
            self.table_bytes = state.table
            self._check_table()
        except RunError as error:
            raise RunError(f"{folder}: {error}") from error
        except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            raise RunError(
                f"{folder}: its checkpoint is damaged or not of ul watch; start again with --force"
            ) from error

    def _check_table(self) -> None:
        plain = header(self.watcher.columns).encode()
        with_pixels = header(self.watcher.columns + PIXELS).encode()
        with open_regular(self.path) as table:
            first = table.readline(len(with_pixels))
            size = os.fstat(table.fileno()).st_size
        if not len(first) <= self.table_bytes <= size:
            raise ValueError(f"expected a table of {self.table_bytes} bytes, got {size}")
        if first == plain:  # a code, or a table of version 0.1
            self.size = None
        elif first != with_pixels or self.size is None:
            raise ValueError(f"expected a table with columns {self.watcher.columns}")

    def sightings(self) -> Generator[WatchResult, None, None]:
        """Yield the results for the next frames."""
        return _sightings(self.watcher, self.source, self.reading(), self.info, self.size)

    def reading(self) -> Reading:
        """Return how to continue reading; a camera or stream starts at its current frame."""
        goes_on = _is_recorded(self.source) and self.frame >= 0
        return replace(
            self.run.reading, first=self.frame + self.run.reading.stride if goes_on else 0
        )

    def open_table(self) -> Any:
        """Open the CSV for appending, without the lines written after the checkpoint."""
        if self.resume:
            keep_beginning(self.path, self.table_bytes)
        else:
            self.path.unlink(missing_ok=True)  # it may be a pipe or a hard link
        file = open(self.path, "a", encoding="utf-8", newline="")
        if not self.resume:
            columns = self.watcher.columns + (PIXELS if self.size else ())
            file.write(header(columns))
            self.save(file)  # from now on it can be resumed
        return file

    def save(self, table: Any) -> None:
        """Write the checkpoint, the network, and config.json."""
        table.flush()
        watcher = self.watcher
        tensors, rest = watcher.state()
        rest |= {"table": os.path.getsize(self.path), "frame": self.frame}
        rest["several"] = watcher.several is not None
        save_state(self.run.folder / "checkpoint", tensors, rest)
        write_tensors(self.run.folder / "model.safetensors", weights(watcher.net))
        self.run.result = RunResult(
            kind="stream",
            seed=watcher.config.seed,
            trial=0,
            objective=finite(watcher.objective),
            steps=watcher.count,
            frames=watcher.count,
            sources=[self.source.name],
            camera=False,
            torch=torch.__version__,
        )
        self.run.write_config()


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
    run = load_plan(folder, "cpu")
    write_watch_card(run)
    if last.size is not None:  # codes need no frame size
        write_json(run.folder / "summary.json", _summary(run, last, fps))


def _summary(run: Plan, last: WatchResult, fps: float) -> dict[str, Any]:
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
