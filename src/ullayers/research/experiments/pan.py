"""Head pan of people who were not in the training set (section 4.2, Fig. 4-5).

Pictures: faces of Pointing'04 in their given boxes, whole pictures of Pointing'04 with and without
a square that `follow` cuts out, and rendered heads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ullayers.learn.config import Config
from ullayers.learn.footage import Footage
from ullayers.learn.models import Encoder
from ullayers.research.baselines import (
    learn_physics,
    learn_supervised,
    random_weights,
    similarity_codes,
    slow_codes,
)
from ullayers.research.experiments.common import (
    Claim,
    Floats,
    Outcome,
    Picture,
    Setting,
    Table,
    decode_angle,
    sine_and_cosine,
)
from ullayers.research.experiments.heads import (
    PEOPLE,
    UNSEEN,
    Heads,
    codes,
    learn,
    read_heads,
    score,
    videos,
)

OURS = "UL layers, no labels (ours)"
LINEAR = "linear SFA"
QUADRATIC = "quadratic SFA"
CLOSED = "closed form, similarity edges"
PHYSICS = "physics: constant turn"
RANDOM = "random weights"
SUPERVISED = "supervised, all labels of the training people"
ROWS = (OURS, LINEAR, QUADRATIC, CLOSED, PHYSICS, RANDOM, SUPERVISED)
QUICK_ROWS = (OURS, LINEAR, RANDOM)
VIEWS = {
    "boxes": "Pointing'04, faces in the given boxes",
    "followed": "Pointing'04, whole pictures, head found by motion",
    "whole": "Pointing'04, whole pictures, nothing cut out",
    "rendered": "heads3d, rendered heads",
}
STEPS = {"boxes": 600, "followed": 600, "whole": 600, "rendered": 300}
QUICK_STEPS = 75
UNSEEN_RENDERED = {9, 10, 11}
QUADRATIC_COMPONENTS = 24  # principal components whose products are the quadratic features
COLUMNS = ["mean absolute error, degrees", "correlation of the sine"]

Job = tuple[str, str, str, int, int]  # data, view, row, seed, steps
SeriesCoder = Callable[[NDArray[np.int64]], Floats]  # series of heads to the codes of their frames


def run(setting: Setting) -> Outcome:
    """Learn on some people, decode the pan of others."""
    jobs = _jobs(setting)
    found = setting.each_by_job(decode_unseen, jobs)
    tables = _tables(jobs, found)
    first = {job[1]: found[job][2] for job in jobs if job[2] == OURS and job[3] == setting.seeds[0]}
    pictures = [_decoded(setting, first), _sequence(setting, jobs[0][1])]
    return Outcome("Head pan (pan)", TEXT, tables, pictures, _claims(tables, setting.quick))


def _jobs(setting: Setting) -> list[Job]:
    data = str(setting.data)
    if setting.quick:
        return [
            (data, "boxes", row, seed, QUICK_STEPS) for row in QUICK_ROWS for seed in setting.seeds
        ]
    return [
        (data, view, row, seed, STEPS[view])
        for view in VIEWS
        for row in ((OURS,) if view == "whole" else ROWS)  # "whole" shows what following gains
        for seed in setting.seeds
    ]


def _tables(jobs: list[Job], found: dict[Job, tuple[float, float, Floats]]) -> list[Table]:
    tables = []
    for view in dict.fromkeys(job[1] for job in jobs):
        table = Table(VIEWS[view], COLUMNS, ["low", "high"])
        for row in dict.fromkeys(job[2] for job in jobs if job[1] == view):
            scores = [found[job][:2] for job in jobs if job[1:3] == (view, row)]
            table.add(row, *np.array(scores).T)
        tables.append(table)
    return tables


def people_of(heads: Heads) -> tuple[set[int], set[int]]:
    """Return the training and the test persons."""
    if heads.frames.shape[1] > 1:
        return PEOPLE, UNSEEN
    everybody = set(heads.person.tolist())
    return everybody - UNSEEN_RENDERED, everybody & UNSEEN_RENDERED


def decode_unseen(job: Job) -> tuple[float, float, Floats]:
    """Return error and correlation of a row, and decoded sine and true pan of every test frame."""
    data, view, row, seed, steps = job
    heads = read_heads(data, view)
    people, unseen_people = people_of(heads)
    known = heads.of(people)
    unseen = heads.of(unseen_people)
    code = _coder(heads, row, seed, steps)
    decoded = decode_angle(code(known), heads.angles(known), code(unseen))
    true = heads.angles(unseen)
    return *score(decoded, true), np.stack([decoded[:, 0], true], 1)


def _coder(heads: Heads, row: str, seed: int, steps: int) -> SeriesCoder:
    """Learn the code of a row."""
    people, _ = people_of(heads)
    footage = videos(heads, people, seed)
    if row == OURS:
        net = learn(footage, seed, steps=steps)
        return lambda series: codes(net, heads, series)
    if row == PHYSICS:
        return _physics_coder(heads, footage, seed)
    if row in (RANDOM, SUPERVISED):
        height, width = heads.frames.shape[-2:]
        random = random_weights(Config(task="orient"), "clip", 1, (height, width), seed)
        assert isinstance(random, Encoder)
        if row == SUPERVISED:
            _teach(random, heads, people, seed)
        return lambda series: codes(random, heads, series)
    return _slow_coder(heads, footage, row)


def _physics_coder(heads: Heads, footage: Footage, seed: int) -> SeriesCoder:
    clips = [piece.clip.frames.float() / 255 for piece in footage.pieces]
    net = learn_physics(clips, seed=seed)

    @torch.no_grad()
    def code(series: NDArray[np.int64]) -> Floats:
        angle = net(heads.pictures(series)).numpy()
        return np.concatenate([angle, angle**2], 1)  # a linear map of one number is no circle

    return code


def _teach(net: Encoder, heads: Heads, people: set[int], seed: int) -> None:
    series = heads.of(people)
    truth = sine_and_cosine(heads.angles(series))
    learn_supervised(net, net.embed, [heads.pictures(series)], [truth], seed=seed, lr=1e-3)


def _slow_coder(heads: Heads, footage: Footage, row: str) -> SeriesCoder:
    """Learn from pixels relative to each video's mean, which would otherwise show the person."""
    rows = [_pixels(piece.clip.frames) for piece in footage.pieces]
    mean = np.concatenate(rows).mean(0)
    centred = [video - video.mean(0) for video in rows]
    if row == CLOSED:
        coder = similarity_codes(centred)
    elif row == LINEAR:
        coder = slow_codes(centred)
    else:
        coder = slow_codes(centred, degree=2, components=QUADRATIC_COMPONENTS)
    return lambda series: coder(_pixels(heads.frames[series].flatten(0, 2)) - mean)


def _pixels(frames: torch.Tensor) -> Floats:
    pixels: Floats = frames.flatten(1).numpy() / np.float32(255)
    return pixels


def _claims(tables: list[Table], quick: bool) -> list[Claim]:
    error = COLUMNS[0]
    ours = {table.title: table.mean(OURS, error) for table in tables}
    if quick:
        faces = ours[VIEWS["boxes"]]
        ratio = faces / tables[0].mean(RANDOM, error)
        return [
            Claim(f"degrees on unseen people after {QUICK_STEPS} steps", faces, at_most=16),
            Claim("error relative to random weights", ratio, at_most=0.6),
        ]
    boxes = ours[VIEWS["boxes"]]
    whole = ours[VIEWS["followed"]]
    return [
        Claim("degrees on persons 11-12, given boxes", boxes, at_most=8),
        Claim("degrees on persons 11-12, given boxes", boxes, at_most=6, aim=True),
        Claim("degrees on persons 11-12, whole pictures", whole, at_most=16),
        Claim("degrees on persons 11-12, whole pictures", whole, at_most=10, aim=True),
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


def _sequence(setting: Setting, view: str) -> Picture:
    heads = read_heads(str(setting.data), view)
    _, unseen = people_of(heads)
    frames = heads.frames[heads.of(unseen)[0], heads.frames.shape[1] // 2, :, 0].numpy()
    figure = Figure(figsize=(13, 1.4))
    panels = figure.subplots(1, len(heads.pan))
    for axes, frame, pan in zip(panels, frames, heads.pan, strict=True):
        axes.imshow(frame, cmap="gray")
        axes.set_title(f"{pan:+.0f}°", fontsize=9)
        axes.axis("off")
    return setting.picture(figure, "sequence", "One pan of an unseen person.", of_data=True)


TEXT = """
One video per series of a person is made from the pictures of Pointing'04: the head wanders over its
poses by one step of pan or tilt at a time. The poses determine the order of the frames, as they
would for a camera, and are not used otherwise. `ul learn --task orient` learns from these videos
(persons 1-10, 600 steps; rendered heads 300) without labels; a linear map from the code to sine and
cosine, fitted on the training persons, then decodes the pan of persons 11-12. Without the given
boxes, the head is cut out of the whole pictures as `--follow` does, in each sweep of 13 pictures: a
square around what moves.

Other methods see the same pictures; they learn relative to the mean of each video and are read
relative to the mean of all. The method was developed on these people, so the errors are optimistic.
Background subtraction (OpenCV) does not estimate a heading and has no row here.
"""
