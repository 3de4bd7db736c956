"""transformers behind the same HTTP route as the others: one request after another.

    python peer_transformers.py FOLDER DTYPE THREADS PORT

It has no scheduler, so several prompts come in one call and are computed as one batch: its best
case. The KV of the newest single prompt is kept, for prompts that begin with it.
"""

from __future__ import annotations

import copy
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache


class Peer:
    """The model, and the cache of one prompt."""

    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model.eval()
        self._ids: list[int] = []
        self._cache = DynamicCache()

    def complete(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """Greedy tokens of each prompt; all are of one length."""
        cache, rest = self._cached(prompts)
        logits = self._forward(rest, cache)
        if len(prompts) == 1:
            self._ids, self._cache = prompts[0], copy.deepcopy(cache)
        tokens = [logits[:, -1].argmax(-1, keepdim=True)]
        for _ in range(count - 1):
            logits = self._forward(tokens[-1], cache)
            tokens.append(logits[:, -1].argmax(-1, keepdim=True))
        found: list[list[int]] = torch.cat(tokens, dim=1).tolist()
        return found

    def _forward(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        logits: torch.Tensor = self.model(ids, past_key_values=cache, logits_to_keep=1).logits
        return logits

    def _cached(self, prompts: list[list[int]]) -> tuple[DynamicCache, torch.Tensor]:
        known = len(self._ids)
        if len(prompts) == 1 and known and prompts[0][:known] == self._ids != prompts[0]:
            return copy.deepcopy(self._cache), torch.tensor([prompts[0][known:]])
        return DynamicCache(), torch.tensor(prompts)


def handler_of(peer: Peer) -> type[BaseHTTPRequestHandler]:
    """POST /v1/completions, and GET for "are you there"."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompt = asked["prompt"]
            prompts = prompt if isinstance(prompt[0], list) else [prompt]
            with torch.inference_mode():
                tokens = peer.complete(prompts, asked["max_tokens"])
            self._answer({"usage": {"completion_tokens": len(tokens[0])}, "tokens": tokens})

        def _answer(self, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler


def main() -> None:
    """Serve until killed."""
    folder, dtype, threads, port = sys.argv[1:5]
    peer = Peer(folder, dtype, int(threads))
    HTTPServer(("127.0.0.1", int(port)), handler_of(peer)).serve_forever()


if __name__ == "__main__":
    main()
