"""Eigenvectors of a random walk in gridworlds, learned by networks from samples of the walk."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ullayers.exact.markov import closed_form, transitions
from ullayers.research.experiments.common import Claim, Floats, Outcome, Picture, Setting, Table
from ullayers.research.experiments.gridworlds import (
    Gridworld,
    Truth,
    cosines,
    gridworld,
    overlap,
    truth,
    walk,
)
from ullayers.research.experiments.slow_objectives import (
    ALLO,
    FRESH,
    GDO,
    GGDO,
    PAPER,
    RUNNING,
    SLOW,
    TRACE,
    UNTRAINED,
)
from ullayers.research.experiments.slow_training import (
    DRAWN,
    ROWS,
    Found,
    Run,
    all_runs,
    complete,
)

FLOOR = "closed form on the counted steps"
MUST = {"GridRoom-16": 0.98, "GridMaze-19": 0.98}
TIE = 0.001  # where both find what the samples tell, chance decides which is ahead
QUICK = "GridMaze-9"
QUICK_STEPS, QUICK_SAMPLES = 400, 50_000
COLOURS = {FRESH: "tab:blue", TRACE: "tab:cyan", ALLO: "tab:orange", GDO: "tab:green",
           GGDO: "yellowgreen", RUNNING: "0.4", PAPER: "0.6", UNTRAINED: "0.8"}  # fmt: skip

TEXT = """
A walker goes through a gridworld at random, 200,000 samples in episodes of 50 that start anywhere.
A network sees where it is, as x and y (three hidden layers of 256 units) or as a small picture
from above (two convolutions and two linear layers), and learns the ten slowest eigenvectors of the
walk, the Laplacian representation of reinforcement learning: 10,000 steps of Adam at 0.001 with a
cosine schedule, 1,024 pairs a step of states a geometric number of steps apart (0.9). A seed has a
walk and a network of its own.

Scores: outputs are turned to single eigenvectors by one small eigenproblem on the steps that were
sampled, for all rows, and compared with those of the true chain: the mean absolute cosine, with
vectors of equal eigenvalue compared as subspaces, and the overlap of the spaces. Where walls are
drawn at random, the drawing with the widest gaps between the eigenvalues is taken of 200.

*Fresh statistics* is `UL1d(10, statistics="fresh", long_term="shared")` on clips of two frames: the
exact gradient of J of the batch; the *trace form* minimises tr B^-1 W instead. *Running
statistics* is the same layer with `statistics="running"`. *The paper's rule* is `start="paper"`
on the walk in its order, 50 streams of 40 frames a step. *Graph drawing* is the objective of Wu et
al. (2019), with the *triangular weights* of Wang et al. (2021); *ALLO* is the augmented Lagrangian
of Gomez et al. (2024). These have an eleventh output for the constant vector. Their constants
were chosen by score in short runs on GridRoom-1, GridRoom-16 and GridMaze-9, seed 0. The two costly
rows, running statistics and the paper's rule, were run in two worlds. *Untrained networks* show
how far smooth functions of the place get by themselves. The *closed form*
knows the states by number and shows what the samples can tell.
"""


def run(setting: Setting) -> Outcome:
    """Train what is not in the output folder yet; tables, figures and goals from all of it."""
    runs = _quick_runs(setting.seeds) if setting.quick else all_runs(setting.seeds)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = complete(
        runs, setting.out, device, os.cpu_count() or 1, lambda one: setting.progress(one.run.label)
    )
    plain = [one for one in found if not one.run.pixels]
    pixels = [one for one in found if one.run.pixels]
    floor = _floor(plain)
    scores = _table("mean cosine, x and y", plain, floor)
    minutes = sum(one.seconds for one in found) / 60
    devices = ", ".join(sorted({one.device for one in found}))
    scores.note = f"Training took {minutes:.1f} minutes of workers' time ({devices})."
    tables = [scores, _table("overlap, x and y", plain, floor, spaces=True)]
    if pixels:
        tables += [_table("mean cosine, pictures", pixels, {}),
                   _table("overlap, pictures", pixels, {}, spaces=True)]  # fmt: skip
    pictures = [] if setting.quick else [_plans(setting, scores.columns)]
    pictures += [_eigenvectors(setting, name, plain) for name in DRAWN if name in scores.columns]
    pictures.append(_bars(setting, scores))
    claims = _quick_claims(scores) if setting.quick else _claims(*tables[::2])
    return Outcome(
        "Eigenvectors of random walks (laplacian)", TEXT, tables, pictures, claims,
        {"runs.json": "the scores of all runs; those in it are not trained again"},
    )  # fmt: skip


def _quick_runs(seeds: Sequence[int]) -> list[Run]:
    steps = dict.fromkeys((FRESH, TRACE, ALLO, RUNNING), QUICK_STEPS) | {UNTRAINED: 0}
    return [
        Run(QUICK, row, tuple(seeds), steps=count, samples=QUICK_SAMPLES)
        for row, count in steps.items()
    ]


Scores = dict[str, list[tuple[float, float]]]  # world: cosine and overlap of every seed


def _floor(found: Sequence[Found]) -> Scores:
    """Scores of the closed form on the walks that the networks learned from."""
    return {one.run.world: floor_scores(one.run) for one in found}


def floor_scores(run: Run) -> list[tuple[float, float]]:
    """Mean cosine and overlap of the closed form for every seed of a run."""
    world = gridworld(run.world)
    n, true = len(world.cells), truth(world, SLOW)
    scores = []
    for seed in run.seeds:
        counts = transitions(list(walk(world, run.samples, seed)), n=n)
        vectors = closed_form(counts, SLOW).embedding
        mean = float(cosines(vectors, true).mean())
        scores.append((mean, overlap(vectors, true)))
    return scores


def _table(title: str, found: Sequence[Found], floor: Scores, *, spaces: bool = False) -> Table:
    worlds = list(dict.fromkeys(one.run.world for one in found))
    table = Table(title, worlds, ["high"] * len(worlds))
    for row in (*ROWS, UNTRAINED):
        of_row = {one.run.world: one for one in found if one.run.row == row}
        if not of_row:
            continue
        table.add(row, *(_of_seeds(of_row.get(world), spaces) for world in worlds))
    if floor:
        table.add(FLOOR, *([pair[spaces] for pair in floor[world]] for world in worlds))
    return table


def _of_seeds(found: Found | None, spaces: bool) -> list[float]:
    """The score of every seed, nan for what was not run."""
    if found is None:
        return [float("nan")]
    return found.overlaps if spaces else [float(np.mean(values)) for values in found.cosines]


def _claims(scores: Table, pixels: Table) -> list[Claim]:
    claims = [
        Claim(f"{FRESH}, {world}", scores.mean(FRESH, world), at_least=least)
        for world, least in MUST.items()
    ]
    for table, what in ((scores, ""), (pixels, ", pictures")):
        claims += [
            Claim(f"cosine, {FRESH} minus ALLO, {world}{what}",
                  table.mean(FRESH, world) - table.mean(ALLO, world), at_least=-TIE)
            for world in table.columns
        ]  # fmt: skip
    return claims


def _quick_claims(scores: Table) -> list[Claim]:
    return [
        Claim(f"{FRESH}, {QUICK}", scores.mean(FRESH, QUICK), at_least=0.95),
        Claim(
            f"cosine, {FRESH} minus {RUNNING}, {QUICK}",
            scores.mean(FRESH, QUICK) - scores.mean(RUNNING, QUICK),
            at_least=0.2,
        ),
        Claim(f"{FLOOR}, {QUICK}", scores.mean(FLOOR, QUICK), at_least=0.99),
    ]


def _plans(setting: Setting, names: Sequence[str]) -> Picture:
    figure = Figure(figsize=(1.7 * len(names), 2.6), layout="constrained")
    for ax, name in zip(figure.subplots(1, len(names)), names, strict=True):
        world = gridworld(name)
        ax.imshow(world.walls, cmap="Greys", vmin=0, vmax=1.3)
        ax.set_title(f"{world.name}\n{len(world.cells)} cells", fontsize=9)
        ax.set_axis_off()
    return setting.picture(figure, "worlds", "The floor plans; walls are dark.")


def _eigenvectors(setting: Setting, name: str, found: Sequence[Found]) -> Picture:
    """Truth, ours and ALLO, one above the other."""
    world = gridworld(name)
    true = truth(world, SLOW)
    learned = {one.run.row: one for one in found if one.run.world == name}
    figure = Figure(figsize=(1.75 * SLOW, 6), layout="constrained")
    axes = figure.subplots(3, SLOW)
    for i in range(SLOW):
        _draw(axes[0, i], world, true.vectors[:, i], f"{i + 1}: λ = {true.eigenvalues[i]:.4f}")
    for line, row in zip(axes[1:], (FRESH, ALLO), strict=True):
        vectors = _like(np.array(learned[row].vectors), true)
        for i, (ax, cosine) in enumerate(zip(line, learned[row].cosines[0], strict=True)):
            _draw(ax, world, vectors[:, i], f"cosine {cosine:.3f}")
    for ax, label in zip(axes[:, 0], ("truth", FRESH, ALLO), strict=True):
        ax.set_ylabel(label, fontsize=11)
    caption = (
        f"The ten slowest eigenvectors of {name}: those of the true chain and those that networks "
        "of the first seed found from x and y."
    )
    return setting.picture(figure, f"eigenvectors_{name}", caption)


def _like(vectors: Floats, true: Truth) -> Floats:
    """The vectors with the signs of the true ones."""
    signs = np.sign(np.sum(vectors * true.vectors[:, : true.count], 0))
    turned: Floats = vectors * np.where(signs == 0, 1, signs)
    return turned


def _draw(ax: Axes, world: Gridworld, values: Floats, title: str) -> None:
    most = float(np.abs(values).max()) or 1.0
    ax.set_facecolor("0.25")
    ax.imshow(world.on_plan(values), cmap="RdBu_r", vmin=-most, vmax=most)
    ax.set_title(title, fontsize=9)
    ax.set(xticks=[], yticks=[])


def _bars(setting: Setting, scores: Table) -> Picture:
    rows = [row for row in scores.rows if row in COLOURS]
    figure = Figure(figsize=(max(6, 1.4 * len(scores.columns)), 4.4), layout="constrained")
    axes = figure.subplots()
    width, at = 0.85 / len(rows), np.arange(len(scores.columns))
    for i, row in enumerate(rows):
        means, spreads = ([f(v) for v in scores.rows[row]] for f in (np.mean, np.std))
        place = at + (i - (len(rows) - 1) / 2) * width
        axes.bar(place, means, width, yerr=spreads, color=COLOURS[row], label=row, capsize=1.5)
    floor = [np.mean(values) for values in scores.rows[FLOOR]]
    axes.hlines(floor, at - 0.45, at + 0.45, color="k", lw=1, label=FLOOR)
    axes.set(xticks=at, xticklabels=scores.columns, ylabel="mean cosine", ylim=(0, 1.03))
    axes.margins(x=0.01)
    figure.legend(loc="outside upper center", ncols=4, fontsize=9, frameon=False)
    caption = (
        "Mean cosine with the true eigenvectors; bars are means over seeds, with their spread."
    )
    return setting.picture(figure, "cosines", caption)
