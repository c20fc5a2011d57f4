"""Sequences of the data sets taken through what `ul learn --task locate` and `ul apply` do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression

from ullayers.learn.apply import answers
from ullayers.learn.config import Config
from ullayers.learn.footage import gather
from ullayers.learn.models import Locator
from ullayers.learn.results import TRACK, Answer, header
from ullayers.learn.run_result import RunResult
from ullayers.learn.run_training import learn_run
from ullayers.learn.runs import Run, plan_run
from ullayers.output.overlay import draw_track
from ullayers.research.baselines import Coder, random_weights, similarity_codes, slow_codes
from ullayers.research.datasets import Sequence as Pictures
from ullayers.research.datasets import load
from ullayers.research.experiments.common import Floats
from ullayers.video.reader import find_sources

Size = tuple[int, int]

BLUR, COARSE = 5, 2  # pixels over which energy is averaged, and from one average to the next
CODES = 8  # numbers of a code that places are decoded from
CODERS = {
    "linear slow features": partial(slow_codes, outputs=CODES, components=50),
    "quadratic slow features": partial(slow_codes, outputs=CODES, components=10, degree=2),
    "closed form on similarity edges": partial(similarity_codes, outputs=CODES),
}


@dataclass(frozen=True)
class Tracked:
    """Where a method saw the thing.

    Attributes:
        places: for each sequence (time, 2) x and y in 0..1, or (time, 1) x alone.
        answers: what `ul apply` says, where it is asked.
        objective: evaluation J of the run, if there is one.
    """

    places: list[Floats]
    answers: list[Answer] = field(default_factory=list)
    objective: float | None = None


def part(pictures: Pictures, rows: slice) -> Pictures:
    """Some of a sequence's pictures."""
    truth = {name: values[rows] for name, values in pictures.truth.items()}
    return replace(pictures, files=pictures.files[rows], truth=truth)


@contextmanager
def folder_of(sequences: Sequence[Pictures]) -> Iterator[str]:
    """A folder with a folder of links for each sequence, as a user would have them."""
    with tempfile.TemporaryDirectory() as place:
        for pictures in sequences:
            folder = Path(place, pictures.name)
            folder.mkdir()
            for file in pictures.files:
                (folder / file.name).symlink_to(file.resolve())
        yield place


def learn(train: Sequence[Pictures], size: Size, config: Config) -> Run:
    """`ul learn` on sequences."""
    with folder_of(train) as inputs, tempfile.TemporaryDirectory() as place:
        run, sources = plan_run([inputs], f"{place}/run", config, size=size)
        for _ in learn_run(run, sources):
            pass
    return run


def apply(run: Run, sequences: Sequence[Pictures]) -> Tracked:
    """`ul apply` on sequences."""
    with folder_of(sequences) as inputs:
        parts = {source.name: list(answers(run, source)) for source in find_sources([inputs])}
    found = [_joined(parts[pictures.name]) for pictures in sequences]
    return Tracked([answer.values[:, :2] for answer in found], found, run.outcome.objective)


def _joined(parts: list[Answer]) -> Answer:
    masks = np.concatenate([answer.masks for answer in parts if answer.masks is not None])
    return replace(Answer.join(parts), masks=masks)


def apply_unlearned(
    sequences: Sequence[Pictures],
    size: Size,
    seed: int,
    teach: Callable[[Locator], None] = lambda net: None,
) -> Tracked:
    """`ul apply` with a network that has learned nothing, or from somebody else."""
    config = Config(seed=seed).resolved(many=True)
    net = random_weights(config, "clip", 3, size, seed)
    assert isinstance(net, Locator)
    teach(net)
    with folder_of(sequences) as inputs:
        run, _ = plan_run([inputs], f"{inputs}/run", config, size=size)
    return apply(replace(run, net=net, result=RunResult(kind="clip")), sequences)


def foregrounds(sequences: Sequence[Pictures], size: Size) -> list[torch.Tensor]:
    """What our network sees of each sequence: (time, channels, height, width)."""
    with folder_of(sequences) as inputs:
        run, sources = plan_run([inputs], f"{inputs}/run", Config(), size=size)
        footage = gather(sources, run.reading)
    seen = {footage.names[piece.source]: piece.foreground() for piece in footage.pieces}
    return [seen[pictures.name] for pictures in sequences]


def energies(seen: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Where how much moves, (time, 1, height / 2, width / 2), of foregrounds; 1 on average."""
    moved = (frames.square().sum(1, keepdim=True) for frames in seen)
    maps = [F.avg_pool2d(m, BLUR, COARSE, BLUR // 2, count_include_pad=False).sqrt() for m in moved]
    return [m / (m.mean((1, 2, 3), keepdim=True) + 1e-9) for m in maps]


def codes_of(
    coder: Callable[[list[Floats]], Coder],
    seen: Sequence[torch.Tensor],
    learned_from: Sequence[torch.Tensor],
) -> list[Floats]:
    """Codes of maps (time, 1, height, width) by one of `CODERS` that has learned from others."""
    rows, known = ([m.flatten(1).numpy() for m in maps] for maps in (seen, learned_from))
    code = coder(known)
    return [code(part) for part in rows]


def read_linearly(codes: Sequence[Floats], places: Sequence[Floats]) -> list[Floats]:
    """Places read from codes by one linear map.

    Args:
        codes: (time, d) of each sequence.
        places: (fewer, k) where the thing is in the first frames of each, to fit the map to.
    """
    known = np.concatenate([c[: len(p)] for c, p in zip(codes, places, strict=True)])
    line = LinearRegression().fit(known, np.concatenate(list(places)))
    return [line.predict(code) for code in codes]


def pixels(pictures: Pictures, size: Size) -> NDArray[np.uint8]:
    """(time, height, width, 3)."""
    return load(pictures, size).frames.permute(0, 2, 3, 1).contiguous().numpy()


def write_tracks(path: Path, found: Sequence[Answer]) -> None:
    """The table that `ul apply` writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header(TRACK) + "".join(answer.lines() for answer in found), encoding="utf-8")


def overlay_figure(
    sequences: Sequence[Pictures],
    found: Sequence[Answer],
    size: Size,
    columns: int,
    begin: float = 0.0,
) -> Figure:
    """Some frames of each sequence with the mask, its centroid, and where that came from.

    Args:
        sequences: what to show.
        found: in each.
        size: of the frames that are drawn on.
        columns: frames of each.
        begin: share of a sequence that is not shown.
    """
    figure = Figure(figsize=(1.9 * columns, (1.9 * size[0] / size[1] + 0.18) * len(sequences)))
    grid = figure.subplots(len(sequences), columns, squeeze=False)
    for axes, pictures, answer in zip(grid, sequences, found, strict=True):
        frames, last = pixels(pictures, size), len(pictures) - 1
        rows = np.unique(np.linspace(begin * last, last, columns).round().astype(int))
        for axis in axes:
            axis.axis("off")
        for axis, row in zip(axes, rows, strict=False):
            now = _rows(answer, slice(row, row + 1))
            axis.imshow(draw_track(frames[row : row + 1], now, answer.values[:row])[0])
            axis.set_title(f"{pictures.name.replace('DaSide0811-', '')}: {row}", fontsize=6, pad=2)
    figure.subplots_adjust(0, 0, 1, 0.98, 0.03, 0.14)
    return figure


def _rows(answer: Answer, rows: slice) -> Answer:
    assert answer.masks is not None
    return replace(
        answer,
        index=answer.index[rows],
        seconds=answer.seconds[rows],
        values=answer.values[rows],
        masks=answer.masks[rows],
    )
