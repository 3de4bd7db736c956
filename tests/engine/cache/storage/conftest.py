"""A bed for each backend; one that lacks its package says so and is skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.engine.cache.storage.beds import BEDS, CLOSING, VENDORS, Bed, NixlObjectsBed
from tests.fakes.waiting import PATIENCE_S


@pytest.fixture(scope="package", autouse=True)
def closed_in_the_end() -> Iterator[None]:
    """What a bed closes on the side has ended when the tests have."""
    yield
    NixlObjectsBed.end()
    for thread in CLOSING:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def _run(name: str, folder: Path) -> Iterator[Bed]:
    with pytest.MonkeyPatch.context() as patch:
        if BEDS[name].stands_in:
            patch.syspath_prepend(VENDORS)
        yield from _run_real(name, folder)


def _run_real(name: str, folder: Path) -> Iterator[Bed]:
    package = BEDS[name].needs
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"the optional package {package} is not installed")
    made = BEDS[name](folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _params(names: Iterable[str]) -> list[object]:
    return [
        pytest.param(name, marks=[pytest.mark.slow] if BEDS[name].is_slow else [])
        for name in sorted(names)
    ]


@pytest.fixture(params=_params(BEDS))
def bed(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Bed]:
    """A backend's test bed, its server running."""
    yield from _run(request.param, short_dir)


@pytest.fixture(params=_params(name for name, kind in BEDS.items() if kind.has_server))
def served(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Bed]:
    """One that has a server of its own."""
    yield from _run(request.param, short_dir)


@pytest.fixture(params=_params(name for name, kind in BEDS.items() if kind.keeps_after_close))
def keeping(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Bed]:
    """One whose pages outlive its clients."""
    yield from _run(request.param, short_dir)


@pytest.fixture(params=_params(name for name, kind in BEDS.items() if kind.can_be_damaged))
def fragile(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Bed]:
    """One whose pages a test can reach."""
    yield from _run(request.param, short_dir)


@pytest.fixture(params=_params(name for name, kind in BEDS.items() if kind.slots_when_full))
def small(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Bed]:
    """One that can be made small."""
    yield from _run(request.param, short_dir)
