"""Runs batches on a device: the only part of a rank that touches tensors."""
