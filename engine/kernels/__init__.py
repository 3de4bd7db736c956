"""Numeric kernels, and how they are built. Knows tensors and pointers; no model, no request."""
