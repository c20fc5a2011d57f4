"""Head pan of people who were not in the training set (section 4.2, Fig. 4-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from experiments.baselines import (
    learn_physics,
    learn_supervised,
    random_weights,
    similarity_codes,
    slow_codes,
)
from experiments.common import (
    Claim,
    Floats,
    Outcome,
    Picture,
    Setting,
    Table,
    decode_angle,
    sine_and_cosine,
)
from experiments.datasets import Sequence, load, panning_heads
from experiments.paper.heads import PEOPLE, UNSEEN, cut_faces, pan_sweeps, score
from experiments.paper.runs import (
    apply_code,
    as_rows,
    frames_to_learn_from,
    learn_code,
    numbered,
)
from ullayers.learning.config import Config
from ullayers.learning.networks import Encoder

OURS = "UL layers, no labels (ours)"
FOLLOWED = "ours with --follow"
NOT_FOLLOWED = "ours with --no-follow"
LINEAR = "linear SFA"
QUADRATIC = "quadratic SFA"
CLOSED = "closed form, similarity edges"
PHYSICS = "physics: constant turn"
RANDOM = "random weights"
SUPERVISED = "supervised, all labels of the training people"
OTHERS = (LINEAR, QUADRATIC, CLOSED, PHYSICS, RANDOM, SUPERVISED)
OPTIONS: dict[str, dict[str, Any]] = {
    OURS: {},
    FOLLOWED: {"follow": True},
    NOT_FOLLOWED: {"follow": False},
}
VIEWS = {
    "boxes": "Pointing'04, faces in the given boxes",
    "whole": "Pointing'04, whole pictures",
    "rendered": "heads3d, rendered heads",
}
ROWS = {
    "boxes": (OURS, FOLLOWED, *OTHERS),
    "whole": (OURS, NOT_FOLLOWED, *OTHERS),
    "rendered": (OURS, *OTHERS),
}
QUICK_ROWS = (OURS, RANDOM)
QUICK_SETTINGS: dict[str, Any] = {"steps": 40, "restarts": 1}
QUICK_PEOPLE = {1, 2, 3}
UNSEEN_RENDERED = 3  # the last rendered heads are held out
FACE_SIDE = 64  # pixels per side of a face in its box
QUADRATIC_COMPONENTS = 24  # principal components whose products are the quadratic features
COLUMNS = ["mean absolute error, degrees", "correlation of the sine"]

Job = tuple[str, str, str, int, bool]  # data, view, row, seed, quick
Coder = Callable[[str], Floats]  # folder of sequences to the codes of all frames


@dataclass(frozen=True)
class Pans:
    """Folders of sequences in which a head pans once.

    Attributes:
        known: Sequences to learn from.
        unseen: Sequences of other people.
        counts: Number of sequences in both folders.
        pan: Pan angles of every sequence in degrees.
    """

    known: str
    unseen: str
    counts: tuple[int, int]
    pan: Floats

    @property
    def known_angles(self) -> Floats:
        """The pan of every frame to learn from."""
        return np.tile(self.pan, self.counts[0])

    @property
    def unseen_angles(self) -> Floats:
        """The pan of every frame of other people."""
        return np.tile(self.pan, self.counts[1])


def run(setting: Setting) -> Outcome:
    """Learn on some people, decode the pan of others."""
    data = str(setting.data)
    views = ("boxes",) if setting.quick else tuple(VIEWS)
    jobs: list[Job] = [
        (data, view, row, seed, setting.quick)
        for view in views
        for row in (QUICK_ROWS if setting.quick else ROWS[view])
        for seed in setting.seeds
    ]
    found = setting.each_by_job(decode_unseen, jobs)
    tables = _tables(jobs, found)
    first = {job[1]: found[job][2] for job in jobs if job[2] == OURS and job[3] == setting.seeds[0]}
    pictures = [_decoded(setting, first), _sequence(setting)]
    return Outcome("Head pan (pan)", TEXT, tables, pictures, _claims(tables, setting.quick))


def _tables(jobs: list[Job], found: dict[Job, tuple[float, float, Floats]]) -> list[Table]:
    tables = []
    for view in dict.fromkeys(job[1] for job in jobs):
        table = Table(VIEWS[view], COLUMNS, ["low", "high"])
        for row in dict.fromkeys(job[2] for job in jobs if job[1] == view):
            scores = [found[job][:2] for job in jobs if job[1:3] == (view, row)]
            table.add(row, *np.array(scores).T)
        tables.append(table)
    return tables


@contextmanager
def pans_of(data: str, view: str, quick: bool) -> Iterator[Pans]:
    """Make temporary folders of sequences to learn from and to decode.

    Args:
        data: Folder of the data sets.
        view: "boxes" or "whole" for Pointing'04, or "rendered".
        quick: Whether to learn from a few people only.
    """
    if view == "rendered":
        heads = panning_heads(data)
        parts = heads[:-UNSEEN_RENDERED], heads[-UNSEEN_RENDERED:]
    else:
        parts = pan_sweeps(data, QUICK_PEOPLE if quick else PEOPLE), pan_sweeps(data, UNSEEN)
    make = _faces if view == "boxes" else _pictures
    with make(parts[0]) as known, make(parts[1]) as unseen:
        yield Pans(known, unseen, (len(parts[0]), len(parts[1])), parts[0][0].truth["pan"])


def _pictures(sequences: list[Sequence]) -> AbstractContextManager[str]:
    """Make a temporary folder with one folder of whole pictures per sequence."""
    return numbered({sequence.name: sequence.files for sequence in sequences})


@contextmanager
def _faces(sweeps: list[Sequence]) -> Iterator[str]:
    """Make a temporary folder with one folder of faces in their boxes per sweep."""
    with TemporaryDirectory() as place:
        for sweep in sweeps:
            folder = Path(place, sweep.name)
            folder.mkdir()
            faces = cut_faces(sweep, FACE_SIDE).permute(0, 2, 3, 1).numpy()
            for number, face in enumerate(faces):
                Image.fromarray(face).save(folder / f"{number:02d}.png")
        yield place


def decode_unseen(job: Job) -> tuple[float, float, Floats]:
    """Return error and correlation of a row, and decoded sine and true pan of every test frame."""
    data, view, row, seed, quick = job
    with pans_of(data, view, quick) as pans:
        code = _coder(pans, row, seed, QUICK_SETTINGS if quick else {})
        decoded = decode_angle(code(pans.known), pans.known_angles, code(pans.unseen))
    true = pans.unseen_angles
    return *score(decoded, true), np.stack([decoded[:, 0], true], 1)


def _coder(pans: Pans, row: str, seed: int, settings: Mapping[str, Any]) -> Coder:
    """Learn the code of a row."""
    if row in OPTIONS:
        run = learn_code(pans.known, seed, settings, **OPTIONS[row])
        return lambda folder: np.concatenate(apply_code(run, folder))
    known = frames_to_learn_from(pans.known, pans.known)
    code = _learn_other(known, pans, row, seed)
    return lambda folder: code(torch.cat(frames_to_learn_from(folder, pans.known)))


def _learn_other(
    known: list[Tensor], pans: Pans, row: str, seed: int
) -> Callable[[Tensor], Floats]:
    """Learn the code of another method from frames in 0..1."""
    if row == PHYSICS:
        net = learn_physics(known, seed=seed)
        # A linear map of one number cannot give a circle.
        return lambda frames: _no_grad(lambda x: torch.cat([net(x), net(x) ** 2], 1), frames)
    if row in (RANDOM, SUPERVISED):
        channels, height, width = known[0].shape[1:]
        random = random_weights(Config(task="orient"), "clip", channels, (height, width), seed)
        assert isinstance(random, Encoder)
        if row == SUPERVISED:
            truth = sine_and_cosine(pans.known_angles)
            learn_supervised(random, random.embed, known, [truth], seed=seed, lr=1e-3)
        return lambda frames: _no_grad(random.code, frames)
    return _slow_coder(as_rows(known), row)


def _no_grad(network: Callable[[Tensor], Tensor], frames: Tensor) -> Floats:
    with torch.no_grad():
        code: Floats = torch.cat([network(part) for part in frames.split(256)]).numpy()
    return code


def _slow_coder(rows: list[Floats], row: str) -> Callable[[Tensor], Floats]:
    """Learn from pixels relative to each video's mean, which would otherwise show the person."""
    mean = np.concatenate(rows).mean(0)
    centred = [video - video.mean(0) for video in rows]
    if row == CLOSED:
        coder = similarity_codes(centred)
    elif row == LINEAR:
        coder = slow_codes(centred)
    else:
        coder = slow_codes(centred, degree=2, components=QUADRATIC_COMPONENTS)
    return lambda frames: coder(frames.flatten(1).numpy() - mean)


def _claims(tables: list[Table], quick: bool) -> list[Claim]:
    error = COLUMNS[0]
    ours = {table.title: table.mean(OURS, error) for table in tables}
    boxes = ours[VIEWS["boxes"]]
    if quick:
        ratio = boxes / tables[0].mean(RANDOM, error)
        steps = QUICK_SETTINGS["steps"]
        return [
            Claim(f"degrees on unseen people after {steps} steps", boxes, at_most=16),
            Claim("error relative to random weights", ratio, at_most=0.6),
        ]
    whole = ours[VIEWS["whole"]]
    return [
        Claim("degrees on persons 11-12, given boxes", boxes, at_most=7.5),
        Claim("degrees on persons 11-12, given boxes", boxes, at_most=6, aim=True),
        Claim("degrees on persons 11-12, whole pictures", whole, at_most=12),
        Claim("degrees on persons 11-12, whole pictures", whole, at_most=9, aim=True),
    ]


def _decoded(setting: Setting, found: dict[str, Floats]) -> Picture:
    figure = Figure(figsize=(4.2 * len(found), 3.8))
    for axes, (view, values) in zip(
        figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        axes.plot(np.linspace(-90, 90), np.sin(np.radians(np.linspace(-90, 90))), color="#888")
        axes.scatter(values[:, 1], values[:, 0], s=8, alpha=0.5)
        axes.set(xlabel="true pan, degrees", ylabel="decoded sine", ylim=(-1.7, 1.7))
        axes.set_title(VIEWS[view].replace(", ", ",\n", 1), fontsize=9)
    figure.tight_layout()
    caption = "Decoded sine of every picture of unseen people, and the true sine (line)."
    return setting.picture(figure, "decoded", caption)


def _sequence(setting: Setting) -> Picture:
    sweep = pan_sweeps(str(setting.data), UNSEEN)[0]
    frames = load(sweep, (48, 64)).frames.permute(0, 2, 3, 1).numpy()
    figure = Figure(figsize=(13, 1.4))
    panels = figure.subplots(1, len(frames))
    for axes, frame, pan in zip(panels, frames, sweep.truth["pan"], strict=True):
        axes.imshow(frame)
        axes.set_title(f"{pan:+.0f}°", fontsize=9)
        axes.axis("off")
    return setting.picture(figure, "sequence", "One pan of an unseen person.", of_data=True)


TEXT = """
Each sequence shows one person who pans once: 13 pictures of Pointing'04 at one tilt, or 37 of a
rendered head. `ul learn --task orient` learns from the sequences of persons 1-10 (100 of them)
without labels and without other options, and `ul apply` encodes those of persons 11-12; a linear
map from the code to sine and cosine, fitted on the training persons, then decodes their pan. The
order of the pictures follows from their pan, as it would for a camera; it is not used otherwise.
In whole pictures the head covers less than half of the frame, so `ul learn` crops frames to a
square around it. The rows "--follow" and "--no-follow" override this choice.

Other methods see the same frames, and in whole pictures the same squares. They learn relative to
the mean of each sequence and are decoded relative to the mean of all. The method was developed on
these people, so the errors are optimistic. Background subtraction (OpenCV) does not estimate a
heading and has no row here.
"""
