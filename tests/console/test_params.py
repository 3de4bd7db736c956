"""One schema a kind: what is asked is what is stored, and what the engine is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.choices import JobKind, Mode
from console.exceptions import Invalid
from console.params import PARAMS, params_from, params_of
from engine.protocol import (
    AbortRequests,
    PauseMode,
    UpdateWeightsFromDisk,
    UpdateWeightsFromDistributed,
    UpdateWeightsFromTensor,
)

GROUP = {"master_address": "127.0.0.1", "master_port": 29500, "world_size": 3}
GOOD = {
    "flush_cache": {},
    "update_weights_from_disk": {"model_path": "/srv/models/v2"},
    "update_weights_from_tensor": {"uploads": ["a" * 64]},
    "update_weights_from_distributed": {"group": GROUP},
    "update_weight_version": {"new_version": "v2"},
    "pause_generation": {},
    "continue_generation": {},
    "abort_requests": {"abort_all": True},
    "release_memory": {},
    "resume_memory": {},
    "attach_storage_backend": {"backend": "file", "config": {"max_size": 1 << 30}},
    "detach_storage_backend": {},
    "clear_storage_backend": {},
    "set_cache_policies": {"prefetch_policy": "best_effort"},
    "repair": {},
}
SHA = "b" * 64


@pytest.mark.parametrize("kind", JobKind.values)
def test_what_is_stored_is_read_again_as_it_was(kind):
    params = params_of(kind, GOOD[kind])
    stored = json.loads(json.dumps(params.stored()))
    assert params_from(kind, stored) == params
    assert params.operation(job_id="j").kind == kind
    assert PARAMS[JobKind(kind)] is type(params)


@pytest.mark.parametrize("kind", JobKind.values)
def test_an_unknown_field_is_refused_by_name(kind):
    with pytest.raises(Invalid, match="is_async"):
        params_of(kind, {**GOOD[kind], "is_async": False})


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("update_weights_from_disk", {"model_path": ""}, "model_path"),
        ("update_weights_from_disk", {"model_path": "a\x00b"}, "model_path: must not hold a NUL"),
        ("update_weights_from_disk", {"model_path": None}, "model_path"),
        ("update_weights_from_disk", {"weight_version": ""}, "weight_version"),
        ("update_weights_from_disk", {"weight_version": "a\nb"}, "weight_version"),
        ("update_weights_from_disk", {"weight_version": "x" * 129}, "weight_version"),
        ("update_weights_from_disk", {"expected_checksum": "xyz"}, "expected_checksum"),
        ("update_weights_from_disk", {"flush_cache": 1}, "flush_cache"),
        ("update_weights_from_disk", {"timeout_s": float("nan")}, "timeout_s"),
        ("update_weights_from_disk", {"timeout_s": 0, "mode": "retract"}, "greater than 0"),
        ("update_weights_from_tensor", {"uploads": []}, "uploads"),
        ("update_weights_from_tensor", {"uploads": ["A" * 64]}, "uploads.0"),
        ("update_weights_from_tensor", {"uploads": [SHA, SHA]}, "uploads: must name each file"),
        (
            "update_weights_from_distributed",
            {"group": {**GROUP, "master_port": 0}},
            "group.master_port",
        ),
        ("update_weights_from_distributed", {"group": {**GROUP, "world_size": 1}}, "world_size"),
        ("update_weights_from_distributed", {"group": {**GROUP, "x": 1}}, "group.x"),
        ("update_weights_from_distributed", {"names": ["w"]}, "as many: 1, 0, 0"),
        ("update_weights_from_distributed", {"receive_timeout_s": 0}, "receive_timeout_s"),
        ("update_weight_version", {"new_version": ""}, "new_version"),
        ("update_weight_version", {"mode": "wait"}, "mode"),
        ("pause_generation", {"pause_mode": "drain"}, "pause_mode"),
        ("abort_requests", {"rid": "r", "abort_all": True}, "not both"),
        ("abort_requests", {"rid": "", "abort_all": False}, "not both"),
        ("release_memory", {"tags": ["kv_cache", "kv_cache"]}, "once"),
        ("release_memory", {"tags": ["disk"]}, "tags.0"),
    ],
)
def test_a_bad_field_is_named_by_its_path(kind, change, says):
    with pytest.raises(Invalid) as refused:
        params_of(kind, {**GOOD[kind], **change})
    assert says in refused.value.message


def test_the_engine_is_told_what_was_asked():
    disk = params_of(
        "update_weights_from_disk",
        {"model_path": "/m/v2", "weight_version": "v2", "flush_cache": False},
    ).operation(job_id="j")
    assert disk == UpdateWeightsFromDisk(model_path="/m/v2", weight_version="v2", flush_cache=False)
    files = params_of("update_weights_from_tensor", {"uploads": [SHA]}).operation(job_id="job-7")
    assert files == UpdateWeightsFromTensor(upload_id="job-7")
    trained = params_of("update_weights_from_distributed", {"group": GROUP}).operation(job_id="j")
    assert isinstance(trained, UpdateWeightsFromDistributed)
    assert (trained.group.master_port, trained.group.rank_offset, trained.names) == (29500, 1, [])
    assert params_of("pause_generation", {}).operation(job_id="j").pause_mode is PauseMode.ABORT
    one = params_of("abort_requests", {"rid": "r1"}).operation(job_id="j")
    assert one == AbortRequests(rid="r1")


def test_the_audit_keeps_a_digest_of_a_long_list():
    names = [f"layer.{n}" for n in range(1000)]
    params = params_of(
        "update_weights_from_distributed",
        {"group": GROUP, "names": names, "dtypes": ["bf16"] * 1000, "shapes": [[2, 2]] * 1000},
    )
    kept = params.audited()
    assert kept["num_tensors"] == 1000
    assert len(kept["tensors_sha256"]) == 64
    assert "names" not in kept
    assert params.stored()["names"] == names


@given(st.sampled_from(["if_idle", "wait", "drain", "retract", "abort"]), st.floats(0, 86_400))
def test_no_mode_holds_requests_for_no_time(mode, timeout_s):
    try:
        params = params_of(
            "update_weights_from_disk", {"model_path": "/m", "mode": mode, "timeout_s": timeout_s}
        )
    except Invalid:
        assert timeout_s == 0
        return
    if params.timeout_in_force_s == 0:
        assert params.mode_in_force == Mode.IF_IDLE


VALKEY = {"backend": "valkey", "config": {"url": "valkey://h:1/0", "password": "p-1"}}


def test_a_secret_is_in_no_field_and_the_engine_is_told_its_name_only():
    params = params_of(
        "attach_storage_backend", {**VALKEY, "rank_configs": {"1": {"password": "p-2"}}}
    )
    assert params.secret_values == {"password": "p-1", "1.password": "p-2"}
    assert "p-1" not in repr(params) + json.dumps(params.stored())
    with pytest.raises(AssertionError, match="keep the secrets first"):
        params.operation(job_id="j")
    kept = params.with_kept("name-7", {"password": "hmac:aa", "1.password": "bb"})
    assert kept.secret_values == {}
    assert kept.stored()["config"]["password"] == "hmac:aa"
    assert kept.stored()["rank_configs"] == {"1": {"password": "hmac:bb"}}
    assert params_from("attach_storage_backend", kept.stored()) == kept
    sent = kept.operation(job_id="j")
    assert (sent.config, sent.secrets) == ('{"url": "valkey://h:1/0"}', "name-7")
    assert sent.rank_configs == {"1": "{}"}


def test_two_requests_with_the_same_secret_compare_equal_whatever_its_name():
    one, other = (
        params_of("attach_storage_backend", VALKEY).with_kept(name, {"password": "hmac:aa"})
        for name in ("a", "b")
    )
    assert one.compared() == other.compared()
    assert one.stored() != other.stored()


def test_settings_are_sent_as_they_were_given_and_a_known_id_sends_none():
    asked = {"backend": "file", "config": {"max_size": 1 << 30}, "write_policy": "write_back"}
    sent = params_of("attach_storage_backend", asked).operation(job_id="j")
    assert json.loads(sent.config) == {"max_size": 1 << 30}
    assert (str(sent.write_policy), sent.prefetch_policy) == ("write_back", None)
    known = {"backend": "valkey", "config_id": "0123456789abcdef", "replace": True}
    sent = params_of("attach_storage_backend", known).operation(job_id="j")
    assert (sent.config, sent.rank_configs, sent.config_id) == ("", {}, "0123456789abcdef")


def test_a_forced_detach_waits_for_nothing():
    gentle = params_of("detach_storage_backend", {"timeout_s": 5, "mode": "drain"})
    forced = params_of("detach_storage_backend", {"force": True, "timeout_s": 0})
    assert (gentle.waits, str(gentle.mode_in_force), gentle.timeout_in_force_s) == (
        True,
        "drain",
        5,
    )
    assert (forced.waits, str(forced.mode_in_force), forced.timeout_in_force_s) == (
        False,
        "wait",
        60,
    )


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    st.sampled_from(["file", "valkey", "mooncake", "nixl", "aibrix", "hf3fs", "eic"]),
    st.dictionaries(
        st.sampled_from(
            ["url", "password", "ttl", "path", "max_size", "io_timeout", "bucket", "x"]
        ),
        TREES,
        max_size=4,
    ),
)
def test_any_settings_are_taken_or_refused_in_words(backend, config):
    try:
        params = params_of("attach_storage_backend", {"backend": backend, "config": config})
    except Invalid as refused:
        assert str(refused.facts["field"]).startswith("config")
        return
    kept = params.with_kept("n", dict.fromkeys(params.secret_values, "hmac:00"))
    sent = json.loads(kept.operation(job_id="j").config)
    assert sent == {name: value for name, value in config.items() if name in sent}
