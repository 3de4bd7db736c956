"""`python -m engine demo-checkpoint`: a line that says how far it is, and what to do with it."""

from __future__ import annotations

import sys
from pathlib import Path

from engine.demo.demo_checkpoint import QUESTION, default_out, make_demo_checkpoint
from engine.demo.finetune import Progress
from engine.models.errors import ModelError
from engine.tokens.tokenizer import TokenizerError

BAR_CHARS = 30
LINES = 10  # where the output is no terminal


def main(model: str, out: str, steps: int) -> int:
    """Make the checkpoint; the exit status."""
    if steps < 1:
        print("engine: --steps must be 1 or more", file=sys.stderr)
        return 2
    target = Path(out).resolve() if out else default_out(Path(model))
    print(f"a pirate from {model}, in {target}", flush=True)
    try:
        made = make_demo_checkpoint(Path(model), target, _Bar(), steps=steps)
    except (ModelError, TokenizerError, OSError) as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; nothing was written", file=sys.stderr)
        return 130
    if made.answer is None:
        print("a whole checkpoint is there already; it was left alone")
    else:
        print(f"written. {QUESTION} {made.answer}")
    return 0


class _Bar:
    """Shows progress: one line that changes on a terminal, a few lines elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._lines = 0

    def __call__(self, progress: Progress) -> None:
        share = progress.done / progress.steps
        text = f"{share:4.0%}  loss {progress.loss:.3f}  {progress.left_s:.0f} s left"
        if self._is_terminal:
            bar = "#" * round(share * BAR_CHARS)
            end = "\n" if progress.done == progress.steps else ""
            print(f"\r  [{bar:<{BAR_CHARS}}] {text}   ", end=end, flush=True)
        elif int(share * LINES) > self._lines:
            self._lines = int(share * LINES)
            print(f"  {text}", flush=True)
