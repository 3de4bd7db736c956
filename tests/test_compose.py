"""docker-compose.yml: it keeps to the Compose schema, and what it names is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.fakes.compose import FILE, Missing, image_files, interpolated, load, variables

ROOT = Path(__file__).parents[1]
SECRETS = ("QUIESCE_SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "QUIESCE_ADMIN_API_KEY")
ENV = {name: f"test-{name.lower()}" for name in SECRETS}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "tests" / "vendor" / "compose-spec.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load(ENV)["services"]
    return found


def test_it_keeps_to_the_schema(validator: jsonschema.Draft202012Validator) -> None:
    assert [error.message for error in validator.iter_errors(load(ENV))] == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("restart: unless-stopped", "restarts: unless-stopped"),
        ("condition: service_healthy", "condition: healthy"),
        ("    ports:", "    port:"),
        ("services:", "service:"),
    ],
)
def test_the_schema_finds_a_slip(
    validator: jsonschema.Draft202012Validator, before: str, after: str
) -> None:
    text = FILE.read_text()
    assert before in text
    assert list(validator.iter_errors(load(ENV, text.replace(before, after, 1))))


@pytest.mark.parametrize("name", SECRETS)
def test_each_secret_is_demanded_by_its_name(name: str) -> None:
    for env in ({**ENV, name: ""}, {key: ENV[key] for key in SECRETS if key != name}):
        with pytest.raises(Missing, match=f"set {name} in .env"):
            load(env)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$$x", "$x"),
        ("a${V}b$V", "avbv"),
        ("${NONE:-d}${EMPTY:-d}${EMPTY-d}", "dd"),
        ("${NONE}", ""),
        ("${V:?no}", "v"),
    ],
)
def test_variables_are_resolved_as_compose_does(text: str, value: str) -> None:
    assert interpolated(text, {"V": "v", "EMPTY": ""}) == value


def test_what_a_service_names_is_there(services: dict[str, dict[str, Any]]) -> None:
    volumes = set(load(ENV)["volumes"])
    used = set()
    for name, service in services.items():
        for mount in service.get("volumes", []):
            volume, path = mount.split(":")
            assert path.startswith("/"), name
            used.add(volume)
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services, f"{name} depends on {needed}"
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed], f"{name} waits for {needed} to be healthy"
    assert used == volumes


def test_only_this_host_is_let_in(services: dict[str, dict[str, Any]]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []


def test_images_are_built_here_or_have_a_version(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        if "build" in service:
            assert service["image"] == "quiesce", name
            assert (ROOT / service["build"] / "Dockerfile").is_file()
        else:
            assert re.fullmatch(r"[\w/.-]+:\d[\w.]*", service["image"]), name


def test_each_variable_is_explained() -> None:
    """In .env.example, where it is copied from."""
    text = (ROOT / ".env.example").read_text()
    assert [name for name in sorted(variables()) if f"\n{name}=" not in text] == []


def test_the_image_holds_what_its_commands_need() -> None:
    assert [name for name in image_files() if not (ROOT / name).exists()] == []
