"""The Triton kernels of layer normalization."""
