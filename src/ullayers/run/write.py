"""What an export writes, and what must be the same for it to be resumed."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ullayers.errors import RunError
from ullayers.files import (
    check_inside,
    from_json,
    keep_beginning,
    open_regular,
    read_json,
    read_regular,
    replacing,
    sweep,
    write_json,
)
from ullayers.learn.footage import Spread
from ullayers.learn.teaching import Teaching
from ullayers.locate.tracking.identity import KnownObjects, Portrait
from ullayers.locate.tracking.settle import Several, crossing_lines, crossings_of, identities
from ullayers.report.drawing import Outline
from ullayers.report.overlay import Overlay, PictureStore, SampleTap, as_kept, display_size
from ullayers.run.apply import answers
from ullayers.run.folder import ReadingEntry, clear_masks
from ullayers.run.plan import Run, csv_name
from ullayers.run.summary import Exported, SequenceNote, write_summary
from ullayers.tracks.masks import (
    OUTLINES,
    MaskWriter,
    OutlineWriter,
    Spool,
    remove_partial_outlines,
)
from ullayers.tracks.measures import complete, to_tracks
from ullayers.tracks.reading import CROSSINGS, write_crossings
from ullayers.tracks.table import (
    CROP,
    PIXELS,
    SHAPE,
    TRACK,
    Answer,
    RowFile,
    code_columns,
    header,
    read_answers,
)
from ullayers.video.frames import DEFAULT_FPS, Render
from ullayers.video.read_ahead import read_ahead
from ullayers.video.reader import Info, Reading, Source, VideoError
from ullayers.video.remote import absolute_path

MAX_TABLE_BYTES = 2**30
PARTIAL_TABLES = "*.partial.json", "*.partial.csv"
MORE_COLUMNS = (PIXELS, PIXELS + SHAPE, CROP)  # after those of the results
DRAWN_AT_ONCE = 64  # frames in memory
KEPT_MASKS = 64  # masks kept of each source, for the report
MAX_KEPT_SIDE = 160  # pixels of a mask kept for the report
KEPT_FRAMES = 16  # frames kept of each of up to SAMPLED_SOURCES sources, for the report
SAMPLED_SOURCES = 8
MAX_KEPT_PICTURES = 3000  # per source, about 60 KB each; more are decoded again when they are drawn


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to export.

    Attributes:
        stride: Use every `stride`-th frame.
        max_frames: Largest number of frames to use from each source.
        masks: Write every mask as a PNG of the frame's size to masks/SEQUENCE/FRAME.png.
        soft: Write masks in grey, with 128 at the outline, instead of black and white.
        overlay: Number of frames in overlay.mp4, shared among the sources; None for no video.
        samples: Keep some frames of some sources for the report.
        skip_bad: Leave out sources that cannot be read.
        resume: Keep the rows of a partial table.
        keep_scenes: Store the scenes of still cameras in the run; see `answers`.
        objects: Number of objects to track; None to find it.
        teaching: Positions given by the user; None for none.
    """

    stride: int = 1
    max_frames: int | None = None
    masks: bool = False
    soft: bool = False
    overlay: int | None = None
    samples: bool = False
    skip_bad: bool = False
    resume: bool = False
    keep_scenes: bool = False
    objects: int | None = 1
    teaching: Teaching | None = None


def follows_several(run: Run, options: ExportOptions) -> bool:
    """Return whether all objects are tracked, not only the main one."""
    return run.config.task == "locate" and options.objects != 1


def notes_of(several: Several | None, options: ExportOptions) -> list[str]:
    """Return notes for the user about the objects of a source, one sentence each."""
    if several is None:
        return []
    is_hard = options.soft and several.rows is not None
    return [*several.notes, *["Masks of several objects have no soft edges."] * is_hard]


def request_of(run: Run, options: ExportOptions) -> list[str | int | None]:
    """Return the request of an export; results are resumed only if it is the same."""
    request: list[str | int | None] = [
        os.path.abspath(run.folder),
        options.stride,
        options.max_frames,
    ]
    if follows_several(run, options):
        request.append(f"objects {options.objects}")
    part = ReadingEntry.of(run.reading, None, None)
    if part.start or part.end is not None or part.roi is not None:
        request.append(json.dumps([part.start, part.end, part.roi]))
    return request


@dataclass(frozen=True)
class PartialNote:
    """The note beside a partial table.

    Attributes:
        asked: The request.
        bytes: Valid bytes of the table.
        places: Path of the source of each finished sequence.
        masks: Whether the finished sequences have masks.
        crossings: Rows of crossings.csv of each finished sequence with several objects.
        portraits: Appearance of the objects of each finished sequence.
        summaries: What the summary says about each finished sequence.
    """

    asked: list[str | int | None]
    bytes: int
    places: dict[str, str]
    masks: bool = False
    crossings: dict[str, str] = field(default_factory=dict)
    portraits: dict[str, list[Portrait]] = field(default_factory=dict)
    summaries: dict[str, SequenceNote] = field(default_factory=dict)


def read_note(path: Path) -> PartialNote:
    """Read the note beside a partial table.

    Raises:
        RunError: The note is damaged.
    """
    try:
        return from_json(PartialNote, read_json(path))
    except (OSError, ValueError) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> RunError:
    return RunError(f"{path}: is damaged; start again with --force")


def unfinished_sources(sources: Iterable[Source], out: Path, masks: bool) -> list[Source]:
    """Return the sources that `export` still has to process when it resumes a partial table.

    Args:
        sources: All sources of the command.
        out: Folder of the partial table.
        masks: Whether masks are written; a sequence without its masks is not finished.
    """
    finished: set[str] = set()
    for path in out.glob("*.partial.json"):
        try:
            note = read_note(path)
        except RunError:
            continue  # `export` refuses a damaged note with a message
        if note.masks or not masks:
            finished.update(note.places)
    return [source for source in sources if source.name not in finished]


class PartialTable:
    """A CSV under a temporary name, with a note of how much of it is valid.

    A killed process leaves an incomplete sequence, which the note does not include. The partial
    table stays until `remove_partial_tables`, so that an export can be resumed until its last file
    is written.

    Args:
        path: The complete table.
        request: The request; a table is resumed only with an equal request.
        columns: Columns of the results.
        resume: Whether to keep the sequences of a partial table.
        masks: Whether the masks of finished sequences are needed too.
        numbered: Whether there may be several objects. The complete table has a column `object`
            only if there are several.

    Attributes:
        finished: Path of the source of each finished sequence.
        answers: Results of the sequences that were finished before.
    """

    def __init__(
        self,
        path: Path,
        request: list[str | int | None],
        columns: Sequence[str],
        *,
        resume: bool,
        masks: bool = False,
        numbered: bool = False,
    ) -> None:
        self.path = path
        self.partial = path.with_suffix(".partial.csv")
        self.note = path.with_suffix(".partial.json")
        check_inside(path.parent, self.partial, self.note)
        self.request = request
        self.columns = tuple(columns)
        self.masks = masks
        self.numbered = numbered
        self.crossings: dict[str, str] = {}
        self.portraits: dict[str, list[Portrait]] = {}
        self.summaries: dict[str, SequenceNote] = {}
        self.finished: dict[str, str] = {}
        self.answers: dict[str, Answer] = {}
        self.header = ""
        if resume and self.partial.exists() and self.note.exists():
            self._resume()

    def _resume(self) -> None:
        note = read_note(self.note)
        if note.asked != self.request:
            raise RunError(
                f"{self.partial}: was started with another run, --stride, --max-frames, --start, "
                "--end or --roi; use the same ones, or start again with --force"
            )
        if self.masks and not note.masks:
            return  # the finished sequences have no masks, so all are processed again
        try:
            self._read_finished(note)
        except (OSError, ValueError, csv.Error) as error:
            raise _damaged(self.partial) from error
        self.finished = note.places
        self.crossings = note.crossings
        self.portraits = note.portraits
        self.summaries = note.summaries
        keep_beginning(self.partial, note.bytes)

    def _read_finished(self, note: PartialNote) -> None:
        content = read_regular(self.partial, MAX_TABLE_BYTES)
        if not 0 <= note.bytes <= len(content):
            raise ValueError(f"expected a table of {note.bytes} bytes, got {len(content)}")
        text = io.TextIOWrapper(io.BytesIO(content[: note.bytes]), "utf-8", newline="")
        self.header = text.readline()
        known = [self.columns, *(self.columns + more for more in MORE_COLUMNS)]
        if self.header not in {header(each, numbered=self.numbered) for each in known}:
            raise ValueError(f"expected a table with columns {self.columns}")
        text.seek(0)
        answers = read_answers(text)
        self.answers = {found.sequence: found for found in answers}
        if len(answers) != len(self.answers) or self.answers.keys() != note.places.keys():
            raise ValueError("expected the sequences of the note, each once")

    def has(self, source: Source) -> bool:
        """Return whether the rows of this source are in the table.

        Raises:
            RunError: The table has rows of another file of the same name.
        """
        path = self.finished.get(source.name)
        if path is not None and path != absolute_path(source.path):
            raise RunError(
                f"{self.partial}: has {source.name} from {path}; use the same inputs, or start "
                "again with --force"
            )
        return path is not None

    def __enter__(self) -> PartialTable:
        if not self.finished:
            self.note.unlink(missing_ok=True)
            self.partial.unlink(missing_ok=True)  # it may be a pipe or a hard link
        check_inside(self.path.parent, self.partial)
        self.file = open(self.partial, "ab" if self.finished else "xb")
        return self

    def write(
        self,
        answer: Answer,
        source: Source,
        crossings: str = "",
        portraits: Sequence[Portrait] = (),
        summary: SequenceNote | None = None,
    ) -> None:
        """Add the rows of a sequence.

        Args:
            answer: The rows.
            source: Their source.
            crossings: Rows of crossings.csv, if there are several objects.
            portraits: Appearance of the objects.
            summary: What the summary says about the sequence.
        """
        columns = header(answer.table_columns, numbered=self.numbered)
        if not self.finished:
            self.header = columns
            self.file.write(self.header.encode())
        elif self.header != columns:  # of an older version
            answer = answer.with_columns(self.header.strip().split(","))
        for some in answer.in_parts():
            self.file.write(some.lines(numbered=self.numbered).encode())
        if answer.several is not None:
            self.crossings = {**self.crossings, answer.sequence: crossings}
        if portraits:
            self.portraits = {**self.portraits, answer.sequence: list(portraits)}
        if summary is not None:
            self.summaries = {**self.summaries, answer.sequence: summary}
        self.file.flush()
        finished = {**self.finished, answer.sequence: absolute_path(source.path)}
        note = {
            "asked": self.request,
            "bytes": self.file.tell(),
            "places": finished,
            "masks": self.masks,
            "crossings": self.crossings,
            "portraits": {k: list(map(asdict, each)) for k, each in self.portraits.items()},
            "summaries": {name: asdict(each) for name, each in self.summaries.items()},
        }
        write_json(self.note, note)
        self.finished = finished

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.file.close()
        if kind is None:
            self._complete()
        elif not self.finished:
            remove_partial_tables(self.path.parent)

    def _complete(self) -> None:
        """Write the complete table, without the column `object` if there is one object."""
        listed = self.path.with_name(CROSSINGS)
        if self.crossings:
            write_crossings(listed, list(self.crossings.values()))
        elif self.numbered:
            listed.unlink(missing_ok=True)
            _copy_without_column(self.partial, self.path, 2)
            return
        with replacing(self.path, "wb") as new, open_regular(self.partial) as old:
            shutil.copyfileobj(old, new)


def has_partial_tables(folder: Path) -> bool:
    """Return whether a folder has an export that can be resumed, even one without rows."""
    return any(path for pattern in PARTIAL_TABLES for path in folder.glob(pattern))


def remove_partial_tables(folder: Path) -> None:
    """Remove the partial tables of an export that is complete, or has no finished sequence.

    The notes come first: without its note, a partial table is not resumed.
    """
    for pattern in PARTIAL_TABLES:
        for path in folder.glob(pattern):
            path.unlink()


def _copy_without_column(source: Path, path: Path, column: int) -> None:
    with replacing(path) as new, open_regular(source) as old:
        text = io.TextIOWrapper(old, newline="")
        rows = csv.writer(new, lineterminator="\n")
        rows.writerows(row[:column] + row[column + 1 :] for row in csv.reader(text))


def frames_to_draw(
    run: Run, source: Source, stride: int, most: int, kept: PictureStore
) -> Generator[Tensor, None, None]:
    """Yield (3, height, width) uint8 frames with the outline of the region of interest.

    Args:
        run: The applied run.
        source: Source it was applied to.
        stride: Stride of the frames used.
        most: Largest number of frames.
        kept: Frames that were kept when the results were computed; others are decoded again.
    """
    info = source.probe()
    size = display_size(info)
    cut = run.reading.cut(source.path, info.height, info.width)
    outline = None if cut is None else Outline(cut, size)
    with closing(_unpainted(run, source, stride, most, size, kept)) as frames:
        for frame in frames:
            if outline is not None:
                outline.paint(frame[None])
            yield frame


def _unpainted(
    run: Run, source: Source, stride: int, most: int, size: tuple[int, int], kept: PictureStore
) -> Generator[Tensor, None, None]:
    if kept.has(source.name):
        yield from kept.read(source.name)
        return
    start, end = run.reading.start, run.reading.end
    reading = Reading(
        size=size, start=start, end=end, stride=stride, max_frames=most, interleaved=True
    )
    with closing(source.clips(DRAWN_AT_ONCE, reading)) as clips:
        for clip in clips:
            yield from map(as_kept, clip.frames) if most <= MAX_KEPT_PICTURES else clip.frames


def draw_codes(
    path: Path,
    run: Run,
    sources: Sequence[Source],
    done: Exported,
    fps: float,
    stride: int,
    share: int,
    kept: PictureStore,
) -> None:
    """Write the overlay of codes.

    Args:
        path: The video.
        run: The applied run.
        sources: Sources it was applied to.
        done: Its results.
        fps: Frames per second of the overlay.
        stride: Stride of the frames used.
        share: Number of frames of each source.
        kept: As in `frames_to_draw`.
    """
    found = {answer.sequence: answer.rows(slice(0, share)) for answer in done.answers}
    shown = [source for source in sources if source.name in found]
    cloud = np.concatenate([found[source.name].values for source in shown])
    with Overlay(path, fps, cloud) as video:
        for source in shown:
            answer = found[source.name]
            with closing(frames_to_draw(run, source, stride, share, kept)) as pictures:
                for start in range(0, len(answer.index), DRAWN_AT_ONCE):
                    part = answer.rows(slice(start, start + DRAWN_AT_ONCE))
                    video.add(torch.stack(list(islice(pictures, len(part.index)))), part)


def export(
    run: Run,
    sources: Sequence[Source],
    folder: str | os.PathLike[str],
    options: ExportOptions,
    progress: Callable[[int], None] = lambda count: None,
) -> Exported:
    """Apply a run to sources and write the results, as `export_parts` does.

    Args:
        run: A finished run.
        sources: From `find_sources`.
        folder: Output folder; created if needed.
        options: What to write.
        progress: Called with the number of frames processed so far.
    """
    parts = export_parts(run, sources, folder, options)
    count = 0
    while True:
        try:
            count += len(next(parts).index)
        except StopIteration as end:
            done: Exported = end.value
            return done
        progress(count)


def export_parts(
    run: Run,
    sources: Sequence[Source],
    folder: str | os.PathLike[str],
    options: ExportOptions,
    measure: Callable[[Exported], list[Path]] = lambda exported: [],
) -> Generator[Answer, None, Exported]:
    """Apply a run to sources and write the results.

    The rows of finished sequences are kept in a partial table until the last file is written. If
    the process is killed or a source is damaged, `resume` continues after them.

    Args:
        run: A finished run.
        sources: From `find_sources`.
        folder: Output folder; created if needed.
        options: What to write.
        measure: Called at the end; writes further tables and returns their paths.

    Yields:
        The results of some frames, with masks, as soon as they are known.

    Raises:
        RunError: The run is not finished, or the folder cannot be used.
        VideoError: A source cannot be read.
    """
    if run.net is None:
        raise RunError(f"{run.folder}: training has not finished; continue it with --resume")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    sweep(place)
    with PictureStore() as pictures:
        job = _Job(run, place, options, sources, pictures)
        yield from _export_all(job, sources)
        if options.overlay and run.config.task != "locate":
            path, stride, share = place / "overlay.mp4", options.stride, job.overlay_frames
            draw_codes(path, run, sources, job.done, job.fps, stride, share, job.pictures)
    job.done.files = _written(job)
    write_summary(place / "summary.json", run, job.done)
    job.done.files += measure(job.done)
    remove_partial_tables(place)
    remove_partial_outlines(place)
    return job.done


class _Job:
    """An export in progress."""

    def __init__(
        self,
        run: Run,
        place: Path,
        options: ExportOptions,
        sources: Sequence[Source],
        pictures: PictureStore,
    ) -> None:
        self.run = run
        self.place = place
        self.options = options
        self.done = Exported()
        self.known = KnownObjects()
        self.video: Overlay | None = None
        self.pictures = pictures
        self.outlines: OutlineWriter | None = None
        self.overlay_frames = _overlay_share(options, len(sources))
        self.fps = _overlay_fps(sources[0].probe(), options.stride)
        self.sampled = _sampled(sources) if options.samples else []

    @property
    def numbered(self) -> bool:
        """Whether there may be several objects."""
        return follows_several(self.run, self.options)

    def answers(
        self, source: Source, tap: Callable[[Render], None] | None, several: Several | None
    ) -> Generator[Answer, None, None]:
        """Apply the run to a source."""
        options = self.options
        return answers(
            self.run,
            source,
            stride=options.stride,
            max_frames=options.max_frames,
            tap=tap,
            keep_scenes=options.keep_scenes,
            several=several,
            teaching=options.teaching,
        )

    def recognise(self, source: Source, portraits: Sequence[Portrait]) -> list[int]:
        """Number the objects of the next source; some may be recognised from earlier ones."""
        numbers, recognised = self.known.meet(portraits, source.name)
        if recognised:
            self.done.recognised[source.name] = recognised
        return numbers

    def samples(self, source: Source, info: Info) -> SampleTap | None:
        """Return what keeps the frames of a source to show; None if none are shown."""
        return SampleTap(display_size(info), KEPT_FRAMES) if source in self.sampled else None

    def tap(
        self, source: Source, info: Info, samples: SampleTap | None
    ) -> Callable[[Render], None] | None:
        """Return the tap that keeps the frames of a source to show and to draw; None for none."""
        count = self.overlay_frames
        taps: list[Callable[[Render], None]] = [] if samples is None else [samples]
        if 0 < count <= MAX_KEPT_PICTURES:
            taps.append(self.pictures.tap(source.name, display_size(info), count))

        def keep(render: Render) -> None:
            for tap in taps:
                tap(render)

        return keep if taps else None


def _export_all(job: _Job, sources: Sequence[Source]) -> Generator[Answer, None, None]:
    with ExitStack() as stack:
        table = _open_table(job)
        stack.enter_context(_only_finished(job.place, table))
        stack.enter_context(table)
        if job.run.config.task == "locate":
            job.outlines = stack.enter_context(OutlineWriter(job.place, table.finished))
        if job.options.overlay and job.run.config.task == "locate":
            job.video = stack.enter_context(Overlay(job.place / "overlay.mp4", job.fps))
        for source in sources:
            try:
                yield from _export_or_skip(job, source, table)
            except VideoError as error:
                raise error.with_skip_hint(len(sources)) from None
        if not table.finished and job.done.bad:
            raise VideoError(next(iter(job.done.bad.values())))


def _open_table(job: _Job) -> PartialTable:
    options = job.options
    config = job.run.config
    return PartialTable(
        job.place / csv_name(job.run),
        request_of(job.run, options),
        TRACK if config.task == "locate" else code_columns(config.outputs),
        resume=options.resume,
        masks=options.masks,
        numbered=job.numbered,
    )


@contextmanager
def _only_finished(place: Path, table: PartialTable) -> Iterator[None]:
    """Remove the masks of sequences that are not in the table, now and after an error.

    Outlines of such sequences are removed when the export is resumed.
    """
    clear_masks(place, table.finished)
    try:
        yield
    except BaseException:
        clear_masks(place, table.finished)
        if not table.finished:
            remove_partial_outlines(place)
        raise


def _export_or_skip(
    job: _Job, source: Source, table: PartialTable
) -> Generator[Answer, None, None]:
    """Export a source unless its rows exist; yield the results of each part."""
    if table.has(source):
        job.done.add(table.answers[source.name], {}, source.probe())
        if source.name in table.summaries:  # not in tables of older versions
            job.done.restore(source.name, table.summaries[source.name])
        numbers = job.recognise(source, table.portraits.get(source.name, []))
        if job.video is not None:
            _draw_again(job, source, numbers)
        return
    count = len(job.done.answers)
    several = Several(job.options.objects) if job.numbered else None
    yield from _export_source(job, source, several)
    if len(job.done.answers) > count:
        crossings = "" if several is None else crossing_lines(job.done.answers[-1], several)
        portraits = () if several is None else several.portraits
        table.write(job.done.answers[-1], source, crossings, portraits, job.done.note_last())


def _export_source(
    job: _Job, source: Source, several: Several | None
) -> Generator[Answer, None, None]:
    """Export one source; yield the results of each part."""
    kept_masks = Spread[NDArray[np.uint8]](KEPT_MASKS)
    with RowFile() as rows, Spool() as spool:
        try:
            info = source.probe()
            samples = job.samples(source, info)
            tap = job.tap(source, info, samples)
            if job.outlines is not None:
                job.outlines.start(source.name, info.width, info.height)
            for part in job.answers(source, tap, several):
                if job.outlines is not None:
                    job.outlines.add(part)
                if part.masks is not None:
                    kept_masks.extend(part.masks, _thumbnail)
                _keep_to_draw(job, spool, part, rows.count)
                rows.add(part)
                yield part
        except VideoError as error:
            if not job.options.skip_bad:
                raise
            job.done.bad[source.name] = error.reason
        if rows.count:
            if several is not None:
                several.renumber(job.recognise(source, several.portraits))
            answer = _finished(rows.read(), info, several)
            job.done.add(answer, kept_masks.items, info)
            if job.outlines is not None:
                job.outlines.finish(several)
            if notes := notes_of(several, job.options):
                job.done.notes[source.name] = notes
            job.done.frames_to_show[source.name] = {} if samples is None else samples.samples
            _draw_tracks(job, spool, source, answer, several)


def _finished(answer: Answer, info: Info, several: Several | None) -> Answer:
    if answer.columns != TRACK:
        return answer
    return complete(answer, info, several)


def _keep_to_draw(job: _Job, spool: Spool, part: Answer, before: int) -> None:
    """Keep the masks that are drawn after the last frame of a source.

    Args:
        job: The export.
        spool: Storage for the masks.
        part: The next rows.
        before: Number of rows before these.
    """
    if part.masks is None:
        return
    shown = 0 if job.video is None else max(0, job.overlay_frames - before)
    if job.options.masks or shown:
        spool.add(part if job.options.masks else part.rows(slice(0, shown)))


def _draw_tracks(
    job: _Job, spool: Spool, source: Source, answer: Answer, several: Several | None
) -> None:
    """Write the masks and the overlay of a source, whose identities are now known."""
    # Frames are drawn in a second thread while this one encodes those before.
    with closing(read_ahead(_drawn(job, spool, source, answer, several))) as drawn:
        for pictures in drawn:
            if job.video is not None:
                job.video.write(pictures)


def _drawn(
    job: _Job, spool: Spool, source: Source, answer: Answer, several: Several | None
) -> Generator[NDArray[np.uint8], None, None]:
    """Write the masks of a source, and yield the frames of its overlay."""
    writer = MaskWriter(job.place, source, job.options.soft) if job.options.masks else None
    is_one = several is None or several.rows is None
    tracks = [] if is_one else to_tracks(answer)
    crossings = [] if several is None else crossings_of(answer, several)
    stride, most = job.options.stride, job.overlay_frames
    with closing(frames_to_draw(job.run, source, stride, most, job.pictures)) as pictures:
        for part in spool.read(answer):
            labels = None if several is None or is_one else identities(part, several)
            if writer is not None:
                writer.write(part, labels)
            frames = [] if job.video is None else list(islice(pictures, len(part.index)))
            if job.video is None or not frames:
                continue
            stack = torch.stack([each.permute(1, 2, 0) for each in frames]).permute(0, 3, 1, 2)
            shown = part.rows(slice(0, len(frames)))
            if labels is None:
                yield job.video.draw(stack, shown)
            else:
                some = labels[: len(frames)]
                yield job.video.draw_objects(stack, shown, some, tracks, crossings)


def _draw_again(job: _Job, source: Source, numbers: Sequence[int]) -> None:
    """Redraw a finished source when an export is resumed, because a video cannot be continued."""
    several = Several(job.options.objects) if job.numbered else None
    with RowFile() as rows, Spool() as spool:
        parts = job.answers(source, job.tap(source, source.probe(), None), several)
        with closing(parts), suppress(VideoError):  # a damaged source has some rows
            for part in parts:
                _keep_to_draw(job, spool, part, rows.count)
                rows.add(part)
                if rows.count >= job.overlay_frames and several is None:
                    break
        if rows.count:
            if several is not None:
                several.renumber(numbers)
            answer = _finished(rows.read(), source.probe(), several)
            _draw_tracks(job, spool, source, answer, several)


def _thumbnail(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Shrink a mask that is kept for the report."""
    image = Image.fromarray(mask)
    image.thumbnail((MAX_KEPT_SIDE, MAX_KEPT_SIDE), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _written(job: _Job) -> list[Path]:
    masks = job.options.masks and job.run.config.task == "locate"
    names = {
        csv_name(job.run): True,
        CROSSINGS: (job.place / CROSSINGS).exists(),
        OUTLINES: job.outlines is not None,
        "summary.json": True,
        "overlay.mp4": bool(job.options.overlay),
        "masks": masks,
    }
    return [job.place / name for name, is_written in names.items() if is_written]


def _overlay_share(options: ExportOptions, sources: int) -> int:
    """Return the number of frames of each source in the overlay."""
    share = -(-(options.overlay or 0) // sources)
    return min(share, options.max_frames or share)


def _overlay_fps(info: Info, stride: int) -> float:
    return min(60.0, max(1.0, (info.rate or DEFAULT_FPS) / stride))


def _sampled(sources: Sequence[Source]) -> list[Source]:
    """Choose evenly spaced sources."""
    count = min(SAMPLED_SOURCES, len(sources))
    numbers = np.linspace(0, len(sources) - 1, count).round().astype(int)
    return [sources[number] for number in numbers]
