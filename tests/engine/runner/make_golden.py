"""Records what transformers computes in fp32, for the tests to compare with; run by hand.

    python tests/engine/runner/make_golden.py MODEL_DIR

in an environment with transformers 5.24.0 and torch 2.13.0, where MODEL_DIR is the packaged model
as `engine.models.gguf.convert` writes it. Prompts on whose way two tokens come closer than MIN_GAP
are left out: there, the order of additions decides, and no implementation is right.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

NEW_TOKENS = 40
TOP = 5
MIN_GAP = 0.004
OUT = Path(__file__).parent / "golden" / "smollm2_fp32.json"

PLAIN = [
    "The",
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):",
    "Water boils at",
    "In 1969, the first humans",
    "import numpy as np\n\ndef mean(values):",
    "The three primary colours are",
    "A good engineer writes tests because",
    "Paris, London and Berlin are",
    "To make bread, you need flour, water,",
    "SELECT name, age FROM people WHERE",
    "The opposite of hot is",
    "1, 2, 3, 4, 5,",
    "She opened the old wooden door and",
    "Photosynthesis is the process by which",
    "<html><head><title>",
    "My favourite season is autumn, because",
]
CHAT = [
    "What is the largest planet?",
    "List three uses of copper.",
    "Write a short poem about the sea.",
    "Explain gravity to a child.",
    "How do I sort a list in Python?",
    "Give me a recipe for pancakes.",
    "Who wrote Hamlet?",
    "Translate 'good morning' to French.",
    "What is 12 times 12?",
    "Why is the sky blue?",
]
PASSAGE = (
    "The harbour lay still under a thin fog. A boy counted the boats: seven with sails, two "
    "without. His grandmother mended a net and said nothing. Far out a bell rang, once, then "
    "again. Nobody had rung that bell for thirty years, she told him, not since the lighthouse "
    "keeper went away and left his dog behind. The dog had waited on the rocks all winter. In "
    "spring a painter came, drew the dog, and sold the picture in the city for more than the "
    "lighthouse was worth. With that money the village built a school, a small one, with a red "
    "roof and a clock that was always four minutes late. Everyone learned to read there. "
    "Everyone was four minutes late for everything, and nobody minded, because they were all "
    "late together. Then one morning the clock was right. "
)
# Where long prompts end, in tokens: both sides of a page's and of a softmax span's end.
LONG = [31, 32, 33, 64, 127, 160, 255, 256, 257, 300, 400, 511, 513, 600]


def chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def prompts(tokenizer: transformers.PreTrainedTokenizerBase) -> list[list[int]]:
    texts = [*PLAIN, *map(chat, CHAT)]
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    story = "".join(f"Chapter {n}. {PASSAGE}" for n in range(1, 6))
    long = tokenizer(story, add_special_tokens=False).input_ids
    return ids + [long[n : n + size] for n, size in enumerate(LONG)]


@torch.inference_mode()
def record(model: transformers.PreTrainedModel, ids: list[int]) -> dict[str, object] | None:
    """Return a prompt's greedy tokens with the best logits before each, or None near a tie."""
    x = torch.tensor([ids])
    out = model.generate(
        x,
        attention_mask=torch.ones_like(x),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens = out[0, len(ids) :].tolist()
    logits = model(torch.tensor([ids + tokens[:-1]])).logits[0, len(ids) - 1 :]
    assert logits.argmax(dim=1).tolist() == tokens
    best = logits.topk(TOP, dim=1)
    if (best.values[:, 0] - best.values[:, 1]).min() < MIN_GAP:
        return None
    return {
        "prompt_ids": ids,
        "tokens": tokens,
        "top_ids": best.indices.tolist(),
        "top_logits": [[round(v, 4) for v in row] for row in best.values.tolist()],
    }


def main() -> None:
    folder = sys.argv[1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cases = [case for ids in prompts(tokenizer) if (case := record(model, ids))]
    made = (
        f"{Path(__file__).name}: transformers {transformers.__version__}, torch "
        f"{torch.__version__}, float32 on a CPU, weights of the packaged SmolLM2-135M-Instruct "
        f"rounded to bfloat16; greedy, {NEW_TOKENS} tokens, the end of text ignored"
    )
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    OUT.write_text(f'{{"made_by": {json.dumps(made)}, "cases": [\n{lines}\n]}}\n')
    print(len(cases), "cases,", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
