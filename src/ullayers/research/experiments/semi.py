"""The semi-supervised setting that the paper promises: labels of a few people, video of all."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ullayers.learn.config import Config
from ullayers.learn.models import Encoder
from ullayers.learn.training import Trial
from ullayers.nn.layers import backward
from ullayers.research.experiments.common import (
    Claim,
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

LABELLED = (1, 2, 4)  # people
STEPS, BATCH = 200, 64  # labelled pictures in a batch
ALONE = "supervised alone"
BOTH = "supervised + UL layer, weight 0.1"
HEAVY = "supervised + UL layer, weight 1"
AFTER = "UL layer first, then a linear map from the labels"
WEIGHT = {ALONE: 0.0, BOTH: 0.1, HEAVY: 1.0}

Job = tuple[str, str, int, int]  # data, row, labelled people, seed


def run(setting: Setting) -> Outcome:
    """Labels alone, labels with a UL layer on the video of all training people."""
    counts = LABELLED[:1] if setting.quick else LABELLED
    rows = (ALONE, BOTH) if setting.quick else (*WEIGHT, AFTER)
    jobs = [
        (str(setting.data), row, count, seed)
        for row in rows for count in counts for seed in setting.seeds
    ]  # fmt: skip
    found = dict(zip(jobs, setting.each(few_labels, jobs), strict=True))
    columns = [f"{count} labelled" for count in counts]
    table = Table("degrees on unseen people", columns, ["low"] * len(columns))
    for row in rows:
        of_row = [[found[job] for job in jobs if job[1:3] == (row, count)] for count in counts]
        table.add(row, *of_row)
    share = table.mean(BOTH, columns[0]) / table.mean(ALONE, columns[0])
    claim = Claim("of the supervised error, one labelled person", share, at_most=0.7)
    pictures = [] if setting.quick else [_errors(setting, table, counts)]
    return Outcome("A few labels (semi)", _TEXT, [table], pictures, [claim])


def few_labels(job: Job) -> float:
    """Mean absolute error in degrees on people of whom nothing was seen."""
    data, row, count, seed = job
    heads = read_heads(data, "boxes")
    chosen = np.random.default_rng(seed).choice(sorted(PEOPLE), count, replace=False)
    labelled, unseen = heads.of(set(chosen.tolist())), heads.of(UNSEEN)
    if row == AFTER:
        net = _unlabelled(data, seed)
        known = codes(net, heads, labelled)
        read = decode_angle(known, heads.angles(labelled), codes(net, heads, unseen))
    else:
        net = _together(heads, labelled, WEIGHT[row], seed)
        with torch.no_grad():
            read = net.embed(heads.pictures(unseen)).double().numpy()
    return score(read, heads.angles(unseen))[0]


@cache
def _unlabelled(data: str, seed: int) -> Encoder:
    heads = read_heads(data, "boxes")
    return learn(videos(heads, PEOPLE, seed), seed, steps=STEPS)


def _together(heads: Heads, labelled: NDArray[np.int64], weight: float, seed: int) -> Encoder:
    """Every step: a batch of labelled pictures and, if it has a weight, clips of everybody."""
    config = Config(task="orient", seed=seed).resolved(many=True)
    trial = Trial(videos(heads, PEOPLE, seed), config, "clip", seed)
    net = trial.net
    assert isinstance(net, Encoder)
    net.cost.weight = weight
    pictures = heads.pictures(labelled)
    wanted = torch.from_numpy(sine_and_cosine(heads.angles(labelled))).float()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        trial.optimizer.zero_grad()
        if weight:
            clips = trial.draw(config.batch, trial.generator)
            backward(net.learn_from(torch.cat(clips), [len(clip) for clip in clips]))
        some = torch.randint(len(pictures), (BATCH,), generator=generator)
        F.mse_loss(net.embed(pictures[some]), wanted[some]).backward()
        trial.optimizer.step()
    return net.eval()


def _errors(setting: Setting, table: Table, counts: tuple[int, ...]) -> Picture:
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for name, values in table.rows.items():
        means, spreads = [np.mean(v) for v in values], [np.std(v) for v in values]
        axes.errorbar(counts, means, spreads, marker="o", capsize=3, label=name)
    axes.set(xlabel="labelled people", ylabel="mean absolute error, degrees", xticks=counts)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    caption = "Error on people never seen against the number of labelled people."
    return setting.picture(figure, "labels", caption)


_TEXT = """
Pointing'04, faces in their boxes. One, two or four of persons 1-10 (drawn by the seed) have
labels: their pictures train the network to give sine and cosine of the pan, with or without a UL
layer on its outputs that watches videos of all ten people. The error is that on persons 11-12.
Rows here use the labels of the labelled people; the last row uses them only for the linear map at
the end. The recipe was developed on these people, so the errors are on the optimistic side.
"""
