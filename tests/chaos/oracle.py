"""What must be true after a run, of the records alone: nothing lost, nothing done twice, one end.

Pure: it reads no file and knows no process. Each finding is a sentence under one heading.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.chaos.clients import Asked
from tests.chaos.records import Effect, EngineRecords, Entry, Job, Records

TERMINAL = frozenset({"succeeded", "failed", "partial", "expired", "cancelled", "interrupted"})
_NOTHING_HAPPENED = frozenset({"failed", "expired", "cancelled"})
_MAY_HAVE_DIED = frozenset({"unreachable", "unknown"})


@dataclass
class Verdict:
    """Sentences about what is not as it must be; all empty is what is wanted."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    untrue: list[str] = field(default_factory=list)  # a record that says what was not so

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.untrue)


def judge(asked: Iterable[Asked], records: Records) -> Verdict:
    """Compare what clients were told, what the console keeps and what each rank did."""
    verdict = Verdict()
    jobs = {job.id: job for job in records.jobs}
    _judge_keys(list(asked), records.jobs, verdict)
    for job in records.jobs:
        if not (job.state in TERMINAL and job.is_ended):
            verdict.lost.append(f"{job.kind} {job.id} is still {job.state}")
        if job.state == "interrupted":
            verdict.untrue.append(f"{job.id} is interrupted, and no journal was lost")
    _judge_entries(jobs, records.entries, verdict)
    for engine in records.engines:
        _judge_engine(engine, jobs, verdict)
    return verdict


def _judge_keys(asked: list[Asked], jobs: list[Job], verdict: Verdict) -> None:
    by_key: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        by_key[job.key].append(job)
    for one in asked:
        made = by_key.pop(one.key, [])
        for job in made:
            if one.end and one.end != job.state:
                verdict.untrue.append(f"{job.id} was told to be {one.end}, it is {job.state}")
        if one.trouble:
            verdict.untrue.append(f"{one.key}: {one.trouble}")
        if len(made) > 1 or len(one.job_ids) > 1:
            verdict.duplicated.append(f"{one.key}: jobs {[job.id for job in made]}")
        elif one.job_ids != {job.id for job in made}:
            told = sorted(one.job_ids) or one.refused or "nothing"
            where = verdict.untrue if one.refused else verdict.lost
            where.append(f"{one.key}: told {told}, kept {[job.id for job in made]}")
    verdict.untrue += [f"nobody asked for {job.id}" for left in by_key.values() for job in left]


def _judge_entries(jobs: dict[str, Job], entries: list[Entry], verdict: Verdict) -> None:
    stages: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        stages[entry.job_id][entry.stage] += 1
        if entry.job_id not in jobs:
            verdict.lost.append(f"the audit log names {entry.job_id}, which is no job")
        elif entry.stage == "outcome" and entry.action != f"job.{jobs[entry.job_id].state}":
            state = jobs[entry.job_id].state
            verdict.untrue.append(f"{entry.job_id} is {state}, its outcome says {entry.action}")
    for job_id in jobs:
        for stage in ("intent", "outcome"):
            count = stages[job_id][stage]
            if count != 1:
                where = verdict.duplicated if count else verdict.lost
                where.append(f"{job_id} has {count} entries of stage {stage}")


def _judge_engine(engine: EngineRecords, jobs: dict[str, Job], verdict: Verdict) -> None:
    mine = {job.id: job for job in jobs.values() if job.engine == engine.name}
    ops: dict[str, list[int]] = defaultdict(list)
    for op, job_id in engine.started:
        ops[job_id].append(op)
        if job_id not in mine:
            verdict.untrue.append(f"{engine.name} began {job_id}, which is no job of it")
    effects: dict[int, list[Effect]] = defaultdict(list)
    for effect in engine.effects:
        effects[effect.op].append(effect)
    for op in effects.keys() - {op for op, _ in engine.started}:
        verdict.untrue.append(f"{engine.name}: an effect of operation {op}, which never began")
    for job in mine.values():
        begun = ops.get(job.id, [])
        if len(begun) > 1:
            verdict.duplicated.append(f"{job.id} was begun {len(begun)} times")
        done = [effect for op in begun for effect in effects.get(op, [])]
        _judge_outcome(job, engine.outcomes.get(job.id, []), bool(begun), verdict)
        _judge_effects(job, done, engine.dp_size, verdict)


def _judge_outcome(job: Job, outcomes: list[str], is_begun: bool, verdict: Verdict) -> None:
    """The console says what the engine said; what never began has done nothing."""
    if len(outcomes) > 1:
        verdict.duplicated.append(f"{job.id} was ended {len(outcomes)} times by its engine")
    if outcomes and job.state != outcomes[0]:
        verdict.untrue.append(f"{job.id} is {job.state}, its engine says {outcomes[0]}")
    if is_begun and not outcomes:
        verdict.lost.append(f"{job.id} was begun and never ended by its engine")
    if not is_begun and job.state not in _NOTHING_HAPPENED:
        verdict.untrue.append(f"{job.id} is {job.state}, its engine never began it")


def _judge_effects(job: Job, done: list[Effect], dp_size: int, verdict: Verdict) -> None:
    """At most once a rank; on every rank where the job succeeded; on none that it clears."""
    commits = Counter(effect.rank for effect in done if effect.what == "commit")
    undone = {effect.rank for effect in done if effect.what == "undo"}
    for rank, count in commits.items():
        if count > 1:
            verdict.duplicated.append(f"{job.id} took effect {count} times on rank {rank}")
    for rank in range(dp_size):
        said = job.ranks.get(rank, "")
        is_done = rank in commits and rank not in undone
        if (job.state == "succeeded" or said == "succeeded") and not is_done:
            verdict.lost.append(f"{job.id} is {job.state}, rank {rank} did nothing")
        is_denied = job.state in _NOTHING_HAPPENED or job.state == "partial"
        if is_denied and is_done and said != "succeeded" and said not in _MAY_HAVE_DIED:
            words = f"{job.id} is {job.state}, rank {rank} ({said or 'not named'}) has done it"
            verdict.untrue.append(words)
