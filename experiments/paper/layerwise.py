"""Local UL layers in addition to the last one, and layers trained by their own UL layer only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.signal import lfilter
from torch import Tensor, nn

import experiments.paper.recognise as recognise
from experiments.common import Claim, Floats, Outcome, Picture, Setting, Table
from experiments.paper.recognise import Stages, seeded
from ullayers.nn.networks import backward, sequences

SIDE = 32  # pixels per side of a frame of the blob
FRAMES = 6000
SCORED = 2000  # the last frames, which are used for scores only
NOISE = 0.3  # standard deviation; the blob's maximum is 1
BLOB_WIDTH = 3.0  # pixels
REACH = 10.0  # greatest distance of the blob from the centre, in pixels
DAMPING = 0.9  # share of its speed that the blob keeps per frame
SPRING = 0.01  # constant of the spring that pulls the blob to the centre
CHUNK = 128
STEPS = 400
QUICK_STEPS = 200
LR = 1e-3
LOCAL = (0.003, 0.03, 0.3)  # weights of local UL layers

END = "end to end, UL after the last layer only"
OWN = "layer by layer, each from its own UL layer"
ONLY = "the last layer learns, those below stay random"
LOCAL_ROW = "end to end, UL after all layers, local weight 0.03"
BLOB = "R2 of the blob's place"
OBJECTS = "percent of held-out views, one labelled view"


@dataclass(frozen=True)
class Method:
    """How the layers of a network are trained.

    Attributes:
        local: Weight of the UL layers below the last one; 0 for none.
        isolated: Stop gradients between layers.
        frozen: Keep the initial weights of the layers below the last one.
        statistics: Statistics of the UL layers.
    """

    local: float = 0.0
    isolated: bool = False
    frozen: bool = False
    statistics: str = "fresh"


FRESH: dict[str, Method] = {
    END: Method(),
    **{f"end to end, UL after all layers, local weight {w:g}": Method(w) for w in LOCAL},
    OWN: Method(1.0, isolated=True),
    ONLY: Method(frozen=True),
}
RUNNING: dict[str, Method] = {  # the same with the statistics of version 0.1
    f"{name}, running statistics": replace(FRESH[name], statistics="running")
    for name in (END, LOCAL_ROW, OWN)
}
METHODS = FRESH | RUNNING
QUICK_METHODS = (END, LOCAL_ROW, OWN, ONLY)

Job = tuple[str, str, str, int, bool]  # data, task, row, seed, quick


def blob(seed: int) -> tuple[Tensor, Floats]:
    """Return a video of a noisy wandering blob, (time, 1, SIDE, SIDE), and its positions (time, 2).

    Each coordinate is a randomly driven, damped spring with about two periods per chunk, followed
    by a tanh that keeps it inside the frame.

    Example:
        >>> frames, positions = blob(0)
        >>> tuple(frames.shape), bool((positions > 0).all() and (positions < SIDE).all())
        ((6000, 1, 32, 32), True)
    """
    random = np.random.default_rng(seed)
    pushes = random.standard_normal((FRAMES, 2))
    swing = lfilter([1.0], [1.0, SPRING - DAMPING - 1, DAMPING], pushes, axis=0)
    positions = (SIDE - 1) / 2 + REACH * np.tanh(swing / swing.std(0))
    columns = _profile(positions[:, 0])
    rows = _profile(positions[:, 1])
    frames = rows[:, :, None] * columns[:, None, :]
    frames += NOISE * random.standard_normal(frames.shape)
    return torch.from_numpy(frames).float()[:, None], positions


def _profile(centres: Floats) -> Floats:
    """Return Gaussian profiles (time, SIDE) around the given centres."""
    distances = np.arange(SIDE) - centres[:, None]
    profile: Floats = np.exp(-(distances**2) / (2 * BLOB_WIDTH**2))
    return profile


def build(layers: list[nn.Conv2d | nn.Linear], method: Method, long_term: str) -> Stages:
    """Return a network with the UL layers of a method."""
    last = len(layers) - 1
    weights = {i: method.local for i in range(last) if method.local} | {last: 1.0}
    net = Stages(
        layers,
        weights,
        isolated=method.isolated,
        statistics=method.statistics,
        long_term=long_term,
    )
    if method.frozen:
        net.freeze(range(last))
    return net


def blob_score(method: Method, seed: int, steps: int) -> float:
    """Return the R2 of positions decoded linearly from two outputs trained without labels."""
    seeded(seed)
    frames, positions = blob(seed)
    layers: list[nn.Conv2d | nn.Linear] = [
        nn.Conv2d(1, 8, 5, 2, 2),
        nn.Conv2d(8, 8, 5, 2, 2),
        nn.Linear(8 * (SIDE // 4) ** 2, 32),
        nn.Linear(32, 2),
    ]
    net = build(layers, method, "stream")
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], LR)
    chunks = frames[: FRAMES - SCORED].split(CHUNK)
    for step in range(steps):
        optimizer.zero_grad()
        backward(*_trained(net(chunks[step % len(chunks)])))
        optimizer.step()
    with torch.no_grad():
        codes = net.eval()(frames)[-1].double().numpy()
    return explained(codes, positions)


def _trained(outputs: list[Tensor]) -> list[Tensor]:
    """Return the outputs of layers that are trained; those of frozen layers are constants."""
    return [y for y in outputs if y.requires_grad]


def explained(codes: Floats, positions: Floats) -> float:
    """Return the R2 on the scored frames of a linear map fitted to the training frames."""
    rows = np.concatenate([codes, np.ones((len(codes), 1))], 1)
    training = slice(0, FRAMES - SCORED)
    scored = slice(FRAMES - SCORED, FRAMES)
    weights = np.linalg.lstsq(rows[training], positions[training], rcond=None)[0]
    truth = positions[scored]
    error = ((rows[scored] @ weights - truth) ** 2).sum()
    return float(1 - error / ((truth - truth.mean(0)) ** 2).sum())


def object_score(data: str, method: Method, seed: int) -> float:
    """Return the percentage of held-out COIL-20 views recognised from one labelled view each."""
    generator = seeded(seed)
    views = recognise.read_views(data, 1, seed)
    net = build(recognise.layers(len(views.frames))[: recognise.CODE + 1], method, "shared")
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
    """Train and score one network."""
    data, task, row, seed, quick = job
    if task == BLOB:
        return blob_score(METHODS[row], seed, QUICK_STEPS if quick else STEPS)
    return object_score(data, METHODS[row], seed)


def run(setting: Setting) -> Outcome:
    """Compare all methods on the blob and on objects."""
    rows = QUICK_METHODS if setting.quick else tuple(METHODS)
    seeds = setting.seeds[:1] if setting.quick else setting.seeds
    tasks = (BLOB,) if setting.quick else (BLOB, OBJECTS)
    jobs: list[Job] = [
        (str(setting.data), task, row, seed, setting.quick)
        for task in tasks
        for row in rows
        for seed in seeds
    ]
    found = setting.each_by_job(one_score, jobs)
    table = Table("no labels in learning", list(tasks), ["high"] * len(tasks))
    for row in rows:
        of_row = [[found[job] for job in jobs if job[1:3] == (task, row)] for task in tasks]
        table.add(row, *of_row)
    pictures = [] if setting.quick else [_bars(setting, table)]
    title = "Local UL layers, and learning layer by layer (layerwise)"
    return Outcome(title, TEXT, [table], pictures, _claims(table))


def _claims(table: Table) -> list[Claim]:
    end, local, own, only = (table.mean(row, BLOB) for row in (END, LOCAL_ROW, OWN, ONLY))
    return [
        Claim("R2 of the blob's position, end to end", end, at_least=0.9),
        Claim("R2 lost by local UL layers of weight 0.03", end - local, at_most=0.05),
        Claim("R2 of random layers below a learned one", only, at_most=0.5),
        Claim("R2 gained by layers with their own UL layer", own - only, at_least=0.1),
    ]


def _bars(setting: Setting, table: Table) -> Picture:
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2, sharey=True), table.columns, strict=True):
        column = table.columns.index(task)
        values = [cells[column] for cells in table.rows.values()]
        means = [np.mean(of_seeds) for of_seeds in values]
        deviations = [np.std(of_seeds) for of_seeds in values]
        colours = ["tab:gray" if row in RUNNING else "tab:blue" for row in table.rows]
        axes.barh(range(len(values)), means, xerr=deviations, color=colours, capsize=2)
        axes.set(xlabel=task, yticks=range(len(values)), yticklabels=table.rows)
        axes.axvline(0, color="0.5", lw=0.8)
    figure.axes[0].invert_yaxis()
    caption = (
        "Methods with fresh (blue) and running statistics (grey): the blob's position on later "
        "frames (left), objects from one labelled view each (right)."
    )
    return setting.picture(figure, "ways", caption)


TEXT = f"""
A blob wanders through {FRAMES:,} frames of {SIDE} x {SIDE} pixels with noise {NOISE}. Two
convolutions and two linear layers learn two outputs from the first {FRAMES - SCORED:,} frames,
with {STEPS} steps of Adam at {LR} on consecutive chunks of {CHUNK} frames. The position is decoded
by one linear map, fitted to those frames and scored on the others. The objects and their network
are those of `recognise`, without class scores: video of 14 objects, {recognise.STEPS} steps, then
the nearest of one labelled view per object in the metric of W. Labels are used only to read the
code.

*End to end* passes gradients through the whole network. *Layer by layer* passes none between
layers: each learns only from the UL layer after it, all at the same time. The objects are easy to
tell apart, so one trained layer on top of random ones is enough for them; it is not for the blob.
"""
