"""Why a model folder cannot be used, as a small tree: each error keeps its facts in fields.

Raised while loading only; a model that loaded serves.
"""

from __future__ import annotations


class ModelError(ValueError):
    """A model folder or file that cannot be used, for a reason the operator can act on."""


class ModelFileError(ModelError):
    """A file is missing, unreadable or not what its name says."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason


class UnsupportedModelError(ModelError):
    """The model asks for something that this engine does not compute."""

    def __init__(self, feature: str, value: object) -> None:
        super().__init__(f"unsupported model feature: {feature} = {value!r}")
        self.feature = feature
        self.value = value


class ConfigError(ModelError):
    """A setting of config.json is missing or makes no sense."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"config.json: {name}: {reason}")
        self.name = name


class TensorError(ModelError):
    """A tensor of the checkpoint is missing, unknown or not as the model needs it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"tensor {name}: {reason}")
        self.name = name


class MissingTensorError(TensorError):
    """The model needs a tensor that the checkpoint does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "missing from the checkpoint")


class UnexpectedTensorError(TensorError):
    """The checkpoint has a tensor that the model would ignore."""

    def __init__(self, name: str, reason: str = "the model has no use for it") -> None:
        super().__init__(name, reason)


class NonFiniteTensorError(TensorError):
    """A tensor holds NaN or infinity: every answer made with it would be garbage."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "holds NaN or infinity")


class TensorShapeError(TensorError):
    """A tensor's shape is not the one that config.json implies."""

    def __init__(self, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        super().__init__(name, f"shape {found}, expected {expected}")
        self.found = found
        self.expected = expected


class TensorDtypeError(TensorError):
    """A tensor is stored in a number format that this engine does not read."""

    def __init__(self, name: str, found: str) -> None:
        super().__init__(name, f"stored as {found}; bfloat16, float16 and float32 are read")
        self.found = found
