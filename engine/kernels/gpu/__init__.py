"""Triton kernels, each beside a torch reference in its test. Nothing here is imported on a CPU."""
