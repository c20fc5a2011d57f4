"""A finished run on video: places and masks, or codes, of every frame."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.learn.checkpoint import RunError
from ullayers.learn.footage import PIECE, cut, gather, make_piece
from ullayers.learn.models import Encoder, Located, Locator
from ullayers.learn.results import TRACK, Answer, code_columns
from ullayers.learn.runs import Run
from ullayers.learn.training import BLOCK
from ullayers.video.frames import Render
from ullayers.video.reader import Clip, Reading, Source


def answers(
    run: Run,
    source: Source,
    *,
    stride: int = 1,
    max_frames: int | None = None,
    tap: Callable[[Render], None] | None = None,
) -> Generator[Answer, None, None]:
    """What the run's network says of a source, some hundred frames at a time, in bounded memory.

    A broken source gives the answers for what can be read and then raises VideoError.

    Args:
        run: a run that has ended.
        source: from `find_sources`.
        stride: look at every so many frames.
        max_frames: stop after so many.
        tap: As in `Reading`; called for every frame in order, ahead of its answer.
    """
    reading = replace(run.reading, stride=stride, max_frames=max_frames, tap=tap)
    if isinstance(run.net, Locator):
        yield from _locate(run, run.net, source, reading)
    elif isinstance(run.net, Encoder):
        follows = reading.follow
        for clip in _stretches(run, source, reading) if follows else source.clips(BLOCK, reading):
            code = _code(run.net, (clip.frames.float() / 255).to(run.config.device))
            yield _answer(source, clip, code_columns(code.shape[1]), code)
    else:
        raise RunError(f"{run.folder}: has not been learned to its end; go on with --resume")


def csv_name(run: Run) -> str:
    """The table that a run writes."""
    return "tracks.csv" if run.config.task == "locate" else "codes.csv"


def describe(net: Locator, found: Located) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """(time, 3) what is said of each frame, as in `TRACK`, and (time, height, width) masks."""
    values = torch.cat([found.centroid, net.confidence(found)[:, None]], 1).detach().double()
    masks = (255 * net.picture(found).detach()).round().byte()
    return values.cpu().numpy(), masks.cpu().numpy()


def _stretches(run: Run, source: Source, reading: Reading) -> Generator[Clip, None, None]:
    """Pieces as long, in time, as those that were learned from, if memory allows."""
    return cut(source, reading, max(1, PIECE * run.reading.stride // reading.stride))


def _locate(
    run: Run, net: Locator, source: Source, reading: Reading
) -> Generator[Answer, None, None]:
    behind = None
    if run.kind == "stream":  # first look at all of it, for what stands behind everything
        stride = max(reading.stride, run.reading.stride)
        most = reading.max_frames and (reading.max_frames - 1) * reading.stride // stride + 1
        seen = replace(reading, stride=stride, max_frames=most, tap=None)
        if seen == run.reading and source in run.backdrops:  # learning has looked already
            behind = run.backdrops[source]
        else:
            behind = gather([source], seen, skip_bad=True).backdrops().get(0)  # cut() complains
    for clip in _stretches(run, source, reading):
        piece = make_piece(0, clip)
        for start in range(0, len(piece), BLOCK):
            rows = slice(start, start + BLOCK)
            part = Clip(clip.frames[rows], clip.seconds[rows], clip.index[rows])
            yield _track(net, source, part, piece.foreground(rows, behind).to(run.config.device))


@torch.no_grad()
def _track(net: Locator, source: Source, clip: Clip, foreground: Tensor) -> Answer:
    values, masks = describe(net, net(foreground))
    return replace(_answer(source, clip, TRACK, values), masks=masks)


@torch.no_grad()
def _code(net: Encoder, frames: Tensor) -> np.ndarray:
    return net.code(frames).double().cpu().numpy()


def _answer(source: Source, clip: Clip, columns: tuple[str, ...], values: np.ndarray) -> Answer:
    return Answer(source.name, clip.index.numpy(), clip.seconds.numpy(), columns, values)
