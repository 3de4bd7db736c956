"""The engine's HTTP surface answers as engine_document.py says, whatever it is sent.

A real engine with a small random model, two ranks and the hierarchical cache. Routes that leave it
as it is come first; those that pause it or change its weights are a test of their own, and put it
back after each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.frontend.http_server import ROUTES
from tests.conformance.cases import FEW, MANY, SEED, Case, Sender, at_bounds, drawn, operations_of
from tests.conformance.engine_document import CHANGING, LEFT_OUT, SERVING, document
from tests.conformance.steering import HEADERS, loaded, steer
from tests.engine.conftest import cpu_ext_dir, smollm2_dir
from tests.engine.weights.checkpoints import write
from tests.fakes.engine_process import API_KEY, EngineProcess

__all__ = ["cpu_ext_dir", "smollm2_dir"]

pytestmark = [pytest.mark.process, pytest.mark.timeout(3600)]
OPERATIONS = ["op-1", "op-2"]
# No success without a trainer, this model's tensors, something attached, an operation that waits.
NEVER_WELL = {
    "POST /hicache/storage-backend/clear",
    "POST /destroy_weights_update_group",
    "POST /end_weight_update",
    "POST /operations/{op_id}/{act}",
    "POST /update_weights_from_distributed",
    "POST /update_weights_from_tensor",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    return write(tmp_path_factory.mktemp("model") / "small", 0, smollm2_dir)


@pytest.fixture(scope="module")
def engine(model: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    made = EngineProcess(model, cpu_ext_dir, api_key=API_KEY, served_model_name=model.name)
    made.command.append("--enable-hierarchical-cache")
    try:
        assert made.start().is_itself()
        for op_id in OPERATIONS:
            assert made.flush(op_id=op_id).status_code == 200
        yield made
    finally:
        made.stop()


@contextmanager
def sending(engine: EngineProcess) -> Iterator[Sender]:
    """Shown with a failure: the seed, and what the engine said. No process has ended meanwhile."""
    sender = Sender(HEADERS, steer)
    children = ("frontend", "rank 0", "rank 1")
    before = [engine.pids(child) for child in children]
    try:
        yield sender
        assert [engine.pids(child) for child in children] == before
        for words in ("request failed", "Traceback", "level='error'"):
            assert words not in engine.log()
        assert engine.is_itself()
    finally:
        sender.close()
        print(f"schemathesis seed {SEED}, {sender.total} requests\n", engine.log()[-5000:])


def put_back(engine: EngineProcess) -> None:
    """Neither paused nor without memory or weights, in no session, nothing attached."""
    engine.admin("POST", "/end_weight_update", json={"abort": True})
    engine.admin("POST", "/continue_generation", json={})
    engine.admin("POST", "/resume_memory_occupation", json={})
    if engine.admin("GET", "/server_info").json()["needs_weights"]:
        path = engine.command[engine.command.index("--model") + 1]
        given = {"model_path": path, "timeout": 60}
        assert engine.admin("POST", "/update_weights_from_disk", json=given).status_code == 200
    assert engine.admin("DELETE", "/hicache/storage-backend?timeout=60").status_code == 200
    engine.until_serving()


def send_all(
    engine: EngineProcess, model: Path, tag: str, subtests: pytest.Subtests, *, bounds: bool
) -> int:
    """Every operation of this tag; how many requests that were."""
    found = operations_of(loaded(engine.base, model, OPERATIONS))
    operations = [one for one in found if tag in (one.tags or ())]
    with sending(engine) as sender:
        for operation in operations:

            def send(case: Case) -> None:
                sender(case)
                if tag == CHANGING and sender.newest < 300:
                    put_back(engine)

            with subtests.test(operation.label):
                for case in at_bounds(operation) if bounds else ():
                    send(case)
                drawn(operation, MANY if bounds else FEW, send)
        assert not bounds or sender.never_well(operations) <= NEVER_WELL
    return sender.total


def test_a_few_requests_are_answered_as_documented(
    engine: EngineProcess, model: Path, subtests: pytest.Subtests
) -> None:
    assert send_all(engine, model, SERVING, subtests, bounds=False) >= 80


@pytest.mark.slow
def test_many_requests_are_answered_as_documented(
    engine: EngineProcess, model: Path, subtests: pytest.Subtests
) -> None:
    assert send_all(engine, model, SERVING, subtests, bounds=True) >= 1000


@pytest.mark.slow
def test_many_requests_that_change_the_engine_are_answered_as_documented(
    engine: EngineProcess, model: Path, subtests: pytest.Subtests
) -> None:
    assert send_all(engine, model, CHANGING, subtests, bounds=True) >= 600


def test_every_route_is_in_the_document_or_left_out() -> None:
    paths = {path.replace(":path}", "}") for path, *_ in ROUTES}
    assert document()["paths"].keys() | LEFT_OUT == paths
