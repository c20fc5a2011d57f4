"""`ul learn` and `ul apply` on sequences of pictures: tracks of a moving object, codes of a head.

Also what other methods see of the same pictures, so that all are compared on equal terms.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression
from torch import Tensor

from experiments.baselines import Coder, random_weights, similarity_codes, slow_codes
from experiments.common import Floats, Setting
from experiments.datasets import Sequence as Pictures
from experiments.datasets import load
from ullayers.learning.config import Config
from ullayers.learning.footage import cut, gather
from ullayers.learning.networks import Locator
from ullayers.learning.survey import open_recording, outline_reading, to_pixels
from ullayers.locate.paths import fill_gaps
from ullayers.locate.recording.seen import SeenRecording
from ullayers.report.drawing import draw_track
from ullayers.run.apply import WINDOW_BYTES, WINDOW_FRAMES, answers
from ullayers.run.folder import RunResult
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import Plan, plan_run
from ullayers.tracks.table import TRACK, Answer, header
from ullayers.video.sources import Reading, Source, find_sources

Size = tuple[int, int]
Job = tuple[str, str, int, bool]  # data, row, seed, quick

BLUR = 5  # pixels over which energy is averaged
STRIDE = 2  # pixels between two averages
CODES = 8  # size of the codes that positions are decoded from
QUICK_CONFIG: dict[str, Any] = {"steps": 60, "restarts": 1}
UNLEARNED = "ours before learning (random weights)"
WITHOUT = "ours without the network"
NETWORK = "the network's mask alone"
MOG2 = "background subtraction (MOG2)"
CODERS = {
    "linear slow features": partial(slow_codes, outputs=CODES, components=50),
    "quadratic slow features": partial(slow_codes, outputs=CODES, components=10, degree=2),
    "closed form on similarity edges": partial(similarity_codes, outputs=CODES),
}


@dataclass(frozen=True)
class Tracked:
    """Positions that a method found.

    Attributes:
        positions: For each sequence x and y in 0..1, (time, 2), or x only, (time, 1).
        answers: Output of `ul apply`, for methods that use it.
        objective: Evaluation J of the run, if there is one.
    """

    positions: list[Floats]
    answers: list[Answer] = field(default_factory=list)
    objective: float | None = None


def make_jobs(setting: Setting, rows: dict[str, tuple[int, ...]]) -> list[Job]:
    """Return a job for every seed of every row."""
    data = str(setting.data)
    return [(data, name, seed, setting.quick) for name, seeds in rows.items() for seed in seeds]


def part(pictures: Pictures, rows: slice) -> Pictures:
    """Return some pictures of a sequence."""
    truth = {name: values[rows] for name, values in pictures.truth.items()}
    return replace(pictures, files=pictures.files[rows], truth=truth)


@contextmanager
def folder_of(sequences: Sequence[Pictures]) -> Iterator[str]:
    """Make a temporary folder with one folder of links per sequence, as input of `ul`."""
    with tempfile.TemporaryDirectory() as place:
        for pictures in sequences:
            folder = Path(place, pictures.name)
            folder.mkdir()
            for file in pictures.files:
                (folder / file.name).symlink_to(file.resolve())
        yield place


def learn(train: Sequence[Pictures], config: Config) -> Plan:
    """Run `ul learn` on sequences."""
    with folder_of(train) as inputs, tempfile.TemporaryDirectory() as place:
        run, sources = plan_run([inputs], f"{place}/run", config)
        for _ in learn_run(run, sources):
            pass
    return run


def untrained(train: Sequence[Pictures], seed: int) -> Plan:
    """Return a run of `ul learn` with an untrained network."""
    config = Config(seed=seed).resolved(many=True)
    with folder_of(train) as inputs:
        run, _ = plan_run([inputs], f"{inputs}/run", config)
    assert run.reading.size is not None
    net = random_weights(config, "clip", run.reading.channels, run.reading.size, seed)
    return replace(run, net=net, result=RunResult(kind="clip"))


def apply(run: Plan, sequences: Sequence[Pictures]) -> Tracked:
    """Run `ul apply` on sequences."""
    with folder_of(sequences) as inputs:
        parts = {source.name: list(answers(run, source)) for source in find_sources([inputs])}
    found = [_joined(parts[pictures.name]) for pictures in sequences]
    return Tracked([answer.values[:, :2] for answer in found], found, run.outcome.objective)


def _joined(parts: list[Answer]) -> Answer:
    masks = np.concatenate([answer.masks for answer in parts if answer.masks is not None])
    return replace(Answer.join(parts), masks=masks)


def apply_without_network(sequences: Sequence[Pictures]) -> Tracked:
    """Run what `ul apply` does, without the attention of a network."""
    with folder_of(sequences) as inputs:
        parts = {source.name: _segment(source) for source in find_sources([inputs])}
    found = [_joined(parts[pictures.name]) for pictures in sequences]
    return Tracked([answer.values[:, :2] for answer in found], found)


def _segment(source: Source) -> list[Answer]:
    reading = outline_reading(source.probe(), Reading())
    recording = open_recording(source, reading)
    assert not isinstance(recording, SeenRecording), "there is no network"
    found = []
    for clip in cut(source, reading, WINDOW_FRAMES, WINDOW_BYTES):
        segments = recording.segment(to_pixels(clip.frames))
        places = np.nan_to_num(fill_gaps(segments.positions), nan=0.5)
        values = np.column_stack([places, segments.confidence])
        index, seconds = clip.index.numpy(), clip.seconds.numpy()
        found.append(Answer(source.name, index, seconds, TRACK, values, segments.soft))
    return found


@torch.no_grad()
def apply_network(net: Locator, seen: Sequence[torch.Tensor]) -> Tracked:
    """Return the centroids of a network's masks, as version 0.1 did.

    Args:
        net: A trained network.
        seen: Its input for each sequence, from `foregrounds`.
    """
    return Tracked([net(frames).centroid.numpy() for frames in seen])


def foregrounds(sequences: Sequence[Pictures], size: Size) -> list[torch.Tensor]:
    """Return the input of our network for each sequence, (time, channels, height, width)."""
    with folder_of(sequences) as inputs:
        run, sources = plan_run([inputs], f"{inputs}/run", Config(), size=size)
        footage = gather(sources, run.reading)
    seen = {footage.names[piece.source]: piece.foreground() for piece in footage.pieces}
    return [seen[pictures.name] for pictures in sequences]


def energies(seen: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return blurred foreground energy, (time, 1, height / 2, width / 2), with mean 1."""
    return [_energy(frames) for frames in seen]


def _energy(foreground: torch.Tensor) -> torch.Tensor:
    squares = foreground.square().sum(1, keepdim=True)
    blurred = F.avg_pool2d(squares, BLUR, STRIDE, BLUR // 2, count_include_pad=False).sqrt()
    return blurred / (blurred.mean((1, 2, 3), keepdim=True) + 1e-9)


def codes_of(
    coder: Callable[[list[Floats]], Coder],
    seen: Sequence[torch.Tensor],
    learned_from: Sequence[torch.Tensor],
) -> list[Floats]:
    """Return codes of maps (time, 1, height, width).

    Args:
        coder: One of `CODERS`.
        seen: Maps to encode.
        learned_from: Maps to learn the code from.
    """
    code = coder([maps.flatten(1).numpy() for maps in learned_from])
    return [code(maps.flatten(1).numpy()) for maps in seen]


def read_linearly(codes: Sequence[Floats], positions: Sequence[Floats]) -> list[Floats]:
    """Decode positions from codes by one linear map.

    Args:
        codes: Codes (time, d) of each sequence.
        positions: Known positions (fewer, k) of the first frames of each, to fit the map.
    """
    known = np.concatenate([c[: len(p)] for c, p in zip(codes, positions, strict=True)])
    line = LinearRegression().fit(known, np.concatenate(list(positions)))
    return [line.predict(code) for code in codes]


def pixels(pictures: Pictures, size: Size) -> NDArray[np.uint8]:
    """Return the frames of a sequence, (time, height, width, 3)."""
    return load(pictures, size).frames.permute(0, 2, 3, 1).contiguous().numpy()


def write_tracks(path: Path, found: Sequence[Answer]) -> None:
    """Write the table that `ul apply` writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header(TRACK) + "".join(answer.lines() for answer in found), encoding="utf-8")


def overlay_figure(
    sequences: Sequence[Pictures],
    found: Sequence[Answer],
    size: Size,
    columns: int,
    begin: float = 0.0,
) -> Figure:
    """Draw frames of each sequence with the mask, its centroid, and the centroid's trail.

    Args:
        sequences: Sequences to show.
        found: What was found in each.
        size: (height, width) of the frames.
        columns: Number of frames per sequence.
        begin: Share of a sequence that is skipped.
    """
    figure = Figure(figsize=(1.9 * columns, (1.9 * size[0] / size[1] + 0.18) * len(sequences)))
    grid = figure.subplots(len(sequences), columns, squeeze=False)
    for axes, pictures, answer in zip(grid, sequences, found, strict=True):
        frames = pixels(pictures, size)
        last = len(pictures) - 1
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
) -> Plan:
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


def apply_code(run: Plan, folder: Path | str) -> list[Floats]:
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
