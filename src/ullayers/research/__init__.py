"""Data sets, baselines, experiments (`ul reproduce`) and benchmarks (`ul bench`)."""
