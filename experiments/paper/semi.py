"""Semi-supervised learning: labels of a few people, unlabelled video of all."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.common import (
    Claim,
    Outcome,
    Picture,
    Setting,
    Table,
    decode_angle,
    sine_and_cosine,
)
from experiments.paper.heads import (
    PEOPLE,
    UNSEEN,
    Heads,
    codes,
    learn,
    read_heads,
    score,
    videos,
)
from ullayers.learning.config import Config
from ullayers.learning.networks import Encoder
from ullayers.learning.trials import ClipTrial
from ullayers.nn.networks import backward

LABELLED = (1, 2, 4)  # number of labelled people
STEPS = 200
QUICK_STEPS = 100
BATCH = 64  # labelled pictures per step
ALONE = "supervised alone"
BOTH = "supervised + UL layer, weight 0.1"
HEAVY = "supervised + UL layer, weight 1"
AFTER = "UL layer first, then a linear map from the labels"
WEIGHT = {ALONE: 0.0, BOTH: 0.1, HEAVY: 1.0}

Job = tuple[str, str, int, int, int]  # data, row, labelled people, seed, steps


def run(setting: Setting) -> Outcome:
    """Compare labels alone with labels and a UL layer on the video of all training people."""
    counts = LABELLED[:1] if setting.quick else LABELLED
    rows = (ALONE, BOTH) if setting.quick else (*WEIGHT, AFTER)
    steps = QUICK_STEPS if setting.quick else STEPS
    jobs: list[Job] = [
        (str(setting.data), row, count, seed, steps)
        for row in rows
        for count in counts
        for seed in setting.seeds
    ]
    found = setting.each_by_job(few_labels, jobs)
    columns = [f"{count} labelled" for count in counts]
    table = Table("degrees on unseen people", columns, ["low"] * len(columns))
    for row in rows:
        of_row = [[found[job] for job in jobs if job[1:3] == (row, count)] for count in counts]
        table.add(row, *of_row)
    ratio = table.mean(BOTH, columns[0]) / table.mean(ALONE, columns[0])
    claim = Claim("error relative to the supervised one, one labelled person", ratio, at_most=0.7)
    pictures = [] if setting.quick else [_errors(setting, table, counts)]
    return Outcome("A few labels (semi)", TEXT, [table], pictures, [claim])


def few_labels(job: Job) -> float:
    """Return the mean absolute error in degrees on unseen people."""
    data, row, count, seed, steps = job
    heads = read_heads(data)
    chosen = np.random.default_rng(seed).choice(sorted(PEOPLE), count, replace=False)
    labelled = heads.of(set(chosen.tolist()))
    unseen = heads.of(UNSEEN)
    if row == AFTER:
        net = _learn_without_labels(data, seed, steps)
        known = codes(net, heads, labelled)
        decoded = decode_angle(known, heads.angles(labelled), codes(net, heads, unseen))
    else:
        net = _learn_with_labels(heads, labelled, WEIGHT[row], seed, steps)
        with torch.no_grad():
            decoded = net.embed(heads.pictures(unseen)).double().numpy()
    return score(decoded, heads.angles(unseen))[0]


@cache
def _learn_without_labels(data: str, seed: int, steps: int) -> Encoder:
    heads = read_heads(data)
    return learn(videos(heads, PEOPLE, seed), seed, steps=steps)


def _learn_with_labels(
    heads: Heads, labelled: NDArray[np.int64], weight: float, seed: int, steps: int
) -> Encoder:
    """Train on a batch of labelled pictures per step and, if weighted, clips of all people."""
    config = Config(task="orient", seed=seed).resolved(many=True)
    trial = ClipTrial(videos(heads, PEOPLE, seed), config, "clip", seed)
    net = trial.net
    assert isinstance(net, Encoder)
    net.cost.weight = weight
    pictures = heads.pictures(labelled)
    targets = torch.from_numpy(sine_and_cosine(heads.angles(labelled))).float()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        trial.optimizer.zero_grad()
        if weight:
            clips = trial.draw(config.batch, trial.generator)
            backward(net.learn_from(torch.cat(clips), [len(clip) for clip in clips]))
        batch = torch.randint(len(pictures), (BATCH,), generator=generator)
        F.mse_loss(net.embed(pictures[batch]), targets[batch]).backward()
        trial.optimizer.step()
    return net.eval()


def _errors(setting: Setting, table: Table, counts: tuple[int, ...]) -> Picture:
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for name, values in table.rows.items():
        means = [np.mean(of_seeds) for of_seeds in values]
        deviations = [np.std(of_seeds) for of_seeds in values]
        axes.errorbar(counts, means, deviations, marker="o", capsize=3, label=name)
    axes.set(xlabel="labelled people", ylabel="mean absolute error, degrees", xticks=counts)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    caption = "Error on unseen people against the number of labelled people."
    return setting.picture(figure, "labels", caption)


TEXT = """
Pointing'04, faces in their boxes. One, two or four of persons 1-10 (drawn by the seed) have labels:
their pictures train the network to output sine and cosine of the pan. A UL layer on the outputs, if
there is one, is trained on videos of all ten people. The error is measured on persons 11-12. All
rows use the labels of the labelled people; the last row uses them only for the linear map at the
end. The method was developed on these people, so the errors are optimistic.
"""
