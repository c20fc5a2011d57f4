"""Export of results: the table, masks as images, the overlay video and summary.json."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ullayers.learn.apply import answers
from ullayers.learn.checkpoint import RunError
from ullayers.learn.folders import clear_masks
from ullayers.learn.footage import Spread
from ullayers.learn.results import TRACK, Answer, code_columns
from ullayers.learn.row_file import RowFile
from ullayers.learn.runs import Run, csv_name
from ullayers.learn.several import Several
from ullayers.locate.recognition import KnownObjects, Portrait
from ullayers.output.code_overlay import draw_codes
from ullayers.output.crossing_table import CROSSINGS
from ullayers.output.display import SampleTap, display_size
from ullayers.output.export_options import (
    ExportOptions,
    follows_several,
    notes_of,
    request_of,
)
from ullayers.output.exported import Exported
from ullayers.output.frames_to_draw import frames_to_draw
from ullayers.output.identities import crossing_lines, crossings_of, identities
from ullayers.output.mask_files import MaskWriter
from ullayers.output.outlines import OUTLINES, OutlineWriter, remove_partial_outlines
from ullayers.output.overlay import Overlay
from ullayers.output.shapes import complete, to_tracks
from ullayers.output.spool import Spool
from ullayers.output.summary import write_summary
from ullayers.output.tables import PartialTable, remove_partial_tables
from ullayers.video.atomic_files import sweep
from ullayers.video.frames import DEFAULT_FPS
from ullayers.video.read_ahead import read_ahead
from ullayers.video.reader import Info, Source, VideoError

KEPT_MASKS = 64  # masks kept of each source, for the report
MAX_KEPT_SIDE = 160  # pixels of a mask kept for the report
KEPT_FRAMES = 16  # frames kept of each of up to SAMPLED_SOURCES sources, for the report
SAMPLED_SOURCES = 8


def export(
    run: Run,
    sources: Sequence[Source],
    folder: str | os.PathLike[str],
    options: ExportOptions,
    progress: Callable[[int], None] = lambda count: None,
    seen: Callable[[Answer], None] = lambda part: None,
    measure: Callable[[Exported], list[Path]] = lambda exported: [],
) -> Exported:
    """Apply a run to sources and write the results.

    The rows of finished sequences are kept in a partial table until the last file is written. If
    the process is killed or a source is damaged, `resume` continues after them.

    Args:
        run: A finished run.
        sources: From `find_sources`.
        folder: Output folder; created if needed.
        options: What to write.
        progress: Called with the number of frames processed so far.
        seen: Called with the results of some frames, with masks, as soon as they are known.
        measure: Called at the end; writes further tables and returns their paths.

    Raises:
        RunError: The run is not finished, or the folder cannot be used.
        VideoError: A source cannot be read.
    """
    if run.net is None:
        raise RunError(f"{run.folder}: training has not finished; continue it with --resume")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    sweep(place)
    job = _Job(run, place, options, sources, seen)
    _export_all(job, sources, progress)
    if options.overlay and run.config.task != "locate":
        stride, share = options.stride, job.overlay_frames
        draw_codes(place / "overlay.mp4", run, sources, job.done, job.fps, stride, share)
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
        seen: Callable[[Answer], None],
    ) -> None:
        self.run = run
        self.place = place
        self.options = options
        self.seen = seen
        self.done = Exported()
        self.known = KnownObjects()
        self.video: Overlay | None = None
        self.outlines: OutlineWriter | None = None
        self.overlay_frames = _overlay_share(options, len(sources))
        self.fps = _overlay_fps(sources[0].probe(), options.stride)
        self.sampled = _sampled(sources) if options.samples else []

    @property
    def numbered(self) -> bool:
        """Whether there may be several objects."""
        return follows_several(self.run, self.options)

    def answers(
        self, source: Source, tap: SampleTap | None, several: Several | None
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

    def tap(self, source: Source, info: Info) -> SampleTap | None:
        """Return the tap that keeps the frames of a source to show; None if none are shown."""
        return SampleTap(display_size(info), KEPT_FRAMES) if source in self.sampled else None


def _export_all(job: _Job, sources: Sequence[Source], progress: Callable[[int], None]) -> None:
    count = 0
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
                for frames in _export_or_skip(job, source, table):
                    count += frames
                    progress(count)
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


def _export_or_skip(job: _Job, source: Source, table: PartialTable) -> Generator[int, None, None]:
    """Export a source unless its rows exist; yield the number of frames of each part."""
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
) -> Generator[int, None, None]:
    """Export one source; yield the number of frames of each part."""
    kept_masks = Spread[NDArray[np.uint8]](KEPT_MASKS)
    with RowFile() as rows, Spool() as spool:
        try:
            info = source.probe()
            tap = job.tap(source, info)
            if job.outlines is not None:
                job.outlines.start(source.name, info.width, info.height)
            for part in job.answers(source, tap, several):
                job.seen(part)
                if job.outlines is not None:
                    job.outlines.add(part)
                if part.masks is not None:
                    kept_masks.extend(part.masks, _thumbnail)
                _keep_to_draw(job, spool, part, rows.count)
                rows.add(part)
                yield len(part.index)
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
            job.done.frames_to_show[source.name] = {} if tap is None else tap.samples
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
    with closing(frames_to_draw(job.run, source, stride, most)) as pictures:
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
        parts = job.answers(source, None, several)
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
