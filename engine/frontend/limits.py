"""What a model accepts, as told by its ranks; prompts are checked against it before they queue."""

from __future__ import annotations

from dataclasses import dataclass

from engine.frontend.core import Frontend
from engine.frontend.http_errors import HTTPError

MAX_EXTRA_KEY_CHARS = 1024
MAX_SCORES = 1 << 22  # of one call: half a gigabyte while it is answered


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens. `pool_tokens` is one rank's KV pool."""

    context_len: int
    pool_tokens: int
    vocab_size: int
    dp_size: int

    @property
    def longest(self) -> int:
        """Prompt and output together: what the model and a rank's pool both hold."""
        return min(self.context_len, self.pool_tokens)


def limits_of(frontend: Frontend) -> Limits:
    """Raises HTTPError 503 while no rank has loaded yet."""
    facts = frontend.facts()
    if facts is None:
        raise HTTPError(503, "the engine is still loading its model", retry_after_s=2)
    return Limits(
        context_len=facts.context_len_tokens,
        pool_tokens=facts.num_pages * facts.page_size_tokens,
        vocab_size=facts.vocab_size,
        dp_size=frontend.config.dp_size,
    )


def check_prompt(ids: list[int], limits: Limits) -> None:
    """Raises HTTPError for a prompt that is empty, too long, or holds an unknown token."""
    if not ids:
        raise HTTPError(400, "The prompt is empty; give at least one token.", param="text")
    if len(ids) > limits.longest:
        raise HTTPError(
            400,
            f"The input ({len(ids)} tokens) is longer than the model's context length "
            f"({limits.longest} tokens).",
            param="input_ids",
        )
    low, high = min(ids), max(ids)
    if low < 0 or high >= limits.vocab_size:
        bad = low if low < 0 else high
        raise HTTPError(
            400, f"token ids must be in [0, {limits.vocab_size}), got {bad}.", param="input_ids"
        )


def check_extra_key(extra_key: str | None) -> None:
    """Raises HTTPError for one that is too long: it is kept as long as what it caches."""
    if extra_key is not None and len(extra_key) > MAX_EXTRA_KEY_CHARS:
        raise HTTPError(
            400, f"extra_key takes at most {MAX_EXTRA_KEY_CHARS} characters", param="extra_key"
        )


def check_scores(count: int, name: str) -> None:
    """Raises HTTPError when a call asks for more log probabilities than memory should hold."""
    if count > MAX_SCORES:
        raise HTTPError(
            400,
            f"this call asks for up to {count} log probabilities; the limit is {MAX_SCORES}: "
            "send fewer prompts, tokens or samples at a time",
            param=name,
        )


def check_rank(rank: int | None, limits: Limits) -> None:
    """Raises HTTPError for a rank that does not exist."""
    if rank is not None and not 0 <= rank < limits.dp_size:
        raise HTTPError(
            400,
            f"routed_dp_rank={rank} out of range [0, {limits.dp_size})",
            param="routed_dp_rank",
        )
