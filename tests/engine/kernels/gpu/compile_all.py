"""Compiles, for a Hopper card and without one, every launch that models and page copies make.

    TRITON_INTERPRET=0 python -m tests.engine.kernels.gpu.compile_all

The launches are the product's own: its code runs on a CPU, and what it would launch is noted in
place of being run. Prints a line a kernel; fails where one does not compile or asks for more shared
memory than a processor has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from triton import compiler
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from engine.kernels.gpu.page_copy import GpuPageCopier
from engine.memory.host_pool import HostPool, PageShape
from engine.memory.page_copy import host_places
from engine.models.config import ModelConfig
from engine.models.llama_gpu import LlamaGPU
from engine.protocol import HostLayout
from tests.engine.models.factories import Source, random_weights, tiny_config

TARGET = GPUTarget("cuda", 90, 32)
SHARED_BYTES = 227 << 10  # what a program may have on a Hopper processor
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Launch:
    """A kernel with the types of its arguments: one compilation."""

    kernel: JITFunction
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, int], ...]


class _NoGraphs:
    def record(self, call: Any) -> Any:
        raise AssertionError("nothing is recorded here")


@contextmanager
def noted() -> Iterator[dict[Launch, None]]:
    """Note launches, in order, each once; run none."""
    found: dict[Launch, None] = {}

    def run(kernel: JITFunction, *args: Any, grid: object, warmup: bool, **kwargs: Any) -> None:
        found[launch_of(kernel, args, kwargs)] = None

    # Triton's own seam would be a driver, which only a card has.
    with mock.patch.object(JITFunction, "run", run):
        yield found


def launch_of(kernel: JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature, constants = [], []
    for parameter in kernel.params:
        if parameter.is_constexpr:
            signature.append((parameter.name, "constexpr"))
            constants.append((parameter.name, given[parameter.name]))
        else:
            signature.append((parameter.name, type_of(given[parameter.name])))
    options = tuple((name, kwargs[name]) for name in OPTIONS if name in kwargs)
    return Launch(kernel, tuple(signature), tuple(constants), options)


def type_of(value: object) -> str:
    match value:
        case torch.Tensor():
            assert value.data_ptr() % 16 == 0, "a section that would be compiled for once more"
            return POINTERS[value.dtype]
        case float():
            return "fp32"
        case int():
            return "i32" if abs(value) < 1 << 31 else "i64"
    raise AssertionError(f"an argument {value!r}")


def model_launches(config: ModelConfig, dtype: torch.dtype, page_size: int) -> list[Launch]:
    model = LlamaGPU(config, dtype, page_size, CPU, _NoGraphs())
    model.load(Source(random_weights(config)))
    with noted() as found:
        model.compile_kernels()
    return list(found)


def copy_launches() -> list[Launch]:
    sides = [torch.zeros((2, 8, 2048), dtype=torch.uint8) for _ in range(2)]
    host = HostPool(PageShape(1, 8, 8 * 2048), 2, HostLayout.PAGE_FIRST)
    with noted() as found:
        for to_host in (True, False):
            GpuPageCopier(sides, host_places(host)).move([0], [1], to_host=to_host)
    return list(found)


def compiled(launch: Launch) -> Any:
    """The kernel for TARGET, pointers being aligned as the product aligns them."""
    attrs = {
        (index,): [["tt.divisibility", 16]]
        for index, (_, kind) in enumerate(launch.signature)
        if kind.startswith("*")
    }
    source = compiler.ASTSource(
        launch.kernel, dict(launch.signature), dict(launch.constants), attrs
    )
    return compiler.compile(source, target=TARGET, options=dict(launch.options))


def shape(**changes: object) -> ModelConfig:
    """A layer of a real model's heads; what is not a kernel's business is small."""
    return tiny_config(num_hidden_layers=1, **changes)


CASES = [
    # SmolLM2 135M; Llama 3.1 8B; Qwen3 4B, in full precision; odd heads.
    (shape(num_attention_heads=9, num_key_value_heads=3, head_dim=64, hidden_size=4096),
     torch.bfloat16, 16),
    (shape(num_attention_heads=32, num_key_value_heads=8, head_dim=128, hidden_size=4096),
     torch.bfloat16, 64),
    (shape(architectures=["Qwen3ForCausalLM"], num_attention_heads=32, num_key_value_heads=8,
           head_dim=128, hidden_size=2560), torch.float32, 1),
    (shape(num_attention_heads=5, num_key_value_heads=1, head_dim=80), torch.float16, 32),
]  # fmt: skip


def main() -> None:
    """Everything, one after another."""
    found = dict.fromkeys(copy_launches())
    for case in CASES:
        found |= dict.fromkeys(model_launches(*case))
    for launch in found:
        made = compiled(launch)
        name, shared = launch.kernel.__name__, made.metadata.shared
        assert made.asm["cubin"][:4] == b"\x7fELF", name
        assert shared <= SHARED_BYTES, f"{name} wants {shared} bytes of shared memory: {launch}"
        product = "wgmma" if "wgmma" in made.asm["ptx"] else "-"
        kinds = ",".join(sorted({kind for _, kind in launch.signature if kind.startswith("*")}))
        print(f"{name:20} {kinds:28} shared {shared:6} {product}")
    print(f"compiled {len(found)} kernels")


if __name__ == "__main__":
    main()
