"""Networks that `ul` trains: a mask with its centroid, and a code. Plain modules with UL layers."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ullayers.nn.calls import ULBase
from ullayers.nn.layers import UL1d, UL2d, mu_by_depth, sequences
from ullayers.nn.spatial import blurred, mask_moments

BLUR = 5  # pixels over which energy is averaged
BRIGHTEST = 10.0  # energies above this many times the frame's mean look alike to the network
FAINT = 0.1  # of the frame's mean energy: below it, energies look alike to the mask
NEAR = 9  # pixels around each over which an encoder takes brightness and contrast as given
DARK = 0.05  # contrast, of 1, below which a neighbourhood stays flat
RIDGE = 1e-3  # of the mean variance, when outputs are whitened
COARSE = 2  # pixels of the picture for one of the network: as good, at a quarter of the cost
REWEIGHT = 1.5  # the network may change a pixel's logit by this much and no more

LongTerm = Literal["clip", "shared", "stream"]


class Located(NamedTuple):
    """Where the mask is: (time, 2) x and y in 0..1, (time, 2, 2) spread, (time, h, w) mask."""

    centroid: Tensor
    spread: Tensor
    mask: Tensor


class Locator(nn.Module):
    """The mask of what moves, from the foreground, and its centroid.

    The mask's logits are a learned, positive gain times the log energy of the foreground, plus what
    a small convolutional network has to say about each place: it starts from what background
    subtraction sees and learns what to leave out. A UL layer on the centroid, with the mask's
    spread added to W, is the cost.

    Args:
        channels: of the pictures.
        mu, eps, long_term: of the UL layer.
        width: maps of a hidden layer.
        local: weight of UL layers after the hidden layers.

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
        self.cost = UL1d(2, mu, eps, long_term=long_term)
        self.size: Tensor
        self.register_buffer("size", torch.zeros(()))
        mu_by_depth(self, farthest=mu)

    def maps(self, foreground: Tensor) -> dict[str, Tensor]:
        """Every layer's response, by name; the last is the mask's logits."""
        energy = blurred(foreground.square().sum(1, keepdim=True), BLUR)
        mean = energy.mean((1, 2, 3), keepdim=True) + 1e-9
        relative = energy / mean
        seen = torch.cat([foreground / mean.sqrt(), relative.clamp(max=BRIGHTEST).sqrt()], 1)
        seen = F.avg_pool2d(seen, COARSE, ceil_mode=True)
        first = torch.tanh(self.local1(self.conv1(seen)))
        second = torch.tanh(self.local2(self.conv2(first)))
        opinion = REWEIGHT * torch.tanh(self.last(second) / REWEIGHT)
        opinion = F.interpolate(opinion, energy.shape[-2:], mode="bilinear")
        logits = opinion + F.softplus(self.gain) * torch.log(relative + FAINT)
        return {"conv1": first, "conv2": second, "mask": logits}

    def forward(self, foreground: Tensor) -> Located:
        """Masks and centroids of (time, channels, height, width)."""
        logits = self.maps(foreground)["mask"][:, 0]
        mask = logits.flatten(1).softmax(1).view_as(logits)
        return Located(*mask_moments(mask), mask)

    def learn_from(self, foreground: Tensor, lengths: list[int]) -> Tensor:
        """The tensor to call `ul.backward` on, for clips of these lengths."""
        with sequences(self, lengths):
            return self.judge(self(foreground))

    def judge(self, found: Located) -> Tensor:
        """The centroid, passed through the UL layer."""
        # Below the object's own size there is nothing to win by shrinking: else the mask would
        # contract onto one end of it.
        spread = found.spread + self.size.square() * torch.eye(2, device=found.spread.device)
        return self.cost(found.centroid, spread)  # type: ignore[no-any-return]

    def get_ready(self, foreground: Tensor) -> None:
        """Measure how large things are before learning: the median radius of the masks."""
        with torch.no_grad():
            spread = self(foreground).spread.diagonal(dim1=1, dim2=2).mean(1)
            self.size.copy_(spread.median().sqrt())

    def picture(self, found: Located) -> Tensor:
        """Masks to show: 1 at their peak, one half where the object's edge is taken to be."""
        peak = found.mask.amax((1, 2), keepdim=True)
        return (found.mask / peak) ** (1 / F.softplus(self.gain))

    def confidence(self, found: Located) -> Tensor:
        """1 for a mask that is a point, 0 for one that is spread evenly over the picture."""
        radius = found.spread.diagonal(dim1=1, dim2=2).sum(1).sqrt()
        return (1 - radius * 6**0.5).clamp(0, 1)  # an even mask has a variance of 1/12 each way


class Encoder(nn.Module):
    """A code of d numbers for each frame: convolutions and a fully connected layer, UL after each.

    What the cost sees is whitened: the outputs of each clip if every clip has its own long-term
    mean, else those of the batch. Being rich is then given and only being slow is learned; and no
    output can be another one with a sign that depends on who is seen. It sees every step as a clip
    of two frames, forwards and backwards, so that W is of the whole batch and not of a moment.

    The last layer's outputs are defined up to a linear map; `readout`, found in closed form after
    learning, puts the slowest first and makes them uncorrelated with unit variance.

    Args:
        size: (height, width) of the frames.
        channels: of the frames.
        outputs: of the network.
        codes: numbers in the code, at most `outputs`.
        mu, eps, long_term: of the last UL layer; nearer to the input, mu is larger.
        local: weight of the UL layers after the convolutions.

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
        self.cost = UL1d(outputs, mu, eps, long_term="shared")
        self.mean: Tensor
        self.readout: Tensor
        self.register_buffer("mean", torch.zeros(outputs))
        self.register_buffer("readout", torch.eye(codes, outputs))
        mu_by_depth(self, farthest=mu)

    def maps(self, frames: Tensor) -> dict[str, Tensor]:
        """Every convolution's response, by name."""
        deviation = frames - blurred(frames, NEAR)
        maps, responses = deviation / (blurred(deviation.square(), NEAR).sqrt() + DARK), {}
        for i, (conv, local) in enumerate(zip(self.convs, self.locals, strict=True)):
            maps = torch.tanh(local(conv(maps)))
            responses[f"conv{i + 1}"] = maps
        return responses

    def forward(self, frames: Tensor) -> Tensor:
        """(time, outputs) of (time, channels, height, width), passed through the UL layer."""
        return self.cost(self.embed(frames))  # type: ignore[no-any-return]

    def embed(self, frames: Tensor) -> Tensor:
        """(time, outputs), not seen by the UL layer."""
        *_, last = self.maps(frames).values()
        return self.full(last.flatten(1))  # type: ignore[no-any-return]

    def learn_from(self, frames: Tensor, lengths: list[int]) -> Tensor:
        """The tensor to call `ul.backward` on, for clips of these lengths."""
        with sequences(self, lengths):
            outputs = self.embed(frames)
        white = _whitened(outputs, lengths if self.by_clip else [len(outputs)])
        steps = torch.cat([torch.stack([y[:-1], y[1:]], 1) for y in white.split(lengths)])
        with sequences(self.cost):
            return self.cost(torch.cat([steps, steps.flip(1)]))  # type: ignore[no-any-return]

    def get_ready(self, frames: Tensor) -> None:
        """Nothing has to be measured before learning."""

    def code(self, frames: Tensor) -> Tensor:
        """(time, codes): the slow features, slowest first."""
        outputs: Tensor = self(frames)
        return (outputs - self.mean) @ self.readout.T


def _whitened(outputs: Tensor, lengths: list[int]) -> Tensor:
    """Each group of frames around its mean, with unit covariance; of all where groups are short."""
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
    """What a finished network needs: its parameters and buffers but for UL statistics."""
    kept = {name for name, module in net.named_modules() if isinstance(module, ULBase)}
    state = net.state_dict()
    return {key: state[key] for key in state if key.rpartition(".")[0] not in kept}
