"""What a plan says of storage backends: what would be refused, and what undoes it."""

from __future__ import annotations

from console.choices import JobKind
from console.params import AttachParams, ClearParams, JobParams
from console.selectors.engines import EngineView
from console.selectors.refusals import Refusal
from console.selectors.storage import Attached, attached_of

_CODE = "invalid_argument"


def storage_refusals(view: EngineView, params: JobParams) -> list[Refusal]:
    """As far as the newest snapshot tells; the engine decides in the end."""
    if not view.online or view.state is None:
        return []
    now = attached_of(view)
    if isinstance(params, ClearParams) and now is None:
        words = "nothing is attached: what a detached store holds is not the engine’s to delete"
        return [Refusal(_CODE, words)]
    return _attach(view, params, now) if isinstance(params, AttachParams) else []


def _attach(view: EngineView, params: AttachParams, now: Attached | None) -> list[Refusal]:
    assert view.state is not None
    found = []
    if not view.state.hierarchical:
        words = "this engine has no host tier (L2): it was started without the hierarchical cache"
        found.append(Refusal(_CODE, words))
    problem = next((b.problem for b in view.state.backends if b.backend == params.backend), "")
    if problem:
        found.append(Refusal(_CODE, f"{params.backend} cannot be attached here: {problem}"))
    known = {str(rank.dp_rank) for rank in view.ranks}
    strangers = sorted(set(params.rank_configs) - known, key=int)
    if strangers:
        words = f"rank_configs names rank {strangers[0]}; the engine has {len(known)} ranks"
        found.append(Refusal(_CODE, words))
    if now is not None and not params.replace and not keeps_attached(params, now):
        words = f"{now.backend} {now.short_id} is attached: detach it first, or set replace"
        found.append(Refusal(_CODE, words))
    return found


def keeps_attached(params: AttachParams, now: Attached | None) -> bool:
    """What is attached is what is asked for, as far as settings are named: policies only."""
    if now is None or params.backend != now.backend:
        return False
    return params.names_no_settings or (
        bool(params.config_id) and params.config_id == now.config_id
    )


def storage_undo(params: JobParams, now: Attached | None) -> tuple[bool, str]:
    """(it can be undone, how or why not)."""
    match params.kind:
        case JobKind.ATTACH_STORAGE_BACKEND if _keeps(params, now):
            return True, "Set the policies again; what is attached stays."
        case JobKind.ATTACH_STORAGE_BACKEND if now is None:
            return True, "Detach. What was stored by then stays in the store."
        case JobKind.ATTACH_STORAGE_BACKEND:
            return True, f"{_again('Switch back to', now)}; no secret is needed for it."
        case JobKind.DETACH_STORAGE_BACKEND if now is None:
            return True, "Nothing is attached, so nothing changes."
        case JobKind.DETACH_STORAGE_BACKEND:
            return True, f"{_again('Attach', now)} again: what it holds stays, and is hit again."
        case JobKind.CLEAR_STORAGE_BACKEND:
            return False, "None. What is deleted is gone; the store fills again by use."
    return True, "Set them again."


def _keeps(params: JobParams, now: Attached | None) -> bool:
    return isinstance(params, AttachParams) and keeps_attached(params, now)


def _again(act: str, now: Attached | None) -> str:
    assert now is not None
    return f"{act} {now.backend} {now.short_id}".rstrip()
