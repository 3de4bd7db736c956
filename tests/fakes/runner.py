"""A runner without a model whose answers depend on the whole history, read from its pages.

It stores each token in its page slot and computes the next one from what it reads back. A wrong
page table, a page shared by mistake or a freed page therefore changes the output or raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch

from engine.memory.host_pool import HostPool, PageShape
from engine.models.forward_batch import (
    ForwardBatch,
    NonFiniteLogitsError,
    Part,
    PartResult,
    TokenLogprobs,
)
from engine.protocol import HostLayout, WeightsView

EOS = 256


def next_token(history: Sequence[int], weights: str = "") -> int:
    """What this model says after `history` with these weights: any byte, never the end."""
    digest = hashlib.blake2b(bytes(f"{list(history)}{weights}", "ascii"), digest_size=2).digest()
    return digest[0]


def solo(prompt: Sequence[int], count: int, weights: str = "") -> list[int]:
    """The output of an undisturbed run."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history, weights))
    return history[len(prompt) :]


class FakeRunner:
    """Implements engine.runner.base.Runner. `script` overrides the model: output index → token."""

    vocab_size = 257
    eos_ids = frozenset({EOS})

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        context_len: int = 64,
        script: Sequence[int] | None = None,
    ) -> None:
        self.num_pages, self.page_size, self.context_len = num_pages, page_size, context_len
        self.script = script
        self.weights = WeightsView(version="default")
        self.has_kv = True
        self.num_empty_cache = 0
        self.steps = 0
        self.cleared = 0
        self.emptied = 0
        self.batches: list[list[tuple[int, int]]] = []  # (start, count) of each part
        self.nan_after: int | None = None  # a history of this length gives NaN
        self.before_step: Callable[[], None] = lambda: None
        self._slots: dict[tuple[int, int], tuple[int, str]] = {}

    def forward(self, batch: ForwardBatch) -> list[PartResult]:
        self.before_step()
        self.steps += 1
        self.batches.append([(part.start, len(part.input_ids)) for part in batch.parts])
        bad = [
            i
            for i, part in enumerate(batch.parts)
            if self.nan_after is not None
            and part.sample is not None
            and part.start + len(part.input_ids) == self.nan_after
        ]
        if bad:
            raise NonFiniteLogitsError(bad)
        for part in batch.parts:
            self._write(part)
        return [self._result(part) for part in batch.parts]

    def _write(self, part: Part) -> None:
        for offset, token in enumerate(part.input_ids):
            page, slot = divmod(part.start + offset, self.page_size)
            self._slots[part.pages[page], slot] = (token, self.weights.checksum)

    def _read(self, part: Part) -> list[int]:
        history = []
        for position in range(part.start + len(part.input_ids)):
            page, slot = divmod(position, self.page_size)
            token, weights = self._slots[part.pages[page], slot]  # KeyError: a freed page is read
            assert weights == self.weights.checksum, f"KV of {weights} read by {self.weights}"
            history.append(token)
        return history

    def _result(self, part: Part) -> PartResult:
        history = self._read(part)
        prompt = []
        if part.logprobs_from is not None:
            successors = [*history[1:], *([] if part.next_id is None else [part.next_id])]
            for row in range(part.start, len(history)):
                if row < len(successors) and row + 1 >= part.logprobs_from:
                    prompt.append(TokenLogprobs(token_id=successors[row], logprob=-float(row + 1)))
        if part.sample is None:
            return PartResult(next_token=None, prompt=prompt)
        step = len(part.sample.output_ids)
        token = next_token(history, self.weights.checksum)
        if self.script is not None:
            token = self.script[step] if step < len(self.script) else 65
        output = None
        if part.sample.return_logprob:
            chosen = [(-1.0, token_id) for token_id in part.sample.token_ids_logprob]
            output = TokenLogprobs(token_id=token, logprob=-0.5, chosen_ids=chosen)
        return PartResult(next_token=token, output=output, prompt=prompt)

    def host_tier(self, num_pages: int, layout: HostLayout) -> tuple[HostPool, SlotCopier]:
        """Its slots as bytes, so that real records of them are kept."""
        shape = PageShape(num_layers=1, num_heads=1, side_bytes=SLOT_BYTES * self.page_size // 2)
        pool = HostPool(shape, num_pages, layout)
        return pool, SlotCopier(self, pool)

    def swap(self, loaded: object, weights: WeightsView) -> object:
        """Weights are no more than their name here."""
        before, self.weights = self.weights, weights
        return before

    def release_kv(self) -> None:
        self.has_kv = False
        self._slots.clear()

    def resume_kv(self) -> None:
        self.has_kv = True

    def clear_kv(self) -> None:
        self.cleared += 1
        self._slots.clear()

    def poison_pages(self, pages: list[int]) -> None:
        for page in pages:
            for slot in range(self.page_size):
                self._slots.pop((page, slot), None)

    def empty_cache(self) -> None:
        self.emptied += 1
        self.num_empty_cache += 1


SLOT_BYTES = 64  # of one token: its id, then the checksum of the weights that computed it


class SlotCopier:
    """Implements engine.cache.mover.Copier. `before_copy` may block or raise."""

    def __init__(self, runner: FakeRunner, pool: HostPool) -> None:
        self.runner, self.pool = runner, pool
        self.before_copy: Callable[[], None] = lambda: None

    def to_host(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> None:
        self.before_copy()
        for here, there in zip(device_pages, host_pages, strict=True):
            blob = b"".join(self._slot(here, slot) for slot in range(self.runner.page_size))
            half = len(blob) // 2
            for s in (0, 1):
                part = bytearray(blob[s * half : (s + 1) * half])
                self.pool.side(0, s)[there, 0] = torch.frombuffer(part, dtype=torch.uint8)

    def _slot(self, page: int, slot: int) -> bytes:
        token, weights = self.runner._slots[page, slot]
        return token.to_bytes(4, "little") + weights.encode().ljust(SLOT_BYTES - 4, b"\0")

    def to_device(self, host_pages: Sequence[int], device_pages: Sequence[int]) -> None:
        self.before_copy()
        for there, here in zip(host_pages, device_pages, strict=True):
            blob = b"".join(bytes(self.pool.side(0, s)[there, 0].tolist()) for s in (0, 1))
            for slot in range(self.runner.page_size):
                part = blob[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
                weights = part[4:].rstrip(b"\0").decode()
                self.runner._slots[here, slot] = (int.from_bytes(part[:4], "little"), weights)


class ByteDecoder:
    """Token id = byte value; EOS and anything above is special."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")
