"""Scenes of still cameras that a run has seen, for short clips of the same camera.

A short clip may show an object at the same place throughout, so its own median does not tell the
object from the scene. The scene of a longer recording does.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ullayers.learn.checkpoint import RunError, read_tensors, write_tensors
from ullayers.locate.objects import ObjectPath
from ullayers.locate.recording import STILL_SIDE, StillRecording
from ullayers.locate.still import StillScene

SCENES_FILE = "scenes.safetensors"
MAX_SCENES = 16  # kept in a run, each of up to 2 MB


def keep_scene(folder: Path, name: str, recording: StillRecording) -> None:
    """Add the scene of a source to those of a run, unless there are many already.

    Args:
        folder: Folder of the run.
        name: Name of the source.
        recording: From `open_recording`.
    """
    path = folder / SCENES_FILE
    tensors = read_tensors(path) if path.exists() else {}
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
    if not path.exists():
        return []
    tensors = read_tensors(path)
    names = sorted({key.rpartition("/")[0] for key in tensors})
    try:
        return [_recording(tensors, name) for name in names]
    except (KeyError, RuntimeError, ValueError) as error:
        raise RunError(f"{path}: is damaged; learn again with --force") from error


def _recording(tensors: dict[str, Tensor], name: str) -> StillRecording:
    scene = StillScene(
        tensors[f"{name}/backdrop"].float().numpy(),
        tensors[f"{name}/noise"].float().numpy(),
        bool(tensors[f"{name}/bands"]),
    )
    if scene.backdrop.shape != (*scene.noise.shape, 3):
        raise ValueError(f"expected a backdrop of 3 channels, got {scene.backdrop.shape}")
    clear = float(tensors[f"{name}/clear"])
    return StillRecording(scene, float(tensors[f"{name}/threshold"]), ObjectPath(STILL_SIDE, clear))
