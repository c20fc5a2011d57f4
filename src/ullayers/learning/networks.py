"""The networks: a mask and its centroid, or a code, and the cost that they learn from."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ullayers.learning.student import Student
from ullayers.nn.layers import UL1d, UL2d, ULBase
from ullayers.nn.networks import mu_by_depth, sequences
from ullayers.nn.spatial import blurred, mask_moments

BLUR = 5  # pixels over which energy is averaged
MAX_ENERGY = 10.0  # times the mean of the frame: larger energies are clipped for the network
MIN_ENERGY = 0.1  # times the mean of the frame: added to energies before their logarithm
NEIGHBOURHOOD = 9  # pixels over which an encoder normalizes brightness and contrast
MIN_CONTRAST = 0.05  # added to the contrast of a neighbourhood before dividing by it
RIDGE = 1e-3  # of the mean variance, when outputs are whitened
POOLING = 2  # frame pixels per network pixel: as accurate, at a quarter of the cost
MAX_REWEIGHT = 1.5  # largest change of a pixel's logit by the network
LongTerm = Literal["clip", "shared", "stream"]


class Located(NamedTuple):
    """Masks (time, h, w) with their centroid (time, 2) in 0..1 and spread (time, 2, 2)."""

    centroid: Tensor
    spread: Tensor
    mask: Tensor


class Locator(nn.Module):
    """Network for the mask and centroid of the moving object, from the foreground.

    The logits of the mask are a learned positive gain times the log energy of the foreground, plus
    a correction by a small convolutional network. The network starts from background subtraction
    and learns which regions to leave out. The cost is a UL layer on the centroid, with the spread
    of the mask added to W.

    Args:
        channels: Channels of the frames.
        mu: Short-term rate of the UL layer.
        eps: Long-term rate of the UL layer.
        long_term: Reference mean for long-term variation.
        width: Channels of the hidden layers.
        local: Weight of UL layers after the hidden layers.

    Attributes:
        student: A network that sees objects in single raw frames; None if there is none.

    Example:
        >>> import torch
        >>> net = Locator().eval()
        >>> foreground = torch.zeros(5, 3, 24, 32)
        >>> foreground[:, :, 8:12, 16:20] = 1.0
        >>> [round(v, 2) for v in net(foreground).centroid[0].tolist()]
        [0.56, 0.42]
    """

    sees = "foreground"

    def __init__(
        self,
        channels: int = 3,
        *,
        mu: float = 0.5,
        eps: float = 1e-3,
        long_term: LongTerm = "clip",
        width: int = 8,
        local: float = 0.0,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels + 1, width, 5, padding=2)
        self.local1 = UL2d(width, eps=eps, weight=local) if local else nn.Identity()
        self.conv2 = nn.Conv2d(width, width, 5, padding=2)
        self.local2 = UL2d(width, eps=eps, weight=local) if local else nn.Identity()
        self.last = nn.Conv2d(width, 1, 1, bias=False)  # a bias would not change a softmax
        nn.init.zeros_(self.last.weight)
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.cost = UL1d(2, mu, eps, long_term=long_term, synchronize=False)
        self.student: Student | None = None
        self.size: Tensor
        self.register_buffer("size", torch.zeros(()))
        mu_by_depth(self, farthest=mu)

    def maps(self, foreground: Tensor) -> dict[str, Tensor]:
        """Return the output of each layer by name; the last one is the logits of the mask."""
        energy = blurred(foreground.square().sum(1, keepdim=True), BLUR)
        mean = energy.mean((1, 2, 3), keepdim=True) + 1e-9
        relative = energy / mean
        seen = torch.cat([foreground / mean.sqrt(), relative.clamp(max=MAX_ENERGY).sqrt()], 1)
        seen = F.avg_pool2d(seen, POOLING, ceil_mode=True)
        # With few channels, convolutions take half the time in this memory format.
        seen = seen.contiguous(memory_format=torch.channels_last)
        first = torch.tanh(self.local1(self.conv1(seen)))
        second = torch.tanh(self.local2(self.conv2(first)))
        correction = MAX_REWEIGHT * torch.tanh(self.last(second) / MAX_REWEIGHT)
        correction = _enlarged(correction, *energy.shape[-2:])
        logits = correction + F.softplus(self.gain) * torch.log(relative + MIN_ENERGY)
        return {"conv1": first, "conv2": second, "mask": logits}

    def forward(self, foreground: Tensor) -> Located:
        """Return masks and centroids of frames (time, channels, height, width)."""
        logits = self.maps(foreground)["mask"][:, 0]
        mask = logits.flatten(1).softmax(1).view_as(logits)
        return Located(*mask_moments(mask), mask)

    def learn_from(self, foreground: Tensor, lengths: list[int]) -> Tensor:
        """Return the tensor to call `ul.backward` on.

        Args:
            foreground: Frames of all clips, one after the other.
            lengths: Length of each clip.
        """
        with sequences(self, lengths):
            return self.judge(self(foreground))

    def judge(self, found: Located) -> Tensor:
        """Pass the centroid through the UL layer."""
        # Shrinking below the size of the object must not lower J, or the mask would contract onto
        # one end of the object.
        spread = found.spread + self.size.square() * torch.eye(2, device=found.spread.device)
        return self.cost(found.centroid, spread)  # type: ignore[no-any-return]

    def get_ready(self, foreground: Tensor) -> None:
        """Measure the size of the object before training: the median radius of the masks."""
        with torch.no_grad():
            spread = self(foreground).spread.diagonal(dim1=1, dim2=2).mean(1)
            self.size.copy_(spread.median().sqrt())

    def picture(self, found: Located) -> Tensor:
        """Return masks for display: 1 at the peak, about 0.5 at the edge of the object."""
        peak = found.mask.amax((1, 2), keepdim=True)
        return (found.mask / peak) ** (1 / F.softplus(self.gain))

    def confidence(self, found: Located) -> Tensor:
        """Return the confidence: 1 for a point-like mask, 0 for a uniform mask."""
        radius = found.spread.diagonal(dim1=1, dim2=2).sum(1).sqrt()
        return (1 - radius * 6**0.5).clamp(
            0, 1
        )  # a uniform mask has a variance of 1/12 in x and in y


def _enlarged(maps: Tensor, height: int, width: int) -> Tensor:
    """Enlarge maps bilinearly; two matrix products are faster than `F.interpolate`.

    >>> maps = torch.rand(2, 1, 3, 4)
    >>> same = F.interpolate(maps, (6, 7), mode="bilinear")
    >>> torch.allclose(_enlarged(maps, 6, 7), same, atol=1e-6)
    True
    """
    rows, columns = (
        F.interpolate(torch.eye(small).to(maps)[None], (large,), mode="linear")[0]
        for small, large in zip(maps.shape[-2:], (height, width), strict=True)
    )
    return rows.T @ maps @ columns


class Encoder(nn.Module):
    """Network for the code of a frame: convolutions, a fully connected layer, and UL layers.

    Outputs are whitened before the cost is computed: per clip if each clip has its own long-term
    mean, otherwise over the batch. This fixes the long-term variation, so only slowness is learned,
    and no output can copy another one up to a sign that depends on the clip. The cost treats each
    pair of consecutive frames as a clip, in both orders, so that W covers the whole batch.

    The outputs are defined up to a linear map. `readout`, solved in closed form after training,
    sorts them by slowness and makes them uncorrelated with unit variance.

    Args:
        size: (height, width) of the frames.
        channels: Channels of the frames.
        outputs: Outputs of the network.
        codes: Numbers in the code, at most `outputs`.
        mu: Short-term rate of the last UL layer; larger for layers near the input.
        eps: Long-term rate of the UL layers.
        long_term: Reference mean for long-term variation.
        local: Weight of UL layers after the convolutions.

    Example:
        >>> import torch
        >>> net = Encoder((48, 48), channels=1, outputs=8, codes=2).eval()
        >>> net(torch.rand(5, 1, 48, 48)).shape, net.code(torch.rand(5, 1, 48, 48)).shape
        (torch.Size([5, 8]), torch.Size([5, 2]))
    """

    sees = "frames"

    def __init__(
        self,
        size: tuple[int, int],
        channels: int = 1,
        *,
        outputs: int = 2,
        codes: int = 2,
        mu: float = 0.5,
        eps: float = 1e-3,
        long_term: LongTerm = "clip",
        local: float = 0.0,
    ) -> None:
        super().__init__()
        widths = (channels, 16, 32, 32)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 5, 2, 2) for a, b in pairwise(widths))
        self.locals = nn.ModuleList(
            UL2d(width, eps=eps, weight=local) if local else nn.Identity() for width in widths[1:]
        )
        height, width = (-(-side // 8) for side in size)
        self.full = nn.Linear(widths[-1] * height * width, outputs)
        self.by_clip = long_term == "clip"
        self.cost = UL1d(outputs, mu, eps, long_term="shared", synchronize=False)
        self.mean: Tensor
        self.readout: Tensor
        self.register_buffer("mean", torch.zeros(outputs))
        self.register_buffer("readout", torch.eye(codes, outputs))
        mu_by_depth(self, farthest=mu)

    def maps(self, frames: Tensor) -> dict[str, Tensor]:
        """Return the output of each convolution by name."""
        deviation = frames - blurred(frames, NEIGHBOURHOOD)
        contrast = blurred(deviation.square(), NEIGHBOURHOOD).sqrt()
        maps = deviation / (contrast + MIN_CONTRAST)
        responses = {}
        for i, (conv, local) in enumerate(zip(self.convs, self.locals, strict=True)):
            maps = torch.tanh(local(conv(maps)))
            responses[f"conv{i + 1}"] = maps
        return responses

    def forward(self, frames: Tensor) -> Tensor:
        """Return (time, outputs) of frames (time, channels, height, width), after the UL layer."""
        return self.cost(self.embed(frames))  # type: ignore[no-any-return]

    def embed(self, frames: Tensor) -> Tensor:
        """Return (time, outputs) without the UL layer."""
        *_, last = self.maps(frames).values()
        return self.full(last.flatten(1))  # type: ignore[no-any-return]

    def learn_from(self, frames: Tensor, lengths: list[int], rows: Tensor | None = None) -> Tensor:
        """Return the tensor to call `ul.backward` on.

        Args:
            frames: Frames of all clips, one after the other.
            lengths: Length of each clip.
            rows: (frames,) number of each frame in its sequence; None if no frames are left out.
        """
        with sequences(self, lengths):
            outputs = self.embed(frames)
        steps = code_steps(outputs, lengths, rows, by_clip=self.by_clip)
        with sequences(self.cost):
            return self.cost(steps)  # type: ignore[no-any-return]

    def get_ready(self, frames: Tensor) -> None:
        """Do nothing, as nothing has to be measured before training."""

    def code(self, frames: Tensor) -> Tensor:
        """Return (time, codes): slow features, slowest first."""
        outputs: Tensor = self(frames)
        return (outputs - self.mean) @ self.readout.T


def code_steps(
    outputs: Tensor, lengths: list[int], rows: Tensor | None = None, *, by_clip: bool
) -> Tensor:
    """Return pairs of consecutive frames of whitened outputs, each in both orders.

    Where frames are left out, the step from one side of the gap to the other is divided by the
    square root of its length, as for a random walk. Without these steps, the slowest code would
    identify the part between two gaps.

    Args:
        outputs: (frames, outputs) of all clips, one after the other.
        lengths: Length of each clip.
        rows: (frames,) number of each frame in its sequence; None if no frames are left out.
        by_clip: Whether each clip is whitened separately.

    Returns:
        (pairs, 2, outputs).

    Example:
        >>> outputs = torch.tensor([[-3.0], [-1.0], [4.0]])
        >>> steps = code_steps(outputs, [3], torch.tensor([0, 1, 5]), by_clip=False)
        >>> [round(float(step), 2) for step in steps[:2].diff(dim=1).flatten()]
        [0.68, 0.85]
    """
    white = _whitened(outputs, lengths if by_clip else [len(outputs)])
    clip = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    first = torch.nonzero(clip[1:] == clip[:-1])[:, 0]
    pairs = torch.stack([white[first], white[first + 1]], 1)
    if rows is not None:
        gap = rows.diff()[first].to(white)
        middle = pairs.mean(1, keepdim=True)
        pairs = middle + (pairs - middle) / gap.sqrt()[:, None, None]
    return torch.cat([pairs, pairs.flip(1)])


def code_objective(net: Encoder, codes: Tensor, lengths: list[int], rows: Tensor) -> float:
    """Return J of codes as in the cost of the network, without gaps.

    Args:
        net: The network, for its rates and its long-term mean.
        codes: (frames, codes) of all clips, one after the other.
        lengths: Length of each clip.
        rows: (frames,) number of each frame in its sequence; only consecutive numbers form a step.
    """
    rates = net.cost.mu, net.cost.eps
    cost = UL1d(codes.shape[1], *rates, long_term="shared", synchronize=False)
    steps = code_steps(codes.cpu(), lengths, by_clip=net.by_clip)
    clip = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    is_step = (rows.diff() == 1)[clip[1:] == clip[:-1]]
    with torch.no_grad(), sequences(cost):
        cost(steps[is_step.repeat(2)])
    return float(cost.objective)


def _whitened(outputs: Tensor, lengths: list[int]) -> Tensor:
    """Center and whiten each group of frames; all groups together if one of them is short."""
    groups = [y - y.mean(0) for y in outputs.double().split(lengths)]
    if min(lengths) < 2 * outputs.shape[1]:
        groups = [torch.cat(groups)]
    white = []
    for y in groups:
        cov = y.T @ y / len(y)
        ridge = RIDGE * cov.diagonal().mean() + 1e-12
        root = torch.linalg.cholesky(cov + ridge * torch.eye(len(cov)).to(cov))
        white.append(torch.linalg.solve_triangular(root, y.T, upper=False).T)
    return torch.cat(white).to(outputs.dtype)


Model = Locator | Encoder


def weights(net: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a network, without UL statistics."""
    ul_layers = {name for name, module in net.named_modules() if isinstance(module, ULBase)}
    state = net.state_dict()
    return {key: state[key] for key in state if key.rpartition(".")[0] not in ul_layers}
