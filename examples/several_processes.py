r"""Train a network without labels in several processes, on one machine or many.

Two processes here, a few seconds:

    torchrun --nproc-per-node 2 examples/several_processes.py

On several machines, start it on each of them, with the address of the first one and another
--node-rank on each:

    torchrun --nnodes 2 --nproc-per-node 4 --master-addr 10.0.0.1 --master-port 29400 \
        --node-rank 0 examples/several_processes.py

The UL layers use the clips of all processes: the result is that of one process with all clips.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from moving_blob import CLIP, CLIPS_PER_STEP, clips_of, make_network, moving_blob, score
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ullayers as ul

EPOCHS = 3


def main() -> None:
    dist.init_process_group("gloo")  # with GPUs: "nccl", and the network on torch.cuda
    torch.manual_seed(0)  # the same network in all processes
    frames, place = moving_blob()
    net = make_network()
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    clips = TensorDataset(clips_of(frames))
    # Each process has clips of its own.
    own: DistributedSampler[torch.Tensor] = DistributedSampler(clips, drop_last=True)
    loader = DataLoader(clips, CLIPS_PER_STEP // dist.get_world_size(), sampler=own, drop_last=True)
    for epoch in range(EPOCHS):
        own.set_epoch(epoch)
        for [some] in loader:
            optimizer.zero_grad()
            with ul.sequences(ddp, lengths=[CLIP] * len(some)):
                y = ddp(some.flatten(0, 1))
            ul.backward(y)
            optimizer.step()
    if dist.get_rank() == 0:
        print(ul.ul_layers(net)[0].health())
        print(f"R2 of the place: {score(net, frames, place):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
