"""What was found, written down: the table, masks as pictures, and a video to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ullayers.learn.apply import answers
from ullayers.learn.checkpoint import RunError
from ullayers.learn.folders import clear_masks
from ullayers.learn.footage import Spread
from ullayers.learn.results import Answer, header, read_answers
from ullayers.learn.runs import Run, csv_name
from ullayers.output.overlay import Overlay
from ullayers.video.atomic_files import replacing, sweep, write_json
from ullayers.video.frames import DEFAULT_FPS
from ullayers.video.reader import Info, Reading, Source, VideoError

SHOWN = 480  # pixels of the longer side of what is made to be looked at
BLOCK = 64  # frames that are drawn at once
MASKS = 64  # masks of each source that are kept, for samples


@dataclass
class Exported:
    """What was written.

    Attributes:
        answers: all rows, a whole sequence each, without masks.
        masks: of each sequence, by row number, some evenly spread ones.
        bad: sources that could not be read to their end.
        files: what was written.
    """

    answers: list[Answer] = field(default_factory=list)
    masks: list[dict[int, NDArray[np.uint8]]] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to write.

    Attributes:
        stride: look at every so many frames.
        max_frames: of each source, at most so many.
        masks: write each mask as a PNG of its frame's size, in masks/SEQUENCE/FRAME.png.
        overlay: frames of overlay.mp4, shared among the sources; None for none.
        skip_bad: leave out what cannot be read.
        resume: keep the rows of a partial table.
    """

    stride: int = 1
    max_frames: int | None = None
    masks: bool = False
    overlay: int | None = None
    skip_bad: bool = False
    resume: bool = False


def export(
    run: Run,
    sources: Sequence[Source],
    folder: str | os.PathLike[str],
    wanted: Wanted,
    progress: Callable[[int], None] = lambda count: None,
) -> Exported:
    """Apply a run to sources and write what it says.

    The table is written as a .partial.csv and gets its name at the end. If a source breaks, the
    rows of the sequences before it stay in the partial table, and `resume` goes on after them. Only
    what the video shows of them is looked at again.

    Args:
        run: a run that has ended.
        sources: from `find_sources`.
        folder: where to write; made if it is not there.
        wanted: what to write.
        progress: called with the number of frames so far.
    """
    if run.net is None:
        raise RunError(f"{run.folder}: has not been learned to its end; go on with --resume")
    place, done, count = Path(folder), Exported(), 0
    place.mkdir(parents=True, exist_ok=True)
    sweep(place)
    rate = _rate(sources[0].probe(), wanted.stride)
    with ExitStack() as stack:
        asked = [os.path.abspath(run.folder), wanted.stride, wanted.max_frames]
        table = _Table(place / csv_name(run), asked, wanted.resume, wanted.masks)
        stack.enter_context(_clean_masks(place, table))
        stack.enter_context(table)
        film = None
        if wanted.overlay and run.config.task == "locate":  # for a code all others come first
            film = stack.enter_context(Overlay(place / "overlay.mp4", rate))
        share = _share(wanted, sources)
        for source in sources:
            if table.has(source):
                done.answers.append(table.before[source.name])
                done.masks.append({})
                if film is not None:
                    _draw_again(run, source, wanted, share, film)
                continue
            try:
                for part in _source(run, source, wanted, share, film, place, done):
                    count += part
                    progress(count)
            except VideoError as error:
                raise error.with_skip_hint(len(sources)) from None
            if done.answers and done.answers[-1].sequence == source.name:
                table.write(done.answers[-1], source)
        if not table.names and done.bad:
            raise VideoError(next(iter(done.bad.values())))
    if wanted.overlay and run.config.task != "locate":
        _draw_codes(sources, done, place / "overlay.mp4", rate, wanted)
    masks = wanted.masks and run.config.task == "locate"
    names = {csv_name(run): True, "overlay.mp4": wanted.overlay, "masks": masks}
    done.files = [place / name for name, there in names.items() if there]
    return done


def _source(
    run: Run,
    source: Source,
    wanted: Wanted,
    share: int,
    film: Overlay | None,
    place: Path,
    done: Exported,
) -> Generator[int, None, None]:
    """Export one source; gives the number of frames of each part."""
    parts, kept = [], Spread[NDArray[np.uint8]](MASKS)
    try:
        shown = None if film is None else _Shown(source, wanted.stride, share)
        masks = _Masks(place / "masks", source) if wanted.masks else None
        for part in answers(run, source, stride=wanted.stride, max_frames=wanted.max_frames):
            if film is not None and shown is not None:
                shown.draw(film, part)
            if part.masks is not None:
                kept.extend(part.masks)
                if masks is not None:
                    masks.write(part)
            parts.append(replace(part, masks=None))
            yield len(part.index)
    except VideoError as error:
        if not wanted.skip_bad:
            raise
        done.bad[source.name] = str(error)
    if parts:
        done.answers.append(Answer.join(parts))
        done.masks.append(kept.items)


def _draw_again(run: Run, source: Source, wanted: Wanted, share: int, film: Overlay) -> None:
    """A video cannot be resumed: draw what it shows of a source whose rows are there."""
    parts = answers(run, source, stride=wanted.stride, max_frames=wanted.max_frames)
    with closing(parts), suppress(VideoError):  # it may be broken: there are rows of its start
        shown = _Shown(source, wanted.stride, share)
        for part in parts:
            shown.draw(film, part)
            if shown.left == 0:
                break


@contextmanager
def _clean_masks(place: Path, table: _Table) -> Iterator[None]:
    """No mask is there but of sequences that are in the table."""
    clear_masks(place, table.names)
    try:
        yield
    except BaseException:
        clear_masks(place, table.names)
        raise


def _share(wanted: Wanted, sources: Sequence[Source]) -> int:
    """How many frames of each source the video shows."""
    share = -(-(wanted.overlay or 0) // len(sources))
    return min(share, wanted.max_frames or share)


class _Table:
    """The CSV. Until it is whole it has another name, and a note beside it: how much of it counts.

    A process that is killed while it writes leaves half a sequence, which the note does not count.
    """

    def __init__(self, path: Path, asked: list[Any], resume: bool, masks: bool = False) -> None:
        self.path, self.partial = path, path.with_suffix(".partial.csv")
        self.note, self.asked, self.masks = path.with_suffix(".partial.json"), asked, masks
        self.names: dict[str, str] = {}  # finished sequences, and the files they are from
        self.before: dict[str, Answer] = {}  # what was found in them
        if resume and self.partial.exists() and self.note.exists():
            self._go_on()

    def _go_on(self) -> None:
        try:
            note = json.loads(self.note.read_text(encoding="utf-8"))
            asked, whole, names = note["asked"], int(note["bytes"]), dict(note["places"])
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"{self.note}: is damaged; start again with --force") from error
        if asked != self.asked:
            raise RunError(
                f"{self.partial}: began with another run, --stride or --max-frames; "
                "use the same, or start again with --force"
            )
        if whole > self.partial.stat().st_size:
            raise RunError(f"{self.partial}: is damaged; start again with --force")
        if self.masks and not note.get("masks"):
            return  # those that are finished have none, so they are done again
        os.truncate(self.partial, whole)
        with open(self.partial, encoding="utf-8", newline="") as file:
            self.names, self.before = names, {found.sequence: found for found in read_answers(file)}

    def has(self, source: Source) -> bool:
        """Whether the rows of this source are there; another file may have the same name."""
        if source.name in self.names and self.names[source.name] != os.path.abspath(source.path):
            raise RunError(
                f"{self.partial}: has {source.name} from {self.names[source.name]}; use the same "
                "inputs, or start again with --force"
            )
        return source.name in self.names

    def __enter__(self) -> _Table:
        if not self.names:
            self.note.unlink(missing_ok=True)
        self.file = open(self.partial, "ab" if self.names else "wb")
        return self

    def write(self, answer: Answer, source: Source) -> None:
        text = "" if self.names else header(answer.columns)
        self.file.write((text + answer.lines()).encode())
        self.file.flush()
        places = {**self.names, answer.sequence: os.path.abspath(source.path)}
        note = {"asked": self.asked, "bytes": self.file.tell(), "places": places}
        write_json(self.note, {**note, "masks": self.masks})
        self.names = places

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.file.close()
            if kind is None:
                os.replace(self.partial, self.path)
        finally:
            if kind is None or not self.names:
                self.partial.unlink(missing_ok=True)
                self.note.unlink(missing_ok=True)


class _Shown:
    """The frames of a source at a size to look at, in step with the answers."""

    def __init__(self, source: Source, stride: int, frames: int) -> None:
        self.clips, self.left = source.clips(BLOCK, reading_to_show(source, stride, frames)), frames
        self.waiting = torch.empty(0)

    def draw(self, film: Overlay, answer: Answer) -> None:
        """Draw as many of the answers as frames are wanted."""
        count = min(len(answer.index), self.left)
        if count == 0:
            return
        frames = self._take(count)
        film.add(frames, _rows(answer, slice(0, len(frames))))
        self.left -= count
        if self.left == 0:
            self.clips.close()

    def _take(self, count: int) -> Tensor:
        while len(self.waiting) < count and (clip := next(self.clips, None)) is not None:
            frames = clip.frames
            self.waiting = torch.cat([self.waiting, frames]) if len(self.waiting) else frames
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken


def reading_to_show(source: Source, stride: int, frames: int | None = None) -> Reading:
    """How to read a source to look at it: all frames in one size, small ones enlarged."""
    info = source.probe()
    height, width = Reading(longest=SHOWN).target(info.height, info.width)
    times = max(1, SHOWN // max(height, width))
    return Reading(size=(times * height, times * width), stride=stride, max_frames=frames)


def _draw_codes(
    sources: Sequence[Source], done: Exported, path: Path, rate: float, wanted: Wanted
) -> None:
    share, named = _share(wanted, sources), {answer.sequence: answer for answer in done.answers}
    shown = [source for source in sources if source.name in named]
    cloud = np.concatenate([named[source.name].values[:share] for source in shown])
    with Overlay(path, rate, cloud) as film:
        for source in shown:
            drawn, answer = _Shown(source, wanted.stride, share), named[source.name]
            for start in range(0, len(answer.index), BLOCK):  # not all frames at once in memory
                drawn.draw(film, _rows(answer, slice(start, start + BLOCK)))


class _Masks:
    """The masks of a source as pictures of its frames' size."""

    def __init__(self, folder: Path, source: Source) -> None:
        info, self.place = source.probe(), folder / source.name
        self.size = info.width, info.height
        self.place.mkdir(parents=True, exist_ok=True)

    def write(self, answer: Answer) -> None:
        assert answer.masks is not None
        for number, mask in zip(answer.index, answer.masks, strict=True):
            picture = Image.fromarray(mask).resize(self.size, Image.Resampling.BILINEAR)
            with replacing(self.place / f"{number:06d}.png", "wb") as file:
                picture.save(file, "png")


def _rate(info: Info, stride: int) -> float:
    return min(60.0, max(1.0, (info.rate or DEFAULT_FPS) / stride))


def _rows(answer: Answer, rows: slice) -> Answer:
    return replace(
        answer,
        index=answer.index[rows],
        seconds=answer.seconds[rows],
        values=answer.values[rows],
        masks=None if answer.masks is None else answer.masks[rows],
    )
