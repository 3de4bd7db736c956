"""Keys and anchors of a test's own."""

from __future__ import annotations

import pytest

from console.services.audit_key import key_make


@pytest.fixture(autouse=True)
def audit_files(settings, tmp_path):
    """As in a state folder of its own."""
    folder = tmp_path / "audit-state"
    folder.mkdir()
    settings.AUDIT_KEY_FILE = folder / "audit-key.pem"
    settings.AUDIT_ANCHORS_FILE = folder / "audit-anchors.jsonl"
    key_make()
    return folder
