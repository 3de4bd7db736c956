"""Compiles the C++ library for one element type, head size and page size; once per machine.

Knows nothing of what the library does. The result lies in a folder the caller names, under a name
that hashes everything it depends on, so it is never stale and never runs on another CPU.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.log import get_logger

log = get_logger()

SOURCES = (
    *("step.cpp", "stages.h", "attention.h", "gemm.h", "sample.h"),
    *("team.h", "element.h", "simd.h"),
)
# Never -ffast-math: a library linked with it turns on flush-to-zero for the whole process. Nor
# -fassociative-math: sums must not be reordered, so that a row's result is the same in any batch.
FLAGS = (
    "-O3",
    "-std=gnu++20",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-Wl,-Bsymbolic",
)
BUILD_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class LibraryShape:
    """What a library is compiled for."""

    element_bits: int  # 16 is bfloat16, 32 is float
    head_dim: int
    page_size: int

    def why_unsupported(self) -> str | None:
        """Return what the kernels cannot do, or None."""
        if self.element_bits not in (16, 32):
            return f"element of {self.element_bits} bits"
        if self.head_dim % 32 or not 32 <= self.head_dim <= 256:
            return f"head_dim {self.head_dim} is not a multiple of 32 up to 256"
        if self.page_size % 16 or not 16 <= self.page_size <= 256:
            return f"page_size {self.page_size} is not a multiple of 16 up to 256"
        return None


def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature names as Linux lists them; empty where they cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return next(
        (
            frozenset(x.split(":", 1)[1].split())
            for x in lines
            if x.startswith(("flags", "Features"))
        ),
        frozenset(),
    )


def build_library(
    cache_dir: Path, shape: LibraryShape, *, compiler: str | None = None, march: str = "native"
) -> Path | None:
    """Return the compiled library's path, compiling it unless it is in `cache_dir` already.

    The compiler chooses what this CPU has: bfloat16 instructions, AVX-512 or AVX2 without them
    (they are imitated), or neither. None where it cannot be had, with the reason in the log: the
    caller uses torch instead. Takes some 5 s. Safe with several processes at once: one builds, the
    others wait for it.
    """
    problem = shape.why_unsupported()
    if problem:
        return _unavailable("shape not supported", problem)
    cxx = shutil.which(compiler or os.environ.get("CXX") or "g++")
    if cxx is None:
        return _unavailable("no C++ compiler", compiler or os.environ.get("CXX") or "g++")
    try:
        return _build_locked(cache_dir, cxx, shape, march)
    except subprocess.CalledProcessError as error:
        return _unavailable("compiler failed", (error.stderr or "")[-2000:])
    except (OSError, subprocess.TimeoutExpired) as error:
        return _unavailable("build failed", str(error))


def _unavailable(reason: str, detail: str) -> Path | None:
    log.warning("cpu kernels unavailable", reason=reason, detail=detail)
    return None


def _build_locked(cache_dir: Path, cxx: str, shape: LibraryShape, march: str) -> Path:
    sources = Path(__file__).parent
    flags = [
        *FLAGS,
        f"-march={march}",
        f"-DELEMENT_BITS={shape.element_bits}",
        f"-DHEAD={shape.head_dim}",
        f"-DPAGE={shape.page_size}",
    ]
    cache_dir.mkdir(parents=True, exist_ok=True)
    library = cache_dir / f"quiesce_cpu_{_key(sources, cxx, flags)}.so"
    with (cache_dir / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists():
            return library
        for leftover in cache_dir.glob("quiesce_cpu_*.tmp"):  # of a build that was killed
            leftover.unlink()
        temporary = library.with_suffix(f".{os.getpid()}.tmp")
        try:
            command = [cxx, *flags, *_openmp_flags(), str(sources / SOURCES[0])]
            _run([*command, "-o", str(temporary)])
            temporary.replace(library)
        finally:
            temporary.unlink(missing_ok=True)
    log.info("cpu kernels built", library=library.name)
    return library


def _openmp_flags() -> list[str]:
    """Link the OpenMP runtime that torch brings: two of them in a process fight for the cores."""
    folder = Path(torch.__file__).parent / "lib"
    if not (folder / "libgomp.so.1").exists():
        return []
    return [f"-Wl,-rpath,{folder}"]


def _key(sources: Path, cxx: str, flags: list[str]) -> str:
    """Hash all that the library depends on. It uses no header of torch or Python.

    torch's version stands for its OpenMP runtime; the CPU's flags for what `-march=native` means.
    """
    digest = hashlib.sha256()
    facts = [_run([cxx, "--version"]), *flags, *_openmp_flags(), torch.__version__]
    for fact in [*facts, platform.machine(), *sorted(cpu_flags())]:
        digest.update(fact.encode() + b"\0")
    for name in SOURCES:
        digest.update((sources / name).read_bytes())
    return digest.hexdigest()[:20]


def _run(command: list[str]) -> str:
    # The command is the compiler the operator chose, with arguments made here.
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=True, timeout=BUILD_TIMEOUT_S
    )
    return done.stdout
