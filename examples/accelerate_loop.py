"""Train a network without labels with Hugging Face Accelerate.

Run it with `python examples/accelerate_loop.py`, or `accelerate launch examples/accelerate_loop.py`
(`pip install accelerate`); it takes a few seconds.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from moving_blob import CLIP, CLIPS_PER_STEP, clips_of, make_network, moving_blob, score
from torch.utils.data import DataLoader, TensorDataset

import ullayers as ul

EPOCHS = 3


def main() -> None:
    torch.manual_seed(0)
    frames, place = moving_blob()
    accelerator = Accelerator()
    net = make_network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    clips = TensorDataset(clips_of(frames))
    loader = DataLoader(clips, CLIPS_PER_STEP, shuffle=True, drop_last=True)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in range(EPOCHS):
        for [some] in loader:
            optimizer.zero_grad()
            with ul.sequences(net, lengths=[CLIP] * len(some)):
                net(some.flatten(0, 1))
            accelerator.backward(ul.loss(net))
            optimizer.step()
        accelerator.print(ul.ul_layers(net)[0].health())
    trained = accelerator.unwrap_model(net).cpu()
    accelerator.print(f"R2 of the place: {score(trained, frames, place):.3f}")


if __name__ == "__main__":
    main()
