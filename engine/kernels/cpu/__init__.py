"""Kernels for a CPU: C++ compiled at first run, and torch operators where that cannot be done."""
