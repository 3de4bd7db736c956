"""Which weights an engine serves when nothing was ever pushed to it, or when it starts anew.

What was pushed outlives a restart; what it was started with is what the folder holds now. From then
on every rank must hold just that: a folder that changes under a running engine changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.frontend.journal import Journal
from engine.frontend.journal_records import Adopted
from engine.ipc.messages import ServingState
from engine.protocol import WeightSource, WeightsView


def prepare_adoption(journal: Journal, config: EngineConfig) -> None:
    """At a start of the frontend: keep what is recorded, or wait for what the ranks will tell."""
    index = journal.index
    adopted = index.adopted
    if adopted is not None and adopted.launch == config.launch:
        return  # only the frontend started again
    same_base = adopted is not None and adopted.base_path == config.model_path
    was_pushed = index.desired.weights.source is not WeightSource.START
    if not (same_base and was_pushed) or config.forget_weights:
        index.awaits_adoption = True
        return
    kept = ServingState(
        weights=index.desired.weights,
        storage_backend=index.desired.storage_backend if config.hierarchical else None,
        policies=index.desired.policies,
    )
    _record(journal, config, kept)


def adopt(journal: Journal, config: EngineConfig, weights: WeightsView) -> None:
    """Record what a rank was started with, if that is awaited. Nothing while an operation is open:
    its end says what is desired, and would undo this."""
    index = journal.index
    if index.awaits_adoption and index.open is None:
        named = msgspec.structs.replace(
            weights,
            version=config.weight_version,
            path=config.model_path,
            label=shown(config.model_path, config.weights_roots),
        )
        desired = index.desired
        is_first = index.adopted is None
        kept = ServingState(
            weights=named,
            storage_backend=desired.storage_backend if config.hierarchical else None,
            policies=config.policies if is_first else desired.policies,
        )
        _record(journal, config, kept)


def _record(journal: Journal, config: EngineConfig, desired: ServingState) -> None:
    journal.append(Adopted(desired=desired, launch=config.launch, base_path=config.model_path))


def shown(path: str, roots: Sequence[str]) -> str:
    """root:folder where it lies under a root, else its own name: never an absolute path."""
    for root in roots:
        if Path(path).is_relative_to(root):
            return f"{Path(root).name}:{Path(path).relative_to(root)}"
    return Path(path).name
