"""Signed records: one line of canonical JSON, signed with Ed25519.

`{"key": …, "record": {…}, "signature": …}`; what is signed is "quiesce-audit-v1", NUL and the
record's bytes. `bin/audit-verify` reads them without any of this code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple  # a record is any JSON object of text and whole numbers

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

DOMAIN = b"quiesce-audit-v1\0"
_HEX = re.compile(r"(?:[0-9a-f]{2})+")


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

    @classmethod
    def new(cls) -> Signer:
        """A new key."""
        return cls(Ed25519PrivateKey.generate())

    def private_pem(self) -> str:
        """The private key, PKCS #8, not encrypted."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()

    def sign(self, record: Mapping[str, Any]) -> str:
        """The record's signed line."""
        return line_of(
            {"key": self.public_hex, "record": record, "signature": self._signature(record)}
        )

    def succeeding(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record, naming this key as the next one and signed by it too: nobody can make a key
        the successor of theirs that did not agree."""
        record = {**record, "next_key": self.public_hex}
        return {**record, "next_signature": self._signature(record)}

    def _signature(self, record: Mapping[str, Any]) -> str:
        return self._key.sign(DOMAIN + line_of(record).encode()).hex()


class Signed(NamedTuple):
    """A signed line that holds."""

    record: dict[str, Any]
    key: str  # hex, the public key that signed it
    next_key: str  # the key that is in force behind this line


def opened(line: bytes, public_hex: str = "") -> Signed | None:
    """A line that this key signed (any key, where none is given), or None."""
    try:
        document = json.loads(line)
        record, key = document["record"], document["key"]
        if (public_hex and key != public_hex) or not isinstance(record, dict):
            return None
        _verify(key, record, document["signature"])
        next_key = record.get("next_key", key)
        if next_key != key:
            agreed = {name: value for name, value in record.items() if name != "next_signature"}
            _verify(next_key, agreed, record["next_signature"])
    except (ValueError, KeyError, TypeError, RecursionError, InvalidSignature):
        return None
    return Signed(record, key, next_key)


def _verify(key: str, record: Mapping[str, Any], signature: str) -> None:
    """Raises ValueError, TypeError, InvalidSignature. Hex is written in one way only."""
    if not (_HEX.fullmatch(key) and _HEX.fullmatch(signature)):
        raise ValueError("not hex as we write it")
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(
        bytes.fromhex(signature), DOMAIN + line_of(record).encode()
    )
