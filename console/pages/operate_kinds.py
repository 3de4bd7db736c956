"""The small forms as data: what each kind of job does, in a sentence, and the fields it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from console.choices import JobKind, Mode

MODES = (
    (Mode.IF_IDLE, "Only if every rank is idle now; otherwise refused at once, nothing changed."),
    (Mode.WAIT, "New and running requests go on; at the first moment every rank is idle in time."),
    (Mode.DRAIN, "Hold new requests and let running ones finish first."),
    (Mode.RETRACT, "Hold new requests; put running ones back in the queue."),
    (Mode.ABORT, "Hold new requests; end running ones with finish_reason abort."),
)


@dataclass(frozen=True)
class Choice:
    """One field: its name, its options with their effects, and what is chosen at first."""

    name: str
    label: str
    options: tuple[tuple[str, str], ...] = ()  # radio buttons; none: a line of text
    hint: str = ""
    default: str = ""
    is_many: bool = False  # tick boxes
    is_flag: bool = False  # one tick box: yes or no
    is_policy: bool = False  # it begins as the engine has it


_TAGS = Choice(
    name="tags",
    label="Memory",
    options=(("kv_cache", "the KV cache"), ("weights", "the weights, and their contents")),
    default="kv_cache weights",
    is_many=True,
)
EFFECTS: Mapping[str, tuple[str, tuple[Choice, ...]]] = MappingProxyType(
    {
        JobKind.PAUSE_GENERATION: (
            "No rank steps until you continue. New requests are held in order.",
            (
                Choice(
                    "pause_mode",
                    "Running requests",
                    (
                        ("retract", "go back in the queue; their KV is given up"),
                        ("in_place", "stay as they are, with their KV"),
                        ("abort", "end with finish_reason abort, and so do waiting ones"),
                    ),
                    default="retract",
                ),
            ),
        ),
        JobKind.CONTINUE_GENERATION: (
            "Every rank steps again; held requests are released in order.",
            (),
        ),
        JobKind.ABORT_REQUESTS: (
            "Ends one request, or all of them, now; also while another operation waits.",
            (
                Choice("rid", "Request id", hint="exactly as the engine knows it; empty: all"),
                Choice("message", "Message", hint="its client reads it", default="Aborted"),
            ),
        ),
        JobKind.RELEASE_MEMORY: (
            "Gives memory back to the machine. Nothing is served until all of it is resumed.",
            (_TAGS,),
        ),
        JobKind.RESUME_MEMORY: (
            "Takes memory again. Weights come back without contents: nothing is served until an "
            "update brings some.",
            (_TAGS,),
        ),
        JobKind.DETACH_STORAGE_BACKEND: (
            "Takes the storage backend (L3) away from every rank. It deletes nothing: what was "
            "stored stays in the store, and is hit again once that is attached again.",
            (
                Choice(
                    "force",
                    "Force",
                    hint="for a store that does not answer: waits for nothing, gives up transfers "
                    "in flight; requests go on without their pages",
                    is_flag=True,
                ),
            ),
        ),
        JobKind.CLEAR_STORAGE_BACKEND: (
            "Deletes what this engine’s ranks stored in the attached backend, for good. The "
            "backend stays attached. Detach, in contrast, deletes nothing.",
            (),
        ),
        JobKind.SET_CACHE_POLICIES: (
            "Changes when pages are copied between tiers and how long requests wait for pages "
            "from storage, while serving.",
            (
                Choice(
                    "write_policy",
                    "Write policy",
                    (
                        ("write_through", "copy a page down as soon as it is whole"),
                        ("write_through_selective", "copy it once it was used again"),
                        ("write_back", "copy it when it leaves the device"),
                    ),
                    is_policy=True,
                ),
                Choice(
                    "prefetch_policy",
                    "Prefetch policy",
                    (
                        ("best_effort", "a request waits for no page; it takes what has come"),
                        ("timeout", "it waits for a while, longer for long prompts"),
                        ("wait_complete", "it waits for all of them, up to the maximum"),
                    ),
                    is_policy=True,
                ),
            ),
        ),
        JobKind.REPAIR: (
            "Brings every living rank to the weights that the engine is to serve. Requests reach "
            "a rank again once it proves them.",
            (),
        ),
        JobKind.UPDATE_WEIGHT_VERSION: (
            "Names the weights that are served. No tensor, request or cache is touched.",
            (Choice("new_version", "New version", hint="1 to 128 characters"),),
        ),
    }
)
