"""The console's REST API answers as its OpenAPI document says, whatever it is sent.

Each operation is sent generated requests by an admin, over HTTP, with the real database and Valkey
behind it: no 5xx, no status, content type or body that the document does not have, and nothing
accepted that it forbids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import schemathesis

from tests.conformance.cases import FEW, MANY, SEED, Sender, at_bounds, drawn, operations_of
from tests.conformance.known import API, Known, console
from tests.fakes.postgres import postgres, postgres_bin

pytestmark = [pytest.mark.process, pytest.mark.timeout(3600)]


@pytest.fixture
def known(database: str, request: pytest.FixtureRequest) -> Iterator[Known]:
    is_whole = request.node.get_closest_marker("slow") is not None
    with ExitStack() as ends:
        url = ""
        if database == "postgresql":
            folder = postgres_bin()
            if folder is None:
                pytest.skip("PostgreSQL is not installed")
            url = ends.enter_context(postgres(folder))
        yield ends.enter_context(console(url, is_whole=is_whole))


@contextmanager
def sending(known: Known) -> Iterator[Sender]:
    """Shown with a failure: the seed, and what the console said. A fault that it met is one."""
    sender = Sender(known.headers, known.steer)
    try:
        yield sender
        assert "request failed" not in known.stack.log("web")
    finally:
        sender.close()
        print(
            f"schemathesis seed {SEED}, {sender.total} requests\n", known.stack.log("web")[-9000:]
        )


def document_of(known: Known) -> schemathesis.BaseSchema:
    """As the console serves it."""
    url = f"{known.stack.url}{API}/openapi.json"
    return schemathesis.openapi.from_url(url, headers=known.headers, config=known.config())


@pytest.mark.parametrize(
    ("database", "each", "least"),
    [
        ("sqlite", FEW, 170),
        pytest.param("sqlite", MANY, 1700, marks=pytest.mark.slow),
        pytest.param("postgresql", MANY, 1700, marks=pytest.mark.slow),
    ],
)
def test_requests_at_random_are_answered_as_documented(
    known: Known, each: int, least: int, subtests: pytest.Subtests
) -> None:
    operations = operations_of(document_of(known))
    with sending(known) as sender:
        for operation in operations:
            with subtests.test(operation.label):
                drawn(operation, each, sender)
        assert sender.total >= least
        assert each < MANY or not sender.never_well(operations)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"])
def test_requests_at_every_bound_are_answered_as_documented(
    known: Known, subtests: pytest.Subtests
) -> None:
    with sending(known) as sender:
        for operation in operations_of(document_of(known)):
            with subtests.test(operation.label):
                for case in at_bounds(operation):
                    sender(case)
        assert sender.total >= 3000
