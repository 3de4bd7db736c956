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
    is_class_c: bool
    undo: str


_TEXT: Mapping[JobKind, KindWords] = MappingProxyType(
    {
        JobKind.FLUSH_CACHE: KindWords(
            *("Flush", "Flush", "flushed", "reset cache and pools", "droplet-off"),
            is_class_c=True,
            undo="cannot be undone",
        ),
        JobKind.UPDATE_WEIGHTS_FROM_DISK: KindWords(
            *("Weights from disk", "Update weights of", "updated", "swap, version, flush"),
            icon="versions",
            is_class_c=True,
            undo="undone until the last rank commits; later by a return",
        ),
        JobKind.UPDATE_WEIGHTS_FROM_TENSOR: KindWords(
            *("Weights from files", "Update weights of", "updated", "swap, version, flush"),
            icon="upload",
            is_class_c=True,
            undo="undone until the last rank commits; later by a return",
        ),
        JobKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED: KindWords(
            *("Weights from a trainer", "Update weights of", "updated", "swap, version, flush"),
            icon="versions",
            is_class_c=True,
            undo="undone until the last rank commits; later by a return",
        ),
        JobKind.UPDATE_WEIGHT_VERSION: KindWords(
            *("Name weights", "Name the weights of", "renamed", "the name only", "versions"),
            is_class_c=False,
            undo="undone by another name",
        ),
        JobKind.PAUSE_GENERATION: KindWords(
            *("Pause", "Pause", "paused", "stop stepping", "player-pause"),
            is_class_c=False,
            undo="undone by continue",
        ),
        JobKind.CONTINUE_GENERATION: KindWords(
            *("Continue", "Continue", "continued", "step again", "send"),
            is_class_c=False,
            undo="undone by pause",
        ),
        JobKind.ABORT_REQUESTS: KindWords(
            *("Abort requests", "Abort requests of", "told", "end requests", "player-stop"),
            is_class_c=True,
            undo="cannot be undone",
        ),
        JobKind.RELEASE_MEMORY: KindWords(
            *("Release memory", "Release memory of", "released", "give memory back", "download"),
            is_class_c=True,
            undo="undone by resume; weights then need an update",
        ),
        JobKind.RESUME_MEMORY: KindWords(
            *("Resume memory", "Resume memory of", "resumed", "take memory again", "upload"),
            is_class_c=False,
            undo="undone by release",
        ),
        JobKind.REPAIR: KindWords(
            *("Repair", "Repair", "repaired", "bring odd ranks to the desired weights", "refresh"),
            is_class_c=False,
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


def job_title(job: Job) -> str:
    """The title before the engine's name."""
    return kind_words(job.kind).title


def job_name(job: Job) -> str:
    """As in a list: `Flush`, `Weights from disk: v2`."""
    version = asked_version(job)
    name = kind_words(job.kind).name
    return f"{name}: {version}" if version else name


def asked_of(job: Job) -> list[tuple[str, str]]:
    """The parameters that say something, as a person reads them; long lists by their length."""
    found = []
    for name, value in job.params.items():
        if value is None or value == [] or value == "":
            continue
        if isinstance(value, dict):
            found += [(f"{name}.{inner}", str(one)) for inner, one in value.items()]
        elif isinstance(value, list):
            short = ", ".join(str(one)[:12] for one in value[:4])
            found.append((name, short if len(value) <= 4 else f"{len(value)} items"))
        else:
            found.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return found
