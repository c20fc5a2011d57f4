"""Kernels in plain PyTorch operations, for any shape and device."""
