"""The compiled kernels against torch, over odd sizes and both number formats."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.kernels.cpu.build import LibraryShape, build_library, cpu_flags
from engine.kernels.cpu.library import CDraw, CPULibrary, CTokens
from engine.kernels.paged_attention import AttentionPlan, ExtendPart, attend

HEADS, KV_HEADS, HEAD_DIM, PAGE, CONTEXT = 6, 2, 64, 16, 700
BOUND = {torch.float32: 2e-5, torch.bfloat16: 0.03}

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def library(ext_dir: Path, dtype: torch.dtype, march: str = "native") -> CPULibrary:
    shape = LibraryShape(8 * dtype.itemsize, HEAD_DIM, PAGE)
    path = build_library(ext_dir, shape, march=march)
    if path is None:
        pytest.skip("this machine cannot build or run the compiled kernels")
    return CPULibrary(path)


@dtypes
@pytest.mark.parametrize("rows", [1, 2, 11, 12, 13, 25, 500])
def test_linear_is_a_matrix_product_at_any_number_of_rows(
    cpu_ext_dir: Path, dtype: torch.dtype, rows: int
) -> None:
    check_linear(library(cpu_ext_dir, dtype), dtype, rows)


def check_linear(lib: CPULibrary, dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    for n, k in ((32, 16), (48, 96), (112, 130)):
        x = torch.randn(rows, k, generator=generator).to(dtype)
        w = (torch.randn(n, k, generator=generator) / k**0.5).to(dtype)
        y = lib.linear(x, lib.pack(w), n)
        error = (y.double() - x.double() @ w.double().T).abs().max()
        assert error < BOUND[dtype], f"n={n} k={k}: {error}"


@dtypes
def test_a_rows_result_has_the_same_bits_in_any_batch(
    cpu_ext_dir: Path, dtype: torch.dtype
) -> None:
    lib = library(cpu_ext_dir, dtype)
    x, w = torch.randn(29, 64).to(dtype), lib.pack(torch.randn(48, 64).to(dtype))
    whole = lib.linear(x, w, 48)
    for first, last in ((0, 1), (3, 8), (7, 19), (5, 29)):
        assert torch.equal(lib.linear(x[first:last].contiguous(), w, 48), whole[first:last])


@dtypes
def test_packing_may_overwrite_an_earlier_packing(cpu_ext_dir: Path, dtype: torch.dtype) -> None:
    lib = library(cpu_ext_dir, dtype)
    first, second = torch.randn(48, 32).to(dtype), torch.randn(48, 32).to(dtype)
    packed = lib.pack(first)
    address = packed.data_ptr()
    assert lib.pack(second, out=packed).data_ptr() == address
    assert torch.equal(packed, lib.pack(second))


def random_step(
    lib: CPULibrary, dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend in one step of several parts; return the kernel's and torch's output (T, H * D)."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    cached = [rng.choice((0, 1, 15, 16, 17, 255, 256, 300, 600)) for _ in range(7)]
    lengths = [rng.choice((1, 1, 2, 5, 16, 37, 90)) for _ in cached]
    ends = [c + n for c, n in zip(cached, lengths, strict=True)]
    free = rng.sample(range(400), 400)
    pages = [[free.pop() for _ in range(-(-end // PAGE))] for end in ends]
    total = sum(lengths)
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM

    k_torch = torch.full((400, KV_HEADS, PAGE, HEAD_DIM), float("nan"), dtype=dtype)
    v_torch = k_torch.clone()
    for part_pages, count in zip(pages, cached, strict=True):
        for t in range(count):
            where = part_pages[t // PAGE], slice(None), t % PAGE
            k_torch[where] = torch.randn(KV_HEADS, HEAD_DIM, generator=generator).to(dtype)
            v_torch[where] = torch.randn(KV_HEADS, HEAD_DIM, generator=generator).to(dtype)
    group = 2 if dtype == torch.bfloat16 else 1
    k = k_torch.view(400, KV_HEADS, 1, 16, HEAD_DIM // group, group).transpose(3, 4).contiguous()
    v = v_torch.view(400, KV_HEADS, PAGE // group, group, HEAD_DIM).transpose(3, 4).contiguous()

    qkv = torch.randn(total, width, generator=generator).to(dtype)
    pos = np.concatenate([np.arange(c, e) for c, e in zip(cached, ends, strict=True)])
    start = np.cumsum([0, *lengths])
    first_page = np.cumsum([0, *map(len, pages)])
    flat = np.array([p for some in pages for p in some], np.int32)
    tokens = CTokens(*(a.ctypes.data for a in (pos, start, first_page, flat)), total, len(lengths))
    # No rotation: cos 1, sin 0. Angles have their own tests.
    rope = (torch.ones(CONTEXT, HEAD_DIM // 2), torch.zeros(CONTEXT, HEAD_DIM // 2))
    out = torch.empty(total, HEADS * HEAD_DIM, dtype=dtype)
    lib.attend(tokens, qkv, (HEADS, KV_HEADS), rope, (k, v), out)

    heads = qkv.view(total, -1, HEAD_DIM)
    extends = []
    for r, some in enumerate(pages):
        rows = slice(int(start[r]), int(start[r + 1]))
        for i in range(rows.start, rows.stop):
            where = some[pos[i] // PAGE], slice(None), pos[i] % PAGE
            k_torch[where] = heads[i, HEADS : HEADS + KV_HEADS]
            v_torch[where] = heads[i, HEADS + KV_HEADS :]
        visible = torch.arange(ends[r]) <= torch.from_numpy(pos[rows])[:, None]
        extends.append(ExtendPart(rows, torch.tensor(some), visible))
    plan = AttentionPlan(torch.empty(0), torch.empty(0), None, extends)
    expected = attend(heads[:, :HEADS].double(), k_torch.double(), v_torch.double(), plan)
    return out, expected.reshape(total, -1)


@dtypes
@pytest.mark.parametrize("seed", range(4))
def test_attention_over_scattered_and_poisoned_pages_is_torchs(
    cpu_ext_dir: Path, dtype: torch.dtype, seed: int
) -> None:
    found, expected = random_step(library(cpu_ext_dir, dtype), dtype, seed)
    assert (found.double() - expected).abs().max() < BOUND[dtype]


@dtypes
@pytest.mark.parametrize("march", ["skylake-avx512", "x86-64-v3", "x86-64-v2"])
def test_older_cpus_get_the_same_results(cpu_ext_dir: Path, march: str, dtype: torch.dtype) -> None:
    if march == "skylake-avx512" and "avx512f" not in cpu_flags():
        pytest.skip("this CPU cannot run it")
    lib = library(cpu_ext_dir, dtype, march)
    check_linear(lib, dtype, 25)
    found, expected = random_step(lib, dtype, 5)
    assert (found.double() - expected).abs().max() < BOUND[dtype]
    logits = torch.randn(9, 1003, generator=torch.Generator().manual_seed(1)) * 4
    how = [CDraw(0.7, 40 if row % 3 else 1003, 0.9, 0.01 * (row % 2), row / 9) for row in range(9)]
    assert lib.draw(logits, range(9), how) == library(cpu_ext_dir, dtype).draw(
        logits, range(9), how
    )


def test_denormal_numbers_survive_loading_and_running(cpu_ext_dir: Path) -> None:
    lib = library(cpu_ext_dir, torch.bfloat16)
    lib.linear(
        torch.ones(40, 32, dtype=torch.bfloat16), lib.pack(torch.ones(32, 32).bfloat16()), 32
    )
    tiny = torch.full((100_000,), 1e-39)  # enough numbers for every thread
    assert (tiny * 1.0 != 0).all()
