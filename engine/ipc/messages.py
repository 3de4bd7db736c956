"""Messages between the frontend, the rank processes and `launch`. Typed, numbered, never pickled.

`epoch` counts frontend starts, `inc` counts rank starts, `op` counts operations, `att` the attempts
of one operation, `n` the messages of one rank; docs/operation-protocol.md § 6 says what each
guards.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from engine.ipc.sampling import SamplingParams
from engine.protocol import (
    CachePolicies,
    HostUsage,
    KVUsage,
    MemoryTag,
    Mode,
    Operation,
    PauseMode,
    Places,
    RankStorage,
    Staging,
    StorageView,
    TrainerGroup,
    WeightsView,
)


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every private message."""


class ServingState(Struct, frozen=True, kw_only=True):
    """What an operation may change for good, and what a rank must prove before it serves."""

    weights: WeightsView = WeightsView(version="default")
    storage_backend: StorageView | None = None
    policies: CachePolicies = CachePolicies()
    paused: PauseMode | None = None
    released: tuple[MemoryTag, ...] = ()
    needs_weights: bool = False  # the memory of its weights is back, their contents are not

    @property
    def serves(self) -> bool:
        """A rank in this state may compute."""
        return self.paused is None and not self.released and not self.needs_weights


class RankPhase(StrEnum):
    """Where a rank stands in an operation."""

    NONE = "none"
    BOOT = "boot"  # started, its state is not yet the desired one
    STAGING = "staging"
    PREPARED = "prepared"
    PARKING = "parking"
    PARKED = "parked"
    COMMITTED = "committed"
    FAILED = "failed"
    UNDONE = "undone"
    UNDO_FAILED = "undo_failed"
    REFUSED = "refused"
    LAPSED = "lapsed"
    FENCED = "fenced"


class Word(StrEnum):
    """A rank's answer to the coordinator."""

    PREPARED = "PREPARED"
    PARKED = "PARKED"
    REFUSED = "REFUSED"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"
    UNDONE = "UNDONE"
    UNDO_FAILED = "UNDO_FAILED"
    ABORTED = "ABORTED"


# ---- frontend → rank -------------------------------------------------------------------------


class ToRank(Struct, frozen=True, kw_only=True):
    """Header of everything a frontend sends: its epoch, and the incarnation it means."""

    epoch: int
    inc: int


class AskState(ToRank, frozen=True, kw_only=True, tag="ask_state"):
    """Report now. Also the greeting of a newborn rank, which learns the epoch from it."""


class Prepare(ToRank, frozen=True, kw_only=True, tag="prepare"):
    """Validate and stage, while serving. Nothing visible."""

    op: int
    operation: Operation
    mode: Mode
    new: ServingState
    timeout_s: float  # as the caller asked; the lease is what counts
    lease_s: float


class Park(ToRank, frozen=True, kw_only=True, tag="park"):
    """Become idle as `mode` says and admit nothing from then on."""

    op: int
    att: int
    mode: Mode
    lease_s: float


class Commit(ToRank, frozen=True, kw_only=True, tag="commit"):
    """Make it so. Sent only after the decision is on disk."""

    op: int
    att: int


class Undo(ToRank, frozen=True, kw_only=True, tag="undo"):
    """Take a commit back."""

    op: int
    att: int


class Abort(ToRank, frozen=True, kw_only=True, tag="abort"):
    """The operation ends without effect; a PREPARE still under way will be refused."""

    op: int


class Release(ToRank, frozen=True, kw_only=True, tag="release"):
    """The operation has ended; serve again, or stay fenced."""

    op: int
    serve: bool


class Converge(ToRank, frozen=True, kw_only=True, tag="converge"):
    """Take this state before serving. `op` is the newest ended operation."""

    op: int
    desired: ServingState


class Generate(ToRank, frozen=True, kw_only=True, tag="generate"):
    """One request, tokenized and validated."""

    rid: str
    input_ids: list[int]
    sampling: SamplingParams
    return_logprob: bool = False
    logprob_start: int = -1  # first prompt position whose log probability is wanted; -1 none
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] = []
    extra_key: str | None = None
    is_streamed: bool = True  # somebody reads each token; else they are told in runs
    # Seconds this request has waited before, for queue_time.
    waited_s: float = 0.0


class AbortRequest(ToRank, frozen=True, kw_only=True, tag="abort_request"):
    """End one request now; its finish follows with reason abort."""

    rid: str
    message: str = "Aborted"


class JoinGroup(Struct, frozen=True, kw_only=True, tag="join_group"):
    """Join a trainer's group, within the time of the call."""

    group: TrainerGroup


class LeaveGroup(Struct, frozen=True, kw_only=True, tag="leave_group"):
    """Leave a group; harmless when this rank is in none of that name."""

    group_name: str


class ReceiveTensors(Struct, frozen=True, kw_only=True, tag="receive_tensors"):
    """Receive these broadcasts and keep them for `session`."""

    session: str
    group_name: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    load_format: str | None = None


class DropTensors(Struct, frozen=True, kw_only=True, tag="drop_tensors"):
    """Forget what was received for `session`."""

    session: str


class ReadTensor(Struct, frozen=True, kw_only=True, tag="read_tensor"):
    """The first rows of a tensor as it is served; of a vector, its first numbers."""

    name: str
    truncate_size: int


class ReadChecksums(Struct, frozen=True, kw_only=True, tag="read_checksums"):
    """The checksum of every tensor, computed anew from what is served if `recompute`."""

    recompute: bool = True


class EmptyCache(Struct, frozen=True, kw_only=True, tag="empty_cache"):
    """Give cached device memory back to the driver."""


Question = (
    JoinGroup | LeaveGroup | ReceiveTensors | DropTensors | ReadTensor | ReadChecksums | EmptyCache
)


class Ask(ToRank, frozen=True, kw_only=True, tag="ask"):
    """Something that changes no serving state; answered by Answered, off the scheduler's thread."""

    call: int
    question: Question
    timeout_s: float


ControlMessage = AskState | Prepare | Park | Commit | Undo | Abort | Release | Converge
ToRankMessage = ControlMessage | Generate | AbortRequest | Ask


# ---- rank → frontend -------------------------------------------------------------------------


class View(Struct, frozen=True, kw_only=True):
    """A rank's own word on where it stands, in every message it sends about operations."""

    state: ServingState | None
    phase: RankPhase
    ctx: int  # operation it is in, 0 for none
    closed: bool  # admits nothing
    converged_op: int = 0  # of the newest CONVERGE that it has taken up
    note: str = ""  # why it could not take the desired state


class FromRank(Struct, frozen=True, kw_only=True):
    """Header of everything a rank sends."""

    rank: int
    inc: int
    epoch: int
    n: int


class TierTokens(Struct, frozen=True, kw_only=True):
    """Prompt tokens that were found cached, by the tier that held them."""

    device: int = 0
    host: int = 0
    storage: int = 0
    storage_backend: str | None = None  # of one request: what it was read from


class RankStats(Struct, frozen=True, kw_only=True):
    """Counts and gauges of one rank; counters only grow within an incarnation."""

    places: Places
    kv: KVUsage | None = None
    hit_rate: float | None = None
    decode_tokens_per_s: float = 0.0
    waiting_uncached_tokens: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    generated_tokens_total: int = 0
    retractions_total: int = 0
    aborted_total: int = 0
    finished_total: int = 0
    evicted_pages_total: int = 0
    flushes_total: int = 0
    violations_total: int = 0
    violation: str = ""
    prefill_tokens_per_s: float | None = None
    staging: Staging | None = None
    empty_cache_total: int = 0  # times cached device memory was given back
    host: HostUsage | None = None
    storage: RankStorage | None = None
    hit_tokens: TierTokens = TierTokens()
    backup_tokens_total: int = 0  # copied to the host
    backup_dropped_tokens_total: int = 0  # not copied: no room on the host
    load_back_tokens_total: int = 0  # copied back to the device
    host_evicted_tokens_total: int = 0
    copy_errors_total: int = 0  # copies between device and host that failed


class Report(FromRank, frozen=True, kw_only=True, tag="report"):
    """Heartbeat and answer to AskState."""

    view: View
    lease_left_s: float | None
    stats: RankStats


class Said(FromRank, frozen=True, kw_only=True, tag="said"):
    """An answer about operation `op`."""

    view: View
    op: int
    att: int
    word: Word
    message: str = ""
    places: Places | None = None
    new: ServingState | None = None  # PREPARED: the state that it would serve, checksum and all
    staging: Staging | None = None  # PREPARED: how staging ended
    interrupted: int = 0  # requests that it retracted or aborted for this operation
    effect_s: float | None = None  # COMMITTED: how long it took


class FinishReason(Struct, frozen=True, kw_only=True):
    """Why a request ended: stop (matched), length, or abort (message, HTTP status or None)."""

    type: str
    matched: int | str | None = None
    message: str = ""
    status_code: int | None = None


class LogprobEntry(Struct, frozen=True, kw_only=True):
    """Log probabilities of one position; `logprob` None for the first prompt token."""

    token_id: int
    logprob: float | None
    top: list[tuple[float, int]] = []
    chosen: list[tuple[float, int]] = []


class TokenOut(Struct, frozen=True, kw_only=True):
    """New tokens of one request. `start` is the index of the first of them in its output."""

    rid: str
    start: int
    token_ids: list[int]
    logprobs: list[LogprobEntry] = []
    prompt_logprobs: list[LogprobEntry] = []
    cached_tokens: int = 0
    cached: TierTokens | None = None  # the same by tier, where there are tiers
    retractions: int = 0
    weight_version: str = ""
    finish: FinishReason | None = None


class Tokens(FromRank, frozen=True, kw_only=True, tag="tokens"):
    """What one step produced, all requests together."""

    items: list[TokenOut]


class Loading(FromRank, frozen=True, kw_only=True, tag="loading"):
    """A rank that starts says how far it is."""

    what: str
    share: float


class Ready(FromRank, frozen=True, kw_only=True, tag="ready"):
    """A rank has loaded its model: the facts the frontend checks requests against."""

    num_pages: int
    page_size_tokens: int
    context_len_tokens: int
    vocab_size: int
    eos_ids: list[int]
    device: str
    dtype: str
    weights: WeightsView  # as it was started with them
    tensors: list[tuple[str, list[int]]] = []  # every tensor's name and shape


class Answered(FromRank, frozen=True, kw_only=True, tag="answered"):
    """The answer to Ask. `error` says why not; the lists are filled as the question asks."""

    call: int
    error: str = ""
    numbers: list[float] = []
    shape: list[int] = []
    checksums: dict[str, str] = {}
    checksum: str = ""
    tensors: int = 0
    bytes: int = 0


FromRankMessage = Report | Said | Tokens | Loading | Ready | Answered


# ---- frontend ↔ launch -----------------------------------------------------------------------


class RankProcess(Struct, frozen=True, kw_only=True):
    """What `launch` knows of one rank: it alone knows who is alive."""

    rank: int
    inc: int
    alive: bool


class AskProcesses(Struct, frozen=True, kw_only=True, tag="ask_processes"):
    """Frontend → launch: which ranks live?"""


class KillRank(Struct, frozen=True, kw_only=True, tag="kill_rank"):
    """Frontend → launch: SIGKILL this incarnation, if it still lives."""

    rank: int
    inc: int


class Processes(Struct, frozen=True, kw_only=True, tag="processes"):
    """Launch → frontend: the ranks, at once after each change and as heartbeat."""

    ranks: list[RankProcess]


ToLaunchMessage = AskProcesses | KillRank
