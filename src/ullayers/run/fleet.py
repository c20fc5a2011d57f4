"""Connection to a Ray cluster, or to an instance of Ray started on this machine."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import MissingPackageError, RunError, UserError
from ullayers.files import check_inside, from_json, replacing, sweep
from ullayers.locate.tracking.identity import KnownObjects, Portrait
from ullayers.locate.tracking.settle import Several, crossing_lines, identities
from ullayers.run.apply import answers
from ullayers.run.folder import clear_masks, clear_parts
from ullayers.run.plan import Run, csv_name
from ullayers.run.summary import Totals, describe_recognised, describe_sequence, write_summary
from ullayers.run.write import ExportOptions, follows_several, notes_of, request_of
from ullayers.tracks.behaviour import write_fleet_behaviour
from ullayers.tracks.masks import MaskWriter, Spool, renumber_masks
from ullayers.tracks.measures import complete
from ullayers.tracks.reading import renumbered, write_crossings
from ullayers.tracks.table import (
    CROP,
    CROSSINGS,
    ROWS_AT_ONCE,
    SHAPE,
    TRACK,
    Answer,
    header,
)
from ullayers.video.files.opening import absolute_path, without_password
from ullayers.video.parallel import without_help
from ullayers.video.sources import Source, VideoError

LOCAL = "local"
CLIENT = "ray://"
CLIENT_ATTEMPTS = 3  # in the head, gRPC sometimes breaks the process started for a client
CONNECT_SECONDS = 10.0  # to reach the machine
JOIN_SECONDS = 40.0  # to join the cluster
POLL_SECONDS = 1.0
# After 60 seconds Ray ends the process; disconnecting before that takes 8 seconds.
LOST_SECONDS = 30.0  # without an answer from the head of the cluster
OBJECT_STORE_BYTES = 2**28  # for waiting results; those of an hour of video take a few megabytes
# If an address is wrong, Ray waits for minutes and then ends the process, so another process tries
# it.
TRIAL = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False)"
NOTE = b"ullayers"  # key of the note in the metadata of a Parquet file
ATTEMPTS = 3  # for each video; a lost connection or a dead worker may be temporary
TASKS_PER_CPU = 2  # submitted at once: one running and one waiting
MAX_IDLE_SECONDS = 60.0  # without any CPU in the cluster


def load_ray() -> ModuleType:
    """Import Ray on first use."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "--ray needs the package ray: pip install 'ullayers[ray]'"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)
    module: ModuleType = ray
    return module


class ClusterCpus:
    """Number of CPUs of the connected cluster, which may grow and shrink; a context manager.

    A thread queries it, because the query blocks and cannot be interrupted if the head of the
    cluster has died.
    """

    def __init__(self) -> None:
        self._ray = load_ray()
        self._number = 0
        self._answered = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_asking, daemon=True)

    def __enter__(self) -> ClusterCpus:
        self._ask()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(POLL_SECONDS)  # if it waits for a dead cluster, it ends with the process

    def _ask(self) -> None:
        self._number = int(self._ray.cluster_resources().get("CPU", 0))
        self._answered = time.monotonic()

    def _keep_asking(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            # Any error, including one of gRPC, counts as no answer; see `count`.
            with suppress(Exception):
                self._ask()

    def count(self) -> int:
        """Return the latest number.

        Raises:
            UserError: The head of the cluster no longer answers.
        """
        if time.monotonic() - self._answered > LOST_SECONDS:
            raise lost_cluster()
        return self._number


def lost_cluster() -> UserError:
    """Return the error of a cluster that has died."""
    return UserError(
        "the head of the Ray cluster no longer answers; finished videos are kept, start the "
        "cluster again and continue with --resume"
    )


@contextmanager
def cluster(address: str = LOCAL, cpus: int | None = None) -> Iterator[None]:
    """Connect to a Ray cluster and disconnect at the end.

    An existing connection of this process is used and left open.

    Args:
        address: "local" starts Ray on this machine for the duration of the block; otherwise
            HOST:PORT, ray://HOST:PORT, or "auto" for a cluster that this machine is part of.
        cpus: Number of CPUs of a local instance; None for all CPUs available to this process.

    Raises:
        UserError: The cluster cannot be reached.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {
            "num_cpus": cpus or len(os.sched_getaffinity(0)),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    else:
        check_address(address)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            _connect(address, options)
        except (ConnectionError, RuntimeError, OSError, ValueError) as error:
            raise _cannot_connect(address, str(error)) from error
        finally:
            for number, handler in handlers.items():  # Ray's would end the process
                signal.signal(number, handler)
        yield
    finally:
        ray.shutdown()


def _connect(address: str, options: dict[str, Any]) -> None:
    ray = load_ray()
    attempts = CLIENT_ATTEMPTS if address.startswith(CLIENT) else 1
    for attempt in range(1, attempts + 1):
        try:
            with warnings.catch_warnings(action="ignore"):  # the error says the same
                ray.init(address, **options)
            return
        except ConnectionAbortedError:  # the head could not start its process for this client
            if attempt == attempts:
                raise


def check_address(address: str) -> None:
    """Refuse an address at which no Ray cluster answers within a bounded time.

    Raises:
        UserError: Nothing answers, or something other than Ray.
    """
    found = re.fullmatch(r"(?:ray://)?([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", address)
    if address != "auto" and found is None:
        raise UserError(
            f"--ray {address}: expected HOST:PORT, ray://HOST:PORT or auto; write --ray without an "
            "address last on the command line"
        )
    if found is not None:
        try:
            host, port = found[1].strip("[]"), int(found[2])
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _cannot_connect(address, str(error)) from error
    if address.startswith(CLIENT):  # fails by itself, after 30 seconds
        return
    try:
        trial = subprocess.run(
            [sys.executable, "-c", TRIAL, address],
            capture_output=True,
            text=True,
            timeout=JOIN_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _cannot_connect(address, f"no answer within {JOIN_SECONDS:g} seconds") from error
    if trial.returncode:
        lines = trial.stderr.strip().splitlines() or ["no answer"]
        raise _cannot_connect(address, lines[-1])


def _cannot_connect(address: str, reason: str) -> UserError:
    if address == LOCAL:
        return UserError(f"Ray cannot be started on this machine: {reason}")
    return UserError(f"--ray {address}: no Ray cluster there ({reason}); is it running?")


@dataclass(frozen=True)
class PartNote:
    """The note in the result file of a video.

    Attributes:
        request: What was asked for.
        path: Path of the video.
        columns: Columns of the results, without pixels.
        totals: Numbers of frames.
        sequence: Entry of the video in summary.json.
        error: Why the video could not be read to its end; None if it could.
        crossings: Rows of crossings.csv, if there are several objects.
        notes: Notes about the objects.
        portraits: Appearance of the objects.
    """

    request: list[str | int | None]
    path: str
    columns: list[str]
    totals: Totals
    sequence: dict[str, str | int | float | None]
    error: str | None = None
    crossings: str = ""
    notes: list[str] = field(default_factory=list)
    portraits: list[Portrait] = field(default_factory=list)

    @property
    def objects(self) -> int:
        """Number of objects."""
        return int(self.sequence.get("objects") or 1)


@dataclass
class Merged:
    """Results of all videos; as in `Exported`."""

    totals: Totals = field(default_factory=Totals)
    sequences: list[dict[str, Any]] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)


def load_parquet() -> ModuleType:
    """Import pyarrow on first use."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "Parquet files need the package pyarrow: pip install 'ullayers[parquet]'"
        ) from error
    module: ModuleType = pyarrow.parquet
    return module


def stored_path(source: Source) -> str:
    """Return the path of a source as stored: absolute, without a password."""
    return without_password(absolute_path(source.path))


def to_parquet(answer: Answer, note: PartNote) -> bytes:
    """Return the rows of a video as a Parquet file; numbers are not rounded.

    Args:
        answer: All rows.
        note: The note to store with them.
    """
    parquet = load_parquet()
    import pyarrow as arrow

    answer = answer.several or answer
    rows = len(answer.index)
    pixels = None if answer.size is None else answer.values[:, :2] * answer.size
    blocks = [answer.values, pixels, answer.shapes, answer.crops]
    values = [block for block in blocks if block is not None]
    name = arrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [answer.sequence])
    columns = {"sequence": name, "frame": answer.index}
    if answer.objects is not None:
        columns["object"] = answer.objects
    columns["time"] = answer.seconds
    columns |= dict(zip(answer.table_columns, np.concatenate(values, 1).T, strict=True))
    table = arrow.table(columns).replace_schema_metadata({NOTE: json.dumps(asdict(note))})
    file = arrow.BufferOutputStream()
    parquet.write_table(table, file, compression="zstd")
    content: bytes = file.getvalue().to_pybytes()
    return content


class Parts:
    """A folder with the result file of each finished video, and the merged table.

    The folder is called tracks.partial.parquet, or codes.partial.parquet, until the table is
    complete, and tracks.parquet afterwards.

    Args:
        table: The complete CSV.
        request: What was asked for; videos are resumed only with an equal request.
        resume: Whether to keep finished videos.
    """

    def __init__(self, table: Path, request: list[str | int | None], *, resume: bool) -> None:
        self.table = table
        self.request = request
        self.complete = table.with_suffix(".parquet")
        self.folder = table.with_suffix(".partial.parquet")
        check_inside(table.parent, self.folder, self.complete)
        if not resume:
            clear_parts(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)

    def finished(self, sources: Sequence[Source], *, skip_bad: bool) -> set[str]:
        """Return the names of the finished videos.

        Args:
            sources: All videos.
            skip_bad: Whether videos that could be read only in part count as finished.

        Raises:
            RunError: The folder has results of other videos, of another request, or damaged ones.
        """
        known = {source.name: source for source in sources}
        done: set[str] = set()
        for file in self.folder.glob("*.parquet"):
            if file.stem not in known:
                raise RunError(
                    f"{file}: belongs to a video that is not among the inputs; "
                    "use the same inputs, or start again with --force"
                )
            note = self._note(known[file.stem])
            if note.error is None or skip_bad:
                done.add(file.stem)
        return done

    def write(self, source: Source, content: bytes) -> None:
        """Write the result file of a video atomically."""
        with replacing(self._file(source), "wb") as file:
            file.write(content)

    def merge(self, sources: Sequence[Source]) -> Merged:
        """Write the table of all finished videos, in the order of the sources.

        Memory does not grow with the number of rows.
        """
        merged, known = Merged(), KnownObjects()
        notes = {source: self._note(source) for source in sources if self._file(source).exists()}
        met = {source: known.meet(note.portraits, source.name) for source, note in notes.items()}
        if any(note.objects > 1 for note in notes.values()):
            crossings = self.table.with_name(CROSSINGS)
            rows = [renumbered(note.crossings, met[source][0]) for source, note in notes.items()]
            write_crossings(crossings, rows)
            merged.files.append(crossings)
        with replacing(self.table) as file:
            for source, note in notes.items():
                numbers, recognised = met[source]
                for answer in self._answers(source, note, numbers):
                    if not file.tell():
                        file.write(header(answer.table_columns))
                    file.write(answer.lines())
                self._publish_masks(source, numbers)
                merged.totals += note.totals
                merged.sequences.append({**note.sequence, **describe_recognised(recognised)})
                if note.notes:
                    merged.notes[source.name] = note.notes
                if note.error is not None:
                    merged.bad[source.name] = VideoError(note.error).reason
        return merged

    def _publish_masks(self, source: Source, numbers: Sequence[int]) -> None:
        """Write masks of several objects, now that the object numbers are known."""
        waiting = self.folder / "masks" / source.name
        if waiting.is_dir():
            target = self.table.parent / "masks" / source.name
            check_inside(self.table.parent, target)
            renumber_masks(waiting, target, numbers)

    def remove_if_empty(self) -> bool:
        """Remove the folder if no video is finished; returns whether it was empty."""
        with suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()

    def finish(self) -> None:
        """Give the folder its final name."""
        clear_masks(self.folder)
        clear_parts(self.complete)
        os.replace(self.folder, self.complete)

    def _file(self, source: Source) -> Path:
        return self.folder / f"{source.name}.parquet"

    def _note(self, source: Source) -> PartNote:
        parquet, file = load_parquet(), self._file(source)
        import pyarrow as arrow

        try:
            stored = parquet.read_schema(file).metadata or {}
            note = from_json(PartNote, json.loads(stored[NOTE]))
        except (arrow.ArrowException, OSError, KeyError, ValueError) as error:
            raise RunError(f"{file}: is damaged; remove it, or start again with --force") from error
        if note.request != self.request:
            raise RunError(
                f"{self.folder}: was started with another run, --stride, --max-frames, --start, "
                "--end, --roi, --objects or --masks; use the same ones, or start again with --force"
            )
        if note.path != stored_path(source):
            raise RunError(
                f"{self.folder}: has {source.name} from {note.path}; use the same inputs, or start "
                "again with --force"
            )
        return note

    def _answers(self, source: Source, note: PartNote, numbers: Sequence[int]) -> Iterator[Answer]:
        """Read the rows of a video in parts.

        Args:
            source: The video.
            note: Its note.
            numbers: New numbers of the objects 1, 2, ... in the file.
        """
        lookup = np.array([0, *numbers])
        for columns in self._whole_frames(source):
            count = len(columns["frame"])
            objects = columns.get("object")
            if numbers and (objects is not None or numbers[0] != 1):
                objects = lookup[np.ones(count, np.int64) if objects is None else objects]
                order = np.lexsort([objects, columns["frame"]])
                columns = {name: values[order] for name, values in columns.items()}
                objects = objects[order]
            more = [
                np.stack([columns[name] for name in names], 1) if names[0] in columns else None
                for names in (SHAPE, CROP)
            ]
            yield Answer(
                source.name,
                columns["frame"],
                columns["time"],
                tuple(note.columns),
                np.stack([columns[name] for name in note.columns], 1),
                size=_frame_size(note),
                shapes=more[0],
                crops=more[1],
                objects=objects,
            )

    def _whole_frames(self, source: Source) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield columns in parts; all rows of a frame are in the same part."""
        waiting: dict[str, NDArray[Any]] = {}
        with load_parquet().ParquetFile(self._file(source)) as file:
            for rows in file.iter_batches(ROWS_AT_ONCE):
                columns = {name: rows.column(name).to_numpy() for name in rows.schema.names[1:]}
                if waiting:
                    columns = {k: np.concatenate([waiting[k], v]) for k, v in columns.items()}
                end = int(np.searchsorted(columns["frame"], columns["frame"][-1]))
                yield {name: values[:end] for name, values in columns.items()}
                waiting = {name: values[end:] for name, values in columns.items()}
        if waiting:
            yield waiting


def _frame_size(note: PartNote) -> tuple[int, int] | None:
    """Return (width, height) of a video whose table also has pixels."""
    if note.columns != list(TRACK):
        return None
    return int(note.sequence["width"] or 0), int(note.sequence["height"] or 0)


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
    rows: list[Answer] = []
    with Spool() as spool, without_help():
        try:
            info = source.probe()
            for part in answers(
                run, source, stride=options.stride, max_frames=options.max_frames, several=several
            ):
                if options.masks:
                    spool.add(part)
                rows.append(replace(part, masks=None, owners=None))
        except VideoError as caught:
            error = str(caught)
        if info is None or not rows:
            return VideoResult(error=error, is_open=info is not None)
        answer = Answer.join(rows)
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
