"""Checkpoints from which training resumes exactly, as tensors and JSON without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ullayers.errors import RunError
from ullayers.files import open_regular, read_json, replacing, write_json

TENSOR_FILES = ("a.safetensors", "b.safetensors")
STATE_FILE = "state.json"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    contiguous = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    with replacing(path, "wb") as file:
        file.write(save(contiguous))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        RunError: The file is damaged or missing.
    """
    try:
        open_regular(path).close()
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(f"{path}: is damaged or missing; learn again with --force") from error


def save_state(folder: Path, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    """Save a checkpoint.

    Tensors are written to two files alternately; a small JSON file, written last, names the
    complete one.

    Args:
        folder: Folder of the checkpoint.
        tensors: Named tensors.
        rest: All other state, as JSON values.
    """
    folder.mkdir(exist_ok=True)
    try:
        last = _read_rest(folder)["tensors"]
    except RunError:
        last = None
    name = TENSOR_FILES[last == TENSOR_FILES[0]]
    write_tensors(folder / name, tensors)
    write_json(folder / STATE_FILE, {**rest, "tensors": name})


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load what `save_state` saved.

    Returns:
        The tensors and the other values, whose types are not checked.

    Raises:
        RunError: A file is damaged or missing.
    """
    rest = _read_rest(folder)
    return read_tensors(folder / str(rest.pop("tensors"))), rest


def _read_rest(folder: Path) -> dict[str, Any]:
    try:
        rest: dict[str, Any] = read_json(folder / STATE_FILE)
        if rest["tensors"] not in TENSOR_FILES:
            raise ValueError(f"expected one of {TENSOR_FILES}, got {rest['tensors']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder}: is damaged; start again with --force") from error
    return rest


def pack(prefix: str, net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return a network and its optimizer as named tensors."""
    tensors = {f"{prefix}net.{key}": value for key, value in net.state_dict().items()}
    for number, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):  # the momentum of SGD is None before the first step
                tensors[f"{prefix}optimizer.{number}.{key}"] = value
    return tensors


def unpack(
    prefix: str, tensors: Mapping[str, Tensor], net: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load what `pack` returned into a network and its optimizer."""
    net.load_state_dict(below(tensors, f"{prefix}net."))
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in below(tensors, f"{prefix}optimizer.").items():
        number, name = key.split(".")
        state.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without that prefix."""
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }
