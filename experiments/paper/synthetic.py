"""Rotating points (section 4.1): one linear layer learns their shape; its output is their angle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from experiments.baselines import similarity_codes, slow_codes
from experiments.common import (
    Claim,
    Floats,
    Outcome,
    Picture,
    Setting,
    Table,
    decode_angle,
    sine_and_cosine,
)
from ullayers.exact.markov import objective
from ullayers.exact.slow_features import SlowFeatures
from ullayers.nn.layers import UL1d
from ullayers.nn.networks import backward

POINTS = 28
FRAMES_PER_TURN = 72
TURNS = 8  # for training, and as many for testing
MANY_TURNS = 40
LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
PAPER_EPOCHS = 10
QUICK_PAPER_EPOCHS = 3
EPOCHS = 20  # of ours, and of the paper's settings at the highest noise level
CHUNK = 144  # frames per call with our settings: two turns
COMPONENTS = 10  # for methods that compare or multiply inputs, where noise hides the others
CLOSE = 1.05  # largest error relative to the oracle that counts as equal
NO_DRIFT = 1.02

OURS = "ours"
MORE = "ours, forty turns to learn from"
PAPER = "paper's settings"
LAST = f"{PAPER}, last epoch"
CHOSEN = f"{PAPER}, epoch of lowest J"
SFA = "linear SFA"
RANDOM = "random weights"
SUPERVISED = "supervised"
ORACLE = "matched filter (knows the shape)"

TEXT = """
28 random points in a disc rotate about their centroid by 5 degrees per frame: 56 inputs, one linear
layer, 2 outputs, one `UL1d`. At p % noise a frame is (1 - p) of the points plus p of white noise of
the same standard deviation: at 50 % the noise is as strong as the points. Eight turns are used for
training (an epoch), eight others for testing. The code is decoded by linear regression to the sine
of the angle; the error is the mean absolute error.

*Paper's settings*: exactly Algorithm 1, one frame at a time, SGD with rate 0.01, momentum 0.9,
weight decay 0.1, mu 0.5, eps 0.001, for 10 epochs (20 at 50 % noise). *Ours*: `UL1d(2)` with its
defaults, Adam at 0.01, the same stream in calls of two turns, 20 epochs; and once with forty turns
and 4 epochs, which is the same number of steps. Without noise every projection determines the
angle, even random weights, so an error of 0 proves nothing there: the second table shows which
share of the weights lies in the plane in which the points rotate (1 is all; chance is 0.04).
"""
NOTE = """
Above 30 % noise the result of the paper's settings depends on chance: a W that averages two frames
is noisy, and each step follows it. J, which needs no labels, identifies the good epochs up to 40 %.
With fresh statistics nothing drifts; the remaining error at 50 % noise is due to the small number
of frames, 576 for 56 inputs. Training with labels does not reach the oracle either, but five times
as many frames do. PCA finds the plane best, because nothing else varies as much. The matched filter
is the best linear projection. The closed form is better still: it is not a projection, but places
each frame among similar frames, on the circle itself.
"""


@dataclass(frozen=True)
class Turning:
    """A rotating shape.

    Attributes:
        frames: Noisy frames (time, 56).
        degrees: Angle of each frame, (time,).
        plane: Basis of the plane of the rotation, (56, 2).
    """

    frames: Floats
    degrees: Floats
    plane: Floats

    def halves(self) -> tuple[Turning, Turning]:
        """Return the frames for training and for testing."""
        half = len(self.frames) // 2
        return (
            Turning(self.frames[:half], self.degrees[:half], self.plane),
            Turning(self.frames[half:], self.degrees[half:], self.plane),
        )


@dataclass(frozen=True)
class Learned:
    """Results on one sequence.

    Attributes:
        scores: Error and overlap of each row.
        curves: Training and test error after each epoch, of ours and of the paper's settings.
        weights: Weights (2, 56) of the paper's settings.
        code: Their output for the test frames, (time, 2).
    """

    scores: dict[str, tuple[float, float]]
    curves: dict[str, list[tuple[float, ...]]]
    weights: Floats
    code: Floats


def turning_points(share: float, seed: int, turns: int = TURNS) -> Turning:
    """Return `2 * turns` turns of 28 points with a share of noise."""
    random = np.random.default_rng(seed)
    radius = np.sqrt(random.random(POINTS))
    direction = 2 * np.pi * random.random(POINTS)
    shape = radius * np.exp(1j * direction)
    shape -= shape.mean()
    degrees = 360 / FRAMES_PER_TURN * np.arange(2 * turns * FRAMES_PER_TURN)
    clean = _flat(np.exp(1j * np.radians(degrees))[:, None] * shape)
    noise = clean.std() * random.standard_normal(clean.shape)
    plane = _flat(np.stack([shape, 1j * shape])).T
    frames = (1 - share) * clean + share * noise
    return Turning(frames, degrees, plane / np.linalg.norm(plane[:, 0]))


def _flat(points: Floats) -> Floats:
    """Return complex points (time, points) as x and y of each, (time, 2 * points)."""
    flat: Floats = np.stack([points.real, points.imag], -1).reshape(len(points), -1)
    return flat


def learn_as_paper(frames: Tensor, epochs: int) -> Iterator[Floats]:
    """Run Algorithm 1 with the paper's settings; yield the weights (2, 56) after each epoch."""
    net = nn.Sequential(
        nn.Linear(2 * POINTS, 2), UL1d(2, mu=0.5, eps=1e-3, reduction="sum", start="paper")
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9, weight_decay=0.1)
    return _learn(net, optimizer, frames.split(1), epochs)


def learn_as_we_do(frames: Tensor, epochs: int) -> Iterator[Floats]:
    """Train with our defaults on chunks of the stream; yield the weights (2, 56) per epoch."""
    net = nn.Sequential(nn.Linear(2 * POINTS, 2), UL1d(2))
    return _learn(net, torch.optim.Adam(net.parameters(), 0.01), frames.split(CHUNK), epochs)


def _learn(
    net: nn.Sequential, optimizer: torch.optim.Optimizer, chunks: tuple[Tensor, ...], epochs: int
) -> Iterator[Floats]:
    for _ in range(epochs):
        for chunk in chunks:
            optimizer.zero_grad()
            backward(net(chunk))
            optimizer.step()
        yield net[0].weight.detach().double().numpy().copy()  # type: ignore[operator]


def one_sequence(job: tuple[float, int, int, int]) -> Learned:
    """Run all rows on the points of one seed at one noise level.

    Args:
        job: Share of noise, seed, epochs of the paper's settings, epochs of ours.
    """
    share, seed, paper_epochs, epochs = job
    train, test = turning_points(share, seed).halves()
    frames = torch.from_numpy(train.frames).float()
    torch.manual_seed(seed)
    paper = list(learn_as_paper(frames, paper_epochs))
    ours = list(learn_as_we_do(frames, epochs))
    many = torch.from_numpy(turning_points(share, seed, MANY_TURNS).halves()[0].frames).float()
    *_, more = learn_as_we_do(many, max(1, epochs * TURNS // MANY_TURNS))
    chosen = _lowest_objective(paper, train)
    learned = {OURS: ours[-1], MORE: more, LAST: paper[-1], CHOSEN: chosen}
    scores = {
        name: (_error(_projection(weights), train, test), _overlap(weights, train.plane))
        for name, weights in (learned | _linear_baselines(train, seed)).items()
    }
    scores |= {
        name: (_error(code, train, test), np.nan)
        for name, code in _nonlinear_baselines(train).items()
    }
    curves = {OURS: _error_curve(ours, train, test), PAPER: _error_curve(paper, train, test)}
    return Learned(scores, curves, chosen, test.frames @ chosen.T)


def _lowest_objective(epochs: list[Floats], train: Turning) -> Floats:
    """Return the weights of the epoch with the lowest J."""
    costs = [objective(SlowFeatures(2).fit_transform(train.frames @ w.T)) for w in epochs]
    return epochs[int(np.argmin(costs))]


def _linear_baselines(train: Turning, seed: int) -> dict[str, Floats]:
    """Return the weights (2, 56) of other linear methods."""
    targets = sine_and_cosine(train.degrees)
    return {
        SFA: SlowFeatures(2).fit(train.frames).components_,
        "PCA": major_eigenvectors(train.frames),
        RANDOM: np.random.default_rng(seed).standard_normal((2, 2 * POINTS)),
        SUPERVISED: np.linalg.lstsq(train.frames, targets, rcond=None)[0].T,
        ORACLE: train.plane.T,
    }


def _nonlinear_baselines(train: Turning) -> dict[str, Callable[[Floats], Floats]]:
    return {
        "quadratic SFA": slow_codes([train.frames], degree=2, components=COMPONENTS),
        "closed form on similarity edges": similarity_codes([train.frames], components=COMPONENTS),
    }


def _error_curve(epochs: list[Floats], train: Turning, test: Turning) -> list[tuple[float, ...]]:
    """Return training and test error after each epoch."""
    return [
        tuple(_error(_projection(weights), train, part) for part in (train, test))
        for weights in epochs
    ]


def major_eigenvectors(frames: Floats) -> Floats:
    """Return the two principal directions of a sequence, (2, 56)."""
    directions: Floats = np.linalg.svd(frames - frames.mean(0), full_matrices=False)[2]
    return directions[:2]


def _projection(weights: Floats) -> Callable[[Floats], Floats]:
    return lambda frames: frames @ weights.T


def _error(code: Callable[[Floats], Floats], train: Turning, test: Turning) -> float:
    """Return the mean absolute error of the sine, with a decoder fitted to the training frames."""
    sine = decode_angle(code(train.frames), train.degrees, code(test.frames))[:, 0]
    return float(np.abs(sine - np.sin(np.radians(test.degrees))).mean())


def _overlap(weights: Floats, plane: Floats) -> float:
    """Return the mean squared cosine of the angles between two planes."""
    basis = np.linalg.qr(weights.T)[0]
    return float(np.square(basis.T @ plane).sum() / 2)


def run(setting: Setting) -> Outcome:
    """Rotating points at increasing noise."""
    levels = (0.3, 0.5) if setting.quick else LEVELS
    seeds = setting.seeds[:2] if setting.quick else setting.seeds
    jobs = [
        (share, seed, _paper_epochs(share, setting.quick), EPOCHS)
        for share in reversed(levels)  # the longest first, to keep all cores busy until the end
        for seed in seeds
    ]
    found: dict[float, list[Learned]] = {level: [] for level in levels}
    for (level, *_), learned in setting.each_by_job(one_sequence, jobs).items():
        found[level].append(learned)
    errors, overlaps = _tables(found)
    return Outcome(
        "Synthetic: rotating points (4.1, Fig. 1-2)",
        TEXT,
        [errors, overlaps],
        [_shapes(setting, found[0.3][0], seeds[0]), _results(setting, found, errors)],
        _claims(errors, overlaps, levels, slack=0.1 if setting.quick else 0.0),
    )


def _paper_epochs(share: float, quick: bool) -> int:
    if quick:
        return QUICK_PAPER_EPOCHS
    return EPOCHS if share == max(LEVELS) else PAPER_EPOCHS


def _tables(found: dict[float, list[Learned]]) -> tuple[Table, Table]:
    columns = [f"{level:.0%} noise" for level in found]
    best = ["low" if level else "" for level in found]  # without noise, errors are rounding errors
    errors = Table("mean absolute error of the sine", columns, best, note=NOTE)
    overlaps = Table("overlap with the true plane", columns, ["high"] * len(columns))
    for name in found[max(found)][0].scores:
        both = np.array([[r.scores[name] for r in of_level] for of_level in found.values()])
        errors.add(name, *both[:, :, 0])
        if np.isfinite(both[0, 0, 1]):
            overlaps.add(name, *both[:, :, 1])
    return errors, overlaps


def _claims(errors: Table, overlaps: Table, levels: tuple[float, ...], slack: float) -> list[Claim]:
    def ratio(row: str, level: float) -> float:
        column = f"{level:.0%} noise"
        return errors.mean(row, column) / errors.mean(ORACLE, column)

    noisy = [level for level in levels if 0 < level <= 0.3]
    worst = max(ratio(CHOSEN, level) for level in noisy)
    highest = max(levels)
    return [
        Claim(f"{CHOSEN}, up to 30 % noise, times the oracle", worst, at_most=CLOSE + slack),
        Claim(
            "ours at 50 % noise, times the oracle", ratio(OURS, highest), at_most=NO_DRIFT, aim=True
        ),
        Claim(
            "ours at 50 % noise, times labels",
            ratio(OURS, highest) / ratio(SUPERVISED, highest),
            at_most=CLOSE + slack,
        ),
        Claim(
            f"{MORE}, at 50 % noise, times the oracle",
            ratio(MORE, highest),
            at_most=NO_DRIFT + slack,
        ),
        Claim("random weights at 50 % noise, times the oracle", ratio(RANDOM, highest), at_least=2),
        Claim("ours, overlap at 50 %", overlaps.mean(OURS, f"{highest:.0%} noise"), at_least=0.7),
    ]


def _shapes(setting: Setting, learned: Learned, seed: int) -> Picture:
    """Draw frames, weights and code (Fig. 1 and 2a)."""
    seen = turning_points(0.3, seed)
    train, test = seen.halves()
    major = major_eigenvectors(train.frames)
    figure = Figure(figsize=(14, 5.4), layout="constrained")
    axes = figure.subplots(2, 4)
    for ax, i in zip(axes[:, 0], (0, 12), strict=True):
        _draw_points(ax, seen.frames[i], f"frame at {seen.degrees[i]:.0f}°, 30 % noise")
    for i in range(2):
        _draw_points(axes[i, 1], learned.weights[i], f"weights of output {i + 1}")
        _draw_points(axes[i, 2], major[i], f"major eigenvector {i + 1}")
    _draw_points(axes[0, 3], seen.plane[:, 0], "true shape")
    degrees = test.degrees % 360
    dots = axes[1, 3].scatter(*learned.code.T, c=degrees, s=5, cmap="twilight")
    axes[1, 3].set(title="output for test frames", xlabel="output 1", ylabel="output 2")
    axes[1, 3].set_aspect("equal", adjustable="datalim")
    figure.colorbar(dots, ax=axes[1, 3], label="true angle (degrees)")
    return setting.picture(
        figure,
        "synthetic_shapes",
        "Two frames, the weights learned from such frames with the paper's settings, and the two "
        "major eigenvectors of the sequence, each drawn as 28 points in different colours: they "
        "are the true shape, rotated. The outputs lie on a circle.",
    )


def _draw_points(ax: Axes, values: Floats, title: str) -> None:
    x, y = values.reshape(POINTS, 2).T
    ax.scatter(x, y, c=np.arange(POINTS), cmap="hsv", s=22, edgecolors="k", linewidths=0.3)
    ax.axhline(0, color="0.85", lw=0.7, zorder=0)
    ax.axvline(0, color="0.85", lw=0.7, zorder=0)
    ax.set(title=title, xlabel="x", ylabel="y")
    ax.set_aspect("equal", adjustable="datalim")


def _results(setting: Setting, found: dict[float, list[Learned]], errors: Table) -> Picture:
    """Draw errors over epochs and over noise (Fig. 2b and 2c)."""
    figure = Figure(figsize=(14, 4), layout="constrained")
    *epochs, noise = figure.subplots(1, 3)
    for ax, level in zip(epochs, (0.3, max(found)), strict=True):
        oracle = errors.mean(ORACLE, f"{level:.0%} noise")
        for name, colour in ((OURS, "tab:blue"), (PAPER, "tab:orange")):
            curves = np.array([learned.curves[name] for learned in found[level]]) / oracle
            count = np.arange(1, curves.shape[1] + 1)
            ax.plot(count, curves[:, :, 0].mean(0), ":", color=colour, label=f"{name}, training")
            ax.plot(count, curves[:, :, 1].mean(0), color=colour, label=f"{name}, test")
            ax.plot(count, curves[:, :, 1].T, color=colour, lw=0.5, alpha=0.5)
        ax.axhline(1, color="k", ls="--", lw=1, label="matched filter")
        ax.set(title=f"{level:.0%} noise", xlabel="epoch", ylabel="error, times the oracle's")
        ax.set(yscale="log", yticks=[1, 1.5, 2, 3, 5], yticklabels=["1", "1.5", "2", "3", "5"])
        ax.set(xticks=range(0, 21, 5))
        ax.minorticks_off()
    epochs[0].legend(fontsize=8)
    styles = {OURS: "o-", MORE: "o:", CHOSEN: "s-", LAST: "s:", SFA: "^-", ORACLE: "k--"}
    for name, style in styles.items():
        means = [np.mean(values) for values in errors.rows[name]]
        noise.plot([100 * level for level in found], means, style, label=name, ms=4)
    noise.set(title="after learning", xlabel="noise (%)", ylabel="mean absolute error of the sine")
    noise.legend(fontsize=8)
    caption = (
        "Error after each epoch (thin: test error of each seed; thick: mean), and after learning "
        "against noise."
    )
    return setting.picture(figure, "synthetic_results", caption)
