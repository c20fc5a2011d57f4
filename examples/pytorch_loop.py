"""Train a network without labels in a plain PyTorch loop, from a loader of clips.

Run it with `python examples/pytorch_loop.py`; it takes a few seconds.
"""

from __future__ import annotations

import torch
from moving_blob import CLIP, CLIPS_PER_STEP, clips_of, make_network, moving_blob, score
from torch.utils.data import DataLoader, TensorDataset

import ullayers as ul

EPOCHS = 3


def main() -> None:
    torch.manual_seed(0)
    frames, place = moving_blob()
    net = make_network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    # Clips may be shuffled, the frames of a clip must not be.
    clips = TensorDataset(clips_of(frames))
    loader = DataLoader(clips, CLIPS_PER_STEP, shuffle=True, drop_last=True)
    for _ in range(EPOCHS):
        for [some] in loader:
            optimizer.zero_grad()
            with ul.sequences(net, lengths=[CLIP] * len(some)):
                y = net(some.flatten(0, 1))
            ul.backward(y)
            optimizer.step()
        print(ul.ul_layers(net)[0].health())
    print(f"R2 of the place: {score(net, frames, place):.3f}")


if __name__ == "__main__":
    main()
