"""The limits a step is held against: memory bandwidth and arithmetic, measured in the same run.

Compiled beside the kernels' own headers, so that both use the same instructions.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine.kernels.cpu.build import FLAGS
from engine.models.config import ModelConfig
from tests.bench.figures import ROOT

BUFFER_BYTES = 1 << 30
MULTIPLICATIONS = 1 << 24


@dataclass(frozen=True, slots=True)
class Limits:
    """Of these threads together."""

    bytes_per_s: float
    flop_per_s: float


def limits(threads: int, element_bytes: int) -> Limits:
    """Measure them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "floors.so"
        command = [
            os.environ.get("CXX", "g++"), *FLAGS, "-march=native",
            f"-DELEMENT_BITS={8 * element_bytes}",
            f"-I{ROOT / 'engine' / 'kernels' / 'cpu'}", str(Path(__file__).with_suffix(".cpp")),
            "-o", str(path),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(path))
    for name in ("floors_read", "floors_multiply"):
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.c_int, ctypes.c_int64], ctypes.c_double
    return Limits(
        library.floors_read(threads, BUFFER_BYTES),
        library.floors_multiply(threads, MULTIPLICATIONS),
    )


@dataclass(frozen=True, slots=True)
class Work:
    """What a step must at least read and multiply."""

    bytes: int
    flop: int

    def floors_s(self, limit: Limits) -> tuple[float, float]:
        """Seconds for its bytes, and for its arithmetic."""
        return self.bytes / limit.bytes_per_s, self.flop / limit.flop_per_s


def work_of(
    config: ModelConfig, element_bytes: int, *, requests: int, new: int, context: int
) -> Work:
    """`requests` of `context` tokens, the last `new` of which are computed; one output of each."""
    c = config
    width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
    layer = c.hidden_size * (width + c.num_heads * c.head_dim + 3 * c.ffn_size)
    head = c.vocab_size * c.hidden_size
    tokens = requests * new
    pairs = requests * sum(range(context - new + 1, context + 1))  # a query and what it sees
    kv = 2 * requests * context * c.num_kv_heads * c.head_dim * c.num_layers
    return Work(
        bytes=(c.num_layers * layer + head + kv) * element_bytes,
        flop=2 * (tokens * c.num_layers * layer + requests * head)
        + 4 * pairs * c.num_heads * c.head_dim * c.num_layers,
    )
