"""W and B of a layer's outputs over time, and the gradient of J.

`dispatch` chooses a kernel for a call with fresh statistics, and `moments` holds what all of them
share: settings, sums over the frames of a call, and the derivatives of J. The same kernel exists in
`torch` (any shape and device), `numba` (maps on a CPU) and `triton` (a GPU). `torch.running` has
running statistics (Eq. 6-11). `frames` arranges clips, and `custom_ops` makes fresh statistics
available to `torch.compile`.
"""
