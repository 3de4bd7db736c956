"""Writes: keyword-only, one transaction each, with the audit entry in the same transaction."""
