"""What was typed into the form of an attach or a switch, and the parameters that it makes.

Secrets pass through: they are in the parameters, and in nothing that is rendered.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.http import QueryDict

from console.choices import JobKind, Mode
from console.exceptions import Conflict
from console.models import Job
from console.pages.asking import key_read, reason_check, seconds_check, sentence
from console.pages.backend_fields import SettingField, default_text, setting_fields, typed_value
from console.pages.job_storage import undo_reason
from console.params import JobParams, params_or_words
from console.selectors.engines import EngineView
from console.selectors.storage import Attached, attached_of, undo_of
from console.templatetags.q_tags import short
from engine.protocol import StorageBackend, fields_of, secrets_of

MODES = (
    (Mode.IF_IDLE, "Only if every rank is idle once it has probed; else nothing changed."),
    (Mode.WAIT, "Requests go on; {act} at the first moment every rank is idle in time."),
    (Mode.DRAIN, "Hold new requests, let running ones finish, then {act}."),
    (Mode.RETRACT, "Hold new requests; put running ones back in the queue, they restart."),
    (Mode.ABORT, "Hold new requests; end running ones with finish_reason abort."),
)
WRITE = (
    ("write_through", "as soon as a page is whole"),
    ("write_through_selective", "once it was used again"),
    ("write_back", "when it leaves the device"),
)
PREFETCH = (
    ("best_effort", "not at all"),
    ("timeout", "a while, longer for long prompts"),
    ("wait_complete", "for all of them, up to the maximum"),
)


@dataclass
class Override:
    """One setting of one rank, as typed. `is_secret`: its value is never rendered again."""

    rank: str
    setting: str
    value: str
    error: str = ""
    is_secret: bool = False


@dataclass
class BackendForm:
    """As typed, and one error a field. `known` fixes the settings to some that the engine has."""

    engine: str
    backend: str = StorageBackend.FILE
    replace: bool = False
    values: dict[str, str] = field(default_factory=dict)  # of settings that are no secrets
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    dropped: frozenset[str] = frozenset()  # secrets that are to be none
    overrides: list[Override] = field(default_factory=list)
    write_policy: str = ""
    prefetch_policy: str = ""
    mode: str = Mode.WAIT
    timeout_s: str = "60"
    reason: str = ""
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    known: Attached | None = None
    now: Attached | None = None
    errors: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def begin(view: EngineView, backend: str) -> BackendForm:
        """An empty one; of the backend that is attached now, with its settings."""
        now = attached_of(view)
        form = BackendForm(view.name, replace=now is not None, now=now)
        form.backend = backend if backend in list(StorageBackend) else _first(view, now)
        if now is not None and now.backend == form.backend:
            form.values = _texts(form.backend, now.config)
            form.overrides = [
                Override(
                    rank, name, value, is_secret=name in secrets_of(StorageBackend(form.backend))
                )
                for rank, one in now.rank_configs.items()
                for name, value in _texts(form.backend, one).items()
            ]
        form.mode = Mode.DRAIN if form.replace else Mode.WAIT
        return form

    @staticmethod
    def of(view: EngineView, data: QueryDict) -> BackendForm:
        """As posted."""
        backend = data.get("backend", "")
        form = BackendForm(view.name, now=attached_of(view), replace=data.get("replace") == "1")
        form.backend = backend if backend in list(StorageBackend) else StorageBackend.FILE
        names = {one.name: one for one in fields_of(StorageBackend(form.backend))}
        for name, one in names.items():
            text = data.get(f"s-{name}", "")
            if one.kind == "secret":
                if text:
                    form.secrets[name] = text
            elif one.kind == "flag":
                form.values[name] = "true" if f"s-{name}" in data else "false"
            elif text.strip():
                form.values[name] = text.strip()
        form.dropped = frozenset(name for name in names if f"none-{name}" in data)
        columns = (data.getlist(f"o-{part}") for part in ("rank", "setting", "value"))
        hidden = secrets_of(StorageBackend(form.backend))
        form.overrides = [
            Override(
                rank, name, value if name in hidden else value.strip(), is_secret=name in hidden
            )
            for rank, name, value in zip(*columns, strict=False)
        ][:64]
        for name in ("write_policy", "prefetch_policy", "mode", "timeout_s", "reason"):
            setattr(form, name, data.get(name, "").strip())
        form.key = key_read(data.get("key", ""))
        return form

    def undo(self, job: Job) -> None:
        """Fix it to what a job replaced or detached: attach that again, by its id."""
        found = undo_of(job)
        wrong = job.engine.name != self.engine or found is None
        if wrong or found is None or found.attached is None:
            raise Conflict(f"job {short(job.pk)} replaced or detached nothing on {self.engine}")
        self.known, self.backend = found.attached, found.attached.backend
        if not self.reason:
            self.reason = undo_reason(job)
        self.write_policy = self.write_policy or found.policies.get("write_policy", "")
        self.prefetch_policy = self.prefetch_policy or found.policies.get("prefetch_policy", "")

    @property
    def act(self) -> str:
        """The verb."""
        return "switch" if self.replace else "attach"

    @property
    def fields(self) -> list[SettingField]:
        """The settings, its own before those that all backends have."""
        return setting_fields(self.backend, self.values, self.errors, self.now, self.dropped)

    @property
    def num_common_errors(self) -> int:
        """Wrong settings among those that are folded away."""
        return sum(1 for one in self.fields if one.field.is_common and one.error)

    def config(self) -> dict[str, object]:
        """What differs from the defaults; what is required; what is secret."""
        found: dict[str, object] = {}
        for one in fields_of(StorageBackend(self.backend)):
            if one.kind == "secret":
                if one.name in self.secrets:
                    found[one.name] = self.secrets[one.name]
            else:
                text = self.values.get(one.name, "")
                if text and text != default_text(one):
                    value = typed_value(one, text)
                    if value != one.default or one.is_required:
                        found[one.name] = value
        return found

    def values_asked(self) -> dict[str, object]:
        """The parameters, unchecked."""
        fields = {one.name: one for one in fields_of(StorageBackend(self.backend))}
        asked: dict[str, object] = {
            "backend": self.backend,
            "replace": self.replace,
            "mode": self.mode,
            "write_policy": self.write_policy or None,
            "prefetch_policy": self.prefetch_policy or None,
        }
        if self.known is not None:
            return {**asked, "config_id": self.known.config_id}
        ranks: dict[str, dict[str, object]] = {}
        for one in self.overrides:
            field_ = fields.get(one.setting)
            value = typed_value(field_, one.value) if field_ is not None else one.value
            ranks.setdefault(one.rank, {})[one.setting] = value
        return {**asked, "config": self.config(), "rank_configs": ranks}

    def params(self) -> JobParams | None:
        """The parameters; None with `errors` set, one a field."""
        seconds = seconds_check(self.timeout_s, self.errors)
        self._secrets_check()
        self._overrides_check()
        params, wrong = params_or_words(
            JobKind.ATTACH_STORAGE_BACKEND,
            {**self.values_asked(), "timeout_s": 1.0 if seconds is None else seconds},
        )
        for path, words in wrong:
            self._wrong(path, words)
        return None if self.errors else params

    def _secrets_check(self) -> None:
        """A secret that is set now is not dropped by leaving its field empty."""
        if self.known is not None:
            return
        for one in self.fields:
            if one.present and one.name not in self.secrets and one.name not in self.dropped:
                self.errors[one.name] = (
                    "Write it again, or tick that there is none from now on: only the engine has "
                    "the present one."
                )

    def _overrides_check(self) -> None:
        seen: set[tuple[str, str]] = set()
        for one in self.overrides:
            if (one.rank, one.setting) in seen:
                one.error = "This setting of this rank is named twice."
            elif one.is_secret and not one.value:
                one.error = "Write it again: only the engine has the present one."
            if one.error:
                self.errors["overrides"] = "An override is not right yet."
            seen.add((one.rank, one.setting))

    def _wrong(self, path: str, words: str) -> None:
        part, _, rest = path.partition(".")
        text = sentence(words)
        if part == "config" and rest:
            self.errors.setdefault(rest, text)
        elif part == "rank_configs":
            rank, _, name = rest.partition(".")
            for one in self.overrides:
                if one.rank == rank and name in (one.setting, "", "[key]"):
                    one.error = one.error or text
            self.errors["overrides"] = "An override is not right yet."
        else:
            name = part if part in ("backend", "write_policy", "prefetch_policy") else "timeout_s"
            self.errors.setdefault(name, text)

    def check(self) -> JobParams | None:
        """The parameters of a form that may be sent; None with `errors` set."""
        params = self.params()
        self.reason = reason_check(self.reason, self.errors)
        return None if self.errors else params


def _first(view: EngineView, now: Attached | None) -> str:
    """The first backend that can be attached and is not."""
    problems = {str(one.backend) for one in (view.state.backends if view.state else [])}
    bad = {str(b.backend) for b in (view.state.backends if view.state else []) if b.problem}
    usable = [str(one) for one in StorageBackend if not problems or str(one) not in bad]
    other = [one for one in usable if now is None or one != now.backend]
    return next(iter(other or usable), str(StorageBackend.FILE))


def _texts(backend: str, config: Mapping[str, object]) -> dict[str, str]:
    """Settings as they are typed, without secrets' values."""
    hidden = secrets_of(StorageBackend(backend))
    return {
        name: ""
        if name in hidden
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for name, value in config.items()
    }
