"""Vendored files are what their manifest says; templates and modules keep to the strict policy."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
MODULES = sorted((ROOT / "static" / "js").iterdir())


@pytest.mark.parametrize("folder", ["static/vendor", "tests/vendor"])
def test_a_vendored_file_is_the_one_its_manifest_names(folder):
    base = ROOT / folder
    listed = json.loads((base / "manifest.json").read_text())
    for row in listed:
        data = (base / row["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["sha256"], row["file"]
        assert row["licence"] and row["version"] and row["package"]
    known = {row["file"] for row in listed}
    licences = {"LICENSES.md", "manifest.json"} | {path.name for path in base.glob("*LICENSE*")}
    assert {path.name for path in base.iterdir()} <= known | licences


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_no_inline_style_script_or_handler(path):
    text = path.read_text()
    assert not re.search(r"\sstyle=|\son[a-z]+=|hx-on|<style", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_evaluates_no_text(path):
    assert not re.search(r"\beval\(|new Function|javascript:", path.read_text())
