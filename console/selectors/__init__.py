"""Reads: rows and live state, as pages and the API show them. Nothing here writes."""
