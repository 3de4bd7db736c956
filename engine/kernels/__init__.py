"""TODO(2): described when its first module lands."""
