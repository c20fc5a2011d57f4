"""Kernels in loops that numba compiles, for a CPU. Modules named `*_loops` need numba."""
