"""Applying a finished run to new video, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.errors import RunError
from ullayers.learning.codes import FRAMES_PER_CALL
from ullayers.learning.footage import PIECE, Piece, cut, expected_frames, make_piece
from ullayers.learning.networks import Encoder, Located, Locator
from ullayers.learning.survey import open_recording, outline_reading, patience_of, to_pixels
from ullayers.learning.teaching import Teaching
from ullayers.locate.flow import Frames
from ullayers.locate.moving.segment import Segments
from ullayers.locate.outline import mask_moments
from ullayers.locate.paths import Anchors, fill_gaps
from ullayers.locate.recording.handheld import HandheldRecording
from ullayers.locate.recording.seen import SeenRecording
from ullayers.locate.recording.windows import (
    MovingRecording,
    PreparedWindow,
    StillRecording,
    Window,
    guided_choices,
)
from ullayers.locate.scene.still import StillScene
from ullayers.locate.tracking.settle import Several
from ullayers.nn.spatial import mask_moments as moments_of
from ullayers.run.plan import Plan, keep_scene, read_scenes
from ullayers.tracks.masks import EDGE
from ullayers.tracks.table import TRACK, Answer, code_columns
from ullayers.video.clips import Render
from ullayers.video.memory import returning_memory
from ullayers.video.parallel import can_help, in_parallel, read_ahead
from ullayers.video.sources import Clip, Reading, Source, VideoError

WINDOW_FRAMES = 128  # frames in which objects are found at once
WINDOW_BYTES = 3 * 2**24
PIXELS_PER_CALL = 2**23  # of the network, which needs about 60 bytes for each
HELP_FRAMES = 1000  # a second process takes as long to start as a few hundred frames
Recording = StillRecording | MovingRecording | SeenRecording
Told = Callable[[NDArray[np.int64]], Anchors | None] | None  # positions given by the user, by frame


def answers(
    run: Plan,
    source: Source,
    *,
    stride: int = 1,
    max_frames: int | None = None,
    tap: Callable[[Render], None] | None = None,
    keep_scenes: bool = False,
    several: Several | None = None,
    teaching: Teaching | None = None,
) -> Generator[Answer, None, None]:
    """Apply a run to a source, a few hundred frames at a time, in bounded memory.

    A damaged source yields results for the readable frames and then raises VideoError. Frames that
    training has kept in memory are not decoded again, unless there is a tap.

    Args:
        run: A finished run.
        source: From `find_sources`.
        stride: Use every `stride`-th frame.
        max_frames: Stop after this many frames.
        tap: As in `Reading`; called for each frame in order, before its result is yielded.
        keep_scenes: Store the scenes of still cameras in the run, for short clips.
        several: Collects all objects, if several are tracked; complete after the last result.
        teaching: Positions given by the user, by name of the source; None for none.
    """
    reading = replace(run.reading, stride=stride, max_frames=max_frames, tap=tap)
    info = source.probe()
    cut = reading.cut(source.path, info.height, info.width)
    if isinstance(run.net, Locator):
        is_told = teaching is not None and source.name in teaching.places
        told = partial(teaching.anchors, source.name, cut) if teaching and is_told else None
        found = _locate(run, run.net, source, reading, keep_scenes, several, told)
    elif isinstance(run.net, Encoder):
        found = _encode(run, run.net, source, reading)
    else:
        raise RunError(f"{run.folder}: training has not finished; continue with --resume")
    for answer in returning_memory(found):
        yield answer if cut is None else answer.placed(cut)
    if several is not None and several.rows is not None and cut is not None:
        several.rows = several.rows.placed(cut)


def describe(net: Locator, found: Located) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Return (time, 3) values as in `TRACK`, and (time, height, width) masks."""
    values = torch.cat([found.centroid, net.confidence(found)[:, None]], 1).detach().double()
    masks = (255 * net.picture(found).detach()).round().byte()
    return values.cpu().numpy(), masks.cpu().numpy()


def _encode(
    run: Plan, net: Encoder, source: Source, reading: Reading
) -> Generator[Answer, None, None]:
    for clip in _clips(run, source, reading):
        code = _code(net, (clip.frames.float() / 255).to(run.config.device))
        yield _answer(source, clip, code_columns(code.shape[1]), code)


def _clips(run: Plan, source: Source, reading: Reading) -> Generator[Clip, None, None]:
    """Yield the input frames of an encoder, in clips."""
    kept = _kept(run, source, reading)
    if run.reading.follow:
        yield from _long_clips(run, source, reading) if kept is None else (p.clip for p in kept)
    elif kept is None:
        yield from source.clips(FRAMES_PER_CALL, reading)
    else:
        for piece in kept:
            yield from _split(piece.clip)


def _kept(run: Plan, source: Source, reading: Reading) -> list[Piece] | None:
    """Return the frames of a source kept by training, if it has read the same frames."""
    return run.pieces.get((source, reading)) if reading.tap is None else None


def first_piece(run: Plan, source: Source) -> Piece:
    """Return the beginning of the first source as read for training, from memory if possible.

    Raises:
        VideoError: The source cannot be read.
    """
    if run.beginning is not None:
        return run.beginning
    reading = run.reading_of(source)
    reading = replace(reading, max_frames=min(reading.max_frames or PIECE, PIECE))
    with closing(cut(source, reading)) as clips:
        return make_piece(0, next(clips))


def _split(clip: Clip) -> Generator[Clip, None, None]:
    for start in range(0, len(clip.index), FRAMES_PER_CALL):
        yield clip.rows(slice(start, start + FRAMES_PER_CALL))


def _long_clips(run: Plan, source: Source, reading: Reading) -> Generator[Clip, None, None]:
    """Yield clips that cover as much time as training clips, if memory allows."""
    learned = run.reading_of(source).stride
    return cut(source, reading, max(1, PIECE * learned // reading.stride))


def _locate(
    run: Plan,
    net: Locator,
    source: Source,
    reading: Reading,
    keep_scenes: bool,
    several: Several | None,
    told: Told,
) -> Generator[Answer, None, None]:
    outlines = outline_reading(source.probe(), reading)
    survey = run.surveys.pop((source, outlines), None)  # it takes much memory
    student = None if told or net.student is None or not net.student.is_sure else net.student
    recording = open_recording(source, outlines, read_scenes(run.folder), survey, student)
    if keep_scenes and isinstance(recording, StillRecording):
        keep_scene(run.folder, source.name, recording)
    scene = recording.scene if isinstance(recording, HandheldRecording) else recording
    if several is not None and isinstance(scene, StillRecording | SeenRecording):
        scene.follow_all(patience_of(source.probe(), reading.stride))
    elif several is not None:
        several.camera_moves = True
    scale = _source_pixels(source, outlines)
    ahead = _windows(run, net, source, outlines, recording)
    seen: list[Answer] = []
    try:
        with (
            _help(scene, source, outlines),
            closing(read_ahead(ahead, lean=True)) as windows,
            closing(_choices(run, net, source, outlines, recording, told)) as choices,
        ):
            for clip, located, pixels, prepared in windows:
                anchors = None if told is None else told(clip.index.numpy())
                attention, chosen = located.mask.numpy(), next(choices)
                if isinstance(recording, StillRecording):
                    found = recording.segment(pixels, attention, anchors, chosen, prepared)
                else:
                    found = recording.segment(pixels, attention, anchors, chosen)
                answer = _answer(source, clip, TRACK, _values(found, located, anchors))
                answer = _with_masks(answer, found, scale)
                if several is not None:
                    seen.append(replace(answer, masks=None, owners=None, moments=None))
                for start in range(0, len(clip.index), FRAMES_PER_CALL):
                    yield answer.rows(slice(start, start + FRAMES_PER_CALL))
    finally:
        if several is not None and seen:
            _finish_objects(several, recording, Answer.join(seen), scale)


def _finish_objects(
    several: Several,
    recording: Recording,
    frames: Answer,
    scale: tuple[float, float],
) -> None:
    """Choose the objects after the last frame, unless only the main object was followed."""
    if isinstance(recording, SeenRecording):
        assert recording.tracker is not None
        assert recording.size is not None
        height, width = recording.size
        several.finish(recording.tracker, frames, (width, height), scale, seen=True)
        return
    scene, views = recording, None
    if isinstance(recording, HandheldRecording):
        scene, views = recording.scene, np.concatenate(recording.views)
    if isinstance(scene, StillRecording) and scene.finder is not None:
        height, width = scene.scene.noise.shape
        several.finish(scene.finder.tracker, frames, (width, height), scale, views)


class _Window(NamedTuple):
    """A window of frames.

    Attributes:
        clip: Times and numbers, without the frames.
        located: Masks of the network.
        pixels: The frames.
        prepared: What stands out in them, if it is found ahead.
    """

    clip: Clip
    located: Located
    pixels: Frames
    prepared: PreparedWindow | None


def _help(recording: Recording, source: Source, outlines: Reading) -> AbstractContextManager[None]:
    """Use a second process, if the source is so long that it saves time."""
    total = expected_frames([source.probe()], outlines)
    is_long = total is None or total >= HELP_FRAMES
    if isinstance(recording, StillRecording) and is_long and can_help():
        return recording.with_help()
    return nullcontext()


def _windows(
    run: Plan,
    net: Locator,
    source: Source,
    outlines: Reading,
    recording: Recording,
) -> Generator[_Window, None, None]:
    """Yield the windows of a source."""

    def attended(clip: Clip) -> _Window:
        rest = replace(clip, frames=clip.frames[:0].clone())  # they are returned as pixels
        located = attend(net, clip, run, recording)
        pixels = to_pixels(clip.frames)
        prepared = None
        if isinstance(recording, StillRecording) and recording.helper is not None:
            prepared = recording.prepare(pixels, located.mask.numpy(), here=False)
        return _Window(rest, located, pixels, prepared)

    reading = replace(outlines, interleaved=True)
    with closing(cut(source, reading, WINDOW_FRAMES, WINDOW_BYTES)) as clips:
        yield from map(attended, clips)  # a loop would keep the last window in memory


def _with_masks(answer: Answer, found: Segments, scale: tuple[float, float]) -> Answer:
    return replace(
        answer,
        masks=found.soft,
        others=found.others,
        owners=found.owners,
        moments=_moments(found, scale),
    )


def _choices(
    run: Plan,
    net: Locator,
    source: Source,
    outlines: Reading,
    recording: Recording,
    told: Told,
) -> Generator[list[int | None] | None, None, None]:
    """Yield the number of the object's part in each frame, by window; None if unknown."""
    if told is not None and isinstance(recording, StillRecording):
        ahead = _ahead(run, net, source, outlines, recording, told)
        yield from guided_choices(ahead)
    yield from repeat(None)


def _ahead(
    run: Plan,
    net: Locator,
    source: Source,
    outlines: Reading,
    recording: StillRecording,
    told: Callable[[NDArray[np.int64]], Anchors | None],
) -> Generator[Window, None, None]:
    """Read a source before its results are computed, as far as it can be read."""
    windows = _windows(run, net, source, replace(outlines, tap=None), recording)
    with suppress(VideoError), closing(windows):  # reading it for the answers raises it again
        for clip, located, pixels, prepared in windows:
            if prepared is None:
                prepared = recording.prepare(pixels, located.mask.numpy())
            yield prepared, told(clip.index.numpy())


def _source_pixels(source: Source, reading: Reading) -> tuple[float, float]:
    """Return the number of source pixels per pixel of the frames that are read."""
    info = source.probe()
    assert reading.size is not None
    region = reading.cut(source.path, info.height, info.width)
    _, _, width, height = (0.0, 0.0, 1.0, 1.0) if region is None else region.box
    return width * info.width / reading.size[1], height * info.height / reading.size[0]


def _moments(found: Segments, scale: tuple[float, float]) -> NDArray[np.float64]:
    """Return (time, 7) moments as in `Answer`, in source pixels; NaN if the mask is empty."""
    moments = np.array(in_parallel(lambda mask: mask_moments(mask >= EDGE), found.soft))[:, 2:]
    across, down = scale
    cores = moments[:, :3] if found.cores is None else found.cores
    second = across**2, across * down, down**2
    return np.column_stack([moments, cores]) * (*second, across * down, *second)


@torch.no_grad()
def attend(net: Locator, clip: Clip, run: Plan, recording: Recording) -> Located:
    """Return the masks of the network in a window of frames.

    Args:
        net: The network of the run.
        clip: The window, read with `outline_reading`.
        run: The run.
        recording: From `open_recording`. The masks for a `SeenRecording` are odds.
    """
    if isinstance(recording, SeenRecording):
        assert net.student is not None
        odds = torch.from_numpy(net.student.see(to_pixels(clip.frames)))
        shares = odds / odds.sum((1, 2), keepdim=True)
        return Located(*moments_of(shares), odds)
    # The frames are already cropped to the region of interest.
    size = replace(run.reading, roi=None).target(*clip.frames.shape[2:])
    small = Clip(_shrunk(clip.frames, size), clip.seconds, clip.index)
    if isinstance(recording, StillRecording):
        behind = _as_background(recording.scene, size, run.reading.channels)
        piece = Piece(0, small, None, behind)
    else:
        piece = make_piece(0, small)
    count = max(1, min(FRAMES_PER_CALL, PIXELS_PER_CALL // (size[0] * size[1])))
    parts = [
        net(piece.foreground(slice(i, i + count)).to(run.config.device))
        for i in range(0, len(piece), count)
    ]
    return Located(*(torch.cat(each).cpu() for each in zip(*parts, strict=True)))


def _as_background(scene: StillScene, size: tuple[int, int], channels: int) -> Tensor:
    small = torch.from_numpy(scene.resized(*size).backdrop).permute(2, 0, 1) / 255
    return small[:channels]


def _shrunk(frames: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize frames to the size used for training."""
    small = np.empty((*frames.shape[:2], *size), np.uint8)

    def shrink(image: NDArray[np.uint8], place: NDArray[np.uint8]) -> None:
        while image.shape[0] >= 4 * size[0] and image.shape[1] >= 4 * size[1]:
            half = image.shape[1] // 2, image.shape[0] // 2
            image = np.asarray(cv2.resize(image, half, interpolation=cv2.INTER_AREA))  # far faster
        cv2.split(cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA), list(place))

    in_parallel(shrink, frames.permute(0, 2, 3, 1).contiguous().numpy(), small)
    return torch.from_numpy(small)


def _values(found: Segments, located: Located, anchors: Anchors | None) -> NDArray[np.float64]:
    """Return (time, 3) values as in `TRACK`; positions that were not found have a confidence of 0.

    A position given by the user counts as found even if nothing stands out there.
    """
    places, confidence = found.positions, found.confidence.copy()
    if anchors is not None:
        told = anchors.given & np.isnan(places[:, 0])
        places = np.where(told[:, None], anchors.places, places)
        confidence[told] = 1.0
    places = fill_gaps(places)
    unknown = np.isnan(places[:, 0])
    places[unknown] = located.centroid.double().numpy()[unknown]
    return np.column_stack([places, confidence])


@torch.no_grad()
def _code(net: Encoder, frames: Tensor) -> np.ndarray:
    return net.code(frames).double().cpu().numpy()


def _answer(source: Source, clip: Clip, columns: tuple[str, ...], values: np.ndarray) -> Answer:
    crops = None if clip.crops is None else clip.crops.double().numpy()
    index, seconds = clip.index.numpy(), clip.seconds.numpy()
    return Answer(source.name, index, seconds, columns, values, crops=crops)
