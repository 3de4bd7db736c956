"""An engine process on the card, over a given model or one by chance. The HTTP benches start it."""

from __future__ import annotations

import os
from pathlib import Path

from engine.models.gguf import convert, find_packaged_gguf
from tests.bench.gpu.models import CONTEXT, make_folder
from tests.bench.gpu.place import ROOT, Site
from tests.fakes.engine_process import EngineProcess

# What a CUDA program finds its driver and its compiled kernels by.
PASSED_ON = ("LD_LIBRARY_PATH", "CUDA_", "NVIDIA_", "TRITON_", "TMPDIR")


def model_folder(site: Site, shape: str, name: str, seed: int) -> Path:
    """What QUIESCE_MODEL names, else the packaged model where it is installed and has this shape,
    else weights by chance."""
    given = os.environ.get("QUIESCE_MODEL")
    if given and seed == 0:
        return Path(given)
    gguf = find_packaged_gguf() if shape == "135m" and seed == 0 else None
    folder = site.work / "models" / name
    if gguf is not None:
        convert(gguf, folder, lambda phrase, share: None)
        return folder
    return make_folder(folder, shape, seed)


def served(site: Site, folder: Path, **options: object) -> EngineProcess:
    """One rank on the card. Not started yet."""
    flags: dict[str, object] = {
        "device": "cpu" if site.is_dry else "cuda",
        "dp_size": 1,
        "threads": 2 if site.is_dry else len(os.sched_getaffinity(0)),
        "context_length": 2048 if site.is_dry else CONTEXT,
        "max_total_tokens": 8192 if site.is_dry else 400_000,
        "chunked_prefill_size": 512 if site.is_dry else 8192,
        "max_running_requests": 256,
        **options,
    }
    engine = EngineProcess(folder, site.work / "ext", dtype="bfloat16", **flags)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    engine.environment = {
        name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)
    } | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return engine
