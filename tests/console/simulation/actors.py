"""Who acts on the console: people through the services, workers, a reconciler. All of it is the
product's own code; what is here decides what to ask for, and what a process may end by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import DatabaseError

from console.actors import Actor as Asker
from console.choices import TERMINAL_STATES, JobState, OnConflict, Via
from console.exceptions import ConsoleError
from console.models import Job, RoleGrant, User
from console.params import params_of
from console.selectors.access import rights_of
from console.services.grants import grant_give, grant_take
from console.services.job_again import job_retry, job_undo
from console.services.job_control import job_cancel, job_extend, job_force
from console.services.jobs import JobAsked, job_create
from console.tasks.jobs import run_job
from console.tasks.reconcile import Reconciler
from tests.console.simulation.database import Injected
from tests.console.simulation.hub import Process, check

if TYPE_CHECKING:
    from tests.console.simulation.world import World

FLUSH = "flush_cache"
PEOPLE = (*(f"person-{number}" for number in range(12)), "ana")
NUM_WATCHED = 3  # whose role comes and goes
MODES = ("wait", "wait", "drain", "retract", "abort")


@dataclass
class Person:
    """Somebody with a list of things to do, which outlives the web process that serves them."""

    number: int
    asks: int
    asked: int = 0
    jobs: list[UUID] = field(default_factory=list)
    open_key: str = ""  # of a request whose answer did not come
    is_done: bool = False

    @property
    def actor(self) -> Asker:
        """Who is written down."""
        user = User.objects.get(username=PEOPLE[self.number])
        return Asker(user.pk, user.username, Via.API, rights=rights_of(user))


def tolerated(world: World, act: Callable[[], object]) -> bool:
    """Do it; False when it was refused, or when the database failed as it was made to."""
    try:
        act()
    except ConsoleError as error:
        world.stat[f"refused: {error.code}"] += 1
        return False
    except Injected:
        world.stat["failed by the database"] += 1
        return False
    return True


def params_drawn(world: World) -> dict[str, object]:
    """A kind and its parameters."""
    rng = world.rng
    waits = {"timeout_s": rng.choice([0, 2, 5, 15, 25]), "mode": rng.choice(MODES)}
    if not waits["timeout_s"]:
        waits["mode"] = "wait"
    kind = rng.choice(
        (FLUSH,) * 7
        + ("update_weight_version", "update_weights_from_disk", "pause_generation")
        + ("continue_generation", "abort_requests", "repair")
    )
    more: dict[str, dict[str, object]] = {
        FLUSH: waits,
        "update_weights_from_disk": {**waits, "model_path": f"/models/{rng.randrange(99)}"},
        "update_weight_version": {"new_version": f"v{rng.randrange(99)}"},
        "abort_requests": {"abort_all": True},
    }
    return {"kind": kind, **more.get(kind, {})}


def person_lives(world: World, person: Person) -> None:
    """Ask, and now and then cancel, extend, force, retry or undo."""
    hub, rng = world.hub, world.rng
    while person.asked < person.asks or person.open_key:
        hub.pause(rng.uniform(0.0, 2.0) if person.open_key else rng.expovariate(1 / 6))
        _ask(world, person)
        while person.jobs and not person.open_key and world.luck(0.3):
            hub.pause(rng.choice([0.05, 0.5, 2.0, 6.0]))
            tolerated(world, lambda: _change(world, person))
    person.is_done = True


def _ask(world: World, person: Person) -> None:
    """One job, with one key however often it takes."""
    if not person.open_key:
        person.asked += 1
        person.open_key = f"{person.number}-{person.asked}"
        world.drawn[person.open_key] = (
            params_drawn(world),
            world.rng.choice(sorted(world.engines)),
            OnConflict.QUEUE if world.luck(0.75) else OnConflict.REFUSE,
        )
    values, engine_name, on_conflict = world.drawn[person.open_key]
    kind = str(values["kind"])

    def create() -> None:
        asked = job_create(
            engine_name=engine_name,
            params=params_of(kind, {k: v for k, v in values.items() if k != "kind"}),
            reason="",
            on_conflict=on_conflict,
            actor=person.actor,
            idempotency_key=person.open_key,
        )
        _told(world, person, person.open_key, asked)

    try:
        create()
    except ConsoleError as error:
        world.stat[f"refused: {error.code}"] += 1
    except Injected:  # no answer: the same again, under the same key
        world.stat["failed by the database"] += 1
        return
    person.open_key = ""


def _told(world: World, person: Person, key: str, asked: JobAsked) -> None:
    known = world.truth.asked.setdefault(asked.job.pk, key)
    check(known == key, "two keys made one job")
    same = [pk for pk, other in world.truth.asked.items() if other == key]
    check(len(same) == 1, "one key made two jobs")
    if asked.job.pk not in person.jobs:
        person.jobs.append(asked.job.pk)


def _change(world: World, person: Person) -> None:
    job_id = world.rng.choice(person.jobs[-3:])
    state = Job.objects.values_list("state", flat=True).get(pk=job_id)
    actor = person.actor
    if state in TERMINAL_STATES:
        again = job_undo if state == JobState.SUCCEEDED else job_retry
        asked = again(job_id=job_id, actor=actor, on_conflict=OnConflict.QUEUE)
        person.jobs.append(asked.job.pk)
        world.truth.asked[asked.job.pk] = str(asked.job.pk)
        return
    match world.rng.randrange(5):
        case 0 | 1 | 2:
            job_cancel(job_id=job_id, actor=actor)
        case 3:
            job_extend(job_id=job_id, by_s=world.rng.choice([-3.0, 2.0, 6.0]), actor=actor)
        case _:
            job_force(job_id=job_id, actor=actor)


def role_take(world: World, username: str) -> None:
    """Somebody may ask for nothing any more; from then on nothing of theirs may be begun."""
    row = RoleGrant.objects.get(user__username=username)
    grant_take(grant_id=row.pk, actor=Asker.system("admin"))
    world.roleless_since_s[row.user_id] = world.hub.t


def admin_lives(world: World) -> None:
    """Takes roles while jobs wait, and gives them back."""
    while True:
        world.hub.pause(world.rng.expovariate(1 / 20))
        username = PEOPLE[world.rng.randrange(NUM_WATCHED)]
        tolerated(world, partial(_role_change, world, username))


def _role_change(world: World, username: str) -> None:
    user = User.objects.get(username=username)
    if RoleGrant.objects.filter(user=user).exists():
        role_take(world, username)
        return
    world.roleless_since_s.pop(user.pk, None)
    grant_give(username=username, role="operator", actor=Asker.system("admin"))


def worker_lives(world: World) -> None:
    """A Celery worker: one doorbell after the other."""
    while True:
        job_id = world.broker.take()
        if job_id is not None:
            world.in_hand += 1
            try:
                run_job(job_id)
            except Injected:  # Celery logs it; the job's lease lapses
                world.stat["tasks failed by the database"] += 1
            finally:
                world.in_hand -= 1


class SimReconciler(Reconciler):
    """Without what lies on disk: uploaded files, and the signed heads of the audit log."""

    def sweep_uploads(self) -> None:
        return

    def check_audit(self) -> None:
        return


def reconciler_lives(world: World) -> None:
    """As `manage.py reconcile`: about a pass a second."""
    reconciler = SimReconciler()
    while True:
        world.hub.pause(world.rng.uniform(1.0, 4.0))
        try:
            reconciler.run_pass()
        except DatabaseError as error:
            if not isinstance(error, Injected):
                raise
            world.stat["passes failed by the database"] += 1


def kept_alive(world: World, name: str, body: Callable[[], object]) -> None:
    """A process under a supervisor: it is started again some time after it ended."""
    process = Process(world.hub, name)
    world.processes.append(process)

    def again() -> None:
        world.processes.remove(process)
        if not world.is_closing:
            world.stat["processes killed"] += 1
            world.hub.after(
                world.rng.choice([0.2, 1.0, 4.0]), lambda: kept_alive(world, name, body)
            )

    process.on_death = again
    process.start(body)
