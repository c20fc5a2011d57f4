"""Kernels in Triton, for a GPU. Modules named `*_kernels` need Triton."""
