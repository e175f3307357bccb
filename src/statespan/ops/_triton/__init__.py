"""What the Triton kernels of several ops share."""
