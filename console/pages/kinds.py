"""The words of each kind of job: its name in a list, its title, what it does to a rank, its class.

The only table of them: lists, the job's page, the pending panel and the palette all read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from console.choices import WEIGHT_UPDATES, JobKind
from console.models import Job
from engine.protocol import OperationKind


@dataclass(frozen=True)
class KindWords:
    """`name` in lists; `title` before the engine's name; `done` of a rank; `commit` of a step."""

    name: str
    title: str
    done: str
    commit: str
    icon: str
    class_word: str
    undo: str

    @property
    def is_typed(self) -> bool:
        """From class C up the engine's name is typed to confirm."""
        return self.class_word in ("C", "D")


_TEXT: Mapping[JobKind, KindWords] = MappingProxyType(
    {
        JobKind.FLUSH_CACHE: KindWords(
            *("Flush", "Flush", "flushed", "reset cache and pools", "droplet-off"),
            class_word="C",
            undo="cannot be undone",
        ),
        JobKind.UPDATE_WEIGHTS_FROM_DISK: KindWords(
            *("Weights from disk", "Update weights of", "updated", "swap, version, flush"),
            icon="versions",
            class_word="C",
            undo="undone until the last rank commits; later by a return",
        ),
        JobKind.UPDATE_WEIGHTS_FROM_TENSOR: KindWords(
            *("Weights from files", "Update weights of", "updated", "swap, version, flush"),
            icon="upload",
            class_word="C",
            undo="undone until the last rank commits; later by a return",
        ),
        JobKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED: KindWords(
            *("Weights from a trainer", "Update weights of", "updated", "swap, version, flush"),
            icon="versions",
            class_word="C",
            undo="undone until the last rank commits; later by a return",
        ),
        JobKind.UPDATE_WEIGHT_VERSION: KindWords(
            *("Name weights", "Name the weights of", "renamed", "the name only", "versions"),
            class_word="B",
            undo="undone by another name",
        ),
        JobKind.PAUSE_GENERATION: KindWords(
            *("Pause", "Pause", "paused", "stop stepping", "player-pause"),
            class_word="B",
            undo="undone by continue",
        ),
        JobKind.CONTINUE_GENERATION: KindWords(
            *("Continue", "Continue", "continued", "step again", "send"),
            class_word="B",
            undo="undone by pause",
        ),
        JobKind.ABORT_REQUESTS: KindWords(
            *("Abort requests", "Abort requests of", "told", "end requests", "player-stop"),
            class_word="C",
            undo="cannot be undone",
        ),
        JobKind.RELEASE_MEMORY: KindWords(
            *("Release memory", "Release memory of", "released", "give memory back", "download"),
            class_word="C",
            undo="undone by resume; weights then need an update",
        ),
        JobKind.RESUME_MEMORY: KindWords(
            *("Resume memory", "Resume memory of", "resumed", "take memory again", "upload"),
            class_word="B",
            undo="undone by release",
        ),
        JobKind.ATTACH_STORAGE_BACKEND: KindWords(
            *("Attach backend", "Attach a backend to", "attached"),
            *("make it visible, start its threads", "plug-connected"),
            class_word="B",
            undo="undone by detach, or by a switch back",
        ),
        JobKind.DETACH_STORAGE_BACKEND: KindWords(
            *("Detach backend", "Detach the backend of", "detached"),
            *("stop intake, finish transfers, close", "plug-connected-x"),
            class_word="B",
            undo="undone by attach; what is stored stays",
        ),
        JobKind.CLEAR_STORAGE_BACKEND: KindWords(
            *("Delete stored pages", "Delete the stored pages of", "cleared"),
            *("delete what this engine stored", "trash"),
            class_word="D",
            undo="cannot be undone",
        ),
        JobKind.SET_CACHE_POLICIES: KindWords(
            *("Set policies", "Set cache policies of", "set", "from the next step on", "refresh"),
            class_word="B",
            undo="undone by setting them again",
        ),
        JobKind.REPAIR: KindWords(
            *("Repair", "Repair", "repaired", "bring odd ranks to the desired weights", "refresh"),
            class_word="B",
            undo="needs none",
        ),
    }
)


def kind_words(kind: str) -> KindWords:
    """The words of a kind, of ours or of the protocol; they share their names."""
    return _TEXT[JobKind(str(kind))]


def operation_name(kind: OperationKind) -> str:
    """As in a list."""
    return kind_words(kind).name


def asked_version(job: Job) -> str:
    """Which version a job was to bring, as far as its request says; empty when it does not."""
    params = job.params
    named = params.get("weight_version") or params.get("new_version")
    if named:
        return str(named)
    path = str(params.get("model_path") or "").rstrip("/")
    return path.rpartition("/")[2] if job.kind in WEIGHT_UPDATES else ""


def _is_switch(job: Job) -> bool:
    return job.kind == JobKind.ATTACH_STORAGE_BACKEND and bool(job.params.get("replace"))


def job_title(job: Job) -> str:
    """The title before the engine's name."""
    if job.kind == JobKind.ATTACH_STORAGE_BACKEND:
        backend = job.params.get("backend", "")
        return f"Switch to {backend} on" if _is_switch(job) else f"Attach {backend} to"
    return kind_words(job.kind).title


def job_name(job: Job) -> str:
    """As in a list: `Flush`, `Weights from disk: v2`, `Switch backend: valkey`."""
    subject = asked_version(job) or str(job.params.get("backend") or "")
    name = "Switch backend" if _is_switch(job) else kind_words(job.kind).name
    return f"{name}: {subject}" if subject else name


def asked_of(job: Job) -> list[tuple[str, str]]:
    """The parameters that say something, as a person reads them; long lists by their length."""
    found: list[tuple[str, str]] = []
    for name, value in job.params.items():
        if value is None or value == [] or value == "":
            continue
        if isinstance(value, dict):
            found += _flat(name, value)
        elif isinstance(value, list):
            short = ", ".join(str(one)[:12] for one in value[:4])
            found.append((name, short if len(value) <= 4 else f"{len(value)} items"))
        else:
            found.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return found


def _flat(name: str, values: Mapping[str, object]) -> list[tuple[str, str]]:
    """An object's parts by their paths."""
    found: list[tuple[str, str]] = []
    for inner, value in values.items():
        path = f"{name}.{inner}"
        if isinstance(value, dict):
            found += _flat(path, value)
        else:
            found.append((path, str(value).lower() if isinstance(value, bool) else str(value)))
    return found
