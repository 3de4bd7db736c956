"""Documents that must agree with the code: the protocol pages, settings, routes, words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def read(path: str) -> str:
    return (ROOT / path).read_text()


def test_the_protocol_pages_are_generated_from_the_structs() -> None:
    sys.path.insert(0, str(ROOT / "bin" / "lib"))
    try:
        import protocol_docs

        for path, content in protocol_docs.files().items():
            assert read(path) == content, f"run bin/lib/protocol_docs.py: {path} is stale"
    finally:
        sys.path.remove(str(ROOT / "bin" / "lib"))


def test_every_setting_of_the_console_is_documented() -> None:
    named = set(
        re.findall(r'"(QUIESCE_[A-Z_]+|DATABASE_URL|REDIS_URL)"', read("console/project/env.py"))
    )
    documented = read(".env.example")
    missing = [name for name in sorted(named) if name not in documented]
    assert named
    assert not missing


def test_every_option_of_bin_run_is_in_the_readme_or_its_help() -> None:
    options = set(re.findall(r'add\(\s*"(--[a-z-]+)"', read("bin/lib/options.py")))
    text = read("README.md")
    assert len(options) >= 8
    assert [option for option in sorted(options) if option not in text] == []


def test_every_engine_route_is_documented() -> None:
    from engine.frontend.http_server import ROUTES

    text = read("docs/engine-http.md")
    assert [path for path, *_ in ROUTES if f"`{path}`" not in text] == []


def test_every_place_mode_and_outcome_is_explained() -> None:
    from engine.protocol import PLACES, Mode, Outcome, RankState

    text = read("docs/operation-protocol.md") + read("docs/glossary.md")
    words = [*PLACES, *Mode, *Outcome, *RankState]
    assert [str(word) for word in words if f"`{word}`" not in text] == []


@pytest.mark.parametrize("command", [[], ["serve"], ["load"], ["convert"], ["demo-checkpoint"]])
def test_each_command_has_help(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine", *command, "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert "usage:" in done.stdout


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
        for target in re.findall(r"`(docs/[\w./-]+\.(?:md|json|png))`", page.read_text()):
            assert (ROOT / target).exists(), f"{page.name} names {target}"
