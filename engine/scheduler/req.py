"""One request on its rank, from admission to its end. Data and small questions; no policy."""

from __future__ import annotations

from array import array

from engine.cache.kv_cache import Pages
from engine.cache.ticket import Ticket
from engine.ipc.messages import FinishReason, Generate, LogprobEntry, TierTokens
from engine.tokens.detokenize import Decoder, TokenStream
from engine.tokens.stop import StopMatcher

# Of a request that is answered whole: so many tokens go to the frontend at a time.
UNSTREAMED_RUN_TOKENS = 64


class Req:
    """`all_ids` are prompt and output; the first `num_computed` of them have KV in `pages`."""

    __slots__ = (
        "_matcher",
        "_stream",
        "admitted_at",
        "all_ids",
        "cached",
        "cached_tokens",
        "finish",
        "message",
        "namespace",
        "num_computed",
        "num_prompt",
        "num_told",
        "pages",
        "prompt_logprobs",
        "prompt_logprobs_until",
        "received_at",
        "retractions",
        "rid",
        "sampling",
        "stop_ids",
        "ticket",
        "untold_logprobs",
        "weight_version",
    )

    def __init__(
        self, message: Generate, *, eos_ids: frozenset[int], decoder: Decoder | None, now: float
    ) -> None:
        self.message = message
        self.rid = message.rid
        self.sampling = message.sampling
        self.namespace = message.extra_key or ""
        self.num_prompt = len(message.input_ids)
        self.all_ids = array("I", message.input_ids)
        self.num_computed = 0
        self.pages: Pages | None = None
        self.ticket = Ticket()
        self.cached_tokens: int | None = None
        self.cached: TierTokens | None = None
        self.retractions = 0
        self.num_told = 0  # output tokens that the frontend has heard of
        self.untold_logprobs: list[LogprobEntry] = []  # of those it has not
        self.weight_version = ""  # that they were computed with
        self.finish: FinishReason | None = None
        self.received_at = now
        self.admitted_at: float | None = None
        self.prompt_logprobs: list[LogprobEntry] = []
        self.prompt_logprobs_until = 0  # prompt positions below it are reported already
        eos = frozenset[int]() if self.sampling.ignore_eos else eos_ids
        self.stop_ids = sorted(eos | set(self.sampling.stop_token_ids))
        self._stream: TokenStream | None = None
        self._matcher: StopMatcher | None = None
        if self.sampling.stop and decoder is not None:
            self._stream = TokenStream(
                decoder, skip_special_tokens=self.sampling.skip_special_tokens
            )
            self._matcher = StopMatcher(self.sampling.stop)

    @property
    def output_ids(self) -> list[int]:
        """Tokens generated so far."""
        return self.all_ids[self.num_prompt :].tolist()

    @property
    def num_output(self) -> int:
        """How many tokens were generated."""
        return len(self.all_ids) - self.num_prompt

    @property
    def num_untold(self) -> int:
        """Output tokens that the frontend has not heard of."""
        return len(self.all_ids) - self.num_prompt - self.num_told

    @property
    def untold_ids(self) -> list[int]:
        """Those tokens."""
        return self.all_ids[self.num_prompt + self.num_told :].tolist()

    @property
    def is_due(self) -> bool:
        """They are told now: each to a reader, and else the first, whose time is measured."""
        return (
            self.message.is_streamed
            or not self.num_told
            or self.num_untold >= UNSTREAMED_RUN_TOKENS
        )

    def told(self) -> None:
        """The frontend has heard of everything."""
        self.num_told = self.num_output
        self.untold_logprobs = []
        self.prompt_logprobs = []

    @property
    def num_remaining(self) -> int:
        """Tokens without KV: one for a request that decodes, more while it prefills."""
        return len(self.all_ids) - self.num_computed

    @property
    def is_prefill_only(self) -> bool:
        """Asks for scores of its prompt and no token."""
        return self.sampling.max_new_tokens == 0

    @property
    def is_decoding(self) -> bool:
        """Its prompt is computed: each step gives one token."""
        return self.num_output > 0 and self.num_remaining == 1

    @property
    def max_remaining_output(self) -> int:
        """Tokens it may still generate."""
        return max(0, self.sampling.max_new_tokens - self.num_output)

    @property
    def reusable_tokens(self) -> int:
        """How long a cached prefix may be: the last token is always computed, and so are those
        whose successors' log probabilities are asked for and not yet reported."""
        limit = len(self.all_ids) - 1
        if self.message.return_logprob and self.message.logprob_start >= 0:
            first = max(self.message.logprob_start, self.prompt_logprobs_until)
            if first < self.num_prompt:
                limit = min(limit, max(0, first - 1))
        return limit

    def take(self, token_id: int) -> FinishReason | None:
        """Append a generated token; returns why the request ends with it, if it does."""
        self.all_ids.append(token_id)
        if token_id in self.stop_ids:  # the sampler masks them until min_new_tokens
            return FinishReason(type="stop", matched=token_id)
        if self._stream is not None and self._matcher is not None:
            self._matcher.add(self._stream.add([token_id]))
            if self._matcher.matched is not None:
                return FinishReason(type="stop", matched=self._matcher.matched)
        if self.num_output >= self.sampling.max_new_tokens:
            return FinishReason(type="length")
        return None
