"""What FakeEngine's ranks keep in L2 and L3: backends, their secrets, policies, counters."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field

import msgspec

from engine.protocol import (
    AttachStorage,
    BackendView,
    Breaker,
    CachePolicies,
    ClearStorage,
    DetachStorage,
    HostLayout,
    HostUsage,
    KeepSecrets,
    Operation,
    RankStorage,
    SecretsKept,
    SetCachePolicies,
    StorageBackend,
    StorageRoot,
    StorageView,
    secrets_of,
)

STORAGE_OPERATIONS = (AttachStorage, DetachStorage, ClearStorage, SetCachePolicies)
PAGE_BYTES = 1 << 20


@dataclass
class FakeStorage:
    """State and script; FakeEngine asks it under its lock."""

    dp_size: int
    prepare_s: float = 0.0  # how long opening and probing takes
    refuse_ranks: dict[int, str] = field(default_factory=dict)  # these refuse at prepare, and why
    fail_reasons: dict[int, str] = field(default_factory=dict)  # what FakeEngine.fail_ranks say
    refuse_secrets: str = ""
    hierarchical: bool = True
    problems: dict[StorageBackend, str] = field(
        default_factory=lambda: {StorageBackend.EIC: "the package eic is not installed"}
    )
    attached: StorageView | None = None
    before: StorageView | None = None
    policies: CachePolicies = field(default_factory=CachePolicies)
    policies_before: CachePolicies = field(default_factory=CachePolicies)
    breakers: dict[int, Breaker] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    drifting: set[int] = field(default_factory=set)
    hit_rate: float | None = 0.23
    cleared: int = 0
    kept: dict[str, dict[str, str]] = field(default_factory=dict)
    known: dict[str, StorageView] = field(default_factory=dict)  # by config_id
    values: dict[str, dict[str, str]] = field(default_factory=dict)  # its secrets, by config_id
    key: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def __post_init__(self) -> None:
        self.ranks: list[StorageView | None] = [None] * self.dp_size

    # -- secrets --------------------------------------------------------------------------------
    def fingerprint(self, value: str) -> str:
        return f"hmac:{hmac.new(self.key, value.encode(), 'sha256').hexdigest()[:16]}"

    def keep(self, command: KeepSecrets) -> SecretsKept:
        self.kept[command.name] = dict(command.values)
        return SecretsKept(
            name=command.name,
            fingerprints={name: self.fingerprint(v) for name, v in command.values.items()},
        )

    # -- operations -----------------------------------------------------------------------------
    def is_at_once(self, operation: Operation) -> bool:
        forced = isinstance(operation, DetachStorage) and operation.force
        return forced or isinstance(operation, SetCachePolicies)

    def refusal(self, operation: Operation) -> str | None:
        """Why an operation is refused at once."""
        if isinstance(operation, ClearStorage) and self.attached is None:
            return "nothing is attached, so there is nothing to clear"
        if not isinstance(operation, AttachStorage):
            return None
        if not self.hierarchical:
            return "the hierarchical cache is off"
        if why := self.problems.get(operation.backend):
            return f"{operation.backend}: {why}"
        if operation.secrets and operation.secrets not in self.kept:
            return f"no secrets are kept as {operation.secrets}"
        if operation.config_id and operation.config_id not in self.known:
            return f"no settings are known as {operation.config_id}"
        wanted, now = self.view_of(operation), self.attached
        if now is not None and now.config_id != wanted.config_id and not operation.replace:
            return f"{now.backend} is attached; detach it first, or set replace"
        return None

    def view_of(self, operation: AttachStorage) -> StorageView:
        if operation.config_id:
            return self.known[operation.config_id]
        names_none = not (operation.config or operation.rank_configs or operation.secrets)
        if names_none and self.attached is not None and self.attached.backend == operation.backend:
            return self.attached  # policies only
        values = self.kept.get(operation.secrets, {})
        configs = {"": operation.config, **operation.rank_configs}
        shown: dict[str, str] = {}
        for rank, text in configs.items():
            settings = json.loads(text or "{}")
            assert not secrets_of(operation.backend) & {n for n, v in settings.items() if v}
            prefix = f"{rank}." if rank else ""
            own = {n: v for n, v in values.items() if n.rpartition(".")[0] == rank}
            for name, value in own.items():
                settings[name.removeprefix(prefix)] = self.fingerprint(value)
            shown[rank] = json.dumps(settings, sort_keys=True) if own else text
        whole = json.dumps([operation.backend, shown, sorted(values.items())])
        config_id = hashlib.sha256(whole.encode()).hexdigest()[:16]
        self.values[config_id] = values
        view = StorageView(
            backend=operation.backend,
            config=shown.pop(""),
            rank_configs=shown,
            config_id=config_id,
        )
        self.known[config_id] = view
        return view

    def begin(self) -> None:
        """Whatever comes of it, this was before."""
        self.before, self.policies_before = self.attached, self.policies

    def commit(self, operation: Operation, fail_ranks: set[int]) -> None:
        """What was asked for, but on `fail_ranks`, which keep what they had."""
        match operation:
            case AttachStorage():
                self.attached = self.view_of(operation)
                self._policies(operation.prefetch_policy, operation.write_policy)
            case DetachStorage():
                self.attached = None
            case ClearStorage():
                self.cleared += 1
            case SetCachePolicies():
                self._policies(operation.prefetch_policy, operation.write_policy)
            case _:
                return
        self.ranks = [
            old if rank in fail_ranks else self.attached for rank, old in enumerate(self.ranks)
        ]

    def _policies(self, prefetch: object, write: object) -> None:
        self.policies = CachePolicies(
            prefetch_policy=prefetch or self.policies.prefetch_policy,  # type: ignore[arg-type]
            write_policy=write or self.policies.write_policy,  # type: ignore[arg-type]
        )

    def facts(self, operation: Operation) -> dict[str, object]:
        """Before and after, for the result of an operation that could change them."""
        if not isinstance(operation, STORAGE_OPERATIONS):
            return {}
        return {
            "storage": self.attached,
            "storage_before": self.before,
            "policies": self.policies,
            "policies_before": self.policies_before,
        }

    # -- views ----------------------------------------------------------------------------------
    def look(self) -> object:
        """What must be told at once when it changes."""
        return (
            self.attached,
            self.policies,
            tuple(self.ranks),
            tuple(self.breakers.items()),
            tuple(self.drifting),
        )

    def backends(self) -> list[BackendView]:
        return [
            BackendView(backend=one, problem=self.problems.get(one, "")) for one in StorageBackend
        ]

    def roots(self) -> list[StorageRoot]:
        return [StorageRoot(label="kv", path="/srv/kv")]

    def host(self) -> HostUsage | None:
        if not self.hierarchical:
            return None
        return HostUsage(
            total_pages=400,
            free_pages=220,
            evictable_pages=170,
            locked_pages=10,
            held_pages=0,
            page_bytes=PAGE_BYTES,
            layout=HostLayout.PAGE_FIRST,
        )

    def rank(self, rank: int) -> RankStorage | None:
        """What one rank says of its backend."""
        view = self.ranks[rank]
        if view is None:
            return None
        breaker = self.breakers.get(rank, Breaker.CLOSED)
        is_open = breaker is Breaker.OPEN
        error = self.errors.get(rank, "")
        return RankStorage(
            backend=view.backend,
            config_id=view.config_id,
            config_hash=hashlib.sha256(
                f"{view.config_id}{view.rank_configs.get(str(rank), '')}"
                f"{rank if rank in self.drifting else ''}".encode()
            ).hexdigest()[:16],
            breaker=breaker,
            retry_in_s=8.0 if is_open else None,
            hit_pages=230,
            miss_pages=770,
            corrupt_pages=1 if error else 0,
            read_bytes=230 * PAGE_BYTES,
            written_pages=900,
            written_bytes=900 * PAGE_BYTES,
            dropped_pages=61 if is_open else 0,
            errors=61 if error else 0,
            last_error=error,
            last_error_age_s=22.0 if error else None,
            hit_rate=0.0 if is_open else self.hit_rate,
            read_bytes_per_s=0.0 if is_open else 171e6,
            write_bytes_per_s=0.0 if is_open else 70e6,
            stored_pages=900,
            used_bytes=900 * PAGE_BYTES,
            capacity_bytes=8192 * PAGE_BYTES,
            drifts=rank in self.drifting,
        )

    def rank_result(self, rank: int) -> str:
        """What a rank says of its part that failed."""
        return self.refuse_ranks.get(rank) or self.fail_reasons.get(rank, "")

    def restarted(self) -> None:
        """Kept secrets are memory; settings that were attached once are on disk."""
        self.kept.clear()


def replace(view: StorageView, **changes: object) -> StorageView:
    return msgspec.structs.replace(view, **changes)
