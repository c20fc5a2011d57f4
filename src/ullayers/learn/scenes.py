"""Scenes of still cameras stored in a run, for short clips of the same camera.

A short clip may show an object in the same place throughout, so its own median does not separate
the object from the scene. The scene of a longer recording does.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from ullayers.learn.checkpoint import RunError, read_tensors, write_tensors
from ullayers.locate.objects import ObjectPath
from ullayers.locate.recording import STILL_SIDE, StillRecording
from ullayers.locate.still import StillScene

SCENES_FILE = "scenes.safetensors"
KEYS = ("backdrop", "noise", "bands", "threshold", "clear")
MAX_SCENES = 16  # kept in a run, each of up to 2 MB
MAX_SCENE_PIXELS = 2**20


def keep_scene(folder: Path, name: str, recording: StillRecording) -> None:
    """Add the scene of a source to those of a run, up to a limit.

    Args:
        folder: Folder of the run.
        name: Name of the source.
        recording: From `open_recording`.
    """
    path = folder / SCENES_FILE
    tensors = _read(path)
    names = {key.rpartition("/")[0] for key in tensors}
    if name not in names and len(names) >= MAX_SCENES:
        return
    scene = recording.scene
    kept = {
        "backdrop": torch.from_numpy(scene.backdrop).round().byte(),
        "noise": torch.from_numpy(scene.noise).half(),
        "bands": torch.tensor(scene.bands),
        "threshold": torch.tensor(recording.threshold),
        "clear": torch.tensor(recording.path.clear),
    }
    write_tensors(path, tensors | {f"{name}/{key}": value for key, value in kept.items()})


def read_scenes(folder: Path) -> list[StillRecording]:
    """Return the scenes of a run, ready to find objects in frames of their size.

    Raises:
        RunError: The file is damaged.
    """
    path = folder / SCENES_FILE
    tensors = _read(path)
    names = sorted({key.rpartition("/")[0] for key in tensors})
    try:
        return [_recording(tensors, name) for name in names]
    except (KeyError, RuntimeError, ValueError) as error:
        raise _damaged(path) from error


def _read(path: Path) -> dict[str, Tensor]:
    if not os.path.lexists(path):
        return {}
    try:
        return read_tensors(path)
    except RunError as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> RunError:
    return RunError(f"{path}: is damaged; delete it (only short clips need it)")


def _recording(tensors: dict[str, Tensor], name: str) -> StillRecording:
    backdrop, noise, bands, threshold, clear = (tensors[f"{name}/{key}"] for key in KEYS)
    if backdrop.shape != (*noise.shape, 3) or not 0 < noise.numel() <= MAX_SCENE_PIXELS:
        limit = f"at most {MAX_SCENE_PIXELS} pixels"
        raise ValueError(f"expected a backdrop of {limit}, got {backdrop.shape}")
    if backdrop.dtype != torch.uint8 or noise.dtype != torch.float16:
        raise ValueError(f"expected uint8 and float16, got {backdrop.dtype} and {noise.dtype}")
    numbers = torch.stack([noise.min().float(), noise.max().float(), threshold, clear])
    if not bool((numbers.isfinite() & (numbers > 0)).all()):
        raise ValueError(f"expected finite, positive numbers, got {numbers.tolist()}")
    scene = StillScene(backdrop.float().numpy(), noise.float().numpy(), bool(bands))
    return StillRecording(scene, float(threshold), ObjectPath(STILL_SIDE, float(clear)))
