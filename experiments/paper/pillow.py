"""A thrown pillow (section 4.3, Fig. 6 and 7a): its position in each frame of every throw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

from experiments.baselines import PositionNet, learn_physics, moving_centroids
from experiments.common import (
    Claim,
    Floats,
    Outcome,
    Picture,
    Setting,
    Table,
    correlation,
)
from experiments.datasets import Sequence, thrown_pillow
from experiments.paper.runs import (
    CODERS,
    MOG2,
    NETWORK,
    QUICK_CONFIG,
    UNLEARNED,
    WITHOUT,
    Job,
    Tracked,
    apply,
    apply_network,
    apply_without_network,
    codes_of,
    energies,
    foregrounds,
    learn,
    make_jobs,
    overlay_figure,
    pixels,
    read_linearly,
    untrained,
    write_tracks,
)
from ullayers.learning.config import Config
from ullayers.learning.networks import Locator
from ullayers.nn.layers import UL1d
from ullayers.nn.networks import backward, sequences
from ullayers.tracks.table import unsure

SIZE = (56, 56)  # of the frames that baselines see
TRAINED = 32  # number of training throws
SHOWN = 4  # every fourth of the other throws is drawn
# Acceleration in picture heights per frame squared. Measured on the red pixels of these very
# throws, as the distance of the camera is not published; this favours the baseline.
FALL = 0.045
PHYSICS_STEPS = 300
PAPER_EPOCHS = 99
PAPER_BATCH = 8  # throws per step of the paper's network
OURS = "ours"
PAPER = "the paper's network on raw frames"
PHYSICS = "physics constraints (parabola)"
WITHOUT_SCALE = (PHYSICS, PAPER, *CODERS)  # codes that are mapped to positions by our track
FITTED = ", fitted to our track"
DISTANCE = "median distance, of the frame"
TEXT = f"""
A pillow is thrown in a room: 77 throws of 5 to 11 frames. The first {TRAINED} throws are used for
training, the other 45 are held out. "Ours" is `ul learn` and `ul apply` without options; only the
seed varies. Most of the answer comes from evidence, consensus, colours and shape,
which need no training; the network weighs moving parts against each other, and training it adds
0.02 of free flight. "The network's mask alone" is the centroid of the trained mask. In some
held-out frames, mostly the fastest ones, nothing is found and the last position is repeated with a
confidence of 0.

No truth is published, so there is no supervised row. In free flight x is linear in time and y is a
parabola. The residuals are the distances of the held-out throws from the best such paths, and "free
flight" is the share of all motion that these paths explain; a method that always gives the same
position has small residuals and no path. The median distance is to positions in
`labelfree/cushion_truth.csv`, which we made from the colour of the pillow and cleaned by fits of
free flight. They cover 32 throws; all but one of these are training throws. Codes without a scale
are fitted linearly to our track on the training throws, so their agreement with it is not their
merit. Baselines see {SIZE[0]} x {SIZE[1]} pixels. The paper's network has three convolutions, two
fully connected layers and a UL layer, and sees raw frames.
"""


def run(setting: Setting) -> Outcome:
    """Learn from 32 throws, locate the pillow in all throws."""
    throws = _throws(setting.data, setting.quick)
    rows = {OURS: setting.seeds[:1] if setting.quick else setting.seeds}
    if not setting.quick:
        rows |= {
            WITHOUT: (0,),
            UNLEARNED: (0,),
            MOG2: (0,),
            PHYSICS: setting.seeds,
            PAPER: setting.seeds,
        }
        rows |= dict.fromkeys(CODERS, (0,))
    found: dict[str, list[Tracked]] = {}
    for methods in setting.each(run_method, make_jobs(setting, rows)):
        for name, tracked in methods.items():
            found.setdefault(name, []).append(tracked)
    ours = found[OURS][0]
    found = {name: [_scaled(name, one, ours) for one in seeds] for name, seeds in found.items()}
    write_tracks(setting.out / "tracks.csv", ours.answers)
    table = _table(throws, found)
    return Outcome(
        title="A thrown pillow (section 4.3, Fig. 6, 7a)",
        text=TEXT,
        tables=[table],
        pictures=_pictures(setting, throws, found),
        claims=_claims(table),
        files={"tracks.csv": f"positions in every frame of all {len(throws)} throws, first seed"},
    )


def _throws(data: str | Path, quick: bool) -> list[Sequence]:
    """Return all throws, or the training throws and those of the others that are drawn."""
    throws = thrown_pillow(data)
    return throws[:TRAINED] + throws[TRAINED::SHOWN] if quick else throws


def run_method(job: Job) -> dict[str, Tracked]:
    """Return by row the positions that a method finds, or codes that need a scale."""
    data, name, seed, quick = job
    throws = _throws(data, quick)
    if name == OURS:
        return _run_ours(throws, seed, quick)
    if name == WITHOUT:
        return {name: apply_without_network(throws)}
    if name == UNLEARNED:
        return {name: apply(untrained(throws[:TRAINED], seed), throws)}
    frames = [pixels(throw, SIZE) for throw in throws]
    if name == MOG2:
        return {name: Tracked([moving_centroids(throw) for throw in frames])}
    if name == PAPER:
        return {name: _learn_paper(frames, seed)}
    seen = energies(foregrounds(throws, SIZE))
    if name in CODERS:
        return {name: Tracked(codes_of(CODERS[name], seen, seen[:TRAINED]))}
    net = learn_physics(seen[:TRAINED], (0.0, FALL), steps=PHYSICS_STEPS, seed=seed)
    with torch.no_grad():
        return {name: Tracked([net(maps).numpy() for maps in seen])}


def _run_ours(throws: list[Sequence], seed: int, quick: bool) -> dict[str, Tracked]:
    # Each run has two starts; the factor keeps those of different seeds apart.
    config = Config(seed=2 * seed, **(QUICK_CONFIG if quick else {}))
    run = learn(throws[:TRAINED], config)
    assert isinstance(run.net, Locator)
    assert run.reading.size is not None
    alone = apply_network(run.net, foregrounds(throws, run.reading.size))
    return {OURS: apply(run, throws), NETWORK: alone}


def _learn_paper(frames: list[NDArray[np.uint8]], seed: int) -> Tracked:
    """Train the paper's network, a UL layer on top of a network that sees raw frames."""
    clips = [torch.from_numpy(throw).permute(0, 3, 1, 2).float() / 255 for throw in frames]
    torch.manual_seed(seed)
    ul_layer = UL1d(2)
    net = nn.Sequential(PositionNet(SIZE), ul_layer)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for _ in range(PAPER_EPOCHS):
        for indices in torch.randperm(TRAINED).split(PAPER_BATCH):
            batch = [clips[i] for i in indices.tolist()]
            optimizer.zero_grad()
            with sequences(net, [len(clip) for clip in batch]):
                backward(net(torch.cat(batch)))
            optimizer.step()
    objective = float(ul_layer.objective)
    net.eval()
    with torch.no_grad():
        return Tracked([net(clip).numpy() for clip in clips], objective=objective)


def _scaled(name: str, tracked: Tracked, ours: Tracked) -> Tracked:
    """Map codes without a scale to positions, by a linear map to our track on training throws."""
    if name not in WITHOUT_SCALE:
        return tracked
    known = [p if i < TRAINED else p[:0] for i, p in enumerate(ours.positions)]
    return Tracked(read_linearly(tracked.positions, known), objective=tracked.objective)


def free_flight(positions: Floats) -> Floats:
    """Return the nearest path on which x is linear in time and y is a parabola.

    >>> time = np.arange(6.0)
    >>> path = np.stack([0.1 * time, 1 - 0.3 * time + 0.05 * time**2], 1)
    >>> bool(np.allclose(free_flight(path), path))
    True
    """
    time = np.arange(len(positions))
    paths = [np.polyval(np.polyfit(time, positions[:, k], k + 1), time) for k in range(2)]
    return np.stack(paths, 1)


def median_distance(throws: list[Sequence], found: list[Floats]) -> float:
    """Return the median distance to the truth where it is known, else NaN."""
    true = np.concatenate([np.stack([t.truth["x"], t.truth["y"]], 1) for t in throws])
    distances = np.hypot(*(np.concatenate(found) - true).T)
    known = distances[np.isfinite(distances)]
    return float(np.median(known)) if len(known) else np.nan


def _scores(throws: list[Sequence], tracked: Tracked, ours: Tracked) -> list[float]:
    """Return the scores in the order of the table's columns."""
    held_out = tracked.positions[TRAINED:]
    reference = np.concatenate(ours.positions[TRAINED:])
    residuals = [np.square(p - free_flight(p)).mean(0) for p in held_out]
    variation = np.sum([p.var(0).sum() * len(p) for p in held_out])
    unexplained = np.sum([r.sum() * len(p) for r, p in zip(residuals, held_out, strict=True)])
    x_residual, y_residual = 100 * np.sqrt(residuals).mean(0)
    path = 100 * np.median([np.hypot(*np.ptp(p, 0)) for p in held_out])
    agreement = [correlation(np.concatenate(held_out)[:, k], reference[:, k]) for k in range(2)]
    answers = tracked.answers[TRAINED:]
    confident = 100 * (1 - unsure(answers)) if answers else np.nan
    return [
        1 - unexplained / max(variation, 1e-12),
        median_distance(throws, tracked.positions),
        x_residual,
        y_residual,
        path,
        *agreement,
        confident,
        np.nan if tracked.objective is None else tracked.objective,
    ]


def _table(throws: list[Sequence], found: dict[str, list[Tracked]]) -> Table:
    table = Table(
        "held-out throws",
        [
            "free flight",
            DISTANCE,
            "x off a line, %",
            "y off a parabola, %",
            "path, %",
            "r with ours, x",
            "r with ours, y",
            "confident, %",
            "J",
        ],
        ["high", "low", "", "", "", "", "", "", ""],
    )
    for name, seeds in found.items():
        title = name + FITTED if name in WITHOUT_SCALE else name
        scores = [_scores(throws, tracked, found[OURS][0]) for tracked in seeds]
        table.add(title, *zip(*scores, strict=True))
    return table


def _claims(table: Table) -> list[Claim]:
    flight = table.mean(OURS, "free flight")
    distance = table.mean(OURS, DISTANCE)
    claims = [Claim("share of motion explained by free flight", flight, at_least=0.9)]
    if np.isfinite(distance):
        claims.append(Claim(DISTANCE, distance, at_most=0.03))
    return claims


def _pictures(
    setting: Setting,
    throws: list[Sequence],
    found: dict[str, list[Tracked]],
) -> list[Picture]:
    shown = _drawn(throws, setting.quick)
    columns = 2 if setting.quick else 6
    answers = [found[OURS][0].answers[i] for i in shown]
    overlays = overlay_figure([throws[i] for i in shown], answers, (162, 288), columns)
    return [
        setting.picture(
            overlays,
            "overlays",
            "Held-out throws with masks and positions, first seed (Fig. 7a).",
            of_data=True,
        ),
        setting.picture(
            _paths(throws, found, shown),
            "paths",
            "Paths of held-out throws, first seed; grey is the free flight nearest to ours.",
        ),
    ]


def _drawn(throws: list[Sequence], quick: bool) -> range:
    return range(TRAINED, len(throws), 1 if quick else SHOWN)


def _paths(throws: list[Sequence], found: dict[str, list[Tracked]], shown: range) -> Figure:
    figure = Figure(figsize=(11, 7), layout="constrained")
    grid = figure.subplots(3, 4, sharex=True, sharey=True).flat
    for axes, i in zip(grid, shown, strict=False):
        axes.plot(*free_flight(found[OURS][0].positions[i]).T, color="0.75", linewidth=4)
        for name, style in ((OURS, "C0o-"), (MOG2, "C2x:"), (PAPER, "C3.--")):
            if name in found:
                axes.plot(*found[name][0].positions[i].T, style, markersize=4, label=name)
        axes.set(xlim=(0, 1), ylim=(1, 0))
        axes.set_title(throws[i].name, fontsize=9)
    figure.supxlabel("x, of the width")
    figure.supylabel("y, of the height")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure
