"""The network of a run with its preprocessing, as one module of tensor operations for export.

Frames of any size are cropped, resized and scaled inside the module. The other steps of `ul apply`
(camera motion, optical flow, a consensus over the video, outlines) are not included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from ullayers.learn.models import Encoder, Located, Locator
from ullayers.learn.results import SURE
from ullayers.learn.runs import Run
from ullayers.locate.outline import EDGE
from ullayers.video.camera_motion import adapt
from ullayers.video.follow import SIDE
from ullayers.video.region import Cut, MaskRegion, Region

MAX_FRAMES = 2**16  # per call
MAX_SIDE = 2**13  # pixels of a frame's side
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in the brightness of a pixel
EXAMPLE_SIZE = (60, 80)  # height and width of the frames used for tracing


@dataclass(frozen=True)
class NetworkGraph:
    """A module to export, with its inputs and outputs.

    Attributes:
        module: The network with its preprocessing, in eval mode.
        inputs: Example of each input, by name.
        outputs: Names of the outputs.
        dynamic: Dimensions of each input that may differ from the example.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]
    dynamic: dict[str, dict[int, Any]]


class Preprocess(nn.Module):
    """Converts frames to the input of a network: the region of interest, resized, from 0 to 1.

    Each pixel of the result is the mean over its area, as when video is read.

    Args:
        size: (height, width) of the result.
        grey: Whether to return one channel instead of three.
        roi: Region of interest; everything outside a mask becomes black.

    Example:
        >>> frames = torch.arange(6, dtype=torch.uint8).expand(1, 3, 2, 6)
        >>> small = Preprocess((1, 4), grey=False)(frames)
        >>> [round(level, 2) for level in (255 * small[0, 0, 0]).tolist()]
        [0.33, 1.67, 3.33, 4.67]
    """

    def __init__(self, size: tuple[int, int], grey: bool, roi: Region | None = None) -> None:
        super().__init__()
        self.size = size
        self.cut = None if roi is None else _cut(roi)
        self.inside: Tensor | None
        self.luma: Tensor | None
        inside = None if self.cut is None or self.cut.inside is None else self.cut.inside > 0
        self.register_buffer("inside", None if inside is None else torch.from_numpy(inside))
        self.register_buffer("luma", torch.tensor(LUMA) if grey else None)

    def forward(self, frames: Tensor) -> Tensor:
        """Return (..., channels, height, width) of uint8 RGB frames (..., 3, height, width)."""
        if self.cut is not None:
            top, left = self.cut.top, self.cut.left
            frames = frames[..., top : top + self.cut.height, left : left + self.cut.width]
        pixels = frames.float() / 255
        if self.inside is not None:
            pixels = pixels * self.inside
        rows, columns = map(_area_weights, pixels.shape[-2:], self.size)
        small = rows @ pixels @ columns.T
        if self.luma is None:
            return small
        return (small * self.luma[:, None, None]).sum(-3, keepdim=True)

    def place(self, positions: Tensor, frames: Tensor) -> Tensor:
        """Convert positions (..., 2) from 0..1 of the region to 0..1 of the frames."""
        if self.cut is None:
            return positions
        box = torch.tensor([self.cut.width, self.cut.height])
        corner = torch.tensor([self.cut.left, self.cut.top])
        whole = torch.cat([_length(frames.shape[-1]), _length(frames.shape[-2])])
        return (positions * box + corner) / whole


class EncoderGraph(nn.Module):
    """Frames to codes.

    Args:
        net: The network.
        prepare: Its preprocessing.
    """

    def __init__(self, net: Encoder, prepare: Preprocess) -> None:
        super().__init__()
        self.net = net
        self.prepare = prepare

    def forward(self, frames: Tensor) -> Tensor:
        """Return (time, codes) of uint8 frames (time, 3, height, width)."""
        return self.net.code(self.prepare(frames))


class LocatorGraph(nn.Module):
    """Frames, and the scene without the object, to masks, centroids and confidences.

    Args:
        net: The network.
        prepare: Its preprocessing.
    """

    def __init__(self, net: Locator, prepare: Preprocess) -> None:
        super().__init__()
        self.net = net
        self.prepare = prepare

    def forward(self, frames: Tensor, backdrop: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return masks, centroids and confidences.

        Args:
            frames: (time, 3, height, width) uint8.
            backdrop: (3, height, width) uint8, such as the median of many frames.
        """
        found = self.net(self.prepare(frames) - self.prepare(backdrop))
        return self.describe(found, frames)

    def describe(self, found: Located, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs from the result of the network."""
        place = self.prepare.place(found.centroid, frames)
        return self.net.picture(found), place, self.net.confidence(found)


class WatcherGraph(LocatorGraph):
    """One frame and the background so far to mask, centroid, confidence, and the next background.

    This is what `ul watch` computes while it does not train and the camera is still.
    """

    def forward(  # type: ignore[override]
        self, frame: Tensor, backdrop: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return mask, centroid and confidence of a frame, and the state for the next one.

        Args:
            frame: (3, height, width) uint8.
            backdrop: (channels, height, width) float32 at the size of the network; any before the
                first frame.
            count: Number of frames before this one, int64.
        """
        small = self.prepare(frame)
        backdrop = torch.where(count == 0, small, backdrop)
        count = count + 1
        foreground = small - backdrop
        mask, centroid, confidence = self.describe(self.net(foreground[None]), frame)
        held = (mask[0] >= EDGE / 255) & (confidence[0] >= SURE)
        backdrop = adapt(backdrop, foreground, count, held)
        return mask[0], centroid[0], confidence[0], backdrop, count


def network_graph(run: Run) -> NetworkGraph:
    """Return the network of a run with its preprocessing, on the device of the run.

    Args:
        run: A finished run.

    Raises:
        RunError: Training has not finished.
    """
    _ = run.outcome  # raises an error if training has not finished
    net = run.net
    size = (SIDE, SIDE) if run.reading.follow else run.reading.size
    assert net is not None
    assert size is not None
    # Crops that follow an object are already inside the region of interest.
    roi = None if run.reading.follow else run.reading.roi
    prepare = Preprocess(size, run.reading.grey, roi)
    height, width, sides = _example_size(roi)
    frames = _pattern((4, 3, height, width))
    several = {0: Dim("time", min=1, max=MAX_FRAMES)} | {2 + i: side for i, side in sides.items()}
    single = {1 + i: side for i, side in sides.items()}
    if isinstance(net, Encoder):
        module: nn.Module = EncoderGraph(net, prepare)
        return NetworkGraph(module.eval(), {"frames": frames}, ("code",), {"frames": several})
    outputs = ("mask", "centroid", "confidence")
    if run.watched:
        backdrop = torch.zeros(run.reading.channels, *size)
        state = {"backdrop": backdrop, "count": torch.zeros((), dtype=torch.int64)}
        return NetworkGraph(
            WatcherGraph(net, prepare).eval(),
            {"frame": frames[0], **state},
            (*outputs, "next_backdrop", "next_count"),
            {"frame": single, "backdrop": {}, "count": {}},
        )
    return NetworkGraph(
        LocatorGraph(net, prepare).eval(),
        {"frames": frames, "backdrop": frames[0]},
        outputs,
        {"frames": several, "backdrop": single},
    )


def _cut(roi: Region) -> Cut:
    """Return a region in the smallest frames it fits into, or in frames of the size of a mask."""
    if isinstance(roi, MaskRegion):
        return roi.fit(roi.height, roi.width)
    return roi.fit(roi.y + roi.height, roi.x + roi.width)


def _example_size(roi: Region | None) -> tuple[int, int, dict[int, Any]]:
    """Return height and width of an example, and which of them (0, 1) are dynamic."""
    if isinstance(roi, MaskRegion):
        return roi.height, roi.width, {}
    least = (1, 1) if roi is None else _cut(roi).frame
    height, width = (low + side for low, side in zip(least, EXAMPLE_SIZE, strict=True))
    sides = {
        i: Dim(name, min=low, max=MAX_SIDE)
        for i, (name, low) in enumerate(zip(("height", "width"), least, strict=True))
    }
    return height, width, sides


def _pattern(shape: tuple[int, ...]) -> Tensor:
    """Return frames of noise, the same in each call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def _area_weights(length: int, size: int) -> Tensor:
    """Return (size, length) weights of the pixels of a line in a resized line."""
    total = _length(length)
    pixel = torch.arange(length)
    target = torch.arange(size)[:, None]
    # In units in which all pixel edges are integers, so that nothing is rounded.
    end = torch.minimum((target + 1) * total, (pixel + 1) * size)
    start = torch.maximum(target * total, pixel * size)
    return (end - start).clamp(min=0) / total


def _length(length: int) -> Tensor:
    """Return a length as a tensor; ONNX has no arithmetic on the sizes of tensors themselves."""
    return torch.arange(length)[-1:] + 1
