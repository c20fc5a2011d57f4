"""PyTorch modules: the UL layers and the modules used with them.

A call of a layer (`layers`) chooses a kernel, which computes statistics and the gradient of J.
`statistics` holds the buffers, and `added_gradient` adds the gradient in the backward pass, unless
`networks.loss` takes it. `networks` has the functions of whole networks. `distributed` sums
statistics over processes. `functional` has J as a plain function, for reading and comparing.
"""

from ullayers.nn import functional as functional
