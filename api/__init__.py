"""The REST API under /api/v1: parse, one service or selector, render."""
