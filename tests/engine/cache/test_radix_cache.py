"""The prefix cache: exact matches in whole pages, locks that hold, an account that balances."""

from __future__ import annotations

import itertools
import random

import pytest

from engine.cache.radix_cache import Node, RadixCache

PAGE = 4


def tokens(text: str) -> list[int]:
    """One page a letter."""
    return [ord(letter) for letter in text for _ in range(PAGE)]


def total(cache: RadixCache) -> int:
    return cache.num_evictable + cache.num_locked


def test_a_prefix_is_found_in_whole_pages() -> None:
    cache = RadixCache(PAGE)
    cache.insert(tokens("ABCD"), [1, 2, 3, 4])
    assert cache.match(tokens("ABCD")).pages == [1, 2, 3, 4]
    assert cache.match(tokens("ABX")).pages == [1, 2]
    assert cache.match([*tokens("AB"), ord("C")]).pages == [1, 2]
    assert cache.match(tokens("X")).pages == []


@pytest.mark.parametrize("length", range(1, 14))
def test_an_incomplete_page_is_never_cached(length: int) -> None:
    cache = RadixCache(PAGE)
    ids = list(range(length))
    cache.insert(ids, list(range(length // PAGE)))
    assert len(cache.match(ids).pages) == length // PAGE


def test_namespaces_do_not_share() -> None:  # I30
    cache = RadixCache(PAGE)
    cache.insert(tokens("AB"), [1, 2], "a")
    assert cache.match(tokens("AB"), "b").pages == []
    assert cache.match(tokens("AB")).pages == []
    assert cache.match(tokens("AB"), "a").pages == [1, 2]


def test_inserting_what_is_there_returns_the_trees_pages() -> None:
    cache = RadixCache(PAGE)
    cache.insert(tokens("AB"), [1, 2])
    owned, _ = cache.insert(tokens("ABC"), [7, 8, 9])
    assert owned == [1, 2, 9]
    assert total(cache) == 3


def test_evict_takes_the_least_recently_used_and_never_a_locked_node() -> None:
    cache = RadixCache(PAGE)
    cache.insert(tokens("AB"), [1, 2])
    cache.insert(tokens("CD"), [3, 4])
    cache.match(tokens("AB"))
    assert cache.evict(1) == [3, 4]
    match = cache.match(tokens("AB"))
    cache.lock(match.node)
    assert cache.evict(10) == []
    cache.unlock(match.node)
    assert cache.evict(10) == [1, 2]
    assert total(cache) == 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_partial_match_locks_no_more_than_it_matched(order: tuple[int, ...]) -> None:  # E04
    cache = RadixCache(PAGE)
    cache.insert(tokens("ABCD"), [1, 2, 3, 4])
    first = cache.match(tokens("ABC"))
    cache.lock(first.node)
    _, second = cache.insert(tokens("ABCDE"), [1, 2, 3, 4, 5])
    cache.lock(second)
    third = cache.match(tokens("ABX"))
    cache.lock(third.node)
    assert [len(match.pages) for match in (first, third)] == [3, 2]
    for index in order:
        cache.unlock([first.node, second, third.node][index])
    assert cache.num_locked == 0
    assert sorted(cache.evict(100)) == [1, 2, 3, 4, 5]


def test_the_account_balances_over_random_use() -> None:  # E04
    rng = random.Random(7)
    cache = RadixCache(PAGE)
    free = list(range(120))
    locks: list[Node] = []
    for _ in range(3000):
        ids = tokens("".join(rng.choices("ABC", k=rng.randint(1, 6))))
        space = rng.choice(["", "x"])
        act = rng.random()
        if act < 0.45:
            owned = cache.match(ids, space).pages
            need = len(ids) // PAGE - len(owned)
            if need <= len(free):
                mine, free = free[:need], free[need:]
                got, node = cache.insert(ids, owned + mine, space)
                assert got == owned + mine
                if rng.random() < 0.5:
                    cache.lock(node)
                    locks.append(node)
        elif act < 0.6:
            match = cache.match(ids, space)
            if match.pages:
                cache.lock(match.node)
                locks.append(match.node)
        elif act < 0.8 and locks:
            cache.unlock(locks.pop(rng.randrange(len(locks))))
        else:
            free += cache.evict(rng.randint(1, 5))
        assert len(free) + total(cache) == 120
        assert len(set(free)) == len(free)
    for node in locks:
        cache.unlock(node)
    assert cache.num_locked == 0
    assert len(free) + len(cache.evict(1000)) == 120


def test_asking_for_unknown_namespaces_leaves_nothing_behind() -> None:
    cache = RadixCache(page_size=4)
    for index in range(50):
        assert cache.match([1, 2, 3, 4], f"tenant {index}").pages == []
    assert len(cache._roots) == 0


def test_using_a_leaf_again_and_again_does_not_grow_the_queue_of_leaves() -> None:
    cache = RadixCache(page_size=4)
    _, node = cache.insert([1, 2, 3, 4], [0])
    for _ in range(50):
        cache.lock(cache.match([1, 2, 3, 4]).node)
        cache.unlock(node)
    assert len(cache._leaves) == 1
    assert cache.evict(1) == [0]
    assert cache.num_evictable == cache.num_locked == 0
