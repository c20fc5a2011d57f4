"""Where learning stands, saved so that it can go on exactly. Tensors and JSON, no pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ullayers.errors import UserError
from ullayers.video.atomic_files import replacing, write_json

NAMES = ("a.safetensors", "b.safetensors")


class RunError(UserError):
    """A run folder cannot be used; the message is one line that says what to do."""


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes of this machine out of a folder; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # there are no such locks on Windows
        yield
        return
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:24]
    path = Path(tempfile.gettempdir(), f"ullayers-{os.getuid()}-{name}.lock")
    how = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # others may write there too
    with os.fdopen(os.open(path, how, 0o600), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(f"{folder}: another process is writing here; wait for it") from error
        yield


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    with replacing(path, "wb") as file:
        file.write(save({key: value.detach().cpu().contiguous() for key, value in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: is damaged or missing; learn again with --force") from error


def save_state(folder: Path, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    """Two files of tensors in turn, and a small one that says which of them is whole."""
    folder.mkdir(exist_ok=True)
    try:
        last = _read_rest(folder)["tensors"]
    except RunError:
        last = None
    name = NAMES[last == NAMES[0]]
    write_tensors(folder / name, tensors)
    write_json(folder / "state.json", {**rest, "tensors": name})


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_state` has saved."""
    rest = _read_rest(folder)
    return read_tensors(folder / str(rest["tensors"])), rest


def _read_rest(folder: Path) -> dict[str, Any]:
    try:
        rest: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if rest["tensors"] not in NAMES:
            raise ValueError(f"expected one of {NAMES}, got {rest['tensors']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder}: is damaged; start again with --force") from error
    return rest


def pack(prefix: str, net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """A network and its optimizer as named tensors."""
    tensors = {f"{prefix}net.{key}": value for key, value in net.state_dict().items()}
    for number, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):  # SGD's first momentum is None
                tensors[f"{prefix}optimizer.{number}.{key}"] = value
    return tensors


def unpack(
    prefix: str, tensors: Mapping[str, Tensor], net: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put what `pack` made back."""
    net.load_state_dict(below(tensors, f"{prefix}net."))
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in below(tensors, f"{prefix}optimizer.").items():
        number, name = key.split(".")
        state.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
