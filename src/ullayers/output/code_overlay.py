"""The overlay of codes: its panel shows all of them, so it needs a second pass."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from ullayers.learn.runs import Run
from ullayers.output.exported import Exported
from ullayers.output.frames_to_draw import DRAWN_AT_ONCE, frames_to_draw
from ullayers.output.overlay import Overlay
from ullayers.video.reader import Source


def draw_codes(
    path: Path,
    run: Run,
    sources: Sequence[Source],
    done: Exported,
    fps: float,
    stride: int,
    share: int,
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
    """
    found = {answer.sequence: answer.rows(slice(0, share)) for answer in done.answers}
    shown = [source for source in sources if source.name in found]
    cloud = np.concatenate([found[source.name].values for source in shown])
    with Overlay(path, fps, cloud) as video:
        for source in shown:
            answer = found[source.name]
            with closing(frames_to_draw(run, source, stride, share)) as pictures:
                for start in range(0, len(answer.index), DRAWN_AT_ONCE):
                    part = answer.rows(slice(start, start + DRAWN_AT_ONCE))
                    video.add(torch.stack(list(islice(pictures, len(part.index)))), part)
