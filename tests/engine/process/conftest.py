"""One engine with a small random model for the session; tests leave it idle and healthy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.weights.checkpoints import write
from tests.fakes.engine_process import EngineProcess


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    """Random weights under the real tokenizer: a step takes a tenth of the real model's."""
    return write(tmp_path_factory.mktemp("model") / "small", 0, smollm2_dir)


@pytest.fixture(scope="session")
def shared_engine(small_model: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    engine = EngineProcess(small_model, cpu_ext_dir)
    try:
        assert engine.start().is_itself()
        yield engine
    finally:
        engine.stop()


@pytest.fixture
def engine(shared_engine: EngineProcess, request: pytest.FixtureRequest) -> EngineProcess:
    """The shared engine, idle and with an empty cache."""
    shared_engine.until_serving()
    shared_engine.until_idle()
    shared_engine.flush(timeout=20)
    return shared_engine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """A failure shows the end of the engine's log."""
    report = yield
    made = getattr(item, "funcargs", {}).get("shared_engine")
    if report.failed and isinstance(made, EngineProcess):
        report.sections.append(("engine.log", made.log()[-5000:]))
    return report
