"""The Triton page copy beside its torch reference: interpreted here, and compiled for the card.

The interpreter is switched on before triton is imported, which is once a process: the test runs
the kernel in a process of its own. Slow, because triton is: a gigabyte to unpack.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
INTERPRETED = """
import sys
import torch
from engine.kernels.gpu.page_copy import GpuPageCopier
from engine.memory.host_pool import HostPool, PageShape
from engine.memory.page_copy import PageCopier, host_places
from engine.protocol import HostLayout

torch.manual_seed(0)
for layers, heads, head_bytes in ((1, 1, 8), (2, 3, 20), (3, 2, 1028), (2, 5, 2048)):
    shape = PageShape(layers, heads, heads * head_bytes)
    for layout in HostLayout:
        sides = [
            torch.randint(0, 256, (7, heads, head_bytes), dtype=torch.uint8)
            for _ in range(2 * layers)
        ]
        ours, reference = HostPool(shape, 9, layout), HostPool(shape, 9, layout)
        device_pages, host_pages = [6, 0, 3], [8, 2, 5]
        GpuPageCopier(sides, host_places(ours)).move(device_pages, host_pages, to_host=True)
        PageCopier(sides, reference).to_host(device_pages, host_pages)
        assert torch.equal(ours.bytes, reference.bytes), (shape, layout)
        back = [torch.zeros_like(side) for side in sides]
        GpuPageCopier(back, host_places(ours)).move(device_pages, host_pages, to_host=False)
        for side, copy in zip(sides, back, strict=True):
            assert torch.equal(side[device_pages], copy[device_pages]), (shape, layout)
            assert not copy[[1, 2, 4, 5]].any(), (shape, layout)
print("equal")
"""
COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from engine.kernels.gpu.page_copy import copy_pages_kernel

for to_host in (True, False):
    source = ASTSource(
        fn=copy_pages_kernel,
        signature={
            "side_addresses": "*i64", "host_address": "i64", "host_offsets": "*i64",
            "device_pages": "*i64", "host_pages": "*i64", "host_page_stride": "i32",
            "host_head_stride": "i32", "num_heads": "constexpr", "head_words": "constexpr",
            "to_host": "constexpr", "block_words": "constexpr",
        },
        constexprs={"num_heads": 8, "head_words": 512, "to_host": to_host, "block_words": 1024},
    )
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert made.asm["cubin"][:4] == b"\\x7fELF"
print("compiled")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "interprets", "says"),
    [(INTERPRETED, "1", "equal"), (COMPILED, "0", "compiled")],
    ids=["interpreted", "compiled for sm_90"],
)
def test_pages_are_copied_as_the_reference_copies_them(
    script: str, interprets: str, says: str, tmp_path: Path
) -> None:
    env = {**os.environ, "TRITON_INTERPRET": interprets, "PYTHONPATH": str(ROOT)}
    env |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [says]
