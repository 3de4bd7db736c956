"""Storage backends from the engine's side: what is known of them, and taking in an attach.

Settings with their secrets go into a folder of the engine's own; everything that is sent, written
or shown from here on holds a view of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.cache.storage.base import StorageError
from engine.cache.storage.registry import layout_problem, problem_of
from engine.cache.storage.settings import SettingsFolder
from engine.config import EngineConfig
from engine.ipc.messages import ServingState
from engine.protocol import (
    AttachStorage,
    BackendView,
    CachePolicies,
    ClearStorage,
    DetachStorage,
    ErrorCode,
    Operation,
    ProtocolError,
    SetCachePolicies,
    StorageBackend,
    StorageRoot,
    StorageView,
)

NOT_ENABLED = "Hierarchical cache is not enabled."
NOTHING_ATTACHED = "no storage backend is attached"


class StorageAdmin:
    """One engine's. `desired` is what every rank is to have attached now."""

    def __init__(
        self, config: EngineConfig, states: Callable[[], list[ServingState]] = list
    ) -> None:
        """`states` are those that a rank may have to take: their settings are kept."""
        self._config = config
        own = (config.storage_dir, config.run_dir, config.weights_dir, config.ext_cache_dir)
        self._settings = SettingsFolder(
            Path(config.storage_dir),
            [Path(root) for root in config.storage_roots],
            config.storage_endpoints,
            own=[Path(folder) for folder in own if folder],
            in_use=lambda: {
                state.storage_backend.config_id for state in states() if state.storage_backend
            },
        )
        self._expected: dict[tuple[str, int], str] = {}
        self.backends = [
            BackendView(
                backend=backend,
                problem=problem_of(backend) or layout_problem(backend, config.host_layout),
            )
            for backend in StorageBackend
        ]
        self.roots = [
            StorageRoot(label=Path(root).name, path=root) for root in config.storage_roots
        ]

    # ---- an attach comes in ------------------------------------------------------------------

    def accept(self, operation: Operation, desired: ServingState) -> Operation:
        """The operation without secrets, its settings kept. Raises ProtocolError."""
        if not isinstance(operation, AttachStorage):
            return operation
        if not self._config.hierarchical:
            raise ProtocolError(ErrorCode.INVALID_ARGUMENT, NOT_ENABLED)
        try:
            view = self._view_for(operation, desired.storage_backend)
        except StorageError as error:
            raise ProtocolError(ErrorCode.INVALID_ARGUMENT, str(error)) from error
        return msgspec.structs.replace(
            operation,
            config=view.config,
            rank_configs=view.rank_configs,
            config_id=view.config_id,
            secrets="",
        )

    def _view_for(self, operation: AttachStorage, attached: StorageView | None) -> StorageView:
        backend = operation.backend
        is_same = attached is not None and attached.backend is backend
        if operation.config_id:
            if is_same and attached is not None and attached.config_id == operation.config_id:
                return attached
            return self._settings.view_of(backend, operation.config_id)
        if is_same and not (operation.config or operation.rank_configs or operation.secrets):
            assert attached is not None
            return attached  # policies only
        secrets = self._settings.secrets(operation.secrets) if operation.secrets else {}
        view = self._settings.keep(
            backend,
            operation.config,
            operation.rank_configs,
            dp_size=self._config.dp_size,
            secrets=secrets,
        )
        is_equal = attached is not None and attached.config_id == view.config_id
        return attached if is_equal and attached is not None else view

    def keep_secrets(self, name: str, values: Mapping[str, str]) -> dict[str, str]:
        """Values for an attach to come; returns their fingerprints. Raises ProtocolError."""
        try:
            return self._settings.keep_secrets(name, values)
        except StorageError as error:
            raise ProtocolError(ErrorCode.JOURNAL_UNAVAILABLE, str(error)) from error

    # ---- questions ---------------------------------------------------------------------------

    def expected_hash(self, view: StorageView | None, rank: int) -> str:
        """The hash of the settings that a rank should have; "" where that is not known."""
        if view is None:
            return ""
        known = self._expected.get((view.config_id, rank))
        if known is None:
            try:
                known = self._settings.read(view, rank)[1]
            except StorageError:
                known = ""  # the files are gone; the rank says so itself when it needs them
            self._expected[view.config_id, rank] = known
        return known

    def facts(self, desired: ServingState) -> dict[str, Any]:  # Any: fields of EngineState
        """What the engine's state says of its tiers."""
        return {
            "storage": desired.storage_backend,
            "policies": desired.policies,
            "hierarchical": self._config.hierarchical,
            "host_layout": self._config.host_layout,
            "storage_roots": self.roots,
            "backends": self.backends,
        }


def tiers_changed(
    config: EngineConfig,
    operation: AttachStorage | DetachStorage | ClearStorage | SetCachePolicies,
    old: ServingState,
) -> ServingState:
    """The state that an operation on the tiers leads to. Raises ProtocolError."""
    if not config.hierarchical:
        raise ProtocolError(ErrorCode.INVALID_ARGUMENT, NOT_ENABLED)
    replace = msgspec.structs.replace
    match operation:
        case AttachStorage():
            _refuse_other(operation, old.storage_backend)
            view = StorageView(
                backend=operation.backend,
                config=operation.config,
                rank_configs=operation.rank_configs,
                config_id=operation.config_id,
            )
            return replace(old, storage_backend=view, policies=_policies(operation, old))
        case DetachStorage():
            return replace(old, storage_backend=None)
        case ClearStorage():
            if old.storage_backend is None:
                raise ProtocolError(ErrorCode.INVALID_ARGUMENT, NOTHING_ATTACHED)
            return old
        case SetCachePolicies():
            return replace(old, policies=_policies(operation, old))


def _refuse_other(operation: AttachStorage, attached: StorageView | None) -> None:
    """SGLang records a changed config that it does not use; here it is refused."""
    if attached is None or operation.replace:
        return
    if attached.backend is not operation.backend:
        raise ProtocolError(
            ErrorCode.INVALID_ARGUMENT,
            f"HiCache storage backend is already enabled with backend '{attached.backend}'. "
            f"Cannot attach different backend '{operation.backend}'. Detach first.",
        )
    if attached.config_id != operation.config_id:
        raise ProtocolError(
            ErrorCode.INVALID_ARGUMENT,
            f"HiCache storage backend '{attached.backend}' is attached with other settings. "
            "Detach first, or leave the settings out to change policies only.",
        )


def _policies(operation: AttachStorage | SetCachePolicies, old: ServingState) -> CachePolicies:
    chosen = {"write_policy": operation.write_policy, "prefetch_policy": operation.prefetch_policy}
    return msgspec.structs.replace(
        old.policies, **{name: value for name, value in chosen.items() if value is not None}
    )
