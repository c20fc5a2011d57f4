"""Eigenvectors of random walks in gridworlds, learned by networks from samples of the walks."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.common import Claim, Floats, Outcome, Picture, Setting, Table
from experiments.paper.gridworlds import (
    Gridworld,
    Truth,
    cosines,
    gridworld,
    overlap,
    truth,
    walk,
)
from experiments.paper.slow_training import (
    ALLO,
    DRAWN,
    FRESH,
    GDO,
    GGDO,
    PAPER,
    ROWS,
    RUNNING,
    SLOW,
    TRACE,
    UNTRAINED,
    Found,
    Run,
    all_runs,
    complete,
)
from ullayers.exact.markov import closed_form, transitions

CLOSED_FORM = "closed form on the counted steps"
MIN_COSINE = {"GridRoom-16": 0.98, "GridMaze-19": 0.98}
TIE = 0.001  # a smaller difference is chance where both rows are limited by the samples
QUICK = "GridMaze-9"
QUICK_STEPS = 300
QUICK_SAMPLES = 50_000
COLOURS = {
    FRESH: "tab:blue",
    TRACE: "tab:cyan",
    ALLO: "tab:orange",
    GDO: "tab:green",
    GGDO: "yellowgreen",
    RUNNING: "0.4",
    PAPER: "0.6",
    UNTRAINED: "0.8",
}

TEXT = """
Random walks through gridworlds: 200,000 samples in episodes of 50 steps that start anywhere. A
network sees the position, as x and y (three hidden layers of 256 units) or as a small picture from
above (two convolutions and two linear layers), and learns the ten slowest eigenvectors of the walk,
the Laplacian representation of reinforcement learning: 10,000 steps of Adam at 0.001 with a cosine
schedule, 1,024 pairs of states per step, a geometric number of steps apart (0.9). Each seed has its
own walk and network.

Scores: in all rows, one small eigenproblem on the sampled steps turns the outputs into single
eigenvectors. They are compared with those of the true chain by the mean absolute cosine, with
vectors of equal eigenvalue compared as subspaces, and by the overlap of the spaces. Of 200 random
sets of walls, the one with the widest gaps between eigenvalues is used.

*Fresh statistics* is `UL1d(10, statistics="fresh", long_term="shared")` on clips of two frames: the
exact gradient of J of the batch; the *trace form* minimises tr B^-1 W instead. *Running
statistics* is the same layer with `statistics="running"`. *The paper's rule* is `start="paper"` on
the walk in order, 50 streams of 40 frames per step. *Graph drawing* is the objective of Wu et al.
(2019), with the *triangular weights* of Wang et al. (2021); *ALLO* is the augmented Lagrangian of
Gomez et al. (2024). These have an eleventh output for the constant vector. Their constants were
chosen by score in short runs on GridRoom-1, GridRoom-16 and GridMaze-9, seed 0. The two expensive
rows, running statistics and the paper's rule, were run in two worlds. *Untrained networks* show the
score of smooth functions of the position. The *closed form* knows the index of every state and
shows the limit set by the samples.
"""


def run(setting: Setting) -> Outcome:
    """Train the runs that are not in the output folder yet, and report all of them."""
    runs = _quick_runs(setting.seeds) if setting.quick else all_runs(setting.seeds)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = complete(
        runs, setting.out, device, os.cpu_count() or 1, lambda one: setting.progress(one.run.label)
    )
    plain = [one for one in found if not one.run.pixels]
    tables = _tables(found)
    scores = tables[0]
    pictures = [] if setting.quick else [_plans(setting, scores.columns)]
    pictures += [_eigenvectors(setting, name, plain) for name in DRAWN if name in scores.columns]
    pictures.append(_bars(setting, scores))
    claims = _quick_claims(scores) if setting.quick else _claims(*tables[::2])
    return Outcome(
        title="Eigenvectors of random walks (laplacian)",
        text=TEXT,
        tables=tables,
        pictures=pictures,
        claims=claims,
        files={"runs.json": "scores of all runs; runs listed here are not trained again"},
    )


def _tables(found: Sequence[Found]) -> list[Table]:
    plain = [one for one in found if not one.run.pixels]
    pixels = [one for one in found if one.run.pixels]
    limits = {one.run.world: closed_form_scores(one.run) for one in plain}
    scores = _table("mean cosine, x and y", plain, limits)
    minutes = sum(one.seconds for one in found) / 60
    devices = ", ".join(sorted({one.device for one in found}))
    scores.note = f"Training took {minutes:.1f} minutes of workers' time ({devices})."
    tables = [scores, _table("overlap, x and y", plain, limits, overlaps=True)]
    if pixels:
        tables.append(_table("mean cosine, pictures", pixels, {}))
        tables.append(_table("overlap, pictures", pixels, {}, overlaps=True))
    return tables


def _quick_runs(seeds: Sequence[int]) -> list[Run]:
    steps = dict.fromkeys((FRESH, TRACE, ALLO, RUNNING), QUICK_STEPS) | {UNTRAINED: 0}
    return [
        Run(QUICK, row, tuple(seeds), steps=count, samples=QUICK_SAMPLES)
        for row, count in steps.items()
    ]


Scores = dict[str, list[tuple[float, float]]]  # mean cosine and overlap of every seed, by world


def closed_form_scores(run: Run) -> list[tuple[float, float]]:
    """Return mean cosine and overlap of the closed form for every seed of a run."""
    world = gridworld(run.world)
    true = truth(world, SLOW)
    scores = []
    for seed in run.seeds:
        counts = transitions(list(walk(world, run.samples, seed)), n=len(world.cells))
        vectors = closed_form(counts, SLOW).embedding
        mean = float(cosines(vectors, true).mean())
        scores.append((mean, overlap(vectors, true)))
    return scores


def _table(title: str, found: Sequence[Found], limits: Scores, *, overlaps: bool = False) -> Table:
    worlds = list(dict.fromkeys(one.run.world for one in found))
    table = Table(title, worlds, ["high"] * len(worlds))
    for row in (*ROWS, UNTRAINED):
        of_row = {one.run.world: one for one in found if one.run.row == row}
        if not of_row:
            continue
        table.add(row, *(_of_seeds(of_row.get(world), overlaps) for world in worlds))
    if limits:
        table.add(CLOSED_FORM, *([pair[overlaps] for pair in limits[world]] for world in worlds))
    return table


def _of_seeds(found: Found | None, overlaps: bool) -> list[float]:
    """Return the score of every seed, NaN for rows that were not run."""
    if found is None:
        return [float("nan")]
    return found.overlaps if overlaps else [float(np.mean(values)) for values in found.cosines]


def _claims(scores: Table, pixels: Table) -> list[Claim]:
    claims = [
        Claim(f"{FRESH}, {world}", scores.mean(FRESH, world), at_least=least)
        for world, least in MIN_COSINE.items()
    ]
    for table, suffix in ((scores, ""), (pixels, ", pictures")):
        for world in table.columns:
            difference = table.mean(FRESH, world) - table.mean(ALLO, world)
            name = f"cosine, {FRESH} minus ALLO, {world}{suffix}"
            claims.append(Claim(name, difference, at_least=-TIE))
    return claims


def _quick_claims(scores: Table) -> list[Claim]:
    return [
        Claim(f"{FRESH}, {QUICK}", scores.mean(FRESH, QUICK), at_least=0.95),
        Claim(
            f"cosine, {FRESH} minus {RUNNING}, {QUICK}",
            scores.mean(FRESH, QUICK) - scores.mean(RUNNING, QUICK),
            at_least=0.2,
        ),
        Claim(f"{CLOSED_FORM}, {QUICK}", scores.mean(CLOSED_FORM, QUICK), at_least=0.99),
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
    """Draw truth, ours and ALLO below each other."""
    world = gridworld(name)
    true = truth(world, SLOW)
    learned = {one.run.row: one for one in found if one.run.world == name}
    figure = Figure(figsize=(1.75 * SLOW, 6), layout="constrained")
    axes = figure.subplots(3, SLOW)
    for i in range(SLOW):
        _draw(axes[0, i], world, true.vectors[:, i], f"{i + 1}: λ = {true.eigenvalues[i]:.4f}")
    for line, row in zip(axes[1:], (FRESH, ALLO), strict=True):
        vectors = _with_signs_of(true, np.array(learned[row].vectors))
        for i, (ax, cosine) in enumerate(zip(line, learned[row].cosines[0], strict=True)):
            _draw(ax, world, vectors[:, i], f"cosine {cosine:.3f}")
    for ax, label in zip(axes[:, 0], ("truth", FRESH, ALLO), strict=True):
        ax.set_ylabel(label, fontsize=11)
    caption = (
        f"The ten slowest eigenvectors of {name}: those of the true chain and those found from x "
        "and y by the networks of the first seed."
    )
    return setting.picture(figure, f"eigenvectors_{name}", caption)


def _with_signs_of(true: Truth, vectors: Floats) -> Floats:
    """Return the vectors with the signs of the true ones."""
    signs = np.sign(np.sum(vectors * true.vectors[:, : true.count], 0))
    signed: Floats = vectors * np.where(signs == 0, 1, signs)
    return signed


def _draw(ax: Axes, world: Gridworld, values: Floats, title: str) -> None:
    limit = float(np.abs(values).max()) or 1.0
    ax.set_facecolor("0.25")
    ax.imshow(world.on_plan(values), cmap="RdBu_r", vmin=-limit, vmax=limit)
    ax.set_title(title, fontsize=9)
    ax.set(xticks=[], yticks=[])


def _bars(setting: Setting, scores: Table) -> Picture:
    rows = [row for row in scores.rows if row in COLOURS]
    figure = Figure(figsize=(max(6, 1.4 * len(scores.columns)), 4.4), layout="constrained")
    axes = figure.subplots()
    width = 0.85 / len(rows)
    x = np.arange(len(scores.columns))
    for i, row in enumerate(rows):
        means = [np.mean(of_seeds) for of_seeds in scores.rows[row]]
        deviations = [np.std(of_seeds) for of_seeds in scores.rows[row]]
        shifted = x + (i - (len(rows) - 1) / 2) * width
        axes.bar(shifted, means, width, yerr=deviations, color=COLOURS[row], label=row, capsize=1.5)
    limits = [np.mean(values) for values in scores.rows[CLOSED_FORM]]
    axes.hlines(limits, x - 0.45, x + 0.45, color="k", lw=1, label=CLOSED_FORM)
    axes.set(xticks=x, xticklabels=scores.columns, ylabel="mean cosine", ylim=(0, 1.03))
    axes.margins(x=0.01)
    figure.legend(loc="outside upper center", ncols=4, fontsize=9, frameon=False)
    caption = "Mean cosine with the true eigenvectors: mean and standard deviation over seeds."
    return setting.picture(figure, "cosines", caption)
