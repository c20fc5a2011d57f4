"""`ul learn --task orient` and `ul apply` on folders of pictures, and what other methods see."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ullayers.learn.config import Config
from ullayers.learn.footage import gather
from ullayers.research.experiments.common import Floats
from ullayers.run.apply import answers
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import Run, plan_run
from ullayers.video.reader import find_sources

DEFAULTS: Mapping[str, Any] = {}


@contextmanager
def numbered(sequences: Mapping[str, Sequence[Path]]) -> Iterator[str]:
    """Make a temporary folder with one folder of numbered links for the files of each sequence."""
    with tempfile.TemporaryDirectory() as place:
        for name, files in sequences.items():
            folder = Path(place, name)
            folder.mkdir()
            for number, file in enumerate(files):
                (folder / f"{number:03d}{file.suffix}").symlink_to(file.resolve())
        yield place


def learn_code(
    folder: Path | str, seed: int, settings: Mapping[str, Any] = DEFAULTS, **options: Any
) -> Run:
    """Run `ul learn --task orient` on a folder.

    Args:
        folder: Folder of sequences.
        seed: Number of the run.
        settings: Settings other than the defaults, such as `steps`.
        options: Options for reading, such as `follow`.
    """
    with tempfile.TemporaryDirectory() as place:
        run, sources = plan_run([str(folder)], f"{place}/run", _config(seed, settings), **options)
        for _ in learn_run(run, sources):
            pass
    return run


def _config(seed: int, settings: Mapping[str, Any] = DEFAULTS) -> Config:
    # Each run has two starts; the factor keeps those of different seeds apart.
    return Config(task="orient", seed=2 * seed, **settings)


def apply_code(run: Run, folder: Path | str) -> list[Floats]:
    """Run `ul apply` on a folder, and return the codes (frames, 2) of each sequence."""
    return [
        np.concatenate([answer.values for answer in answers(run, source)])
        for source in find_sources([str(folder)])
    ]


def frames_to_learn_from(folder: Path | str, like: Path | str) -> list[Tensor]:
    """Return the frames of each sequence as `ul learn --task orient` reads them, in 0..1.

    Args:
        folder: Folder of sequences to read.
        like: Folder of sequences that `ul learn` would learn from, which decide how to read.
    """
    with tempfile.TemporaryDirectory() as place:
        run, _ = plan_run([str(like)], f"{place}/run", _config(0))
    footage = gather(find_sources([str(folder)]), run.reading, natural=run.natural)
    return [
        torch.cat([piece.clip.frames for piece in footage.of_source(number)]).float() / 255
        for number in range(len(footage.names))
    ]


def as_rows(sequences: Sequence[Tensor]) -> list[Floats]:
    """Return the pixels of each sequence, (frames, pixels)."""
    return [frames.flatten(1).numpy() for frames in sequences]
