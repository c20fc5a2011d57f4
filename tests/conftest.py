from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

# A test must give the same verdict every time it runs; example counts are set where they matter.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("ULLAYERS_EXAMPLES", "60")),
)
settings.load_profile("repeatable")
torch.set_num_threads(1)
