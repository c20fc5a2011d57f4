"""Recognition from one, two or four labelled views per object and unlabelled video of all.

`Stages` is a plain network with UL layers after any of its layers, trained end to end or layer by
layer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.baselines import slow_codes
from experiments.common import Claim, Floats, Outcome, Picture, Setting, Table
from experiments.datasets import load, turntable
from ullayers.nn.layers import UL1d, UL2d
from ullayers.nn.networks import backward, mu_by_depth, sequences


class Stages(nn.Module):
    """Convolutional and linear layers with ReLUs between them and UL layers after some of them.

    Args:
        layers: `nn.Conv2d` and `nn.Linear`; maps are flattened before the first linear layer.
        weights: Weight of the UL layer after each layer, by the layer's index; others have none.
        isolated: Stop gradients between layers, so that each learns from its own UL layer only.
        ul_options: More arguments of the UL layers, such as `statistics` and `long_term`.

    Example:
        >>> net = Stages([nn.Conv2d(1, 4, 3), nn.Linear(144, 2)], {1: 1.0}, long_term="shared")
        >>> maps, code = net(torch.rand(5, 1, 8, 8))
        >>> maps.shape, code.shape
        (torch.Size([5, 4, 6, 6]), torch.Size([5, 2]))
    """

    def __init__(
        self,
        layers: Sequence[nn.Conv2d | nn.Linear],
        weights: dict[int, float],
        *,
        isolated: bool = False,
        **ul_options: Any,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.ul_layers = nn.ModuleList(
            _ul_layer(layer, weights[i], ul_options) if i in weights else nn.Identity()
            for i, layer in enumerate(layers)
        )
        self.isolated = isolated
        mu_by_depth(self)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the output of every layer, before its ReLU."""
        outputs: list[Tensor] = []
        for layer, ul_layer in zip(self.layers, self.ul_layers, strict=True):
            if outputs:
                below = outputs[-1].detach() if self.isolated else outputs[-1]
                x = F.relu(below)
            if isinstance(layer, nn.Linear):
                x = x.flatten(1)
            outputs.append(ul_layer(layer(x)))
        return outputs

    def freeze(self, layers: Collection[int]) -> None:
        """Exclude layers from training."""
        for i in layers:
            self.layers[i].requires_grad_(False)


def _ul_layer(layer: nn.Conv2d | nn.Linear, weight: float, options: dict[str, Any]) -> nn.Module:
    if isinstance(layer, nn.Conv2d):
        return UL2d(layer.out_channels, weight=weight, **options)
    return UL1d(layer.out_features, weight=weight, **options)


def seeded(seed: int) -> torch.Generator:
    """Seed torch's global generator and return another one with the same seed, to draw clips."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


SIDE = 32  # pixels per side of a frame
HELD_OUT = 3  # every third view is neither labelled nor in the video
COUNTS = (1, 2, 4)  # labelled views per object
ABLATED = 2  # labelled views in the table of ablations
CLIP = 24  # frames per object and step, half a turn of the video
STEPS = 300
QUICK_STEPS = 100
LR = 3e-3
CODE = 2  # index of the last hidden layer, whose output is the code
UNITS = 16  # of the last hidden layer; 14 objects differ in 13 directions
RIDGE = 1e-4  # added to W where codes are compared, relative to its mean diagonal
MARGIN = 1.0  # of the temporal-coherence cost
SFA_COMPONENTS = 60
SFA_OUTPUTS = 13

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        cost: Cost on the video: "ul", "l1" or "l2" (temporal coherence), or "" for none.
        where: Indices of the layers with this cost.
        weight: Weight of this cost.
        statistics: Statistics of the UL layers.
        long_term: Long-term mean of the UL layers.
        labels: Whether the cross-entropy of the labelled views is added.
        halves: Cut the video of each object into two unconnected half turns.
    """

    cost: str = ""
    where: tuple[int, ...] = (CODE,)
    weight: float = 1.0
    statistics: str = "fresh"
    long_term: str = "shared"
    labels: bool = True
    halves: bool = False


ALONE = "supervised alone"
COHERENCE = "temporal coherence after the last hidden layer (L1)"
LAST = "UL after the last hidden layer"
ALL = "UL after all hidden layers"
RUNNING = f"{LAST}, running statistics"
RUNNING_ALL = f"{ALL}, running statistics"
UNLABELLED = "UL after the last hidden layer, labels only to read"
MAIN: dict[str, Recipe] = {
    ALONE: Recipe(),
    COHERENCE: Recipe("l1"),
    LAST: Recipe("ul"),
    ALL: Recipe("ul", (0, 1, CODE)),
    UNLABELLED: Recipe("ul", labels=False),
}
ABLATIONS: dict[str, Recipe] = {
    f"{LAST}, weight 0.3": Recipe("ul", weight=0.3),
    f"{LAST}, weight 0.1": Recipe("ul", weight=0.1),
    f"{LAST}, weight 0.03": Recipe("ul", weight=0.03),
    f"{LAST}, each clip's own mean": Recipe("ul", long_term="clip"),
    f"{LAST}, videos of half a turn": Recipe("ul", halves=True),
    "UL after the class scores": Recipe("ul", (CODE + 1,)),
    f"{ALL}, weight 0.1": Recipe("ul", (0, 1, CODE), weight=0.1),
    RUNNING: Recipe("ul", statistics="running"),
    RUNNING_ALL: Recipe("ul", (0, 1, CODE), statistics="running"),
    f"{COHERENCE}, weight 0.1": Recipe("l1", weight=0.1),
    "temporal coherence after the last hidden layer (L2)": Recipe("l2"),
    f"{COHERENCE}, videos of half a turn": Recipe("l1", halves=True),
}
PIXELS = "pixels"
SFA = "linear SFA of pixels"
RECIPES = MAIN | ABLATIONS
SUPERVISED = " (supervised)"  # labels only
SEMI = " (semi-supervised)"  # labels and video

Job = tuple[str, str, int, int, int]  # data, row, labelled views, seed, steps


@dataclass(frozen=True)
class Views:
    """Views of all objects, and the use of each view.

    Attributes:
        frames: Pictures (objects, views, 1, height, width).
        video: Indices of the views in the video, in order.
        held_out: Indices of the views that are used for scores only.
        labelled: Indices of the labelled views, (objects, count).
    """

    frames: Tensor
    video: Indices
    held_out: Indices
    labelled: Indices

    @property
    def known(self) -> tuple[Tensor, Tensor]:
        """The labelled pictures and their objects."""
        objects = torch.arange(len(self.frames))[:, None].expand(self.labelled.shape)
        return self.frames[objects, torch.from_numpy(self.labelled)].flatten(0, 1), objects.ravel()

    def correct(self, found: Tensor) -> tuple[float, float]:
        """Return the percentage correct of unlabelled views of the video and of held-out views.

        Args:
            found: Recognised object of each view, (objects, views).
        """
        right = (found == torch.arange(len(found))[:, None]).numpy()
        unlabelled = np.zeros_like(right)
        unlabelled[:, self.video] = True
        np.put_along_axis(unlabelled, self.labelled, False, axis=1)
        return 100 * float(right[unlabelled].mean()), 100 * float(right[:, self.held_out].mean())


def read_views(data: str, count: int, seed: int) -> Views:
    """Load all objects, with `count` labelled views of each."""
    return split(_pictures(data), count, seed)


def split(frames: Tensor, count: int, seed: int) -> Views:
    """Label `count` evenly spaced views of each object, starting at a random one."""
    held_out = np.arange(frames.shape[1]) % HELD_OUT == HELD_OUT - 1
    video = np.flatnonzero(~held_out)
    first = np.random.default_rng(seed).integers(len(video), size=(len(frames), 1))
    chosen = (first + np.arange(count) * len(video) // count) % len(video)
    return Views(frames, video, np.flatnonzero(held_out), video[chosen])


@cache
def _pictures(data: str) -> Tensor:
    clips = [load(turn, (SIDE, SIDE), grey=True).frames for turn in turntable(data)]
    return torch.stack(clips).float() / 255


def layers(objects: int) -> list[nn.Conv2d | nn.Linear]:
    """Return two convolutions, a hidden layer (the code) and the class scores."""
    return [
        nn.Conv2d(1, 8, 5, 2, 2),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.Linear(16 * (SIDE // 4) ** 2, UNITS),
        nn.Linear(UNITS, objects),
    ]


def draw(views: Views, generator: torch.Generator, halves: bool = False) -> Tensor:
    """Draw a clip of every object, (objects * CLIP, 1, height, width); videos are closed loops."""
    objects = len(views.frames)
    length = len(views.video)
    begin = torch.randint(length, (objects, 1), generator=generator)
    if halves:
        begin = begin // CLIP * CLIP
    shown = torch.from_numpy(views.video)[(begin + torch.arange(CLIP)) % length]
    return views.frames[torch.arange(objects)[:, None], shown].flatten(0, 1)


def learn(views: Views, recipe: Recipe, seed: int, steps: int) -> Stages:
    """Train on all labelled views and, if there is a cost on video, a clip of every object."""
    generator = seeded(seed)
    weights = dict.fromkeys(recipe.where, recipe.weight) if recipe.cost == "ul" else {}
    net = Stages(
        layers(len(views.frames)),
        weights,
        statistics=recipe.statistics,
        long_term=recipe.long_term,
    )
    optimizer = torch.optim.Adam(net.parameters(), LR)
    pictures, objects = views.known
    for _ in range(steps):
        optimizer.zero_grad()
        if recipe.cost:
            learn_video(net, draw(views, generator, recipe.halves), recipe, generator)
        if recipe.labels:
            net.eval()  # UL layers see the video only
            F.cross_entropy(net(pictures)[-1], objects).backward()
            net.train()
        optimizer.step()
    return net.eval()


def learn_video(net: Stages, frames: Tensor, recipe: Recipe, generator: torch.Generator) -> None:
    """Add the gradient of the cost on one batch of clips."""
    lengths = [CLIP] * (len(frames) // CLIP)
    with sequences(net, lengths):
        outputs = net(frames)
    if recipe.cost == "ul":
        backward(*outputs[: max(recipe.where) + 1])
        return
    for i in recipe.where:
        cost = coherence(outputs[i].unflatten(0, (-1, CLIP)), recipe.cost == "l1", generator)
        (recipe.weight * cost).backward()


def coherence(codes: Tensor, absolute: bool, generator: torch.Generator) -> Tensor:
    """Return the loss of temporal coherence (Mobahi et al., 2009), with a margin to other pairs.

    Args:
        codes: Codes (clips, time, units).
        absolute: Use the L1 distance instead of the L2 distance.
        generator: Draws the other pairs.
    """
    order = 1 if absolute else 2
    near = torch.linalg.vector_norm(codes[:, 1:] - codes[:, :-1], ord=order, dim=-1)
    every = codes.flatten(0, 1)
    others = every[torch.randperm(len(every), generator=generator)]
    far = torch.linalg.vector_norm(every - others, ord=order, dim=-1)
    cost: Tensor = near.mean() + F.relu(MARGIN - far).mean()
    return cost


def slow_metric(codes: Tensor) -> Tensor:
    """Return the linear map (units, units) of codes (clips, time, units) that whitens W.

    UL layers do not determine the scale of each direction of a code; W provides a metric. For a
    constant code, which has no such map, zeros are returned: all views are equally near.
    """
    judge = UL1d(codes.shape[-1], statistics="fresh", long_term="shared")
    with sequences(judge):
        judge(codes)
    within = judge.short_cov
    if not within.trace() > 0:
        return torch.zeros_like(within, dtype=codes.dtype)
    ridge = RIDGE * within.trace() / len(within)
    factor = torch.linalg.cholesky(within + ridge * torch.eye(len(within)).to(within))
    inverse: Tensor = torch.linalg.inv(factor).mT
    return inverse.to(codes.dtype)


def nearest(views: Views, codes: Tensor) -> tuple[float, float]:
    """Return the percentages correct if each view is classified by the nearest labelled view."""
    labelled = torch.from_numpy(views.labelled)
    known = codes[torch.arange(len(codes))[:, None], labelled].flatten(0, 1)
    distances = torch.cdist(codes.flatten(0, 1), known)
    return views.correct((distances.argmin(1) // labelled.shape[1]).view(codes.shape[:2]))


def one_score(job: Job) -> tuple[float, float, float, float]:
    """Return percentages correct on video and held-out views: class scores, then nearest view."""
    data, row, count, seed, steps = job
    views = read_views(data, count, seed)
    if row in (PIXELS, SFA):
        return np.nan, np.nan, *nearest(views, _plain_codes(views, row))
    recipe = RECIPES[row]
    net = learn(views, recipe, seed, steps)
    with torch.no_grad():
        outputs = net(views.frames.flatten(0, 1))
    codes = outputs[CODE].unflatten(0, views.frames.shape[:2])
    read = nearest(views, codes @ slow_metric(codes[:, views.video]))
    if not recipe.labels:
        return np.nan, np.nan, *read
    return *views.correct(outputs[-1].argmax(1).view(codes.shape[:2])), *read


def _plain_codes(views: Views, row: str) -> Tensor:
    pixels = views.frames.flatten(2)
    if row == PIXELS:
        return pixels
    turns = pixels[:, views.video].double().numpy()
    code = slow_codes(list(turns), SFA_OUTPUTS, components=SFA_COMPONENTS)
    flat: Floats = code(pixels.flatten(0, 1).double().numpy())
    return torch.from_numpy(flat).view(*pixels.shape[:2], SFA_OUTPUTS)


def run(setting: Setting) -> Outcome:
    """Compare labels alone with labels and a cost on the video."""
    counts = (ABLATED,) if setting.quick else COUNTS
    seeds = setting.seeds[:1] if setting.quick else setting.seeds
    main = (PIXELS, ALONE, LAST, UNLABELLED) if setting.quick else (PIXELS, SFA, *MAIN)
    others = () if setting.quick else tuple(ABLATIONS)
    steps = QUICK_STEPS if setting.quick else STEPS
    data = str(setting.data)
    cells = [(row, n) for row in main for n in counts] + [(row, ABLATED) for row in others]
    jobs: list[Job] = [(data, row, n, seed, steps) for row, n in cells for seed in seeds]
    found = setting.each_by_job(one_score, jobs)
    scores = {
        (row, n): np.array([found[data, row, n, seed, steps] for seed in seeds]) for row, n in cells
    }
    tables = [
        _by_count("percent correct, class scores", main, counts, scores, 0),
        _by_count("percent correct, nearest labelled view", main, counts, scores, 2),
    ]
    if not setting.quick:
        tables.append(_ablations(scores))
    pictures = [] if setting.quick else [_curves(setting, scores)]
    return Outcome(
        "Recognition from a few views (recognise)", TEXT, tables, pictures, _claims(scores)
    )


Scores = dict[tuple[str, int], Floats]  # row and labelled views -> (seeds, 4)


def _by_count(
    title: str, rows: tuple[str, ...], counts: tuple[int, ...], scores: Scores, first: int
) -> Table:
    """Return a table of the columns `first` and `first + 1` of the scores, without missing rows."""
    views = [f"{n} view{'s' * (n > 1)}" for n in counts]
    columns = [f"{n}, video" for n in views] + [f"{n}, held out" for n in views]
    table = Table(title, columns, ["high"] * len(columns))
    for row in rows:
        values = [scores[row, n][:, first + part] for part in (0, 1) for n in counts]
        if np.isfinite(values).all():
            # The nearest view is found in the metric of W, which is computed from the video.
            supervised = row == PIXELS or (row == ALONE and first == 0)
            table.add(row + (SUPERVISED if supervised else SEMI), *values)
    return table


def _ablations(scores: Scores) -> Table:
    columns = ["class scores, video", "class scores, held out", "nearest, video"]
    title = f"percent correct, {ABLATED} labelled views, semi-supervised but for the first row"
    table = Table(title, columns, ["high"] * len(columns))
    for row in (ALONE, COHERENCE, LAST, ALL, *ABLATIONS):
        table.add(row, *scores[row, ABLATED][:, :3].T)
    return table


def _claims(scores: Scores) -> list[Claim]:
    def mean(row: str, column: int) -> float:
        return float(scores[row, ABLATED][:, column].mean())

    views = f"{ABLATED} labelled views"
    return [
        Claim(f"points gained by {LAST}, {views}", mean(LAST, 0) - mean(ALONE, 0), at_least=10),
        Claim(f"percent, {UNLABELLED}, {views}", mean(UNLABELLED, 2), at_least=95),
        Claim(f"percent on held-out views, same row, {views}", mean(UNLABELLED, 3), at_least=95),
        Claim(f"percent of pixels, {views}", mean(PIXELS, 2), at_most=80),
    ]


def _curves(setting: Setting, scores: Scores) -> Picture:
    figure = Figure(figsize=(11, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    _draw_curves(panels[0], scores, 0, "class scores")
    _draw_curves(panels[1], scores, 2, "nearest labelled view")
    panels[0].set_ylabel("percent of unlabelled views")
    caption = (
        "Recognised unlabelled views of the video, by the network's class scores (left) and by "
        "the nearest labelled view in the metric of W (right)."
    )
    return setting.picture(figure, "views", caption)


def _draw_curves(axes: Axes, scores: Scores, column: int, title: str) -> None:
    for i, row in enumerate((PIXELS, SFA, *MAIN)):
        values = np.array([scores[row, n][:, column] for n in COUNTS])
        if np.isfinite(values).all():
            style: dict[str, Any] = {"marker": "o", "capsize": 3, "color": f"C{i}"}
            axes.errorbar(COUNTS, values.mean(1), values.std(1), label=row, **style)
    axes.set(title=title, xlabel="labelled views of each object", xticks=COUNTS, ylim=(0, 104))
    axes.legend(fontsize=7, loc="lower right")


TEXT = f"""
COIL-20, 14 objects, {SIDE} x {SIDE} grey. One, two or four views of each are labelled: evenly
spaced, starting at one drawn by the seed. Every third view is held out; the other 48, in the order
of the turntable and as a closed loop, are the unlabelled video of that object. *Video* columns
score its unlabelled views (transductive, as Mobahi, Collobert and Weston did in 2009 on COIL-100,
four views: 71.5 % supervised, 92.3 % with the video), *held out* columns views that are neither
labelled nor in the video.

All rows train the same network, two convolutions, a hidden layer of {UNITS} and the class scores,
for {STEPS} steps of Adam at {LR}. A step sees all labelled views and, except in the supervised row,
a clip of {CLIP} frames of every object. UL layers have the defaults (weight 1, mu by depth from 0.9
to 0.5) and use the mean of all clips of the step as the long-term mean: codes must differ between
objects, which each clip's own mean would remove. Clips never show two objects, and no object has
two videos; all rows that use the video benefit from that. Temporal coherence pulls codes of
neighbours together and pushes other pairs a margin of {MARGIN:g} apart. The size of the network,
the clips and the steps were chosen by accuracy in trials; the weight was not.

Codes are also read by the nearest labelled view in the metric of W, in which the scatter of the
code within moments of the video is isotropic. (Pixels are compared directly.) J is invariant to
linear maps of the code, so class scores that fit a few labels may rely on directions that change as
the object turns; these count little in the metric of W. Temporal coherence determines the scale
itself, which suits class scores better.
"""
