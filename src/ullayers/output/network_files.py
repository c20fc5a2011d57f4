"""The network of a run as an ONNX file or a torch.export program."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ullayers.errors import MissingPackageError
from ullayers.learn.network_graph import NetworkGraph, network_graph
from ullayers.learn.runs import Run
from ullayers.video.atomic_files import replacing

if TYPE_CHECKING:
    import onnx

TOLERANCE = 1e-4  # largest difference between PyTorch and ONNX Runtime


def write_onnx(run: Run, path: Path) -> None:
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


def write_torch_export(run: Run, path: Path) -> None:
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
