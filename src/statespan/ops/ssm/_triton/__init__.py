"""The Triton kernels of the chunk engine."""
