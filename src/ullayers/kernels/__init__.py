"""The recurrence: W and B of a layer's outputs over time, and the gradient of J.

`schema` and `state` describe the statistics, `moments` the sums over one call, `covariance` the
solves, and `reference` is Eq. 6-11 as a plain loop. `torch`, `numba` and `triton` compute the same
on any device, on a CPU and on a GPU. `dispatch` chooses between them for each call, and
`custom_ops` exposes fresh statistics to `torch.compile`.
"""
