"""Signed records: one line of canonical JSON, signed with Ed25519.

`{"key": …, "record": {…}, "signature": …}`; what is signed is "quiesce-audit-v1", NUL and the
record's bytes. `bin/audit-verify` reads them without any of this code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # a record is any JSON object of text and whole numbers

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

DOMAIN = b"quiesce-audit-v1\0"


class SigningError(Exception):
    """The key cannot be used; the message says why, and nothing of the key."""


def line_of(document: Mapping[str, Any]) -> str:
    """Canonical JSON (RFC 8785 for text and whole numbers), without a line end."""
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


class Signer:
    """A private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        public = key.public_key()
        self.public_hex = public.public_bytes_raw().hex()
        self.public_pem = public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ).decode()

    @classmethod
    def read(cls, path: Path) -> Signer:
        """The key of a PEM file. Raises SigningError."""
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise SigningError(f"{path.name} is no private key: {type(error).__name__}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise SigningError(f"{path.name} holds another kind of key than Ed25519")
        return cls(key)

    def sign(self, record: Mapping[str, Any]) -> str:
        """The record's signed line."""
        signature = self._key.sign(DOMAIN + line_of(record).encode()).hex()
        return line_of({"key": self.public_hex, "record": record, "signature": signature})


def new_key_pem() -> str:
    """A new private key, PKCS #8."""
    return (
        Ed25519PrivateKey.generate()
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )


def opened(line: str, public_hex: str) -> dict[str, Any] | None:
    """The record of a line that this key signed, or None."""
    try:
        document = json.loads(line)
        record = document["record"]
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_hex)).verify(
            bytes.fromhex(document["signature"]), DOMAIN + line_of(record).encode()
        )
    except (ValueError, KeyError, TypeError, InvalidSignature):
        return None
    return record if isinstance(record, dict) and document["key"] == public_hex else None
