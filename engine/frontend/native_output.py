"""/generate's replies: text, output_ids, meta_info, in SGLang's shape. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from engine.frontend.completion import Completion, Piece
from engine.frontend.http_errors import HTTPError
from engine.ipc.messages import FinishReason, LogprobEntry

_Triple = tuple[float | None, int, str | None]  # log probability, token id, its text if asked for
_LONG_TRIPLES = 16_384


class NativeOutput:
    """Gathers one request's pieces; `body` is its reply so far (or at the end)."""

    def __init__(
        self,
        completion: Completion,
        *,
        token_text: Callable[[int], str] | None,
        with_prompt_ids: bool = False,
    ) -> None:
        self._completion = completion
        self._new = completion.active.new
        self._token_text = token_text
        self._with_prompt_ids = with_prompt_ids
        self._text: list[str] = []
        self._ids: list[int] = []
        self._output = _Scores(self._triples)
        self._prompt = _Scores(self._triples)
        self._num_shown = 0
        self._versions: list[dict[str, Any]] = []
        self._last: Piece | None = None

    @property
    def finish(self) -> FinishReason | None:
        """Why it ended, once it has."""
        return self._last.finish if self._last else None

    def add(self, piece: Piece) -> None:
        """Take one piece."""
        note_version(self._versions, piece, len(self._ids))
        self._text.append(piece.text)
        self._ids += piece.token_ids
        if self._new.return_logprob:
            self._output.add(piece.logprobs)
            self._prompt.add(piece.prompt_logprobs)
        self._last = piece

    def is_due(self) -> bool:
        """True when an event should be sent now. Each event repeats all that was sent before it:
        long ones come less often, or their cost would grow with the square of the output."""
        size = self._output.num_triples + self._prompt.num_triples
        due = self.finish is not None or size < _LONG_TRIPLES or size >= 17 / 16 * self._num_shown
        if due:
            self._num_shown = size
        return due

    def body(self) -> dict[str, Any]:
        """The reply."""
        body: dict[str, Any] = {
            "text": "".join(self._text),
            "output_ids": list(self._ids),
            "meta_info": self._meta(),
        }
        if self._with_prompt_ids:
            body["prompt_token_ids"] = self._new.input_ids
        return body

    def error(self) -> HTTPError | None:
        """A request that ended with a status of its own is an error, not an answer."""
        finish = self.finish
        if finish is None or finish.type != "abort" or finish.status_code is None:
            return None
        retry = 1 if finish.status_code == 503 else None
        return HTTPError(finish.status_code, finish.message, retry_after_s=retry)

    def _meta(self) -> dict[str, Any]:
        last, active = self._last, self._completion.active
        assert last is not None
        meta: dict[str, Any] = {
            "id": self._new.rid,
            "finish_reason": finish_json(last.finish, len(self._ids)),
            "prompt_tokens": len(self._new.input_ids),
            "weight_version": last.weight_version,
            "num_retractions": last.retractions,
            "reasoning_tokens": 0,
            "completion_tokens": len(self._ids),
            "cached_tokens": last.cached_tokens,
            "cached_tokens_details": msgspec.to_builtins(last.cached),
            "dp_rank": active.rank,
        }
        if self._new.return_logprob:
            meta |= self._logprobs()
        if last.finish is not None:
            now = time.monotonic()
            meta["weight_versions"] = self._versions
            meta["e2e_latency"] = now - active.received_at
            if active.first_token_at is not None:
                meta["first_token_latency"] = active.first_token_at - active.received_at
        return meta

    def _logprobs(self) -> dict[str, Any]:
        new, prompt, output = self._new, self._prompt, self._output
        count = len(self._ids)
        found: dict[str, Any] = {
            "input_token_logprobs": prompt.own,
            "output_token_logprobs": output.own[:count],
            "output_token_logprobs_length": min(count, len(output.own)),
        }
        if new.top_logprobs_num:
            found["input_top_logprobs"] = prompt.top
            found["output_top_logprobs"] = output.top[:count]
        if new.token_ids_logprob:
            found["input_token_ids_logprobs"] = prompt.chosen
            # A prefill-only request has no token, but the scores of the next one.
            found["output_token_ids_logprobs"] = output.chosen
        return found

    def _triples(self, pairs: Iterable[tuple[float | None, int]]) -> list[_Triple]:
        text = self._token_text
        return [(logprob, token, text(token) if text else None) for logprob, token in pairs]


class _Scores:
    """Log probabilities in SGLang's shape, made once: a stream sends them again and again."""

    def __init__(
        self, triples: Callable[[Iterable[tuple[float | None, int]]], list[_Triple]]
    ) -> None:
        self._triples = triples
        self.own: list[_Triple] = []
        self.top: list[list[_Triple] | None] = []
        self.chosen: list[list[_Triple] | None] = []
        self.num_triples = 0

    def add(self, entries: Sequence[LogprobEntry]) -> None:
        """Take more positions; the first of a prompt has no scores."""
        self.own += self._triples((entry.logprob, entry.token_id) for entry in entries)
        for entry in entries:
            scored = entry.logprob is not None
            self.top.append(self._triples(entry.top) if scored else None)
            self.chosen.append(self._triples(entry.chosen) if scored else None)
            self.num_triples += 1 + len(entry.top) + len(entry.chosen)


def note_version(spans: list[dict[str, Any]], piece: Piece, num_before: int) -> None:
    """Which weights made which tokens: extend the last span, or begin one."""
    end = num_before + len(piece.token_ids)
    if spans and (not piece.token_ids or spans[-1]["version"] == piece.weight_version):
        spans[-1]["end"] = end
    else:
        spans.append({"version": piece.weight_version, "start": num_before, "end": end})


def finish_json(finish: FinishReason | None, length: int) -> dict[str, Any] | None:
    """A finish reason in SGLang's shape."""
    if finish is None:
        return None
    if finish.type == "length":
        return {"type": "length", "length": length}
    if finish.type == "stop":
        return {"type": "stop", "matched": finish.matched}
    return {
        "type": "abort",
        "message": finish.message,
        "status_code": finish.status_code,
        "err_type": None,
    }
