"""Choices and usage of the OpenAI routes. Pure."""

from __future__ import annotations

from typing import Any

from engine.frontend.completion import Completion, Piece
from engine.frontend.http_errors import HTTPError
from engine.frontend.native_output import note_version
from engine.ipc.messages import FinishReason, LogprobEntry
from engine.tokens.tokenizer import Tokenizer


class Choice:
    """Gathers one choice."""

    def __init__(self, index: int, completion: Completion) -> None:
        self.index = index
        self.new = completion.active.new
        self._active = completion.active
        self.text = ""
        self.num_output = 0
        self.cached_tokens = 0
        self.weight_version = ""
        self.weight_versions: list[dict[str, Any]] = []
        self.logprobs: list[LogprobEntry] = []
        self.prompt_logprobs: list[LogprobEntry] = []
        self.finish: FinishReason | None = None

    def add(self, piece: Piece) -> None:
        """Take one piece."""
        self.text += piece.text
        note_version(self.weight_versions, piece, self.num_output)
        self.num_output += len(piece.token_ids)
        self.cached_tokens = piece.cached_tokens
        self.weight_version = piece.weight_version
        self.logprobs += piece.logprobs
        self.prompt_logprobs += piece.prompt_logprobs
        self.finish = piece.finish

    @property
    def dp_rank(self) -> int | None:
        """Where it runs; None until it was sent."""
        return self._active.rank

    def ending(self) -> dict[str, Any]:
        """finish_reason and matched_stop."""
        finish = self.finish
        matched = finish.matched if finish is not None and finish.type == "stop" else None
        return {"finish_reason": finish.type if finish else None, "matched_stop": matched}

    def error(self) -> HTTPError | None:
        """A choice that ended with a status of its own is an error, not an answer."""
        finish = self.finish
        if finish is None or finish.type != "abort" or finish.status_code is None:
            return None
        retry = 1 if finish.status_code == 503 else None
        return HTTPError(finish.status_code, finish.message, retry_after_s=retry)


def usage(choices: list[Choice], n: int) -> dict[str, Any]:
    """Tokens in and out. A prompt counts once, however many samples it has."""
    prompts = choices[::n]
    prompt_tokens = sum(len(choice.new.input_ids) for choice in prompts)
    completion_tokens = sum(choice.num_output for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in prompts)},
        "completion_tokens_details": None,
        "reasoning_tokens": 0,
    }


def chat_logprobs(entries: list[LogprobEntry], tokenizer: Tokenizer) -> dict[str, Any]:
    """`logprobs` of a chat choice."""
    return {"content": [_chat_entry(entry, tokenizer) for entry in entries], "refusal": None}


def _chat_entry(entry: LogprobEntry, tokenizer: Tokenizer) -> dict[str, Any]:
    top = [_token(token_id, logprob, tokenizer) for logprob, token_id in entry.top]
    return _token(entry.token_id, entry.logprob, tokenizer) | {"top_logprobs": top}


def _token(token_id: int, logprob: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return {"token": text, "bytes": list(text.encode()), "logprob": logprob}


def completion_logprobs(
    entries: list[LogprobEntry], tokenizer: Tokenizer, offset: int = 0
) -> dict[str, Any]:
    """`logprobs` of a completion choice; `offset` is where its first token's text begins."""
    tokens = [tokenizer.decode([e.token_id], skip_special_tokens=False) for e in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "text_offset": offsets,
        "top_logprobs": [
            {
                tokenizer.decode([token_id], skip_special_tokens=False): logprob
                for logprob, token_id in entry.top
            }
            if entry.top
            else None
            for entry in entries
        ],
    }
