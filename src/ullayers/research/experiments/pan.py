"""Section 4.2, Fig. 4-5: which way a head looks, for people who were never seen in training.

Three sets of pictures: faces of Pointing'04 in their given boxes, whole pictures of Pointing'04 in
which `follow` finds the head by itself, and rendered heads.
"""

from __future__ import annotations

from typing import Any

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
ROWS = (
    OURS, "linear SFA", "quadratic SFA", "closed form, similarity edges",
    "physics: constant turn", "random weights", "supervised, all labels of the training people",
)  # fmt: skip
VIEWS = {
    "boxes": "Pointing'04, faces in the given boxes",
    "followed": "Pointing'04, whole pictures, head found by motion",
    "whole": "Pointing'04, whole pictures, nothing cut out",
    "rendered": "heads3d, rendered heads",
}
STEPS = {"boxes": 600, "followed": 600, "whole": 600, "rendered": 300}
QUADRATIC = 24  # principal components, whose products quadratic features are made of
COLUMNS = ["mean absolute error, degrees", "correlation of the sine"]

Job = tuple[str, str, str, int, int]  # data, view, row, seed, steps


def run(setting: Setting) -> Outcome:
    """Learn on some people, decode on others."""
    views = ("boxes",) if setting.quick else tuple(VIEWS)
    jobs: list[Job] = []
    for view in views:
        rows: tuple[str, ...] = (OURS, "linear SFA", "random weights") if setting.quick else ROWS
        if view == "whole":  # to see what following brings
            rows = (OURS,)
        steps = 150 if setting.quick else STEPS[view]
        jobs += [
            (str(setting.data), view, row, seed, steps) for row in rows for seed in setting.seeds
        ]
    found = dict(zip(jobs, setting.each(unseen_people, jobs), strict=True))
    tables = []
    for view in views:
        table = Table(VIEWS[view], COLUMNS, ["low", "high"])
        for row in dict.fromkeys(job[2] for job in jobs if job[1] == view):
            scores = [found[job][:2] for job in jobs if job[1:3] == (view, row)]
            table.add(row, *np.array(scores).T)
        tables.append(table)
    first = {job[1]: found[job][2] for job in jobs if job[2] == OURS and job[3] == setting.seeds[0]}
    pictures = [_decoded(setting, first), _sequence(setting, views[0])]
    return Outcome("Head pan (pan)", _TEXT, tables, pictures, _claims(tables, setting.quick))


def people_of(heads: Heads) -> tuple[set[int], set[int]]:
    """Who is learned from and who is never seen; of rendered heads, the last three are not."""
    if heads.frames.shape[1] > 1:
        return PEOPLE, UNSEEN
    everybody = set(heads.person.tolist())
    return everybody - {9, 10, 11}, everybody & {9, 10, 11}


def unseen_people(job: Job) -> tuple[float, float, Floats]:
    """Error and correlation of a row, and the sine and truth of every unseen frame."""
    data, view, row, seed, steps = job
    heads = read_heads(data, view)
    known, unseen = (heads.of(people) for people in people_of(heads))
    code = _coder(heads, row, seed, steps)
    read = decode_angle(code(known), heads.angles(known), code(unseen))
    true = heads.angles(unseen)
    return *score(read, true), np.stack([read[:, 0], true], 1)


def _coder(heads: Heads, row: str, seed: int, steps: int) -> Any:
    """A function from series to the codes of their frames."""
    people, _ = people_of(heads)
    footage = videos(heads, people, seed)
    if row == OURS:
        net = learn(footage, seed, steps=steps)
        return lambda series: codes(net, heads, series)
    if row.startswith("physics"):
        clips = [piece.clip.frames.float() / 255 for piece in footage.pieces]
        turn = learn_physics(clips, seed=seed)

        @torch.no_grad()
        def turned(series: NDArray[np.int64]) -> Floats:
            one = turn(heads.pictures(series)).numpy()
            return np.concatenate([one, one**2], 1)  # one number cannot be on a circle

        return turned
    if row.startswith(("random", "supervised")):
        size = heads.frames.shape[-2:]
        net = random_weights(Config(task="orient"), "clip", 1, (size[0], size[1]), seed)  # type: ignore[assignment]
        if row.startswith("supervised"):
            _teach(net, heads, people, seed)
        return lambda series: codes(net, heads, series)
    return _slow(heads, footage, row)


def _teach(net: Encoder, heads: Heads, people: set[int], seed: int) -> None:
    series = heads.of(people)
    truth = sine_and_cosine(heads.angles(series))
    learn_supervised(net, net.embed, [heads.pictures(series)], [truth], seed=seed, lr=1e-3)


def _slow(heads: Heads, footage: Footage, row: str) -> Any:
    """Peers see pixels around each video's own mean, else they would tell who it is."""
    rows = [_pixels(piece.clip.frames) for piece in footage.pieces]
    middle = np.concatenate(rows).mean(0)
    centred = [video - video.mean(0) for video in rows]
    if row.startswith("closed"):
        coder = similarity_codes(centred)
    elif row.startswith("linear"):
        coder = slow_codes(centred)
    else:
        coder = slow_codes(centred, degree=2, components=QUADRATIC)
    return lambda series: coder(_pixels(heads.frames[series].flatten(0, 2)) - middle)


def _pixels(frames: torch.Tensor) -> Floats:
    pixels: Floats = frames.flatten(1).numpy() / np.float32(255)
    return pixels


def _claims(tables: list[Table], quick: bool) -> list[Claim]:
    error = COLUMNS[0]
    ours = {table.title: table.mean(OURS, error) for table in tables}
    if quick:
        chance = tables[0].mean("random weights", error)
        faces = ours[VIEWS["boxes"]]
        return [
            Claim("degrees on unseen people after 150 steps", faces, at_most=16),
            Claim("of the error of random weights", faces / chance, at_most=0.6),
        ]
    boxes, whole = ours[VIEWS["boxes"]], ours[VIEWS["followed"]]
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
    caption = "The decoded sine of every picture of people never seen, and the true sine (line)."
    return setting.picture(figure, "decoded", caption)


def _sequence(setting: Setting, view: str) -> Picture:
    heads = read_heads(str(setting.data), view)
    _, unseen = people_of(heads)
    series, middle = heads.of(unseen)[0], heads.frames.shape[1] // 2
    figure = Figure(figsize=(13, 1.4))
    for axes, frame, pan in zip(
        figure.subplots(1, len(heads.pan)), heads.frames[series, middle, :, 0], heads.pan,
        strict=True,
    ):  # fmt: skip
        axes.imshow(frame, cmap="gray")
        axes.set_title(f"{pan:+.0f}°", fontsize=9)
        axes.axis("off")
    return setting.picture(figure, "sequence", "One pan of an unseen person.", of_data=True)


_TEXT = """
A video of each series of a person is made from the pictures of Pointing'04: the head wanders over
its poses by one step of pan or of tilt at a time. The poses make the order of the videos, as a
camera would have; nothing else of them is used. `ul learn --task orient` learns from these
(persons 1-10, 600 steps; rendered heads 300) with no label; a linear map from the code to sine
and cosine, fitted on the people of the training part, then reads the pan of persons 11-12.
Without the given boxes the head is cut out of the whole pictures by what `--follow` does, in each
sweep of 13 pictures: a square around what moves.

Peers see the same pictures; they learn around the mean of each video and are read around the mean
of all. The recipe was developed on these people, so the errors are on the optimistic side.
Background subtraction (OpenCV) has no notion of a heading and no row here.
"""
