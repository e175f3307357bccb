"""The Triton kernels of S4's generating function."""
