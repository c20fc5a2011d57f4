"""Ablations on walking people and on turning heads: each row changes one thing.

Also slowness and invariance of each layer, by the measure of Goodfellow et al. (2009), which the
paper cites.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.common import (
    Claim,
    Floats,
    Outcome,
    Picture,
    Setting,
    Table,
    correlation,
    decode_angle,
)
from experiments.datasets import load, walking
from experiments.paper.heads import (
    PEOPLE,
    UNSEEN,
    Heads,
    codes,
    read_heads,
    score,
    sweeps,
    videos,
)
from ullayers.learning.codes import solve_readout
from ullayers.learning.config import Config
from ullayers.learning.footage import Footage, Piece, make_piece
from ullayers.learning.networks import Encoder, Locator
from ullayers.learning.trials import ClipTrial
from ullayers.nn.layers import UL1d, UL2d
from ullayers.nn.networks import backward, sequences

LOCAL = 0.1  # weight of local UL layers in rows that have them
WALK_STEPS = 120
WALK_TRIAL_STEPS = 20  # after which the start with the lowest J is chosen
PAN_STEPS = 200
FIRING_SHARE = 0.01  # share of all frames for which a unit fires, which sets its threshold
NEAR = 2  # steps of pan in either direction over which an invariant unit keeps firing
TOP_SHARE = 0.2  # share of a layer's units, the most invariant ones, that its score averages

SHIPPED = "as shipped"
WALK: dict[str, dict[str, Any]] = {
    SHIPPED: {},
    "UL layer also after conv1": {"local": (0,)},
    "UL layer also after conv2": {"local": (1,)},
    "UL layers also after both, mu by depth": {"local": (0, 1)},
    "UL layers also after both, mu equal": {"local": (0, 1), "equal": True},
    "long-term mean of the clip": {"kind": "clip"},
    "long-term mean of the stream": {"kind": "stream"},
    "without the mask's spread in W": {"spread": False},
    "without the object's size in W": {"size": False},
    "without camera compensation": {"camera": False},
    "before learning": {"steps": 0},
}
PAN: dict[str, dict[str, Any]] = {
    SHIPPED: {},
    "UL layer also after conv1": {"local": (0,)},
    "UL layer also after conv2": {"local": (1,)},
    "UL layer also after conv3": {"local": (2,)},
    "UL layers also after all, mu by depth": {"local": (0, 1, 2)},
    "UL layers also after all, mu equal": {"local": (0, 1, 2), "equal": True},
    "long-term mean of the stream": {"kind": "stream"},
    "UL layer on the outputs as they are (whole clips, not whitened)": {"whiten": False},
    "videos of one pan each": {"wander": False},
    "before learning": {"steps": 0},
}
QUICK = (SHIPPED, "before learning")
LAYER_ROWS = (
    SHIPPED,
    "UL layers also after all, mu by depth",
    "UL layers also after all, mu equal",
    "before learning",
)
LAYER_NAMES = ["conv1", "conv2", "conv3", "outputs"]

Job = tuple[str, str, int]  # data, row, seed


def run(setting: Setting) -> Outcome:
    """Change one thing at a time."""
    seeds = setting.seeds[:2]
    walk_rows = QUICK if setting.quick else tuple(WALK)
    pan_rows = QUICK if setting.quick else tuple(PAN)
    data = str(setting.data)
    walk_jobs: list[Job] = [(data, row, seed) for row in walk_rows for seed in seeds]
    pan_jobs: list[Job] = [(data, row, seed) for row in pan_rows for seed in seeds]
    walks = setting.each_by_job(walk_part, walk_jobs)
    pans = setting.each_by_job(pan_part, pan_jobs)
    walk = Table("walking people", ["pooled correlation of x", "worst scene"], ["high", "high"])
    for row in walk_rows:
        walk.add(row, *np.array([walks[data, row, seed] for seed in seeds]).T)
    pan = Table("head pan", ["degrees on unseen people", "correlation"], ["low", "high"])
    for row in pan_rows:
        pan.add(row, *np.array([pans[data, row, seed][0] for seed in seeds]).T)
    layer_rows = [row for row in LAYER_ROWS if row in pan_rows]
    layers = {row: np.array([pans[data, row, seed][1] for seed in seeds]) for row in layer_rows}
    tables = [walk, pan, *_layer_tables(layers)]
    gain = walk.mean(SHIPPED, walk.columns[1]) - walk.mean("before learning", walk.columns[1])
    claims = [
        Claim("walk, gain by learning in the worst scene", gain, at_least=0.05),
        Claim("pan, degrees", pan.mean(SHIPPED, pan.columns[0]), at_most=16),
    ]
    return Outcome("Ablations (parts)", TEXT, tables, [_draw_layers(setting, layers)], claims)


def walk_part(job: Job) -> tuple[float, float]:
    """Return the correlation of x over whole sequences, pooled and of the worst scene."""
    data, row, seed = job
    change = WALK[row]
    scenes = walking(data)
    pieces = [make_piece(i, load(scene, (64, 64))) for i, scene in enumerate(scenes)]
    halves = [_first_half(piece) for piece in pieces]
    if not change.get("camera", True):
        pieces = [_without_camera_motion(piece) for piece in pieces]
        halves = [_without_camera_motion(piece) for piece in halves]
    footage = Footage([scene.name for scene in scenes], halves)
    trial = _best_trial(footage, change, seed)
    net = trial.net.eval()
    assert isinstance(net, Locator)
    with torch.no_grad():
        found = [net(piece.foreground()).centroid[:, 0].numpy() for piece in pieces]
    true = [scene.truth["x"] for scene in scenes]
    worst = min(correlation(f, t) for f, t in zip(found, true, strict=True))
    return correlation(np.concatenate(found), np.concatenate(true)), worst


def _best_trial(footage: Footage, change: dict[str, Any], seed: int) -> ClipTrial:
    """Train as `learn.Learner` does: the trial with the lowest J after some steps continues."""
    kinds = [change["kind"]] if "kind" in change else ["clip", "stream"]
    trials = [
        _locate_trial(footage, {**change, "kind": kind}, start)
        for start in (2 * seed, 2 * seed + 1)
        for kind in kinds
    ]
    steps = change.get("steps", WALK_STEPS)
    for trial in trials:
        for _ in range(min(steps, WALK_TRIAL_STEPS)):
            trial.step()
    best = min(trials, key=lambda trial: np.nan_to_num(trial.score(), nan=np.inf))
    for _ in range(steps - WALK_TRIAL_STEPS):
        best.step()
    return best


def _locate_trial(footage: Footage, change: dict[str, Any], seed: int) -> ClipTrial:
    trial = _trial(footage, "locate", change, seed)
    net = trial.net
    assert isinstance(net, Locator)
    if not change.get("size", True):
        net.size.zero_()
    if not change.get("spread", True):
        judge = net.judge
        net.judge = lambda found: judge(found._replace(spread=0 * found.spread))  # type: ignore
    return trial


def _without_camera_motion(piece: Piece) -> Piece:
    background = (piece.clip.frames.float() / 255).median(0).values
    return replace(piece, path=None, behind=background)


def _first_half(piece: Piece) -> Piece:
    clip = piece.clip
    middle = len(piece) // 2
    half = replace(
        clip, frames=clip.frames[:middle], seconds=clip.seconds[:middle], index=clip.index[:middle]
    )
    return make_piece(piece.source, half)


def pan_part(job: Job) -> tuple[tuple[float, float], Floats]:
    """Return error and correlation on unseen people, and their layer scores (layers, 2)."""
    data, row, seed = job
    change = PAN[row]
    heads = read_heads(data)
    known = heads.of(PEOPLE)
    unseen = heads.of(UNSEEN)
    footage = videos(heads, PEOPLE, seed) if change.get("wander", True) else sweeps(heads, PEOPLE)
    trial = _trial(footage, "orient", change, seed)
    net = trial.net
    assert isinstance(net, Encoder)
    for _ in range(change.get("steps", PAN_STEPS)):
        if change.get("whiten", True):
            trial.step()
        else:
            _step_without_whitening(trial, net)
    solve_readout(net.eval(), footage, "cpu")
    decoded = decode_angle(codes(net, heads, known), heads.angles(known), codes(net, heads, unseen))
    return score(decoded, heads.angles(unseen)), layer_scores(net, heads, unseen)


def _step_without_whitening(trial: ClipTrial, net: Encoder) -> None:
    """Train with the UL layer directly on the outputs, relative to each clip's own mean."""
    if net.cost.long_term != "clip":
        net.cost = UL1d(net.full.out_features, trial.config.mu, trial.config.eps, long_term="clip")
    clips = trial.draw(trial.config.batch, trial.generator)
    trial.optimizer.zero_grad()
    with sequences(net, [len(clip) for clip in clips]):
        backward(net(torch.cat(clips)))
    trial.optimizer.step()


def _trial(footage: Footage, task: Any, change: dict[str, Any], seed: int) -> ClipTrial:
    local = change.get("local", ())  # convolutions that are followed by a UL layer
    config = Config(task=task, seed=seed, local=LOCAL if local else 0.0).resolved(many=True)
    trial = ClipTrial(footage, config, change.get("kind", "clip"), seed)
    layers = [module for module in trial.net.modules() if isinstance(module, UL2d)]
    for depth, layer in enumerate(layers):
        layer.weight = LOCAL if depth in local else 0.0
        if change.get("equal"):
            layer.mu = config.mu
    return trial


@torch.no_grad()
def layer_scores(net: Encoder, heads: Heads, series: NDArray[np.int64]) -> Floats:
    """Return for each layer the speed and the invariance of its units under pan, (layers, 2).

    The speed is the mean squared step over the variance: 2 for noise, near 0 for slow units. The
    invariance of a unit is its firing rate within two steps of a frame for which it fires, over
    its overall firing rate; that of a layer is the mean over its most invariant fifth.
    """
    frames = heads.frames[series].flatten(0, 1)  # (sweeps, pans, 1, height, width)
    inputs = frames.flatten(0, 1).float() / 255
    responses = {**net.maps(inputs), "outputs": net.embed(inputs)}
    scores = []
    for response in responses.values():
        units = response.flatten(1).unflatten(0, frames.shape[:2])  # (sweeps, pans, units)
        step = units.diff(dim=1).square().mean((0, 1))
        variance = units.flatten(0, 1).var(0)
        alive = variance > 1e-12
        speed = float((step[alive] / variance[alive]).mean())
        scores.append((speed, _invariance(units[:, :, alive])))
    return np.array(scores)


def _invariance(units: torch.Tensor) -> float:
    count = units.shape[0] * units.shape[1]
    rank = max(1, round(FIRING_SHARE * count))
    best = torch.zeros(units.shape[2])
    for sign in (1, -1):  # a low response may be the informative one
        values = sign * units
        threshold = values.flatten(0, 1).kthvalue(count - rank + 1, 0).values
        fires = (values >= threshold).float()
        near = torch.nn.functional.avg_pool1d(
            fires.permute(0, 2, 1), 2 * NEAR + 1, 1, NEAR, count_include_pad=False
        ).permute(0, 2, 1)
        local = (near * fires).sum((0, 1)) / fires.sum((0, 1))
        best = torch.maximum(best, local / fires.mean((0, 1)))
    return float(best.topk(max(1, round(TOP_SHARE * len(best)))).values.mean())


def _layer_tables(layers: dict[str, Floats]) -> list[Table]:
    tables = []
    for number, title in enumerate(("speed of each layer (low is slow)", "invariance")):
        table = Table(title, LAYER_NAMES, [""] * len(LAYER_NAMES))
        for row, values in layers.items():
            table.add(row, *values[:, :, number].T)
        tables.append(table)
    return tables


def _draw_layers(setting: Setting, layers: dict[str, Floats]) -> Picture:
    figure = Figure(figsize=(10, 3.8))
    panels = figure.subplots(1, 2)
    for number, label in enumerate(("squared step / variance", "invariance")):
        axes = panels[number]
        for row, values in layers.items():
            axes.plot(values[:, :, number].mean(0), marker="o", label=row)
        axes.set(xlabel="layer", ylabel=label)
        axes.set(xticks=range(len(LAYER_NAMES)), xticklabels=LAYER_NAMES)
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    caption = "Speed and invariance of each layer, on unseen people."
    return setting.picture(figure, "layers", caption)


TEXT = """
One thing is changed at a time; two seeds. Walking people: first halves for training, whole
sequences for scores, with the same selection of starts and kinds of long-term mean as `ul learn`.
Head pan: Pointing'04 in boxes, 200 steps. Local UL layers have weight 0.1. The method was developed
on these data, so the row as shipped is optimistic.

According to the paper, lower layers with larger mu learn faster features. The last two tables and
the figure show the speed of each layer (mean squared step over variance) and its invariance, before
and after learning. The invariance says how much more often than on average the best units of a
layer fire within two steps of pan of a frame for which they fire.
"""
