"""Routing: the longest known prefix wins, unless its rank is overloaded; else the idlest."""

from __future__ import annotations

from engine.frontend.dp_router import DPRouter, page_chain

PAGE = 4
SHARED = list(range(40))


def test_a_prefix_goes_where_it_is_known() -> None:
    router = DPRouter(3)
    chain = page_chain(SHARED, PAGE, "")
    router.sent(chain, 1, 50)
    router.ended(1, 50)
    assert router.choose(page_chain([*SHARED[:20], 99], PAGE, ""), range(3)) == 1


def test_without_a_known_prefix_the_rank_with_the_fewest_tokens_is_taken() -> None:
    router = DPRouter(3)
    router.sent([], 0, 30)
    router.sent([], 1, 10)
    router.sent([], 2, 20)
    assert router.choose(page_chain(SHARED, PAGE, ""), range(3)) == 1


def test_an_overloaded_rank_is_passed_over_despite_its_prefix() -> None:
    router = DPRouter(2)
    chain = page_chain(SHARED, PAGE, "")
    router.sent(chain, 0, 100_000)
    assert router.choose(chain, range(2)) == 1


def test_only_the_offered_ranks_are_chosen_from() -> None:
    router = DPRouter(2)
    chain = page_chain(SHARED, PAGE, "")
    router.sent(chain, 0, 1)
    assert router.choose(chain, [1]) == 1
    assert router.choose(chain, []) is None


def test_a_flushed_rank_has_no_known_prefix() -> None:
    router = DPRouter(2)
    chain = page_chain(SHARED, PAGE, "")
    router.sent(chain, 1, 5)
    router.forget(1)
    assert router.hit_pages(chain, 1) == 0
    assert router.load_tokens(1) == 5


def test_namespaces_have_chains_of_their_own() -> None:
    assert page_chain(SHARED, PAGE, "a")[0] != page_chain(SHARED, PAGE, "b")[0]
    assert page_chain(SHARED[:8], PAGE, "") == page_chain(SHARED, PAGE, "")[:2]
