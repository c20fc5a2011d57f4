"""Writing results: the table, masks, outlines and the overlay of each source."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ullayers.errors import RunError
from ullayers.files import (
    from_json,
    sweep,
)
from ullayers.learning.footage import Spread
from ullayers.learning.teaching import Teaching
from ullayers.locate.tracking.identity import KnownObjects, Portrait
from ullayers.locate.tracking.settle import Several, crossing_lines, crossings_of, identities
from ullayers.report.drawing import Outline
from ullayers.report.overlay import Overlay, PictureStore, SampleTap, as_kept, display_size
from ullayers.run.apply import answers
from ullayers.run.folder import ReadingEntry, clear_masks
from ullayers.run.plan import Plan, csv_name
from ullayers.run.summary import Exported, SequenceNote, write_summary
from ullayers.tracks.masks import (
    OUTLINES,
    MaskWriter,
    OutlineWriter,
    Spool,
    remove_partial_outlines,
)
from ullayers.tracks.measures import complete, to_tracks
from ullayers.tracks.reading import write_crossings
from ullayers.tracks.store import GrowingTable, finished_sequences, remove_partial_tables
from ullayers.tracks.table import (
    CROSSINGS,
    TRACK,
    Answer,
)
from ullayers.video.clips import DEFAULT_FPS, Render
from ullayers.video.files.opening import absolute_path
from ullayers.video.parallel import read_ahead
from ullayers.video.sources import Info, Reading, Source, VideoError

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


def follows_several(run: Plan, options: ExportOptions) -> bool:
    """Return whether all objects are tracked, not only the main one."""
    return run.config.task == "locate" and options.objects != 1


def notes_of(several: Several | None, options: ExportOptions) -> list[str]:
    """Return notes for the user about the objects of a source, one sentence each."""
    if several is None:
        return []
    is_hard = options.soft and several.rows is not None
    return [*several.notes, *["Masks of several objects have no soft edges."] * is_hard]


def request_of(run: Plan, options: ExportOptions) -> list[str | int | None]:
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
class FinishedNote:
    """What a growing table keeps about a finished sequence besides its rows.

    Attributes:
        path: Path of the source.
        crossings: Rows of crossings.csv; None if there is one object.
        portraits: Appearance of the objects.
        summary: What the summary says about the sequence.
    """

    path: str
    crossings: str | None
    portraits: list[Portrait]
    summary: SequenceNote


def unfinished_sources(sources: Iterable[Source], out: Path, masks: bool) -> list[Source]:
    """Return the sources that `export` still has to process when it resumes a partial table.

    Args:
        sources: All sources of the command.
        out: Folder of the partial table.
        masks: Whether masks are written; a sequence without its masks is not finished.
    """
    finished = finished_sequences(out, masks=masks)
    return [source for source in sources if source.name not in finished]


def frames_to_draw(
    run: Plan, source: Source, stride: int, most: int, kept: PictureStore
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
    run: Plan, source: Source, stride: int, most: int, size: tuple[int, int], kept: PictureStore
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
    run: Plan,
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
    run: Plan,
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
    run: Plan,
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
        run: Plan,
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

    def collector(self) -> Several | None:
        """Return what collects all objects of a source; None if only the main one is tracked."""
        return Several(self.options.objects) if follows_several(self.run, self.options) else None

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
        self.done.portraits[source.name] = list(portraits)
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
        table, notes = _open_table(job, sources)
        stack.enter_context(table)
        stack.enter_context(_only_finished(job.place, table))
        if job.run.config.task == "locate":
            job.outlines = stack.enter_context(OutlineWriter(job.place, notes))
        if job.options.overlay and job.run.config.task == "locate":
            job.video = stack.enter_context(Overlay(job.place / "overlay.mp4", job.fps))
        for source in sources:
            try:
                yield from _export_or_skip(job, source, table, notes)
            except VideoError as error:
                raise error.with_skip_hint(len(sources)) from None
        notes = _notes_in(table, sources)
        if not notes and job.done.bad:
            raise VideoError(next(iter(job.done.bad.values())))
        if job.run.config.task == "locate":
            _write_crossings(job.place / CROSSINGS, notes.values())


def _open_table(
    job: _Job, sources: Sequence[Source]
) -> tuple[GrowingTable, dict[str, FinishedNote]]:
    """Open the table of an export; return it and the notes of its finished sequences."""
    table = GrowingTable(
        job.place / csv_name(job.run),
        request_of(job.run, job.options),
        resume=job.options.resume,
        masks=job.options.masks,
    )
    try:
        return table, _notes_in(table, sources)
    except RunError:
        table.close()
        raise


def _notes_in(table: GrowingTable, sources: Sequence[Source]) -> dict[str, FinishedNote]:
    """Return the notes of the finished sequences.

    Raises:
        RunError: They are damaged, or the table has rows of another file of the same name.
    """
    paths = {source.name: absolute_path(source.path) for source in sources}
    try:
        notes = {name: from_json(FinishedNote, note) for name, note in table.finished.items()}
    except ValueError as error:
        raise RunError(f"{table.partial}: is damaged; start again with --force") from error
    for name, note in notes.items():
        if note.path != paths.get(name, note.path):
            raise RunError(
                f"{table.partial}: has {name} from {note.path}; use the same inputs, or start "
                "again with --force"
            )
    return notes


def _write_crossings(path: Path, notes: Iterable[FinishedNote]) -> None:
    """Write crossings.csv, or remove an old one if no sequence has several objects."""
    rows = [note.crossings for note in notes if note.crossings is not None]
    if rows:
        write_crossings(path, rows)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _only_finished(place: Path, table: GrowingTable) -> Iterator[None]:
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
    job: _Job, source: Source, table: GrowingTable, notes: Mapping[str, FinishedNote]
) -> Generator[Answer, None, None]:
    """Export a source unless its rows exist; yield the results of each part."""
    note = notes.get(source.name)
    if note is None:
        yield from _export_source(job, source, table)
        return
    job.done.add(table.rows(source.name), {}, source.probe())
    job.done.restore(source.name, note.summary)
    numbers = job.recognise(source, note.portraits)
    if job.video is not None:
        _draw_again(job, source, numbers)


def _export_source(job: _Job, source: Source, table: GrowingTable) -> Generator[Answer, None, None]:
    """Export one source; yield the results of each part."""
    kept_masks = Spread[NDArray[np.uint8]](KEPT_MASKS)
    several = job.collector()
    count = 0
    with Spool() as spool:
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
                _keep_to_draw(job, spool, part, count)
                table.append(part)
                count += len(part.index)
                yield part
        except VideoError as error:
            if not job.options.skip_bad:
                raise
            job.done.bad[source.name] = error.reason
        if not count:
            return
        if several is not None:
            several.renumber(job.recognise(source, several.portraits))
        answer = _finished(table.rows(source.name), info, several)
        job.done.add(answer, kept_masks.items, info)
        if job.outlines is not None:
            job.outlines.finish(several)
        if notes := notes_of(several, job.options):
            job.done.notes[source.name] = notes
        job.done.frames_to_show[source.name] = {} if samples is None else samples.samples
        _draw_tracks(job, spool, source, answer, several)
    table.end(answer, asdict(_note_of(job, source, answer, several)))


def _note_of(job: _Job, source: Source, answer: Answer, several: Several | None) -> FinishedNote:
    """Return what is kept about the last sequence."""
    return FinishedNote(
        absolute_path(source.path),
        None if several is None or answer.several is None else crossing_lines(answer, several),
        [] if several is None else several.portraits,
        job.done.note_last(),
    )


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
    several = job.collector()
    rows: list[Answer] = []
    count = 0
    with Spool() as spool:
        parts = job.answers(source, job.tap(source, source.probe(), None), several)
        with closing(parts), suppress(VideoError):  # a damaged source has some rows
            for part in parts:
                _keep_to_draw(job, spool, part, count)
                rows.append(replace(part, masks=None, owners=None))
                count += len(part.index)
                if count >= job.overlay_frames and several is None:
                    break
        if rows:
            if several is not None:
                several.renumber(numbers)
            answer = _finished(Answer.join(rows), source.probe(), several)
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
