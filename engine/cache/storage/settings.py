"""Settings of an attached backend on disk: with their secrets, for the engine's own eyes.

A view of them (`StorageView`) goes through messages, the journal and pages, with each secret's
fingerprint in its place: a keyed hash, which tells two values apart and nothing about either. The
files are readable by the engine's user only. Imports no tensor library: the frontend uses it too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.cache.storage import allowed
from engine.cache.storage.base import StorageError
from engine.protocol import (
    StorageBackend,
    StorageConfig,
    StorageView,
    read_config,
    read_object,
    secrets_of,
)

_MAX_KEPT = 256  # files of each kind; the oldest go first
_MARK = "hmac:"


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    config: dict[str, Any]
    rank_configs: dict[str, dict[str, Any]]


class SettingsFolder:
    """`path` is the engine's own. `roots` and `endpoints` are what settings may name, but for
    folders that are `own`: other things of the engine. `in_use` names settings that are needed."""

    def __init__(
        self,
        path: Path,
        roots: Sequence[Path],
        endpoints: Sequence[str],
        *,
        own: Sequence[Path] = (),
        in_use: Callable[[], set[str]] = set,
    ) -> None:
        self._own = tuple(own)
        self._in_use = in_use
        self._path = path
        self._roots = tuple(roots)
        self._endpoints = tuple(endpoints)
        self._key = b""

    # ---- the frontend ------------------------------------------------------------------------

    def keep(
        self,
        backend: StorageBackend,
        config: str,
        rank_configs: Mapping[str, str],
        *,
        dp_size: int,
        secrets: Mapping[str, str] | None = None,
    ) -> StorageView:
        """Check settings for every rank and keep them. Raises StorageError that names the setting
        and never its value, with nothing kept."""
        try:
            shared = read_object(config)
            ranks = {
                rank: read_object(text, f"rank_configs of rank {rank[:8]!r}")
                for rank, text in rank_configs.items()
            }
            _lay_over(shared, ranks, secrets or {})
            names = [str(rank) for rank in range(dp_size)]
            for rank in ranks:
                if rank not in names:
                    raise ValueError(f"rank_configs names {rank[:8]!r}; ranks are {names}")
            for rank in names:
                try:
                    self._check(backend, shared | ranks.get(rank, {}))
                except (ValueError, StorageError) as error:
                    whose = f"rank {rank}: " if rank in ranks else ""
                    raise StorageError(f"{whose}{error}") from None
        except ValueError as error:
            raise StorageError(str(error)) from None
        config_id = self._hash({"backend": backend.value, "config": shared, "ranks": ranks})[:16]
        self._write("configs", config_id, msgspec.json.encode(_Kept(shared, ranks)))
        return StorageView(
            backend=backend,
            config=self._masked(backend, config, shared),
            rank_configs={
                rank: self._masked(backend, rank_configs.get(rank, ""), ranks[rank])
                for rank in sorted(ranks)
            },
            config_id=config_id,
        )

    def _check(self, backend: StorageBackend, document: dict[str, Any]) -> None:
        config = read_config(backend, document)
        allowed.check(config, backend, self._roots, self._endpoints, self._own)

    def view_of(self, backend: StorageBackend, config_id: str) -> StorageView:
        """Settings that were kept before. Raises StorageError when they are gone."""
        kept = self._read(config_id)
        return StorageView(
            backend=backend,
            config=self._masked(backend, json.dumps(kept.config), kept.config),
            rank_configs={
                rank: self._masked(backend, json.dumps(own), own)
                for rank, own in sorted(kept.rank_configs.items())
            },
            config_id=config_id,
        )

    def keep_secrets(self, name: str, values: Mapping[str, str]) -> dict[str, str]:
        """Keep values for an attach to come; returns the fingerprint of each."""
        self._write("secrets", name, msgspec.json.encode(dict(values)))
        return {each: self.fingerprint(value) for each, value in values.items()}

    def secrets(self, name: str) -> dict[str, str]:
        """What was kept under that name. Raises StorageError when it is gone."""
        try:
            return msgspec.json.decode(
                (self._path / "secrets" / name).read_bytes(), type=dict[str, str]
            )
        except (OSError, msgspec.DecodeError):
            raise StorageError(
                "this engine no longer has the secrets of this request; enter them again"
            ) from None

    # ---- a rank ------------------------------------------------------------------------------

    def read(self, view: StorageView, dp_rank: int) -> tuple[StorageConfig, str]:
        """One rank's settings in full, and their hash. Raises StorageError."""
        kept = self._read(view.config_id)
        merged = kept.config | kept.rank_configs.get(str(dp_rank), {})
        try:
            config = read_config(view.backend, merged)
        except ValueError as error:
            raise StorageError(str(error)) from None
        return config, self.hash_of(config)

    def hash_of(self, config: StorageConfig) -> str:
        """8 digits for people: equal for equal settings, secrets included."""
        return self._hash(msgspec.to_builtins(config))[:8]

    def fingerprint(self, value: str) -> str:
        """What stands for a secret."""
        return _MARK + self._hash(value)[:12]

    # ---- small things ------------------------------------------------------------------------

    def _masked(self, backend: StorageBackend, text: str, document: dict[str, Any]) -> str:
        hidden = {name for name in secrets_of(backend) if document.get(name)}
        if not hidden:
            return text
        shown = {
            name: self.fingerprint(str(value)) if name in hidden else value
            for name, value in document.items()
        }
        return json.dumps(shown, ensure_ascii=False)

    def _hash(self, document: object) -> str:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return hmac.new(self._secret_key(), text.encode(), hashlib.sha256).hexdigest()

    def _secret_key(self) -> bytes:
        if not self._key:
            path = self._path / "key"
            self._folder(self._path)
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                pass
            else:
                with os.fdopen(fd, "wb") as file:
                    file.write(os.urandom(32))
            self._key = path.read_bytes()
        return self._key

    def _read(self, config_id: str) -> _Kept:
        try:
            data = (self._path / "configs" / config_id).read_bytes()
            return msgspec.json.decode(data, type=_Kept)
        except (OSError, msgspec.DecodeError):
            raise StorageError(
                "the settings of this backend are no longer on this machine; attach it again"
            ) from None

    def _write(self, kind: str, name: str, data: bytes) -> None:
        folder = self._path / kind
        temporary = folder / f".{name}.new"
        try:
            self._folder(folder)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(folder / name)
            files = [path for path in folder.glob("[!.]*") if path.is_file()]
            files.sort(key=lambda path: path.stat().st_mtime)
            in_use = self._in_use()
            for old in files[:-_MAX_KEPT]:
                if old.name not in in_use:
                    old.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"the settings cannot be kept: {error.strerror}") from error

    @staticmethod
    def _folder(path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)


def _lay_over(
    shared: dict[str, Any], ranks: dict[str, dict[str, Any]], secrets: Mapping[str, str]
) -> None:
    """Put secrets in their places: "name" for all ranks, "RANK.name" for one."""
    for place, value in secrets.items():
        rank, dot, name = place.partition(".")
        if dot:
            ranks.setdefault(rank, {})[name] = value
        else:
            shared[place] = value
