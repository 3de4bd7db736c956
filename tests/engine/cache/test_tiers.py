"""Pages on three tiers: found again where they are, the same answers, no page lost on any tier."""

from __future__ import annotations

import random
import threading

import pytest

from engine.protocol import Breaker, HostLayout, PrefetchPolicy, WeightsView, WritePolicy
from tests.engine.cache.tiered import Tiered
from tests.fakes.runner import solo
from tests.fakes.storage import Script
from tests.fakes.waiting import PATIENCE_S, wait_until

SEEDS = 12
PROMPT = list(range(100, 141))  # 41 tokens: 10 whole pages of 4, and the last token


def other(index: int, length: int = 41) -> list[int]:
    return [index % 250, index // 250, *range(length - 2)]


def test_a_page_is_copied_to_the_host_and_found_there_after_eviction() -> None:
    rank = Tiered(num_pages=24)
    assert rank.generate(PROMPT) == solo(PROMPT, 4)
    assert rank.tiers.host.usage().evictable_pages == 11  # 10 of the prompt, 1 with its output
    for index in range(4):
        rank.generate(other(index))
    assert rank.generate(PROMPT) == solo(PROMPT, 4)
    assert rank.cached().host == 40 and rank.cached().storage == 0
    assert rank.generate(PROMPT) == solo(PROMPT, 4)
    assert rank.cached().device == 40 and rank.cached().host == 0


def test_a_flush_empties_device_and_host_and_leaves_storage() -> None:
    rank = Tiered()
    rank.attach()
    rank.generate(PROMPT)
    rank.flush()
    assert rank.tiers.host.usage().free_pages == 128
    assert rank.generate(PROMPT) == solo(PROMPT, 4)
    assert rank.cached().storage == 40 and rank.cached().host == 0
    rank.detach()
    rank.flush()
    rank.generate(PROMPT)
    assert rank.cached().storage == rank.cached().host == rank.cached().device == 0


def test_write_through_selective_copies_what_is_used_again() -> None:
    rank = Tiered(write=WritePolicy.WRITE_THROUGH_SELECTIVE)
    rank.generate(PROMPT)
    assert rank.tiers.host.usage().evictable_pages == 0
    rank.generate(PROMPT)
    assert rank.tiers.host.usage().evictable_pages == 10


def test_write_back_copies_on_eviction_parents_with_their_children() -> None:  # H09
    rank = Tiered(num_pages=24, write=WritePolicy.WRITE_BACK)
    storage = rank.attach()
    rank.generate(PROMPT)
    assert rank.tiers.host.usage().evictable_pages == 0
    for index in range(4):
        rank.generate(other(index))
    assert rank.shelf.records, "nothing went to storage"
    fresh = Tiered(shelf=rank.shelf)
    fresh.attach()
    assert fresh.generate(PROMPT) == solo(PROMPT, 4)
    assert fresh.cached().storage == 40
    assert storage.put_calls


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_gap_in_storage_is_filled_by_the_next_use(page_size: int) -> None:  # H09
    rank = Tiered(num_pages=256, host_pages=256, page_size=page_size)
    prompt = [*range(1, 130)]
    script = Script(put_errors={2: OSError("one batch fails")})
    rank.attach(script)
    rank.generate(prompt)
    fresh = Tiered(num_pages=256, host_pages=256, page_size=page_size, shelf=rank.shelf)
    fresh.attach()
    fresh.generate(prompt)
    assert fresh.cached().storage < 128
    rank.generate(prompt)
    fresh = Tiered(num_pages=256, host_pages=256, page_size=page_size, shelf=rank.shelf)
    fresh.attach()
    assert fresh.generate(prompt) == solo(prompt, 4)
    assert fresh.cached().storage == 128


def test_a_failing_store_leaves_the_thread_alive_and_only_its_pages_out() -> None:  # H04
    rank = Tiered(num_pages=300, host_pages=600)
    script = Script(put_errors={3: OSError("third"), 5: RuntimeError("fifth")})
    storage = rank.attach(script)
    for index in range(20):
        rank.generate(other(index), 1)
    opened = rank.tiers.attached
    assert opened is not None
    report = opened.report()
    assert report.errors == 2 and report.breaker is Breaker.CLOSED
    assert report.dropped_pages == report.written_pages * 0 + report.dropped_pages > 0
    assert report.last_error == "fifth"
    use = rank.tiers.host.usage()
    assert use.free_pages + use.evictable_pages == use.total_pages
    script.put_errors.clear()
    before = len(rank.shelf.records)
    for index in range(20, 25):
        rank.generate(other(index), 1)
    assert len(rank.shelf.records) == before + 5 * 10
    rank.flush()
    assert rank.detach() == ""
    assert storage.close_calls == 1


def test_keys_that_vanish_between_the_check_and_the_read_are_a_shorter_hit() -> None:  # H17
    rank = Tiered(num_pages=256, host_pages=256)
    prompt = [*range(1, 130)]
    rank.attach()
    rank.generate(prompt)
    fresh = Tiered(num_pages=256, host_pages=256, shelf=rank.shelf)
    fresh.attach(Script(vanish={11, 21}))
    assert fresh.generate(prompt) == solo(prompt, 4)
    assert fresh.cached().storage == 40
    opened = fresh.tiers.attached
    assert opened is not None and opened.report().hit_pages == 10
    use = fresh.tiers.host.usage()
    assert use.free_pages + use.evictable_pages == use.total_pages


def test_no_tenant_finds_the_pages_of_another_in_storage() -> None:  # H08
    rank = Tiered()
    rank.attach()
    rank.generate(PROMPT, extra_key="a")
    hits = []
    for tenant in ("b", None, "a"):
        rank.flush()
        assert rank.generate(PROMPT, extra_key=tenant) == solo(PROMPT, 4)
        hits.append(rank.cached().storage)
    assert hits == [0, 0, 40]


def test_pages_of_other_weights_are_never_found() -> None:  # W02
    rank = Tiered()
    rank.attach()
    first = rank.generate(PROMPT)
    rank.runner.swap(None, WeightsView(version="b", checksum="bbbb"))
    for flushes in (False, True):
        if flushes:
            rank.flush()
        assert rank.generate(PROMPT) == solo(PROMPT, 4, "bbbb")
        assert rank.cached().storage == (40 if flushes else 0)
    rank.runner.swap(None, WeightsView(version="default"))
    rank.flush()
    assert rank.generate(PROMPT) == first
    assert rank.cached().storage == 40


def test_a_corrupt_page_is_a_miss_and_is_written_again() -> None:
    rank = Tiered()
    rank.attach()
    rank.generate(PROMPT)
    key = sorted(rank.shelf.records)[0]
    blob = bytearray(rank.shelf.records[key])
    blob[200] ^= 1
    rank.shelf.records[key] = bytes(blob)
    rank.flush()
    assert rank.generate(PROMPT) == solo(PROMPT, 4)
    assert rank.cached().storage < 40
    opened = rank.tiers.attached
    assert opened is not None and opened.report().corrupt_pages == 1
    rank.generate(PROMPT)
    rank.flush()
    assert rank.generate(PROMPT) == solo(PROMPT, 4)
    assert rank.cached().storage == 40


def test_what_was_built_before_an_attach_goes_to_storage_too() -> None:
    rank = Tiered()
    rank.generate(PROMPT)
    rank.generate([*PROMPT[:20], 7, 7, 7, 7, 7])
    rank.attach()
    rank.settle()
    rank.flush()
    assert rank.generate(PROMPT) == solo(PROMPT, 4)
    assert rank.cached().storage == 40
    rank.generate([*PROMPT[:20], 7, 7, 7, 7, 7])
    assert rank.cached().storage == 4  # its own page; the others are shared, on the device


@pytest.mark.parametrize("layout", list(HostLayout))
@pytest.mark.parametrize("prefetch", list(PrefetchPolicy))
def test_every_layout_and_policy_gives_the_same_answers(
    layout: HostLayout, prefetch: PrefetchPolicy
) -> None:
    rank = Tiered(num_pages=24, host_pages=48, prefetch=prefetch, host_layout=layout)
    rank.attach()
    for index in (0, 1, 2, 3, 0, 1, 4, 5, 0, 2):
        assert rank.generate(other(index)) == solo(other(index), 4)
    rank.flush()
    for index in (0, 1, 2):
        assert rank.generate(other(index)) == solo(other(index), 4)


def test_best_effort_does_not_wait_for_a_slow_store() -> None:
    rank = Tiered(prefetch=PrefetchPolicy.BEST_EFFORT)
    rank.attach()
    rank.generate(PROMPT)
    rank.flush()
    gate = threading.Event()
    opened = rank.tiers.attached
    assert opened is not None
    opened.guard.storage.script.get_gate = gate  # type: ignore[attr-defined]
    rid = rank.ask(PROMPT)
    rank.run()
    assert rank.seen.tokens(rid) == solo(PROMPT, 4)
    assert rank.cached(rid).storage == 0
    assert rank.scheduler.places().l3_prefetch == 1
    gate.set()
    rank.settle()


def test_the_longest_wait_ends_and_a_call_that_does_not_return_is_given_up() -> None:
    rank = Tiered()
    gate = threading.Event()
    script = Script()
    rank.attach(script, prefetch_timeout_max=0.2, io_timeout=0.1)
    rank.generate(PROMPT)
    rank.flush()
    script.get_gate = gate
    rid = rank.ask(PROMPT)
    rank.run()
    assert rank.seen.tokens(rid) == solo(PROMPT, 4)
    rank.settle()  # the call is given up after a second more, and no place counts it
    opened = rank.tiers.attached
    assert opened is not None and opened.report().breaker is Breaker.STALLED
    assert rank.generate(other(3)) == solo(other(3), 4)
    rank.flush()
    gate.set()
    script.get_gate = None

    def is_closed() -> bool:
        rank.step()
        return opened.report().breaker is Breaker.CLOSED

    wait_until(is_closed, every_s=0.001)
    assert rank.generate(PROMPT) == solo(PROMPT, 4)


def test_each_place_is_named_while_something_is_in_it() -> None:  # F11
    rank = Tiered(num_pages=24)
    gate = threading.Event()
    copier = rank.tiers.host._copier
    copier.before_copy = lambda: gate.wait(PATIENCE_S) and None  # type: ignore[attr-defined]
    rid = rank.ask(PROMPT)
    rank.run()
    assert rank.scheduler.places().l1_backup > 0
    gate.set()
    rank.settle()
    for index in range(4):
        rank.generate(other(index))
    gate.clear()
    again = rank.ask(PROMPT)
    rank.step()
    assert rank.scheduler.places().l2_load == 1
    gate.set()
    rank.settle()
    assert rank.seen.tokens(rid) == rank.seen.tokens(again) == solo(PROMPT, 4)
    script = Script(put_gate=threading.Event(), get_gate=threading.Event())
    rank.attach(script)
    assert rank.scheduler.places().l3_backup > 0
    assert script.put_gate is not None and script.get_gate is not None
    script.put_gate.set()
    rank.settle()
    rank.flush()
    last = rank.ask(PROMPT)
    rank.step()
    assert rank.scheduler.places().l3_prefetch == 1
    assert rank.scheduler.places().waiting == 1
    script.get_gate.set()
    rank.settle()
    assert rank.seen.tokens(last) == solo(PROMPT, 4)


def test_a_full_store_drops_pages_and_is_no_error() -> None:
    rank = Tiered()
    rank.attach(Script(capacity_pages=6))
    for index in range(3):
        assert rank.generate(other(index)) == solo(other(index), 4)
    opened = rank.tiers.attached
    assert opened is not None
    report = opened.report()
    assert (report.written_pages, report.dropped_pages > 10) == (6, True)
    assert report.breaker is Breaker.CLOSED and report.errors == 0
    assert report.last_error == "the store is full"
    rank.flush()
    assert rank.generate(other(0)) == solo(other(0), 4)
    assert rank.cached().storage == 24


def test_a_backend_that_asks_is_told_the_pages_before() -> None:
    rank = Tiered()
    storage = rank.attach(hicache_storage_pass_prefix_keys=True)
    rank.generate(PROMPT[:21])
    assert storage.told_prefixes[0] == []
    before = len(storage.told_prefixes)
    rank.generate(PROMPT)
    got, put = storage.told_prefixes[before:][0], storage.told_prefixes[-1]
    assert got == storage.put_keys[0][:5]  # what is looked for follows what is cached
    assert put[:5] == storage.put_keys[0][:5]
    rank.detach()
    rank.flush()
    quiet = rank.attach()
    rank.generate(PROMPT)
    assert quiet.told_prefixes == []


def test_two_requests_share_one_read_of_their_prefix() -> None:
    rank = Tiered()
    rank.attach()
    rank.generate(PROMPT)
    rank.flush()
    opened = rank.tiers.attached
    assert opened is not None
    storage = opened.guard.storage
    before = storage.get_pages  # type: ignore[attr-defined]
    first, second = rank.ask(PROMPT), rank.ask([*PROMPT, 9, 9])
    rank.settle()
    assert rank.seen.tokens(first) == solo(PROMPT, 4)
    assert rank.seen.tokens(second) == solo([*PROMPT, 9, 9], 4)
    assert storage.get_pages == before + 10  # type: ignore[attr-defined]


def test_a_full_host_drops_copies_and_loses_no_page() -> None:
    rank = Tiered(num_pages=64, host_pages=8)
    storage = rank.attach()
    for index in range(12):
        assert rank.generate(other(index, 20)) == solo(other(index, 20), 4)
    rank.settle()
    assert storage.put_calls


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_traffic_with_every_kind_of_trouble(seed: int) -> None:
    """Aborts, retractions, flushes, attach and detach, policies: the same tokens, no page lost."""
    rng = random.Random(seed)
    rank = Tiered(
        num_pages=rng.choice([20, 40]),
        host_pages=rng.choice([10, 60, 200]),
        write=rng.choice(list(WritePolicy)),
        prefetch=rng.choice(list(PrefetchPolicy)),
        host_layout=rng.choice(list(HostLayout)),
        chunked_prefill_tokens=rng.choice([3, 16, 512]),
    )
    asked: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()
    roots = [[rng.randrange(250) for _ in range(24)] for _ in range(4)]
    for _ in range(400):
        act = rng.random()
        if act < 0.25 and len(rank.scheduler.waiting) < 8:
            prompt = rng.choice(roots)[: rng.randrange(1, 25)]
            prompt = [*prompt, *(rng.randrange(3) for _ in range(rng.randrange(12)))]
            count = rng.randrange(1, 8)
            asked[rank.ask(prompt, count)] = (prompt, count)
        elif act < 0.28 and asked:
            rid = rng.choice(list(asked))
            if rank.scheduler.abort(rid):
                aborted.add(rid)
        elif act < 0.30:
            rank.scheduler.retract_running()
        elif act < 0.33 and not rank.scheduler.running:
            rank.flush()
        elif act < 0.36:
            if rank.tiers.attached is None:
                rank.attach(Script(put_errors={rng.randrange(1, 40): OSError("now and then")}))
            else:
                rank.detach()
        elif act < 0.37:
            rank.tiers.host.write_policy = rng.choice(list(WritePolicy))
        else:
            rank.step()
    rank.settle()
    for rid, (prompt, count) in asked.items():
        if rid not in aborted:
            assert rank.seen.tokens(rid) == solo(prompt, count), rid
    rank.until_back()
    rank.flush()
    assert rank.scheduler.kv.usage().free_pages == rank.scheduler.kv.usage().total_pages
    assert rank.tiers.host.usage().free_pages == rank.tiers.host.usage().total_pages
