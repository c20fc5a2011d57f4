"""A small network that sees objects in single raw frames, taught by simple evidence.

It is fully convolutional and looks at a neighbourhood of a few objects, at a size at which an
object is a dozen pixels across. It knows no scene, no motion and no other frame, so it sees what
rests, what touches, and what its teacher has missed. What it learned on some frames is compared
with the evidence in others: if it cannot see there what the evidence shows, the evidence was noise,
or shows something without an appearance of its own.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ullayers.locate.flow import Floats, Frames
from ullayers.locate.teacher import OBJECT, UNKNOWN, Taught, teach, working_size

CHANNELS = 16
AREA = 144.0  # pixels of an object in the frames that the network sees
BATCH = 32  # patches of a step
PATCH = 48  # pixels of the side of a patch
RATES = 4e-3, 1e-3  # learning rates; the second one if the first one fails
WARM_UP = 0.1  # of the steps, in which the learning rate rises
WEIGHT = 3.0  # of the pixels of objects in the cost
COLOUR = 0.2  # largest relative change of a colour
JITTER = (
    0.75  # of the side of a patch: how far its object may be from its middle, in both directions
)
MINE_EVERY = 100  # steps after which the network looks for objects where there are none
MINED = 6, 200, 1000  # frames looked at, places kept from them, and places kept in all
NEAR = 9  # pixels around taught objects in which nothing is looked for
FALSE_ALARM = -1.0  # logit above which the network believes in an object
HELD_OUT = 5  # of this many blocks of frames, one is held out
BLOCKS = 25
LEAST_AGREEMENT = 0.8  # with the evidence in held-out frames
LEAST_FRAMES = 20
FRAMES_PER_CALL = 8
CERTAIN = 20.0  # largest odds: any more are as certain


class Student(nn.Module):
    """Network from raw frames to the logits of objects: a U-net of three levels.

    Attributes:
        size: (height, width) of the frames that it sees.
        agreement: Share of what its teacher shows in held-out frames that it sees there, less the
            share of the background; NaN if unknown.

    Example:
        >>> net = Student().eval()
        >>> net(torch.zeros(2, 3, 48, 64)).shape
        torch.Size([2, 1, 48, 64])
    """

    def __init__(self) -> None:
        super().__init__()
        few, some, many = CHANNELS, 2 * CHANNELS, 4 * CHANNELS
        self.stem = nn.Conv2d(3, few, 5, 2, 2)
        self.fine, self.middle, self.coarse = _pair(few, few), _pair(few, some), _pair(some, many)
        self.up, self.top = _pair(many + some, some), _pair(some + few, few)
        self.last = nn.Conv2d(few, 1, 1, bias=False)
        self.bias = nn.Parameter(torch.tensor(-2.0))  # most pixels show no object
        self.size: Tensor
        self.agreement: Tensor
        self.register_buffer("size", torch.zeros(2))
        self.register_buffer("agreement", torch.tensor(float("nan")))

    def forward(self, frames: Tensor) -> Tensor:
        """Return logits (frames, 1, height, width) of frames (frames, 3, height, width) in 0..1."""
        height, width = frames.shape[-2:]
        frames = frames.contiguous(memory_format=torch.channels_last)
        fine = self.fine(F.relu(self.stem(frames - 0.5)))
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = self.coarse(F.max_pool2d(middle, 2))
        middle = self.up(torch.cat([F.interpolate(coarse, size=middle.shape[-2:]), middle], 1))
        fine = self.top(torch.cat([F.interpolate(middle, size=fine.shape[-2:]), fine], 1))
        logits = self.last(fine) + self.bias
        return F.interpolate(logits, size=(height, width), mode="bilinear")

    @property
    def is_sure(self) -> bool:
        """Whether it sees what its teacher has shown, also in frames that it has not learned."""
        return bool(self.agreement >= LEAST_AGREEMENT)

    @torch.no_grad()
    def see(self, frames: Frames) -> Floats:
        """Return the (time, rows, columns) odds of an object, up to `CERTAIN`.

        Args:
            frames: (time, height, width, 3) uint8, of any size.
        """
        height, width = map(int, self.size.tolist())
        device = self.last.weight.device
        small = torch.from_numpy(_shrunk(frames, height, width)).permute(0, 3, 1, 2)
        logits = [
            self(each.to(device).float() / 255)[:, 0] for each in small.split(FRAMES_PER_CALL)
        ]
        odds: Floats = torch.cat(logits).exp().clamp(max=CERTAIN).cpu().numpy()
        return odds


def _pair(before: int, after: int) -> nn.Sequential:
    first = nn.Conv2d(before, after, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU())


def _shrunk(frames: Frames, height: int, width: int) -> Frames:
    if frames.shape[1:3] == (height, width):
        return frames
    small = [cv2.resize(each, (width, height), interpolation=cv2.INTER_AREA) for each in frames]
    return np.stack(small).astype(np.uint8, copy=False)


def learn_student(frames: Frames, steps: int, seed: int = 0, device: str = "cpu") -> Student | None:
    """Teach a network to see in single frames what evidence shows in the whole recording.

    Args:
        frames: (time, height, width, 3) uint8, spread over the recording.
        steps: Number of training steps; there is no other limit.
        seed: Seed of the weights and of the patches.
        device: Where to train.

    Returns:
        The network in `eval` mode, with its `agreement`; None if there are too few frames, or if
        nothing stands out in them.
    """
    if len(frames) < LEAST_FRAMES:
        return None
    taught = teach(frames)
    size = working_size(frames.shape[1], frames.shape[2], taught.area, AREA)
    labels = np.stack(
        [cv2.resize(each, size[::-1], interpolation=cv2.INTER_NEAREST) for each in taught.labels]
    )
    held_out = np.arange(len(frames)) // max(1, len(frames) // BLOCKS) % HELD_OUT == 2
    lesson = _Lesson(_shrunk(frames, *size), labels, taught, held_out, seed, device)
    if not len(lesson.shown):
        return None
    for rate in RATES:
        net = _trained(lesson, size, steps, rate, seed)
        seen = net.see(frames[held_out]) > 1
        if seen.any():  # a learning rate that is too large may end with a network that is dead
            break
    net.agreement.fill_(_agreement(seen, labels[held_out]))
    return net


def _trained(lesson: _Lesson, size: tuple[int, int], steps: int, rate: float, seed: int) -> Student:
    """Return a network after a number of steps, in `eval` mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Student()
    net.size.copy_(torch.tensor(size))
    net = net.to(lesson.frames.device)
    optimizer = torch.optim.AdamW(net.parameters(), rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=WARM_UP)
    for step in range(1, steps + 1):
        loss = lesson.loss(net)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % MINE_EVERY == 0 and step < steps:
            lesson.mine(net)
    return net.eval()


def _agreement(seen: NDArray[np.bool_], labels: NDArray[np.uint8]) -> float:
    """Return the share of an object that is seen, less the share of the background, of frames.

    The former is the median over the frames in which something is taught. More objects than are
    taught are no disagreement: evidence does not show those that rest.

    >>> labels = np.zeros((3, 4, 4), np.uint8)
    >>> labels[:, 1:3, 1:3] = OBJECT
    >>> [_agreement(seen, labels) for seen in (labels < 1, labels < 2, labels > 0)]
    [-1.0, 0.0, 1.0]
    """
    shown = labels == OBJECT
    taught = shown.any((1, 2))
    if not taught.any():
        return 0.0
    share = (seen & shown).sum((1, 2))[taught] / shown.sum((1, 2))[taught]
    return float(np.median(share) - seen[labels == 0].mean())


class _Lesson:
    """Patches of frames with what is taught about them.

    Args:
        frames: (time, height, width, 3) uint8.
        labels: (time, height, width) as in `Taught`.
        taught: What is taught.
        held_out: (time,) frames that are not learned from.
        seed: Seed of the patches.
        device: Where to train.

    Attributes:
        shown: Frames that show an object.
    """

    def __init__(
        self,
        frames: Frames,
        labels: NDArray[np.uint8],
        taught: Taught,
        held_out: NDArray[np.bool_],
        seed: int,
        device: str,
    ) -> None:
        edge = PATCH // 2
        around = (0, 0), (edge, edge), (edge, edge)
        self.frames = torch.from_numpy(np.pad(frames, (*around, (0, 0)), "edge")).to(device)
        self.labels = torch.from_numpy(np.pad(labels, around, constant_values=UNKNOWN)).to(device)
        self.height, self.width = labels.shape[1:]
        self.random = torch.Generator().manual_seed(seed)
        known = torch.from_numpy(taught.trusted & ~held_out)
        self.known = torch.nonzero(known).flatten()
        self.pixels = torch.nonzero(torch.from_numpy(labels == OBJECT) & known[:, None, None])
        self.count = torch.bincount(self.pixels[:, 0], minlength=len(labels))
        self.start = self.count.cumsum(0) - self.count
        self.shown = torch.nonzero(self.count).flatten()
        self.mined = torch.zeros(0, 3, dtype=torch.long)

    def loss(self, net: Student) -> Tensor:
        """Return the cross-entropy of a batch of random patches."""
        patch, label = self._patches(self._places())
        gain, offset = (
            1 + COLOUR * (2 * self._rand(BATCH, 3, 1, 1) - 1),
            COLOUR / 4 * (2 * self._rand(BATCH, 3, 1, 1) - 1),
        )
        patch = patch * gain.to(patch) + offset.to(patch)
        for axis, draw in ((-1, self._rand(1)), (-2, self._rand(1))):
            if draw < 0.5:
                patch, label = patch.flip(axis), label.flip(axis)
        if self._rand(1) < 0.5:
            patch, label = patch.transpose(-1, -2), label.transpose(-1, -2)
        logits = net(patch)[:, 0]
        known, shown = label != UNKNOWN, label == OBJECT
        cost = F.binary_cross_entropy_with_logits(logits, shown.float(), reduction="none")
        cost = cost * known * torch.where(shown, WEIGHT, 1.0)
        return cost.sum() / known.sum().clamp(min=1)

    @torch.no_grad()
    def mine(self, net: Student) -> None:
        """Remember where the network sees objects although there are none."""
        frames, each, most = MINED
        chosen = self._choose(self.known, frames)
        edge = PATCH // 2
        inside = (slice(None), slice(edge, edge + self.height), slice(edge, edge + self.width))
        pictures = self.frames[chosen.to(self.frames.device)][inside].permute(0, 3, 1, 2)
        labels = self.labels[chosen.to(self.labels.device)][inside]
        near = F.max_pool2d((labels != 0).float()[:, None], NEAR, 1, NEAR // 2)[:, 0] > 0
        wrong = torch.nonzero((net(pictures.float() / 255)[:, 0] > FALSE_ALARM) & ~near).cpu()
        wrong = wrong[torch.randperm(len(wrong), generator=self.random)[:each]]
        wrong[:, 0] = chosen[wrong[:, 0]]
        self.mined = torch.cat([self.mined, wrong])[-most:]

    def _rand(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.random)

    def _choose(self, values: Tensor, count: int) -> Tensor:
        return values[(self._rand(count) * len(values)).long()]

    def _places(self) -> Tensor:
        """Return (patches, 3) frame, row and column: half of them near objects."""
        near = BATCH // 2
        frame = self._choose(self.shown, near)
        places = self.pixels[self.start[frame] + (self._rand(near) * self.count[frame]).long()]
        rest = BATCH - near
        anywhere = torch.stack(
            [
                self._choose(self.known, rest),
                (self._rand(rest) * self.height).long(),
                (self._rand(rest) * self.width).long(),
            ],
            1,
        )
        if len(self.mined):
            anywhere[: rest // 2] = self._choose(self.mined, rest // 2)
        jitter = (JITTER * PATCH * (self._rand(BATCH, 2) - 0.5)).long()
        places = torch.cat([places, anywhere])
        places[:, 1:] += jitter
        places[:, 1].clamp_(0, self.height - 1)
        places[:, 2].clamp_(0, self.width - 1)
        return places

    def _patches(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return patches (patches, 3, side, side) in 0..1 and their labels."""
        frame, row, column = places.to(self.frames.device).T
        side = torch.arange(PATCH, device=row.device)
        rows, columns = row[:, None] + side, column[:, None] + side
        at = frame[:, None, None], rows[:, :, None], columns[:, None]
        return self.frames[at].permute(0, 3, 1, 2).float() / 255, self.labels[at]
