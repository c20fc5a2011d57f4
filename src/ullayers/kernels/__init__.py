"""W and B of a layer's outputs over time, and the gradient of J.

`schema` and `state` describe the statistics, `moments` the sums over one call, and `covariance` the
solves. `torch`, `numba` and `triton` compute the same on any device, on a CPU and on a GPU.
`dispatch` chooses one of them for each call, and `custom_ops` makes fresh statistics available to
`torch.compile`.
"""
