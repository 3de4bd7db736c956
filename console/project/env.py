"""The environment, read once into a frozen object; a bad or unsafe value is one clear sentence.

Knows nothing of Django. `settings.py` is its only reader; `.env.example` documents every name.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1", "testserver"})
MIN_SECRET_CHARS = 40
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
_KNOWN_SECRETS = ("django-insecure", "changeme", "change-me", "secret", "your-secret", "quiesce")


class EnvError(Exception):
    """A setting is missing, malformed or unsafe; the message is one sentence for people."""


@dataclass(frozen=True)
class Env:
    """What the environment says, checked."""

    state_dir: Path
    secret_key: str  # empty until `prepare_state` has made one; serving processes refuse that
    debug: bool
    allowed_hosts: tuple[str, ...]
    csrf_trusted_origins: tuple[str, ...]
    https: bool
    trust_proxy: bool
    database_url: str | None
    database_pool_size: int
    redis_url: str
    visibility_timeout_s: int
    static_root: Path | None
    staging_allowance_s: int
    upload_max_bytes: int
    upload_keep_s: int
    audit_key_file: Path
    audit_anchors_file: Path
    curve_key_file: Path
    log_level: str
    api_rate_per_second: int


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise EnvError(f"{name} is {value!r}; it must be 1 or 0.")


def _number(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise EnvError(f"{name} is {text!r}; it must be a whole number from {low} to {high}.")
    return int(text)


def _words(env: Mapping[str, str], name: str, default: str = "") -> tuple[str, ...]:
    return tuple(word.strip() for word in env.get(name, default).split(",") if word.strip())


def secret_key_check(secret: str, source: str) -> None:
    """Refuse a key that is short, uniform or a well-known default."""
    if len(secret) < MIN_SECRET_CHARS or len(set(secret)) < 8:
        raise EnvError(
            f"{source} is too weak: it needs at least {MIN_SECRET_CHARS} random characters."
        )
    if secret.lower().startswith(_KNOWN_SECRETS):
        raise EnvError(f"{source} is a default value; make a random one.")


def _secret(env: Mapping[str, str], state_dir: Path) -> str:
    secret = env.get("QUIESCE_SECRET_KEY", "").strip()
    if secret:
        secret_key_check(secret, "QUIESCE_SECRET_KEY")
        return secret
    path = state_dir / "secret-key"
    kept = _private(path)
    if kept is None:
        return ""
    secret_key_check(kept, str(path))
    return kept


def _private(path: Path) -> str | None:
    """What a file of one's own says; None without it."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise EnvError(f"{path} can be read by other users; set its mode to 0600.")
        return path.read_text().strip()
    except FileNotFoundError:
        return None


def _redis_url(env: Mapping[str, str], state_dir: Path) -> str:
    """The one that is named; else that of the `bin/run` of this folder, while it runs."""
    embedded = None
    if not env.get("REDIS_URL", "").strip():
        embedded = _private(state_dir / "valkey" / "url")
    default = embedded or "redis://127.0.0.1:6379/0"
    return _url(env, "REDIS_URL", ("redis", "rediss", "unix"), default)


def _hosts(env: Mapping[str, str], debug: bool) -> tuple[str, ...]:
    hosts = _words(env, "QUIESCE_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
    for host in hosts:
        if "*" in host or "/" in host:
            raise EnvError(
                f"QUIESCE_ALLOWED_HOSTS holds {host!r}; name each host, without wildcard or scheme."
            )
    foreign = sorted(set(hosts) - LOCAL_HOSTS)
    if debug and foreign:
        raise EnvError(
            f"QUIESCE_DEBUG is on and QUIESCE_ALLOWED_HOSTS names {foreign[0]!r}; "
            "debug pages show secrets, so debug works with local hosts only."
        )
    return hosts


def _url(env: Mapping[str, str], name: str, schemes: tuple[str, ...], default: str) -> str:
    url = env.get(name, "").strip() or default
    if url and urlsplit(url).scheme not in schemes:
        raise EnvError(f"{name} must begin with one of {', '.join(s + '://' for s in schemes)}.")
    return url


def _file(env: Mapping[str, str], name: str, default: Path) -> Path:
    text = env.get(name, "").strip()
    return Path(text).absolute() if text else default


def env_read(env: Mapping[str, str]) -> Env:
    """The checked environment. Raises EnvError."""
    debug = _flag(env, "QUIESCE_DEBUG")
    state_dir = Path(env.get("QUIESCE_STATE_DIR", "").strip() or "var").absolute()
    origins = _words(env, "QUIESCE_CSRF_TRUSTED_ORIGINS")
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or "*" in origin:
            raise EnvError(
                f"QUIESCE_CSRF_TRUSTED_ORIGINS holds {origin!r}; "
                "write whole origins such as https://console.example.org."
            )
    level = env.get("QUIESCE_LOG_LEVEL", "").strip().upper() or "INFO"
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise EnvError(f"QUIESCE_LOG_LEVEL is {level!r}; it must be DEBUG, INFO, WARNING or ERROR.")
    static_root = env.get("QUIESCE_STATIC_ROOT", "").strip()
    return Env(
        state_dir=state_dir,
        secret_key=_secret(env, state_dir),
        debug=debug,
        allowed_hosts=_hosts(env, debug),
        csrf_trusted_origins=origins,
        https=_flag(env, "QUIESCE_HTTPS"),
        trust_proxy=_flag(env, "QUIESCE_TRUST_PROXY"),
        database_url=_url(env, "DATABASE_URL", ("postgres", "postgresql", "sqlite"), "") or None,
        database_pool_size=_number(env, "QUIESCE_DATABASE_POOL_SIZE", 10, 1, 1000),
        redis_url=_redis_url(env, state_dir),
        visibility_timeout_s=_number(env, "QUIESCE_VISIBILITY_TIMEOUT_S", 3600, 1, 604_800),
        static_root=Path(static_root) if static_root else None,
        staging_allowance_s=_number(env, "QUIESCE_STAGING_ALLOWANCE_S", 600, 1, 86_400),
        upload_max_bytes=_number(env, "QUIESCE_UPLOAD_MAX_BYTES", 64 << 30, 1 << 20, 1 << 42),
        upload_keep_s=_number(env, "QUIESCE_UPLOAD_KEEP_S", 7 * 86_400, 60, 365 * 86_400),
        audit_key_file=_file(env, "QUIESCE_AUDIT_KEY_FILE", state_dir / "audit-key.pem"),
        audit_anchors_file=_file(
            env, "QUIESCE_AUDIT_ANCHORS_FILE", state_dir / "audit-anchors.jsonl"
        ),
        curve_key_file=_file(env, "QUIESCE_CURVE_KEY_FILE", state_dir / "console-curve"),
        log_level=level,
        api_rate_per_second=_number(env, "QUIESCE_API_RATE_PER_SECOND", 200, 1, 100_000),
    )
