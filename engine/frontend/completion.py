"""One running request, as text: token ids from its rank become pieces that may be shown.

Owns the request until its end: whoever stops iterating ends it. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from engine.frontend.requests import Active, NewRequest, RequestManager
from engine.ipc.messages import FinishReason, LogprobEntry, TierTokens
from engine.tokens.detokenize import Decoder, TokenStream
from engine.tokens.stop import StopMatcher


@dataclass(slots=True, frozen=True)
class Piece:
    """What one step added. `text` is new text; `finish` is set on the last piece."""

    text: str
    token_ids: list[int]
    logprobs: list[LogprobEntry]
    prompt_logprobs: list[LogprobEntry]
    cached_tokens: int
    cached: TierTokens | None
    retractions: int
    weight_version: str
    finish: FinishReason | None


class Completion:
    """A submitted request. Iterate `pieces` to its end, or leave to end it."""

    def __init__(self, requests: RequestManager, decoder: Decoder, new: NewRequest) -> None:
        """Submit. Raises QueueFullError, DuplicateRequestError."""
        sampling = new.sampling
        self.active: Active = requests.submit(new)
        self._requests = requests
        self._stream = TokenStream(decoder, skip_special_tokens=sampling.skip_special_tokens)
        self._matcher = StopMatcher(sampling.stop)
        self._keeps_stop = sampling.no_stop_trim
        self._hidden = frozenset() if sampling.no_stop_trim else frozenset(sampling.stop_token_ids)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """The output, piece by piece."""
        ended = False
        try:
            while not ended:
                item = await self.active.queue.get()
                ended = item.finish is not None
                yield Piece(
                    text=self._text(item.token_ids, item.finish),
                    token_ids=item.token_ids,
                    logprobs=item.logprobs,
                    prompt_logprobs=item.prompt_logprobs,
                    cached_tokens=item.cached_tokens,
                    cached=item.cached,
                    retractions=item.retractions,
                    weight_version=item.weight_version,
                    finish=item.finish,
                )
        finally:
            if not ended:
                self._requests.leave(self.active)

    def leave(self) -> None:
        """End the request, if it has not ended: nobody will read its pieces."""
        self._requests.leave(self.active)

    def _text(self, token_ids: list[int], finish: FinishReason | None) -> str:
        shown = token_ids
        matched = finish.matched if finish is not None and finish.type == "stop" else None
        if isinstance(matched, int) and matched in self._hidden and token_ids[-1:] == [matched]:
            shown = token_ids[:-1]  # a stop token that was asked for is not part of the text
        text = self._matcher.add(self._stream.add(shown))
        if finish is None:
            return text
        text += self._matcher.add(self._stream.finish())
        if self._matcher.matched is None:
            return text + self._matcher.finish()
        return text + (self._matcher.matched if self._keeps_stop else "")
