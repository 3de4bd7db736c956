"""Requests generated from an OpenAPI document, each sent, and its answer held against the document.

Two kinds: at the bounds of every parameter and field, one by one; and drawn at random, half of them
as the document allows, half not. Who calls says what is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any  # a body is any JSON; an operation's type parameters are schemathesis's

import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, BaseSchema, Case, Config, GenerationMode, checks
from schemathesis.generation.drivers import CoverageGenerator
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.generation.overrides import Override

SEED = 20261130
FEW, MANY = 6, 60  # cases of one operation that are drawn
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
    checks.missing_required_header,
    checks.unsupported_method,
    checks.allow_header_conformance,
    checks.ignored_auth,
]  # not positive_data_acceptance: what a document cannot say (a name is taken) is refused too
Operation = APIOperation[Any, Any, Any, Any]
Words = dict[str, list[Any]]  # by parameter, as `path.name`: values that mean something
Steer = Callable[[Case], bool]


def config_of(base_url: str, words: Words, elsewhere: dict[str, Words]) -> Config:
    """`words` are used for most cases; those `elsewhere` in one operation (`POST /jobs`)."""
    named = {f"all {key}": values for key, values in words.items()}
    special = []
    for label, own in elsewhere.items():
        named |= {f"{label} {key}": values for key, values in own.items()}
        bound = {key: _bound(f"{label} {key}") for key in own}
        special.append({"include-name": label, "parameters": bound})
    return Config.from_dict(
        {
            "seed": SEED,
            "base-url": base_url,
            "request-timeout": 600,
            "warnings": False,
            "output": {"sanitization": {"enabled": False}},  # a failure's curl line can be run
            "generation": {"with-security-parameters": False},  # each request has its token
            "dictionaries": {name: {"values": values} for name, values in named.items()},
            "parameters": {key: _bound(f"all {key}") for key in words},
            "operations": special,
        }
    )


def _bound(name: str) -> dict[str, object]:
    return {"dictionary": name, "probability": 0.7}


class Sender:
    """Sends cases on one connection and counts the answers of each operation by status."""

    def __init__(self, headers: dict[str, str], steer: Steer) -> None:
        """`steer` may change a case; False leaves it out."""
        self._headers, self._steer = headers, steer
        self._session = requests.Session()
        self.seen: Counter[tuple[str, int]] = Counter()
        self.newest = 0  # status

    def __call__(self, case: Case) -> None:
        """Raises FailureGroup with a curl line when the answer is not as documented."""
        if isinstance(case.body, dict | list) and is_good(case):
            case.body = whole(case.body)
        if not self._steer(case):
            return
        response = case.call(session=self._session, headers=self._headers)
        self.newest = response.status_code
        self.seen[case.operation.label, self.newest] += 1
        case.validate_response(
            response,
            CHECKS,
            headers=self._headers,
            transport_kwargs={"session": self._session, "headers": self._headers},
        )

    def close(self) -> None:
        self._session.close()

    @property
    def total(self) -> int:
        return sum(self.seen.values())

    def never_well(self, operations: list[Operation]) -> set[str]:
        """Those of which no request was answered with success."""
        well = {label for label, status in self.seen if status < 300}
        return {operation.label for operation in operations} - well


def is_good(case: Case) -> bool:
    """Drawn as the document allows."""
    return case.meta is not None and case.meta.generation.mode.is_positive


def whole(value: Any) -> Any:
    """JSON schema takes 3.0 for an integer; strict readers do not, and refuse it."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def operations_of(document: BaseSchema) -> list[Operation]:
    """In the document's order."""
    return [found.ok() for found in document.get_all_operations()]


def at_bounds(operation: Operation) -> Iterator[Case]:
    """Each parameter and field at its least, its most and beyond, missing, of another type; other
    methods and media types. The same requests each time."""
    generation = operation.schema.config.generation_for(operation=operation, phase="coverage")
    return iter(
        CoverageGenerator(
            operation=operation,
            generation_modes=list(GenerationMode),
            generation_config=generation,
            auth_storage=None,
            override=Override(),
            feedback=FeedbackSources(),
        )
    )


def drawn(operation: Operation, count: int, send: Callable[[Case], None]) -> None:
    """Up to so many cases at random: fewer where the operation has no more."""
    kinds = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

    @seed(SEED)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(kinds))
    def each(case: Case) -> None:
        send(case)

    each()
