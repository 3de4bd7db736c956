"""What was typed into the form of a weight update, its sources, and the parameters it makes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from django.http import QueryDict

from console.choices import JobKind, Mode
from console.exceptions import ConsoleError, Invalid
from console.pages.asking import key_read, reason_check, seconds_check, sentence
from console.params import JobParams, params_of
from console.selectors.checkpoints import checkpoints_ask
from console.selectors.engines import EngineView
from console.selectors.weights import Weights
from engine.protocol import CheckpointView

LIST_S = 1.5
SOURCES = (
    ("disk", "A folder of safetensors under an allowed root of the engine’s host."),
    ("tensors", "Files from this computer, sent to every rank."),
    ("distributed", "A trainer broadcasts over a process group; the ranks join it."),
)
KINDS = {
    "disk": JobKind.UPDATE_WEIGHTS_FROM_DISK,
    "tensors": JobKind.UPDATE_WEIGHTS_FROM_TENSOR,
    "distributed": JobKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED,
}
MODES = (
    (Mode.IF_IDLE, "Only if every rank is idle, now and once staged; else nothing changed."),
    (Mode.WAIT, "Requests go on; swap at the first moment every rank is idle in time."),
    (Mode.DRAIN, "Hold new requests, let running ones finish, then swap."),
    (
        Mode.RETRACT,
        "Hold new requests; put running ones back in the queue, they restart from prefill.",
    ),
    (Mode.ABORT, "Hold new requests; end running ones with finish_reason abort."),
)
_GROUP_NUMBERS = ("master_port", "rank_offset", "world_size")
# Where a bad parameter is shown: the input's own name.
_FIELDS = {
    "model_path": "path",
    "uploads": "uploads",
    "weight_version": "weight_version",
    "timeout_s": "timeout_s",
    "receive_timeout_s": "receive_timeout_s",
    **{f"group.{name}": name for name in (*_GROUP_NUMBERS, "master_address", "group_name")},
}


@dataclass
class WeightsForm:
    """As typed, and one error a field. `returning` fixes the source to a folder of before."""

    engine: str = ""
    source: str = "disk"
    root: str = ""
    path: str = ""
    uploads: list[str] = field(default_factory=list)
    master_address: str = ""
    master_port: str = "29500"
    rank_offset: str = "1"
    world_size: str = ""
    group_name: str = "weight_update_group"
    backend: str = "gloo"
    receive_timeout_s: str = "120"
    weight_version: str = ""
    mode: str = Mode.RETRACT
    timeout_s: str = "60"
    flush_cache: bool = True
    torch_empty_cache: bool = False
    reason: str = ""
    confirm: str = ""
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    returning: Weights | None = None
    errors: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(data: QueryDict, *, is_posted: bool) -> WeightsForm:
        """As posted, or as asked for in the URL of the plan: unticked boxes are not sent."""
        form = WeightsForm()
        for name in form.__dataclass_fields__:
            if name in data and isinstance(getattr(form, name), str):
                setattr(form, name, data[name].strip())
        form.uploads = [sha for sha in data.getlist("uploads") if sha]
        form.key = key_read(data.get("key", ""))
        if is_posted:
            form.flush_cache = "flush_cache" in data
            form.torch_empty_cache = "torch_empty_cache" in data
        if form.source not in KINDS:
            form.source = "disk"
        return form

    @property
    def kind(self) -> JobKind:
        """Which job it asks for."""
        return KINDS[self.source]

    @property
    def title(self) -> str:
        """What the page is about."""
        if self.returning is not None:
            return f"Return {self.engine} to {self.returning.version}"
        return "Update weights"

    def _path(self, view: EngineView | None) -> str:
        """The folder as the engine takes it: under the chosen root, or as typed when absolute."""
        if self.returning is not None:
            return self.returning.path
        if self.path.startswith("/") or view is None or view.state is None:
            return self.path
        roots = {root.label: root.path for root in view.state.weights_roots}
        root = roots.get(self.root) or next(iter(roots.values()), "")
        return f"{root.rstrip('/')}/{self.path}" if self.path and root else self.path

    def values(self, view: EngineView | None) -> dict[str, object]:
        """What it asks for, unchecked; raises ValueError for a number that is none."""
        found: dict[str, object] = {
            "mode": self.mode,
            "flush_cache": self.flush_cache,
            "torch_empty_cache": self.torch_empty_cache,
            "weight_version": self.weight_version or None,
        }
        if self.returning is not None:
            found["weight_version"] = self.returning.version
            if self.returning.checksum:
                found["expected_checksum"] = self.returning.checksum
        match self.source:
            case "disk":
                found["model_path"] = self._path(view)
            case "tensors":
                found["uploads"] = self.uploads
            case _:
                group: dict[str, object] = {
                    "master_address": self.master_address,
                    "group_name": self.group_name,
                    "backend": self.backend,
                }
                for name in _GROUP_NUMBERS:
                    group[name] = self._number(name, getattr(self, name))
                found["group"] = group
                found["receive_timeout_s"] = float(
                    self._number("receive_timeout_s", self.receive_timeout_s)
                )
        return found

    def _number(self, name: str, text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            self.errors[name] = "Write a whole number."
            return 1
        return int(text)

    def params(self, view: EngineView | None) -> JobParams | None:
        """The parameters; None with `errors` set."""
        seconds = seconds_check(self.timeout_s, self.errors)
        values = self.values(view)
        if self.source == "disk" and not values["model_path"]:
            self.errors["path"] = "Name a folder under the root."
        if self.source == "tensors" and not self.uploads:
            self.errors["uploads"] = "Choose a file, or upload one."
        if self.source == "distributed" and not self.master_address:
            self.errors["master_address"] = "Write the address at which the trainer listens."
        if self.errors or seconds is None:
            return None
        try:
            return params_of(self.kind, {**values, "timeout_s": seconds})
        except Invalid as error:
            path = str(error.facts.get("field") or "")
            words = error.message.removeprefix(f"{path}: ")
            place = _FIELDS.get(path) or _FIELDS.get(path.partition(".")[0]) or "timeout_s"
            self.errors[place] = sentence(words)
            return None

    def check(self, view: EngineView | None) -> JobParams | None:
        """The parameters of a form that may be sent; None with `errors` set."""
        params = self.params(view)
        self.reason = reason_check(self.reason, self.errors)
        if self.confirm != self.engine:
            self.errors["confirm"] = f"Type {self.engine} to confirm."
        return None if self.errors else params


def folders_of(view: EngineView) -> list[CheckpointView] | None:
    """Folders that the engine could load; None when it does not say in time."""
    if not view.online:
        return None
    try:
        return checkpoints_ask(engine=view.engine, timeout_s=LIST_S).checkpoints
    except ConsoleError:
        return None
