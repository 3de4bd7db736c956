"""Short histories, written by hand, for guards that random seeds exercise too rarely."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from console.access import Grant, Rights, Role
from console.actors import Actor as Asker
from console.choices import TERMINAL_STATES, JobState, OnConflict, Via
from console.models import Job
from console.params import params_of
from console.services.job_control import job_cancel
from console.services.jobs import job_create
from engine.protocol import Answer, Progress, Query, QueryAnswer, Submit
from tests.console.simulation.actors import (
    PEOPLE,
    kept_alive,
    reconciler_lives,
    role_take,
    worker_lives,
)
from tests.console.simulation.database import Store
from tests.console.simulation.hub import Actor, Process, check
from tests.console.simulation.world import World

ANA_ID = 1 + PEOPLE.index("ana")
ANA = Asker(ANA_ID, "ana", Via.API, rights=Rights(ANA_ID, (Grant(Role.OPERATOR),)))


class Scene:
    """A quiet world with one reconciler and as many workers as are asked for."""

    def __init__(self, store: Store, *, workers: int = 1) -> None:
        self.world = World(1, store, chaos=False, asks=0)
        self.hub = self.world.hub
        self.engine = self.world.engines["one"]
        self._workers = workers
        self._count: dict[str, int] = {}

    def start(self) -> None:
        """From here on everybody works; the engine has had time to meet its ranks."""
        for number in range(self._workers):
            kept_alive(self.world, f"worker-{number}", lambda: worker_lives(self.world))
        kept_alive(self.world, "reconciler", lambda: reconciler_lives(self.world))
        self.hub.run(lambda: self.hub.t > 4, 5.0)

    def act(self, do: Callable[[], object]) -> None:
        """In a web process, to its end."""
        process = Process(self.hub, "web")
        actor = process.start(do)
        self.hub.run(lambda: actor.is_dead, self.hub.t + 30)

    def ask(
        self,
        timeout_s: float = 100.0,
        on_conflict: OnConflict = OnConflict.REFUSE,
        key: str | None = None,
    ) -> UUID:
        """A flush. One that may queue is claimed before its engine is greeted."""
        made: list[UUID] = []

        def create() -> None:
            asked = job_create(
                engine_name="one",
                params=params_of("flush_cache", {"timeout_s": timeout_s}),
                reason="",
                on_conflict=on_conflict,
                actor=ANA,
                idempotency_key=key,
            )
            made.append(asked.job.pk)

        self.act(create)
        self.world.truth.asked[made[0]] = key or str(made[0])
        return made[0]

    def busy(self, seconds: float) -> None:
        """Every rank has something to do for so long."""
        for rank in self.engine.ranks:
            rank.busy(seconds)

    def at(self, process: str, seam: str, nth: int, do: Callable[[Actor], None]) -> None:
        """When that process comes to that seam for the nth time; 0: each time."""
        before = self.hub.on_seam

        def seen(actor: Actor, name: str) -> None:
            before(actor, name)
            if actor.process.name == process and name == seam:
                key = f"{process} {seam} {id(do)}"
                self._count[key] = self._count.get(key, 0) + 1
                if nth in (0, self._count[key]):
                    do(actor)

        self.hub.on_seam = seen

    def state(self, job_id: UUID) -> JobState:
        """Where the job stands."""
        return JobState(Job.objects.values_list("state", flat=True).get(pk=job_id))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        ends = self.hub.t + seconds
        self.hub.at(ends, lambda: None)
        self.hub.run(lambda: self.hub.t >= ends, ends)

    def end(self, job_id: UUID, limit_s: float = 200.0) -> Job:
        """The job some time after its end, when every promise has been checked."""
        ends = self.hub.t + limit_s
        while self.hub.t < ends and self.state(job_id) not in TERMINAL_STATES:
            self.wait(5.0)
        self.wait(25.0)
        self.world.truth.check_all()
        return Job.objects.get(pk=job_id)


def _ends_as(job: Job, state: JobState) -> None:
    check(job.state == state, f"the job is {job.state}, not {state}: {job.error}")


def a_stopped_worker_does_not_send_what_another_has(scene: Scene) -> None:
    """Its lease is over: the job was given to the other one, which follows it."""

    def stop(actor: Actor) -> None:
        actor.process.stopped_until = scene.hub.t + 20

    scene.at("worker-0", "begin", 2, stop)
    scene.start()
    scene.busy(60)
    job_id = scene.ask(on_conflict=OnConflict.QUEUE)
    scene.wait(1)
    kept_alive(scene.world, "worker-1", lambda: worker_lives(scene.world))
    scene.wait(15)
    check(scene.state(job_id) == JobState.DISPATCHED, "the other one has not sent it")
    _ends_as(scene.end(job_id), JobState.SUCCEEDED)


def a_lost_doorbell_is_rung_again(scene: Scene) -> None:
    """Redis was away when the job was accepted."""
    scene.start()
    scene.world.broker.down_until = scene.hub.t + 1
    _ends_as(scene.end(scene.ask()), JobState.SUCCEEDED)


def a_claim_of_a_killed_worker_is_given_back(scene: Scene) -> None:
    """Nothing was sent, so another worker may take the job."""
    scene.at("worker-0", "begin", 2, lambda actor: scene.hub.die())
    scene.start()
    _ends_as(scene.end(scene.ask(on_conflict=OnConflict.QUEUE)), JobState.SUCCEEDED)


def another_engine_cannot_answer_for_the_one_that_is_gone(scene: Scene) -> None:
    """It did flush; then its journal was lost, before anybody heard."""
    scene.world.network.script = lambda body: [] if isinstance(body, Answer | Progress) else None
    scene.start()
    job_id = scene.ask()
    scene.wait(0.8)
    check(scene.world.truth.stories[str(job_id)].effects, "the engine has not done it yet")
    scene.engine.kill_front(0.5, lose_journal=True)
    _ends_as(scene.end(job_id), JobState.INTERRUPTED)


def a_refusal_for_its_epoch_does_not_say_that_nothing_happened(scene: Scene) -> None:
    """The first copy was carried out and its answer lost; the second met the next frontend."""

    def script(body: object) -> list[float] | None:
        if isinstance(body, Submit):
            return [0.0, 0.9]
        return [] if isinstance(body, Answer | Progress | QueryAnswer) and early() else None

    def early() -> bool:
        return scene.hub.t < asked_at[0] + 1.5

    asked_at = [1e9]
    scene.world.network.script = script
    scene.start()
    asked_at[0] = scene.hub.t
    job_id = scene.ask()
    scene.wait(0.5)
    check(scene.world.truth.stories[str(job_id)].effects, "the engine has not done it yet")
    scene.engine.kill_front(0.05)
    _ends_as(scene.end(job_id), JobState.SUCCEEDED)


def a_job_behind_a_stranger_is_let_go(scene: Scene) -> None:
    """An operation that is no job of ours holds the engine for some seconds."""
    scene.start()
    scene.busy(6)
    scene.world.stranger(scene.engine)
    job_id = scene.ask(on_conflict=OnConflict.QUEUE)
    scene.wait(1)
    check(Job.objects.get(pk=job_id).blocked, "it does not wait for the stranger")
    _ends_as(scene.end(job_id), JobState.SUCCEEDED)


def an_unheard_cancel_is_repeated(scene: Scene) -> None:
    """Whoever cancelled went away; the engine comes back, and the job is cancelled."""
    scene.start()
    scene.busy(20)
    job_id = scene.ask()
    scene.wait(2)
    scene.world.network.cut_until = scene.hub.t + 2.5
    scene.act(lambda: job_cancel(job_id=job_id, actor=ANA))
    _ends_as(scene.end(job_id), JobState.CANCELLED)


def a_late_command_begins_nothing(scene: Scene) -> None:
    """It comes after its deadline, while nobody could ask and seal."""
    late_s = 12.0

    def script(body: object) -> list[float] | None:
        if isinstance(body, Submit):
            return [late_s]
        return [] if isinstance(body, Query) and scene.hub.t < 4 + late_s + 3 else None

    scene.world.network.script = script
    scene.start()
    _ends_as(scene.end(scene.ask(timeout_s=5)), JobState.FAILED)


def a_command_for_an_engine_before_its_reboot_begins_nothing(scene: Scene) -> None:
    """Its deadline is on a clock that is gone, and would lie far in the future."""
    scene.engine.offset_s = 1e6

    def script(body: object) -> list[float] | None:
        if isinstance(body, Submit):
            return [14.0]
        return [] if isinstance(body, Query) and scene.hub.t < 25 else None

    scene.world.network.script = script
    scene.start()
    job_id = scene.ask(timeout_s=8)
    scene.wait(1)
    scene.engine.kill_front(1.0, is_reboot=True)
    _ends_as(scene.end(job_id), JobState.FAILED)


def what_was_begun_outlives_the_frontend(scene: Scene) -> None:
    """It dies when the rank has done it, and before the end is on record."""
    scene.start()
    effect = scene.world.truth.effect

    def seen(rank: object, op: int, what: str) -> None:
        effect(rank, op, what)  # type: ignore[arg-type]
        scene.hub.after(0.0, lambda: scene.engine.kill_front(0.5))

    scene.world.truth.effect = seen  # type: ignore[method-assign]
    job = scene.end(scene.ask())
    check(job.state in TERMINAL_STATES - {JobState.INTERRUPTED}, f"it is {job.state}")


def a_sent_job_of_a_killed_worker_is_asked_about(scene: Scene) -> None:
    """It is neither sent again nor called failed: the engine has it, and says how it ends."""
    scene.at("worker-0", "sent Submit", 1, lambda actor: scene.hub.die())
    scene.start()
    scene.busy(25)
    _ends_as(scene.end(scene.ask()), JobState.SUCCEEDED)


def a_job_that_kills_its_workers_ends(scene: Scene) -> None:
    """By the moment by which it must be sent; until then it is tried again."""
    scene.at("worker-0", "send Hello", 0, lambda actor: scene.hub.die())
    scene.start()
    _ends_as(scene.end(scene.ask(timeout_s=20)), JobState.EXPIRED)
    check(scene.world.stat["processes killed"] > 1, "it was tried once")


def the_next_job_is_let_go(scene: Scene) -> None:
    """It waits for the one before, and begins when that has ended."""
    scene.start()
    scene.busy(4)
    first = scene.ask()
    second = scene.ask(on_conflict=OnConflict.QUEUE)
    check(Job.objects.get(pk=second).blocked_by == str(first), "it does not wait for the first")
    _ends_as(scene.end(second), JobState.SUCCEEDED)


def one_key_makes_one_job(scene: Scene) -> None:
    """Its first answer was lost, so it is asked for again."""
    scene.start()
    jobs = {scene.ask(on_conflict=OnConflict.QUEUE, key="the-key") for _ in range(2)}
    check(len(jobs) == 1, "one key made two jobs")


def an_end_and_its_audit_entry_are_one(scene: Scene) -> None:
    """The worker is killed as soon as the job has ended."""
    made: list[UUID] = []

    def die_at_the_end(actor: Actor) -> None:
        if made and scene.state(made[0]) in TERMINAL_STATES:
            scene.hub.die()

    scene.at("worker-0", "begin", 0, die_at_the_end)
    scene.start()
    scene.busy(3)
    made.append(scene.ask())
    _ends_as(scene.end(made[0]), JobState.SUCCEEDED)


def an_engine_refuses_a_second_operation(scene: Scene) -> None:
    """A stranger's waits, which the console does not know of."""
    scene.start()
    scene.busy(6)
    scene.world.stranger(scene.engine)
    _ends_as(scene.end(scene.ask()), JobState.FAILED)


# A mutant, and the history that shows what its guard is for.
def a_role_goes_while_a_job_waits_for_a_worker(scene: Scene) -> None:
    """Nobody works yet; when somebody does, the asker may not any more."""
    job_id = scene.ask(timeout_s=100)
    scene.wait(2)
    scene.act(lambda: role_take(scene.world, "ana"))
    scene.start()
    job = scene.end(job_id)
    _ends_as(job, JobState.FAILED)
    check(job.error["code"] == "forbidden", f"the job says {job.error}")


DIRECTED: dict[str, Callable[[Scene], None]] = {
    "dispatch_without_claim": a_stopped_worker_does_not_send_what_another_has,
    "sends_again": a_sent_job_of_a_killed_worker_is_asked_about,
    "fails_without_asking": a_sent_job_of_a_killed_worker_is_asked_about,
    "keeps_lapsed_jobs": a_sent_job_of_a_killed_worker_is_asked_about,
    "rings_once": a_lost_doorbell_is_rung_again,
    "doorbell_not_owed": a_lost_doorbell_is_rung_again,
    "claims_for_anybody": a_role_goes_while_a_job_waits_for_a_worker,
    "keeps_lapsed_claims": a_claim_of_a_killed_worker_is_given_back,
    "unlimited_claims": a_job_that_kills_its_workers_ends,
    "expires_nothing": a_job_that_kills_its_workers_ends,
    "lets_nobody_go": the_next_job_is_let_go,
    "forgets_strangers": a_job_behind_a_stranger_is_let_go,
    "replays_nothing": one_key_makes_one_job,
    "believes_any_engine": another_engine_cannot_answer_for_the_one_that_is_gone,
    "believes_every_refusal": a_refusal_for_its_epoch_does_not_say_that_nothing_happened,
    "engine_without_journal": a_refusal_for_its_epoch_does_not_say_that_nothing_happened,
    "cancels_by_itself": an_unheard_cancel_is_repeated,
    "cancels_once": an_unheard_cancel_is_repeated,
    "outcome_written_later": an_end_and_its_audit_entry_are_one,
    "engine_takes_two": an_engine_refuses_a_second_operation,
    "engine_without_deadline": a_late_command_begins_nothing,
    "engine_without_epoch": a_command_for_an_engine_before_its_reboot_begins_nothing,
    "engine_without_started": what_was_begun_outlives_the_frontend,
}
