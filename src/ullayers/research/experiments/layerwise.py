"""Local UL layers beside a last one, and layers that each learn from their own UL layer alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.signal import lfilter
from torch import Tensor, nn

import ullayers.research.experiments.recognise as recognise
from ullayers.nn.layers import backward, sequences
from ullayers.research.experiments.common import Claim, Floats, Outcome, Picture, Setting, Table
from ullayers.research.experiments.stages import Stages, seeded

SIDE = 32  # pixels of a frame of the blob
FRAMES, SCORED = 6000, 2000  # in all; the last of them are never learned from
NOISE = 0.3  # standard deviation, where the blob is 1
WIDTH, REACH = 3.0, 10.0  # of the blob, and how far from the middle it goes, in pixels
FRICTION, PULL = 0.9, 0.01  # share of its speed that it keeps, and the spring to the middle
CHUNK, STEPS, LR = 128, 400, 1e-3
LOCAL = (0.003, 0.03, 0.3)  # weights of local UL layers beside the last one

END = "end to end, UL after the last layer only"
OWN = "layer by layer, each from its own UL layer"
ONLY = "the last layer learns, those below stay random"
LOCAL_ROW = "end to end, UL after all layers, local weight 0.03"
BLOB = "R2 of the blob's place"
OBJECTS = "percent of held-out views, one labelled view"


@dataclass(frozen=True)
class Way:
    """How the layers of a network learn.

    Attributes:
        local: weight of the UL layers below the last one; 0 for none.
        isolated: no gradient passes from a layer to the one below.
        frozen: layers below the last one stay as they were made.
        statistics: of the UL layers.
    """

    local: float = 0.0
    isolated: bool = False
    frozen: bool = False
    statistics: str = "fresh"


FRESH: dict[str, Way] = {
    END: Way(),
    **{f"end to end, UL after all layers, local weight {w:g}": Way(w) for w in LOCAL},
    OWN: Way(1.0, isolated=True),
    ONLY: Way(frozen=True),
}
RUNNING: dict[str, Way] = {  # the same with the statistics of version 0.1
    f"{name}, running statistics": replace(FRESH[name], statistics="running")
    for name in (END, LOCAL_ROW, OWN)
}
WAYS = FRESH | RUNNING

Job = tuple[str, str, str, int]  # data, task, row, seed


def blob(seed: int) -> tuple[Tensor, Floats]:
    """A noisy blob that wanders: frames (time, 1, SIDE, SIDE) and its place (time, 2) in pixels.

    Each coordinate is pulled to the middle like a weight on a spring, about two swings in a chunk,
    pushed at random, and bent so that it stays inside.

    Example:
        >>> frames, place = blob(0)
        >>> tuple(frames.shape), bool((place > 0).all() and (place < SIDE).all())
        ((6000, 1, 32, 32), True)
    """
    random = np.random.default_rng(seed)
    pushes = random.standard_normal((FRAMES, 2))
    swing = lfilter([1.0], [1.0, PULL - FRICTION - 1, FRICTION], pushes, axis=0)
    place = (SIDE - 1) / 2 + REACH * np.tanh(swing / swing.std(0))
    grid = np.arange(SIDE)
    columns, rows = (np.exp(-((grid - p[:, None]) ** 2) / (2 * WIDTH**2)) for p in place.T)
    frames = rows[:, :, None] * columns[:, None, :]
    frames += NOISE * random.standard_normal(frames.shape)
    return torch.from_numpy(frames).float()[:, None], place


def build(layers: list[nn.Conv2d | nn.Linear], way: Way, long_term: str) -> Stages:
    """A network that learns that way."""
    last = len(layers) - 1
    weights = {i: way.local for i in range(last) if way.local} | {last: 1.0}
    net = Stages(
        layers, weights, isolated=way.isolated, statistics=way.statistics, long_term=long_term
    )
    if way.frozen:
        net.freeze(range(last))
    return net


def place_of_blob(way: Way, seed: int) -> float:
    """R2 of the place on later frames, by a linear map from two outputs that learned no label."""
    seeded(seed)
    frames, place = blob(seed)
    side = SIDE // 4
    net = build(
        [nn.Conv2d(1, 8, 5, 2, 2), nn.Conv2d(8, 8, 5, 2, 2),
         nn.Linear(8 * side**2, 32), nn.Linear(32, 2)], way, "stream",
    )  # fmt: skip
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], LR)
    chunks = frames[: FRAMES - SCORED].split(CHUNK)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(*_trained(net(chunks[step % len(chunks)])))
        optimizer.step()
    with torch.no_grad():
        codes = net.eval()(frames)[-1].double().numpy()
    return explained(codes, place)


def _trained(outputs: list[Tensor]) -> list[Tensor]:
    """Outputs that something learns from; those of frozen layers are constants."""
    return [y for y in outputs if y.requires_grad]


def explained(codes: Floats, place: Floats) -> float:
    """R2 on the scored frames of a linear map that is fitted to the others."""
    rows = np.concatenate([codes, np.ones((len(codes), 1))], 1)
    learned, scored = slice(0, FRAMES - SCORED), slice(FRAMES - SCORED, FRAMES)
    fit = np.linalg.lstsq(rows[learned], place[learned], rcond=None)[0]
    wrong = ((rows[scored] @ fit - place[scored]) ** 2).sum()
    return float(1 - wrong / ((place[scored] - place[scored].mean(0)) ** 2).sum())


def objects(data: str, way: Way, seed: int) -> float:
    """Percent of held-out views of COIL-20 recognised by the nearest of one labelled view each."""
    generator = seeded(seed)
    views = recognise.read_views(data, 1, seed)
    net = build(recognise.layers(len(views.frames))[: recognise.CODE + 1], way, "shared")
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], recognise.LR)
    for _ in range(recognise.STEPS):
        optimizer.zero_grad()
        with sequences(net, [recognise.CLIP] * len(views.frames)):
            outputs = net(recognise.draw(views, generator))
        backward(*_trained(outputs))
        optimizer.step()
    with torch.no_grad():
        codes = net.eval()(views.frames.flatten(0, 1))[-1].unflatten(0, views.frames.shape[:2])
    metric = recognise.slow_metric(codes[:, views.video])
    return recognise.nearest(views, codes @ metric)[1]


def one_score(job: Job) -> float:
    """Of one network."""
    data, task, row, seed = job
    return place_of_blob(WAYS[row], seed) if task == BLOB else objects(data, WAYS[row], seed)


def run(setting: Setting) -> Outcome:
    """Every way to learn, on the blob and on objects."""
    ways = tuple(WAYS) if not setting.quick else (END, LOCAL_ROW, OWN, ONLY)
    seeds = setting.seeds[:1] if setting.quick else setting.seeds
    tasks = (BLOB,) if setting.quick else (BLOB, OBJECTS)
    data = str(setting.data)
    jobs: list[Job] = [(data, task, row, seed) for task in tasks for row in ways for seed in seeds]
    found = dict(zip(jobs, setting.each(one_score, jobs), strict=True))
    table = Table("no labels in learning", list(tasks), ["high"] * len(tasks))
    for row in ways:
        table.add(row, *[[found[data, task, row, seed] for seed in seeds] for task in tasks])
    pictures = [] if setting.quick else [_bars(setting, table)]
    title = "Local UL layers, and learning layer by layer (layerwise)"
    return Outcome(title, TEXT, [table], pictures, _claims(table))


def _claims(table: Table) -> list[Claim]:
    end, local, own, only = (table.mean(row, BLOB) for row in (END, LOCAL_ROW, OWN, ONLY))
    return [
        Claim("R2 of the blob's place, end to end", end, at_least=0.9),
        Claim("R2 lost by local UL layers of weight 0.03", end - local, at_most=0.05),
        Claim("R2 of random layers below a learned one", only, at_most=0.5),
        Claim("R2 gained by layers that learn on their own", own - only, at_least=0.1),
    ]


def _bars(setting: Setting, table: Table) -> Picture:
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2, sharey=True), table.columns, strict=True):
        column = table.columns.index(task)
        values = [cells[column] for cells in table.rows.values()]
        means, spreads = [np.mean(v) for v in values], [np.std(v) for v in values]
        colours = ["tab:gray" if row in RUNNING else "tab:blue" for row in table.rows]
        axes.barh(range(len(values)), means, xerr=spreads, color=colours, capsize=2)
        axes.set(xlabel=task, yticks=range(len(values)), yticklabels=table.rows)
        axes.axvline(0, color="0.5", lw=0.8)
    figure.axes[0].invert_yaxis()
    caption = "Ways to learn with fresh (blue) and running statistics (grey): the blob's place on "
    caption += "later frames (left), objects from one labelled view each (right)."
    return setting.picture(figure, "ways", caption)


TEXT = f"""
A blob wanders through {FRAMES:,} frames of {SIDE} x {SIDE} pixels, noise {NOISE}. Two convolutions
and two linear layers learn two outputs from the first {FRAMES - SCORED:,} frames, {STEPS} steps of
Adam at {LR} on chunks of {CHUNK} frames in order; the place is read by one linear map, fitted to
those frames, and scored on the others. The objects and their network are those of `recognise`,
without class scores: video of 14 objects, {recognise.STEPS} steps, then one labelled view of each
and the nearest of them in the metric of W. Labels only read what was learned.

*End to end* passes gradients through the whole network. *Layer by layer* passes none from a layer
to the one below: each learns from the UL layer behind it alone, all at the same time. The objects
are easy to tell apart, so that a learned layer on random ones is enough there; the blob is not.
"""
