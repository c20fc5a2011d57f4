"""The network of a run: for users of PyTorch, and as a file for other programs."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from ullayers.errors import MissingPackageError
from ullayers.files import replacing
from ullayers.learning.networks import Encoder, Located, Locator, Model
from ullayers.run.plan import Plan, load_plan
from ullayers.tracks.masks import EDGE
from ullayers.tracks.table import SURE
from ullayers.video.camera.following import SIDE
from ullayers.video.camera.motion import adapt
from ullayers.video.region import Cut, MaskRegion, Region

if TYPE_CHECKING:
    import onnx

MAX_FRAMES = 2**16  # per call
MAX_SIDE = 2**13  # pixels of a frame's side
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in the brightness of a pixel
EXAMPLE_SIZE = (60, 80)  # height and width of the frames used for tracing
TOLERANCE = 1e-4  # largest difference between PyTorch and ONNX Runtime


def from_pretrained(folder: str | os.PathLike[str], device: str = "cpu") -> Model:
    """Return the network of a run in eval mode: a `Locator` or an `Encoder`.

    Args:
        folder: Folder of the run; it needs config.json and model.safetensors only.
        device: Device of the network.

    Raises:
        TypeError: `folder` is not a path.
        RunError: The folder is not a run, is damaged, or training has not finished.

    Example:
        >>> import tempfile, torch, ullayers as ul
        >>> from ullayers.video.demo_films import write_scene
        >>> with tempfile.TemporaryDirectory() as place:
        ...     video = str(write_scene(place, frames=30))
        ...     for found in ul.watch(video, size=32, folder=f"{place}/run"):
        ...         pass
        ...     net = ul.from_pretrained(f"{place}/run")
        >>> net(torch.rand(5, 3, 24, 32)).centroid.shape  # of the foreground of five frames
        torch.Size([5, 2])
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(
            f"ul.from_pretrained expected the folder of a run, a path, got {type(folder).__name__}"
        )
    run = load_plan(folder, device)
    _ = run.outcome  # raises an error if training has not finished
    assert run.net is not None
    return run.net


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


def network_graph(run: Plan) -> NetworkGraph:
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


def write_onnx(run: Plan, path: Path) -> None:
    """Write the network of a run, with its preprocessing, as an ONNX file.

    The file is checked first: ONNX Runtime must give the same results as PyTorch.

    Args:
        run: A finished run, loaded on the CPU.
        path: File to write.

    Raises:
        MissingPackageError: The packages of the extra "onnx" are not installed.
        RunError: Training has not finished.
    """
    graph = network_graph(run)
    content = _to_onnx(graph).SerializeToString()
    difference = _onnx_difference(content, graph)
    if not difference <= TOLERANCE:
        raise RuntimeError(f"ONNX Runtime and PyTorch differ by {difference:g}")
    with replacing(path, "wb") as file:
        file.write(content)


def write_torch_export(run: Plan, path: Path) -> None:
    """Write the network of a run, with its preprocessing, for `torch.export.load`.

    Args:
        run: A finished run, loaded on the CPU.
        path: File to write.

    Raises:
        RunError: Training has not finished.
    """
    content = io.BytesIO()
    with _quiet():
        torch.export.save(_traced(network_graph(run)), content)
    with replacing(path, "wb") as file:
        file.write(content.getvalue())


def _traced(graph: NetworkGraph) -> torch.export.ExportedProgram:
    with torch.no_grad():
        program = torch.export.export(
            graph.module, tuple(graph.inputs.values()), dynamic_shapes=tuple(graph.dynamic.values())
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def _to_onnx(graph: NetworkGraph) -> onnx.ModelProto:
    try:
        import onnx.helper  # noqa: F401
        import onnxruntime  # noqa: F401
        from onnxscript import optimizer
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"--onnx needs the package {error.name}: pip install 'ullayers[onnx]'"
        ) from error
    with _quiet():
        program = torch.onnx.export(
            _traced(graph),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=tuple(graph.dynamic.values()),  # for the names of dimensions
            dynamo=True,
            external_data=False,
            optimize=False,  # it would treat the 1e-9 that is added to a divisor as 0
            verbose=False,
        )
        assert program is not None
        optimizer.inline(program.model)
        optimizer.fold_constants(program.model)
        optimizer.remove_unused_nodes(program.model)
    model = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # paths of this machine
    return model


def _onnx_difference(content: bytes, graph: NetworkGraph) -> float:
    """Return the largest difference between the outputs of ONNX Runtime and of PyTorch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: value.numpy() for name, value in graph.inputs.items()})
    with torch.no_grad():
        expected = graph.module(*graph.inputs.values())
    if isinstance(expected, Tensor):
        expected = (expected,)
    return max(
        float((torch.as_tensor(a) - b).abs().max()) for a, b in zip(found, expected, strict=True)
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide messages of PyTorch's exporters about their own code."""
    logger: Any = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
