"""Thousands of videos on a Ray cluster: one task and one result file per video.

The workers read the videos and return their rows, and this process writes them. Workers therefore
need access to the videos and to the run, but not to the results, unless they write masks there.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ullayers.errors import UserError
from ullayers.learn.apply import answers
from ullayers.learn.checkpoint import RunError
from ullayers.learn.folders import clear_masks
from ullayers.learn.results import TRACK, Answer
from ullayers.learn.row_file import RowFile
from ullayers.learn.runs import Run, csv_name
from ullayers.learn.several import Several
from ullayers.locate.helper import without_help
from ullayers.output.behaviour import write_fleet_behaviour
from ullayers.output.cluster import ClusterCpus, load_ray, lost_cluster
from ullayers.output.export_options import ExportOptions, follows_several, notes_of, request_of
from ullayers.output.exported import Totals, describe_sequence
from ullayers.output.identities import crossing_lines, identities
from ullayers.output.mask_files import MaskWriter
from ullayers.output.parts import Merged, PartNote, Parts, load_parquet, stored_path, to_parquet
from ullayers.output.shapes import complete
from ullayers.output.spool import Spool
from ullayers.output.summary import write_summary
from ullayers.video.reader import Source, VideoError
from ullayers.video.remote import without_password

ATTEMPTS = 3  # for each video; a lost connection or a dead worker may be temporary
TASKS_PER_CPU = 2  # submitted at once: one running and one waiting
POLL_SECONDS = 1.0
MAX_IDLE_SECONDS = 60.0  # without any CPU in the cluster


@dataclass(frozen=True)
class VideoResult:
    """Result of a worker.

    Attributes:
        frames: Number of rows.
        content: The result file; None if there are no rows.
        error: Why the video could not be read, or only in part.
        is_open: Whether the video could be opened.
    """

    frames: int = 0
    content: bytes | None = None
    error: str | None = None
    is_open: bool = True


@dataclass
class FleetResults(Merged):
    """Results of a fleet; as in `Exported`.

    Attributes:
        unopened: Videos that could not be opened by path, with the error.
    """

    unopened: dict[str, str] = field(default_factory=dict)


def export_fleet(
    run: Run,
    sources: Sequence[Source],
    folder: str | os.PathLike[str],
    options: ExportOptions,
    progress: Callable[[int, int], None] = lambda videos, frames: None,
) -> FleetResults:
    """Apply a run to videos on the connected Ray cluster; tables are those of `export`.

    Each finished video is a Parquet file in the folder; `resume` processes the others. At the end,
    the files are merged into the CSV, in the order of the sources.

    Args:
        run: A finished run.
        sources: From `find_sources`; the workers must be able to read them.
        folder: Output folder; created if needed.
        options: What to write; there is no overlay.
        progress: Called with the numbers of finished videos and processed frames.

    Raises:
        RunError: The run is not finished, or the folder cannot be used.
        VideoError: A video cannot be read, after several attempts.
        UserError: The cluster has died or lost its workers.
    """
    if run.net is None:
        raise RunError(f"{run.folder}: training has not finished; continue it with --resume")
    load_parquet()  # report a missing package before the work, not after it
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    parts = Parts(place / csv_name(run), _request(run, options), resume=options.resume)
    finished = parts.finished(sources, skip_bad=options.skip_bad)
    several = follows_several(run, options)
    waiting = parts.folder if several else place
    clear_masks(place, () if several else finished)
    clear_masks(waiting, finished)  # a worker may have died between two of them
    fleet = _Fleet(run, sources, options, parts)
    try:
        fleet.work([source for source in sources if source.name not in finished], progress)
    finally:
        clear_masks(waiting, parts.finished(sources, skip_bad=True))
        is_empty = parts.remove_if_empty()
    if is_empty:
        raise VideoError(next(iter((fleet.unopened | fleet.failed).values())))
    results = FleetResults(**vars(parts.merge(sources)), unopened=fleet.unopened)
    results.bad |= {name: fleet.failed[name] for name in fleet.failed if name not in results.bad}
    clear_masks(place, {entry["name"] for entry in results.sequences})
    results.files += [parts.table, place / "summary.json"]
    if run.config.task == "locate":
        results.files.append(write_fleet_behaviour(place, results.sequences))
    results.files += [place / "masks"] if options.masks else []
    results.files += [parts.complete]
    bad = run.bad | {
        source.path: fleet.unopened[source.path]
        for source in sources
        if source.path in fleet.unopened
    }
    write_summary(place / "summary.json", replace(run, bad=bad), results)
    parts.finish()
    return results


def _request(run: Run, options: ExportOptions) -> list[str | int | None]:
    masks = "soft masks" if options.soft else "masks"
    return [*request_of(run, options), *([masks] if options.masks else [])]


def _check_mounted(run: Run, options: ExportOptions, parts: Path) -> None:
    """Refuse to work on a machine that lacks a folder that is read or written there."""
    if not run.folder.is_dir():  # its scenes are read from there
        raise RunError(f"{run.folder}: is not on all machines of the cluster; mount it there")
    if options.masks and not parts.is_dir():
        raise RunError(
            f"{parts.parent}: is not on all machines of the cluster; mount it there, or leave the "
            "masks out"
        )


def apply_to_video(
    run: Run,
    source: Source,
    options: ExportOptions,
    request: list[str | int | None],
    parts: Path,
) -> VideoResult:
    """Apply a run to one video, in a worker.

    Args:
        run: The run.
        source: The video.
        options: Stride, maximum number of frames, and whether to write masks.
        request: Stored with the results.
        parts: Folder of the results of single videos. Masks are written beside it; those of several
            objects are kept in it until the objects of all videos have numbers.
    """
    _check_mounted(run, options, parts)
    info, error = None, None
    several = Several(options.objects) if follows_several(run, options) else None
    # The cluster has given this task one CPU, and other tasks the others.
    with RowFile() as rows, Spool() as spool, without_help():
        try:
            info = source.probe()
            for part in answers(
                run, source, stride=options.stride, max_frames=options.max_frames, several=several
            ):
                if options.masks:
                    spool.add(part)
                rows.add(part)
        except VideoError as caught:
            error = str(caught)
        if info is None or not rows.count:
            return VideoResult(error=error, is_open=info is not None)
        answer = rows.read()
        if answer.columns == TRACK:
            answer = complete(answer, info, several)
        if options.masks:
            place = parts.parent if several is None else parts
            _write_masks(MaskWriter(place, source, options.soft), spool, answer, several)
    note = PartNote(
        request,
        stored_path(source),
        list(answer.columns),
        Totals.of(answer),
        describe_sequence(answer, info),
        error,
        "" if several is None else crossing_lines(answer, several),
        notes_of(several, options),
        [] if several is None else several.portraits,
    )
    return VideoResult(len(answer.index), to_parquet(answer, note), error)


def _write_masks(writer: MaskWriter, spool: Spool, answer: Answer, several: Several | None) -> None:
    is_one = several is None or several.rows is None
    for part in spool.read(answer):
        writer.write(part, None if several is None or is_one else identities(part, several))


class _Fleet:
    """Tasks in flight: a few per CPU, so that memory does not grow with the number of videos.

    Attributes:
        failed: Videos without any result by name, with the error.
        unopened: Videos that could not be opened by path, with the error.
    """

    def __init__(
        self, run: Run, sources: Sequence[Source], options: ExportOptions, parts: Parts
    ) -> None:
        ray = load_ray()
        self.count = len(sources)
        self.options = options
        self.parts = parts
        self.failed: dict[str, str] = {}
        self.unopened: dict[str, str] = {}
        # Attempts are counted here: Ray would repeat a task that runs out of memory forever.
        self.task = ray.remote(num_cpus=1, max_retries=0)(apply_to_video)
        # Sent to each machine once; workers may have a different working directory.
        self.run = ray.put(replace(run, folder=run.folder.absolute()))
        self.running: dict[Any, tuple[Source, int]] = {}
        self.last_cpu = time.monotonic()

    def work(self, sources: Sequence[Source], progress: Callable[[int, int], None]) -> None:
        """Process videos until all are finished or have failed."""
        waiting = deque((source, 1) for source in sources)
        done, frames = self.count - len(waiting), 0
        # After an error, tasks in flight end with the connection: Ray 2.60 aborts this process if a
        # task ends while it is being cancelled.
        with ClusterCpus() as cpus:
            while waiting or self.running:
                self._submit(waiting, cpus.count())
                for task in self._ended_tasks():
                    source, attempt = self.running.pop(task)
                    result = self._result(source, task)
                    if result.error is not None and attempt < ATTEMPTS:
                        waiting.append((source, attempt + 1))
                        continue
                    self._keep(source, result)
                    done, frames = done + 1, frames + result.frames
                    progress(done, frames)

    def _ended_tasks(self) -> list[Any]:
        """Wait a moment for tasks to end."""
        try:
            ended, _ = load_ray().wait(list(self.running), timeout=POLL_SECONDS)
        except ConnectionError as error:  # of a client, ray://
            raise lost_cluster() from error
        return list(ended)

    def _submit(self, waiting: deque[tuple[Source, int]], cpus: int) -> None:
        if cpus:
            self.last_cpu = time.monotonic()
        elif time.monotonic() - self.last_cpu > MAX_IDLE_SECONDS:
            raise UserError(
                f"the Ray cluster has had no CPU for {MAX_IDLE_SECONDS:g} seconds; start workers, "
                "then continue with --resume"
            )
        while waiting and len(self.running) < max(1, TASKS_PER_CPU * cpus):
            source, attempt = waiting.popleft()
            request = self.parts.request
            folder = self.parts.folder.absolute()
            task = self.task.remote(self.run, source, self.options, request, folder)
            self.running[task] = source, attempt

    def _result(self, source: Source, task: Any) -> VideoResult:
        """Return the result of a task that has ended; a dead worker is an error of the video."""
        ray = load_ray()
        try:
            result: VideoResult = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            reason = type(error).__name__
            path = without_password(source.path)
            return VideoResult(error=f"{path}: its worker process died ({reason})")
        return result

    def _keep(self, source: Source, result: VideoResult) -> None:
        """Write the result of a video, or record why there is none."""
        if result.error is not None and not self.options.skip_bad:
            raise VideoError(result.error).with_skip_hint(self.count)
        if result.content is not None:
            self.parts.write(source, result.content)
        elif result.error is not None and not result.is_open:
            self.unopened[source.path] = result.error
        elif result.error is not None:
            self.failed[source.name] = VideoError(result.error).reason
