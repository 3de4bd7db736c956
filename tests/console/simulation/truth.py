"""What really happened on the engines, and whether the console tells the same."""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from console.choices import (
    OPEN_STATES,
    STAGED_KINDS,
    TERMINAL_STATES,
    TRANSITIONS,
    JobState,
)
from console.models import AuditEntry, Job
from console.selectors.audit_chain import follow, log_start
from engine.frontend.journal_records import Started
from engine.protocol import (
    AbortRequests,
    OperationResult,
    Outcome,
    RankState,
    Repair,
    Submit,
    WeightsView,
)
from tests.console.simulation.hub import START, check

if TYPE_CHECKING:
    from tests.console.simulation.engine import SimEngine, SimRank
    from tests.console.simulation.world import World

UNSENT_ENDS = frozenset({JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED})
SENT = frozenset({JobState.DISPATCHED, JobState.RECONCILING})
UNDO_FAILED = "holds the new state"  # an engine's words of a rank
# A command may start the budget of a quick mode after it came, and then there is the margin.
LATE_S = 5.0 + 0.5 + 0.1


@dataclass
class Story:
    """One operation id, as the engines saw it."""

    ops: list[tuple[str, int]] = field(default_factory=list)  # (journal, number): once, or twice
    sent: int = 0
    last_start_s: float = 0.0  # no effect may begin after it
    kind: str = ""
    mode: str = ""
    effects: dict[int, tuple[int, str]] = field(default_factory=dict)  # rank → (inc, new | old)
    results: list[OperationResult] = field(default_factory=list)
    journals: list[str] = field(default_factory=list)  # of the results
    old: WeightsView | None = None
    new: WeightsView | None = None
    dead: set[int] = field(default_factory=set)  # ranks whose process was gone at the end


class Truth:
    """The log of effects; told by the simulated engines, never read by the product."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stories: dict[str, Story] = collections.defaultdict(Story)
        self._ids: dict[tuple[str, int], str] = {}
        self.asked: dict[UUID, str] = {}  # jobs that somebody was told of, and their keys

    # ---- told by the engines -----------------------------------------------------------------

    def sent(self, command: Submit) -> None:
        """A worker sends it. It must be on record that it will."""
        story = self.stories[command.op_id]
        story.sent += 1
        check(story.sent == 1, "a job was sent twice")
        self._check_recorded(command.op_id)

    def _check_recorded(self, op_id: str) -> None:
        db = self.world.db
        check(db.has_entry(op_id, "job.accepted"), "acted without an audit entry of the intent")
        check(db.has_entry(op_id, "job.dispatched"), "sent before the commit that says so")

    def began(self, engine: SimEngine, record: Started) -> None:
        """An engine took an operation."""
        journal = engine.journal.engine_id
        self._ids[journal, record.op] = record.op_id
        story = self.stories[record.op_id]
        story.ops.append((journal, record.op))
        story.kind, story.mode = str(record.operation.kind), str(record.mode)
        story.old, story.new = record.old.weights, record.new.weights
        job = self.world.db.job(record.op_id)
        if job is None:
            return
        check(len(story.ops) == 1, "the engine ran one job twice")
        check(job["state"] in SENT, f"an engine began a job that is {job['state']}")
        late_s = self.world.hub.t - job["dispatch_by_s"]
        if str(record.operation.kind) in STAGED_KINDS:
            story.last_start_s = float("inf")
        else:
            check(late_s <= 0.0, f"taken {late_s:.1f} s after its deadline")
            story.last_start_s = max(job["dispatch_by_s"], self.world.hub.t)
        since_s = self.world.roleless_since_s.get(job["asker"], float("inf"))
        check(job["claimed_at_s"] <= since_s, "taken for somebody who may not ask any more")

    def moved(self, op_id: str, deadline_s: float) -> None:
        """An engine took an extension, or a force."""
        story = self.stories[op_id]
        story.last_start_s = max(story.last_start_s, deadline_s)

    def effect(self, rank: SimRank, op: int, what: str) -> None:
        """A rank changes, or changes back."""
        op_id = self._ids[rank.engine.journal.engine_id, op]
        story = self.stories[op_id]
        before = story.effects.get(rank.number)
        check(what == "old" or before is None, "an effect happened twice on a rank")
        story.effects[rank.number] = (rank.inc, what)
        job = self.world.db.job(op_id)
        if job is None:
            return
        self._check_recorded(op_id)
        check(job["state"] in SENT, f"an effect of a job that is {job['state']}")
        late_s = self.world.hub.t - story.last_start_s
        check(what == "old" or late_s <= 2 * LATE_S, f"an effect {late_s:.1f} s after the deadline")

    def ended(self, engine: SimEngine, result: OperationResult) -> None:
        """The end of an operation is on disk."""
        story = self.stories[result.op_id]
        story.results.append(result)
        story.journals.append(engine.journal.engine_id)
        story.kind = str(result.kind)
        for number, (inc, _) in story.effects.items():
            rank = engine.ranks[number]
            if not rank.alive or rank.inc != inc:
                story.dead.add(number)

    # ---- at the end --------------------------------------------------------------------------

    def check_all(self) -> None:
        """Every promise, over the whole history."""
        jobs = {job.pk: job for job in Job.objects.prefetch_related("ranks")}
        entries: dict[UUID, list[AuditEntry]] = collections.defaultdict(list)
        for entry in AuditEntry.objects.exclude(job_id=None).order_by("seq"):
            entries[entry.job_id].append(entry)
        self.world.stat["jobs"] += len(jobs)
        for job_id in self.asked:
            check(job_id in jobs, "a job that was accepted is gone")
        for job in jobs.values():
            check(job.state in TERMINAL_STATES, f"a job never ended: {job.state}, {job.note}")
            self._check_log(job, entries[job.pk])
            self._check_outcome(job)
            self._check_calm(job)
            self.world.stat[f"{job.state}"] += 1
        last = AuditEntry.objects.order_by("-seq").values_list("seq", flat=True).first()
        found = follow(log_start(), last or 0)
        check(found.fault is None, f"the audit chain is broken: {found.fault}")

    def _check_log(self, job: Job, entries: list[AuditEntry]) -> None:
        """Intent first, moves that follow from each other, one outcome that says the state."""
        check(entries and entries[0].stage == "intent", "no audit entry of the intent")
        outcomes = [entry for entry in entries if entry.stage == "outcome"]
        check(len(outcomes) == 1, f"{len(outcomes)} outcomes in the audit log")
        check(outcomes[0].action == f"job.{job.state}", "the audit log says another outcome")
        state = JobState.ACCEPTED
        for entry in entries[1:]:
            if entry.stage in ("transition", "outcome"):
                body = json.loads(entry.body)
                check(body["before"] == state, f"from {body['before']}, but it was {state}")
                check(body["after"] in TRANSITIONS[state], f"{state} became {body['after']}")
                state = JobState(body["after"])
        self._check_served(job, json.loads(outcomes[0].body)["ranks"])
        check(state == job.state, "the last move in the audit log is not the state")
        check(state not in OPEN_STATES, "an end that is none")

    def _check_served(self, job: Job, ranks: list[dict[str, Any]]) -> None:
        """Where the audit log says which weights a rank serves, that rank serves them."""
        story = self.stories[str(job.pk)]
        if story.new is None or story.old is None or story.new.version == story.old.version:
            return
        for fact in ranks:
            rank, after = fact["dp_rank"], fact.get("weights_after")
            if after is None or rank in story.dead:
                continue
            is_new = story.effects.get(rank, (0, "old"))[1] == "new"
            served = story.new if is_new else story.old
            told = f"rank {rank} serves {served.version!r}, the log says {after['version']!r}"
            check(after["version"] == served.version, told)

    def _check_outcome(self, job: Job) -> None:
        story = self.stories[str(job.pk)]
        known = [
            result
            for result, journal in zip(story.results, story.journals, strict=True)
            if journal == job.engine_identity
        ]
        new = {rank for rank, (_, what) in story.effects.items() if what == "new"}
        if job.state == JobState.INTERRUPTED:
            self._check_interrupted(job)
            return
        if not known:
            check(job.state in UNSENT_ENDS, f"{job.state}, but no engine has ended it")
            check(not story.effects, f"{job.state} says that nothing happened, but it did")
            check(not story.results, f"{job.state}, but another engine has ended it")
            return
        (result,) = known
        check(job.state == str(result.outcome), f"{job.state}, the engine says {result.outcome}")
        said = {rank.dp_rank: str(rank.state) for rank in result.ranks}
        # A repair names the ranks that live; of the others nothing was ever told.
        rows = {r.dp_rank: r.state for r in job.ranks.all() if r.dp_rank in said}
        check(rows == said, f"the ranks are {rows}, the engine says {said}")
        if story.kind in (str(AbortRequests().kind), str(Repair().kind)):
            return
        if result.outcome is Outcome.SUCCEEDED:
            check(new == set(said), "succeeded, but not on every rank")
        for told in result.ranks:
            is_new = told.state is RankState.SUCCEEDED or UNDO_FAILED in told.message
            is_right = told.dp_rank in story.dead or is_new == (told.dp_rank in new)
            check(is_right, f"rank {told.dp_rank} is {told.state}, effects {story.effects}")
        changed = new - story.dead
        check(
            result.outcome in (Outcome.SUCCEEDED, Outcome.PARTIAL) or not changed,
            f"{result.outcome}, but a rank changed",
        )

    def _check_interrupted(self, job: Job) -> None:
        """Allowed only where nobody can know any more."""
        engine = self.world.engines[job.engine.name]
        index = engine.journal.index
        is_gone = job.engine_identity != engine.journal.engine_id
        has_forgotten = index.is_too_old(str(job.pk))
        check(is_gone or has_forgotten, "unknown, although the engine knows")

    def _check_calm(self, job: Job) -> None:
        """Once faults have ceased, nothing expires for want of a worker."""
        if job.state != JobState.EXPIRED or self.stories[str(job.pk)].sent:
            return
        since: datetime = max(job.created_at, job.updated_at)
        assert job.dispatch_by is not None
        had_s = (job.dispatch_by - START).total_seconds() - self.world.calm_at
        check(had_s < self.world.settle_s or since < START, "expired, though there was time to act")
