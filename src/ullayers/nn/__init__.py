"""PyTorch modules: the UL layers and the modules used with them.

A call goes from `layers` (`UL1d`, `UL2d`) through `calls` (fresh statistics) or `running` (moving
averages) to a kernel. `statistics` holds the buffers, and `added_gradient` adds the gradient of J
in the backward pass, unless `loss` takes it. `distributed` sums statistics over processes.
"""
