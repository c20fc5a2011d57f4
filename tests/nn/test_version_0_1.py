"""Statistics saved by version 0.1.0 load into today's layers, which continue as 0.1.0 did.

Each file in `version_0_1` holds the settings of a layer, its state_dict after some frames, more
frames, and what version 0.1.0 computed from these.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import ullayers as ul

RECORDS = sorted((Path(__file__).parent / "version_0_1").glob("*.json"))


def read(path: Path) -> tuple[ul.UL1d | ul.UL2d, dict[str, Any]]:
    """Return a layer of today with the recorded statistics, and the record."""
    record = json.loads(path.read_text())
    settings = record["settings"]
    layer_class = {"UL1d": ul.UL1d, "UL2d": ul.UL2d}[settings.pop("kind")]
    layer = layer_class(settings.pop("features"), statistics="running", **settings)
    kinds = {name: buffer.dtype for name, buffer in layer.state_dict().items()}
    saved = {name: torch.tensor(v, dtype=kinds[name]) for name, v in record["state"].items()}
    layer.load_state_dict(saved)
    return layer, record


def test_all_kinds_of_layer_were_recorded() -> None:
    assert {path.stem for path in RECORDS} == {
        "UL1d_stream",
        "UL1d_two_streams",
        "UL1d_paper",
        "UL1d_clips",
        "UL2d_stream",
        "UL2d_clips",
    }


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_layers_continue_as_version_0_1_did(path: Path) -> None:
    layer, record = read(path)
    frames = torch.tensor(record["frames"]).view(record["shape"]).requires_grad_()
    clips: AbstractContextManager[Any] = nullcontext()
    if record["lengths"] is not None:
        clips = ul.sequences(layer, record["lengths"])
    with clips:
        output = layer(frames)
    assert torch.equal(output, frames)
    ul.backward(output)
    assert frames.grad is not None
    torch.testing.assert_close(frames.grad.flatten(), torch.tensor(record["gradient"]))
    for name in ("short_cov", "long_cov", "short_mean", "steps"):
        torch.testing.assert_close(getattr(layer, name), torch.tensor(record[name]))
