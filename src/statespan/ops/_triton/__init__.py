"""Code shared by the Triton kernels of several ops."""
