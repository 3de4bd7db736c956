"""Why a file or folder of tensors cannot be used."""

from __future__ import annotations


class TensorFileError(ValueError):
    """The path, and the reason in words."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason
