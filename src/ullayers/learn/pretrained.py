"""`from_pretrained`: the network of a run, without the rest of it."""

from __future__ import annotations

import os

from ullayers.learn.models import Model
from ullayers.learn.runs import load_run


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
        >>> from ullayers.video.scene import write_scene
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
    run = load_run(folder, device)
    _ = run.outcome  # raises an error if training has not finished
    assert run.net is not None
    return run.net
