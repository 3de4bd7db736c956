"""The peer of engine.py: transformers in a process of its own, asked over standard input.

One JSON object a line in, one out. Greedy, EOS ignored, KV cache on, sdpa attention.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache


class Peer:
    """The model, and one method a row."""

    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model.eval()

    def first_token(self, ids: list[int]) -> float:
        """Seconds from a prompt to its first token, nothing cached."""
        start = time.perf_counter()
        self.model(torch.tensor([ids]), logits_to_keep=1).logits.argmax(-1)
        return time.perf_counter() - start

    def first_token_hit(self, prefix: list[int], rest: list[int]) -> float:
        """The same when the prefix's KV is there already (a copy, made inside the time)."""
        cache = DynamicCache()
        self.model(torch.tensor([prefix]), past_key_values=cache, logits_to_keep=1)
        start = time.perf_counter()
        used = copy.deepcopy(cache)
        self.model(torch.tensor([rest]), past_key_values=used, logits_to_keep=1).logits.argmax(-1)
        return time.perf_counter() - start

    def decode(self, prompts: list[list[int]], count: int) -> float:
        """Seconds for `count` more tokens of each prompt, after its first."""
        ids = torch.tensor(prompts)
        cache = DynamicCache()
        logits = self.model(ids, past_key_values=cache, logits_to_keep=1).logits
        token = logits[:, -1].argmax(-1, keepdim=True)
        start = time.perf_counter()
        for _ in range(count):
            logits = self.model(token, past_key_values=cache).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
        return time.perf_counter() - start


def main() -> None:
    """Answer until standard input ends."""
    peer = Peer(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(json.dumps({"ready": torch.__version__}), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            request: dict[str, Any] = json.loads(line)
            method = getattr(peer, request.pop("row"))
            print(json.dumps({"seconds": method(**request)}), flush=True)


if __name__ == "__main__":
    main()
