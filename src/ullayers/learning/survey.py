"""Survey of a source, from frames spread over it: is the camera still, does the object travel?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from statistics import median

import cv2
import numpy as np
import torch
from torch import Tensor

from ullayers.learning.footage import TARGET_RATE, Spread, cut, expected_frames, natural_reading
from ullayers.learning.student import Student
from ullayers.locate.flow import Frames
from ullayers.locate.recording.handheld import HandheldRecording
from ullayers.locate.recording.seen import SeenRecording, shows_the_same
from ullayers.locate.recording.windows import (
    MIN_STILL_FRAMES,
    MovingRecording,
    StillRecording,
    find_still_scene,
    fits,
)
from ullayers.video import memory
from ullayers.video.camera.following import moving_share
from ullayers.video.clips import Render, kept_frames
from ullayers.video.sources import Info, Reading, Source, VideoError

OUTLINE_SIDE = 640  # pixels of the longer side at which objects are outlined
SAMPLE_FRAMES = 48  # enough for a median and its noise
MANY_FRAMES = 128  # enough for a network to learn what objects look like
FRAMES_AT_ONCE = 32
PATIENCE_SECONDS = 1.0  # an object that is unseen for longer has left; if it returns, it is new
MIN_PATIENCE = 5  # frames
MAX_SHARE = 0.5  # of the frame: larger objects are not followed
SOURCES = 8  # largest number of sources to check
FRAMES = 64  # largest number of frames to check in each source


class Survey:
    """A sample of the frames of a source, and of the frames that follow them.

    As the attribute `passing` of a `Reading`, it is taken while frames are read for training.

    Args:
        size: (height, width) of the frames.
        step: Use every `step`-th frame.
    """

    def __init__(self, size: tuple[int, int], step: int) -> None:
        self.size = size
        self.step = step
        self._passed = 0
        self._last: Tensor | None = None
        self._kept = Spread[tuple[Tensor, Tensor]](SAMPLE_FRAMES)
        self._many = Spread[Tensor](MANY_FRAMES)

    def __call__(self, render: Render) -> None:
        """Process the next frame, which is rendered only if it is used."""
        if self._passed % self.step == 0:
            self.add(render(self.size))
        self._passed += 1

    def add(self, frame: Tensor) -> None:
        """Add the next frame (3 or 1, height, width) that is used."""
        if self._last is not None:
            self._kept.extend([(self._last, frame)])
        self._many.extend([frame])
        self._last = frame

    def frames(self) -> tuple[int, Frames, Frames]:
        """Return the number of frames that were used, the sample, and the frames after it."""
        pairs = list(self._kept.items.values())
        if self._last is None:
            return 0, np.zeros((0, 1, 1, 3), np.uint8), np.zeros((0, 1, 1, 3), np.uint8)
        pairs = pairs or [(self._last, self._last)]  # a single frame
        sample, after = (to_pixels(torch.stack(each)) for each in zip(*pairs, strict=True))
        return self._kept.count + 1, sample, after

    def take_many(self) -> Frames:
        """Return more frames, spread over the source; they are forgotten, to save memory."""
        many = list(self._many.items.values())
        self._many = Spread[Tensor](0)
        if not many:
            return np.zeros((0, 1, 1, 3), np.uint8)
        return to_pixels(torch.stack(many))


def plan_survey(source: Source, reading: Reading) -> Survey | None:
    """Return a survey to be taken while a source is read for training; None if it cannot be.

    Args:
        source: The source.
        reading: From `outline_reading`.
    """
    total = expected_frames([source.probe()], reading)
    is_plain = reading.roi is None and not reading.grey and reading.max_frames is None
    if source.kind != "video" or not is_plain or total is None or total < MIN_STILL_FRAMES:
        return None
    assert reading.size is not None
    return Survey(reading.size, _step(total))


def _step(total: int | None) -> int:
    """Return the number of frames of a source from one that is used to the next."""
    # Of three times the sample, about every third frame is kept; the rest is not converted.
    return 1 if total is None else max(1, total // (3 * SAMPLE_FRAMES))


def open_recording(
    source: Source,
    reading: Reading,
    known: Sequence[StillRecording] = (),
    survey: Survey | None = None,
    student: Student | None = None,
) -> StillRecording | MovingRecording | SeenRecording:
    """Return the recording of a source, for a still, hand-held or moving camera.

    Args:
        source: The source.
        reading: Which frames to use, and their size.
        known: Scenes of longer recordings; a short source may show one of them.
        survey: From `plan_survey`, after the source was read; None to read it here.
        student: A network that sees objects in single frames. It is not needed where a still camera
            shows the same.
    """
    total = expected_frames([source.probe()], reading)
    if student is not None and total is not None and total < MIN_STILL_FRAMES:
        return SeenRecording()
    if total is not None and total < MIN_STILL_FRAMES:
        return _in_known_scene(_sample(source, reading)[1], known) if known else MovingRecording()
    step = _step(total)
    frames, sample, after = survey.frames() if survey else _sample(source, _every(reading, step))
    if step > 1 and frames < SAMPLE_FRAMES:  # there are fewer frames than the header says
        step = 1
        frames, sample, after = _sample(source, reading)
    if student is not None and frames * step < MIN_STILL_FRAMES:
        return SeenRecording()
    if frames * step < MIN_STILL_FRAMES:
        return _in_known_scene(sample, known)
    scene = find_still_scene(sample, after)
    if scene is not None:
        still = StillRecording.start(scene, sample)
        if student is None or shows_the_same(still, sample, student.see(sample)):
            return still
    if student is not None:
        return SeenRecording()
    return HandheldRecording.start(sample, after) or MovingRecording()


def _in_known_scene(
    frames: Frames, known: Sequence[StillRecording]
) -> StillRecording | MovingRecording:
    """Return a recording of the first scene that the frames show, or of a moving camera."""
    for recording in known:
        if len(frames) and fits(recording.scene, frames):
            return recording.for_size(*frames.shape[1:3])
    return MovingRecording()


def patience_of(info: Info, stride: int) -> int:
    """Return the number of frames after which an unseen object is given up.

    Args:
        info: Frame rate of the source.
        stride: Every `stride`-th frame is used.
    """
    return max(MIN_PATIENCE, round(PATIENCE_SECONDS * (info.rate or TARGET_RATE) / stride))


def outline_reading(info: Info, reading: Reading, side: int = OUTLINE_SIDE) -> Reading:
    """Return how to read the frames used for outlines.

    Args:
        info: Size of the source's frames.
        reading: How the network's frames are read.
        side: Largest length of the longer side.
    """
    longest = replace(reading, size=None, longest=side)
    # All frames have the size of the first one, even in a folder of images of different sizes.
    return replace(reading, size=longest.target(info.height, info.width), longest=None)


def to_pixels(frames: Tensor) -> Frames:
    """Return frames (time, 3 or 1, height, width) as (time, height, width, 3).

    Interleaved frames are not copied; see `Reading`.
    """
    if frames.shape[1] == 3 and frames.is_contiguous(memory_format=torch.channels_last):
        shared: Frames = frames.permute(0, 2, 3, 1).numpy()
        return shared
    pixels = memory.empty((len(frames), *frames.shape[2:], 3), np.uint8)
    for image, frame in zip(pixels, frames.expand(-1, 3, -1, -1).numpy(), strict=True):
        cv2.merge(list(frame), dst=image)  # twice as fast as copying with other strides
    return pixels


def _every(reading: Reading, step: int) -> Reading:
    return replace(
        reading,
        stride=reading.stride * step,
        max_frames=kept_frames(reading.max_frames, step),
        tap=None,
    )


def many_frames(source: Source, reading: Reading, survey: Survey | None = None) -> Frames:
    """Return many frames spread over a source.

    Args:
        source: The source.
        reading: Which frames to use, and their size.
        survey: From `plan_survey`, after the source was read; None to read it here.
    """
    if survey is None:
        step = _step(expected_frames([source.probe()], reading))
        survey = _surveyed(source, _every(reading, step))
    return survey.take_many()


def _sample(source: Source, reading: Reading) -> tuple[int, Frames, Frames]:
    """Read a source; return the number of frames, a sample, and the frames after the sample."""
    return _surveyed(source, reading).frames()


def _surveyed(source: Source, reading: Reading) -> Survey:
    """Return the survey of a source, as far as it can be read."""
    assert reading.size is not None
    survey = Survey(reading.size, 1)
    with closing(source.clips(FRAMES_AT_ONCE, reading)) as clips:
        try:
            for clip in clips:
                for frame in clip.frames:
                    survey.add(frame)
        except VideoError:  # reading it for the results raises it again, after the readable frames
            pass
    return survey


def covers_little(sources: Sequence[Source], reading: Reading) -> bool:
    """Return whether the moving object covers less than half of the frame in most sources.

    Sources that cannot be read are left out; if none can be read, the result is False.

    Args:
        sources: Sources to train on.
        reading: How to read them, without `follow`.

    Example:
        >>> import tempfile
        >>> from ullayers.video.sources import find_sources
        >>> from ullayers.video.demo_films import write_scene
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     video = write_scene(folder, frames=60)  # of a beetle on a table
        ...     covers_little(find_sources([str(video)]), Reading(longest=64))
        True
    """
    shares = []
    for source in sources[:: -(-len(sources) // SOURCES)]:
        with suppress(VideoError):
            own = natural_reading(reading, source.probe()) if reading.stride == 1 else reading
            short = replace(own, max_frames=min(FRAMES, own.max_frames or FRAMES))
            with closing(cut(source, short)) as clips:
                shares += [moving_share(clip.frames) for clip in clips]
    return bool(shares) and median(shares) < MAX_SHARE
