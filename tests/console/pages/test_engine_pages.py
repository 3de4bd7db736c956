"""A fleet of many engines: each list a page at a time, on pages, sockets and the API."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from console.access import EVERYTHING
from console.clock import db_now
from console.consumers.topics import topic_is_known, topic_read
from console.models import Engine
from console.notify import fleet_topic, topic_group
from console.selectors.engines import engine_page

pytestmark = pytest.mark.django_db

NAMES = [f"gpu-{number:04d}" for number in range(1000)]


@pytest.fixture
def fleet(valkey):
    now = db_now()
    return Engine.objects.bulk_create(
        Engine(
            name=name, control_address=f"ipc:///{name}.c", events_address=f"ipc:///{name}.e",
            created_at=now,
        )
        for name in NAMES
    )  # fmt: skip


def rows(text):
    return re.findall(r'<tr id="[eb]-(gpu-\d{4})"', text)


@pytest.mark.parametrize("path", ["/", "/backends"])
def test_every_engine_is_on_one_page_of_fifty(page, fleet, path):
    seen, query, pages = [], "", 0
    while True:
        text = page.get(path + query).content.decode()
        found = rows(text)
        assert len(found) <= 50
        seen += found
        pages += 1
        following = re.search(r'href="[^"?]*(\?after=[^"]+)" rel="next"', text)
        if following is None:
            break
        query = following[1].replace("&amp;", "&")
    assert seen == NAMES and pages == 20


def test_a_name_is_searched_by_the_server(page, fleet):
    text = page.get("/?q=99").content.decode()
    assert rows(text) == [name for name in NAMES if "99" in name]
    assert 'data-topics="fleet::99"' in text
    assert "No engine has such a name" in page.get("/?q=nothing").content.decode()
    assert page.get("/?q=%00").status_code == 422
    assert page.get("/weights?after=gpu-0949").status_code == 200


def test_a_page_costs_the_same_queries_however_many_engines_there_are(
    page, fleet, django_assert_max_num_queries
):
    for path in ("/", "/weights", "/backends"):
        with django_assert_max_num_queries(16):
            assert page.get(path).status_code == 200


def test_the_topic_of_a_page_holds_that_page_and_hears_the_fleet(fleet):
    topic = fleet_topic("gpu-0049")
    assert (
        topic_is_known(topic) and not topic_is_known("fleet:GPU:") and not topic_is_known("fleet:")
    )
    assert topic_group(topic) == topic_group("fleet")
    state = topic_read(topic, EVERYTHING)
    assert [item["name"] for item in state.data["items"]] == NAMES[50:100]


def test_the_api_pages_by_name(api_of, fleet):
    seen, cursor = [], ""
    while True:
        answer = api_of.get(f"/api/v1/engines?limit=300&cursor={cursor}").json()
        seen += [item["name"] for item in answer["items"]]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    assert seen == NAMES
    assert len(api_of.get("/api/v1/engines").json()["items"]) == 200
    assert api_of.get("/api/v1/engines?cursor=A").status_code == 422


@pytest.fixture
def api_of(user):
    client = Client()
    client.force_login(user)
    return client


def test_a_group_of_a_thousand_is_counted_and_cut_alike(fleet):
    views, total, after = engine_page(rights=EVERYTHING, after="gpu-0979", q="gpu")
    assert (len(views), total, after) == (20, 1000, "")
