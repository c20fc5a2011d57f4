"""The section of the report with the kernels and responses of the network's layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ullayers.output.pictures as pictures

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
Section = dict[str, Any]

MAX_LAYERS = 6  # shown on the page


def layers_section(
    kernels: Mapping[str, Floats], maps: Mapping[str, Floats], picture: Pixels | None
) -> Section | None:
    """Prepare the section of the layers; None if there is nothing to show.

    Args:
        kernels: Kernels of each layer, (outputs, inputs, height, width).
        maps: Responses of each layer, (channels, height, width).
        picture: The frame that the layers responded to; None for none.
    """
    kernels = {name: array for name, array in kernels.items() if array.size}
    maps = {name: array for name, array in maps.items() if array.size}
    names = list(dict.fromkeys([*kernels, *maps]))
    if not names:
        return None
    frame = picture if maps else None
    return {
        "frame": None if frame is None else pictures.photograph(pictures.fit_width(frame)),
        "has_kernels": bool(kernels),
        "has_maps": bool(maps),
        "layers": [_layer(name, kernels, maps) for name in names[:MAX_LAYERS]],
        "left_out": max(0, len(names) - MAX_LAYERS),
    }


def _layer(name: str, kernels: Mapping[str, Floats], maps: Mapping[str, Floats]) -> Section:
    layer: Section = {"name": name, "kernels": None, "maps": None}
    if name in kernels:
        layer["kernels"] = pictures.kernel_sheet(kernels[name])
        layer["kernels_caption"] = f"kernels: {_describe_kernels(kernels[name])}"
    if name in maps:
        layer["maps"] = pictures.map_sheet(maps[name])
        layer["maps_caption"] = f"responses: {_count(len(maps[name]), 'channel')}"
    return layer


def _describe_kernels(kernels: Floats) -> str:
    outputs = _count(kernels.shape[0], "output")
    inputs = _count(kernels.shape[1], "input")
    if 1 in kernels.shape[:2]:
        return f"{outputs}, {inputs}"
    if kernels.shape[0] < kernels.shape[1]:
        return f"{inputs} across, {outputs} down"
    return f"{outputs} across, {inputs} down"


def _count(total: int, noun: str) -> str:
    most = pictures.MAX_CHANNELS
    number = f"{most} of {total}" if total > most else str(total)
    return f"{number} {noun}" if total == 1 else f"{number} {noun}s"
