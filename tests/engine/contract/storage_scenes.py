"""What we make of each recorded exchange about the hierarchical cache, told in scenes.

A scene is a list of names, replayed in order on an engine with a host tier, or on two ranks, or on
one that has neither a host tier nor an admin key. `!word` is what the recording did not note: a
stream beside it, a file of somebody else. `SAME` is answered like the real server: texts byte for
byte, JSON with the same values, prompts with as many cached tokens from each tier. `BETTER` is as
in `scenes.py`; `{config}` is the configuration that is attached.
"""

from __future__ import annotations

import re
from typing import Any

from tests.engine.contract.scenes import Better

SCENES = {
    "keys": """
        hic_GET_noauth hic_PUT_noauth hic_DELETE_noauth hic_clear_noauth hic_GET_wrongkey
        hic_PUT_wrongkey hic_DELETE_wrongkey hic_clear_wrongkey
        mt_hic_get_noauth mt_hic_put_noauth mt_hic_delete_noauth hic_get_initial""",
    "nothing attached": """
        info_hicache_storage-backend info_get_hicache_l3_cache_layout
        hic_get_initial hic_delete_initial hic_clear_nothing
        hic_gen_cold hic_gen_l1 hic_flush1 hic_gen_after_flush_nostorage hic_flush2""",
    "refused": """
        hic_put_empty hic_put_badjson hic_put_unknown_backend hic_put_bad_policy
        hic_put_bad_wpolicy hic_put_bad_extra hic_put_extra_obj hic_put_extra_list
        hic_put_extra_badtype hic_put_extra_at_missing hic_put_extra_at_txt hic_put_mooncake
        hic_get_after_failures !stream hic_put_busy !end hic_get_after_failures""",
    "attached": """
        hic_attach_file hic_get_attached hic_gen_attached_cold !is_in_the_folder
        hic_flush3 !is_stored hic_gen_l3_then_l1 hic_reattach_same_cfg hic_get_2
        hic_reattach_other_cfg hic_get_3 hic_flush4 hic_reattach_bad_json hic_get_4
        hic_attach_other hic_get_5 !stream hic_delete_busy hic_clear_busy !end
        hic_policy_back hic_flush5 !is_stored hic_clear_now hic_flush6 hic_gen_after_clear
        hic_uw_pirate hic_flush7 hic_uw_base
        !is_stored !foreign_file hic_clear_foreign !foreign_file_is_left !is_not_stored
        hic_detach hic_get_6 hic_detach_twice hic_clear_detached
        hic_attach_other_now hic_get_7 hic_layout hic_detach_sim""",
    "three tiers": """
        hic2_attach_file hic2_cold hic2_flush1 hic2_l3_hit hic2_l1
        hic2_reattach_other_cfg hic2_get hic2_flush2 hic2_after_recfg hic2_flush3
        hic2_stale_base hic2_flush4 !is_stored !first_token_of_the_old
        hic2_uw_pirate hic2_stale_pirate_with_L3 hic2_stale_lp
        hic2_clear hic2_flush4 hic2_clean_lp !stale_is_clean
        hic2_flush5 hic2_l2_seed !evict hic2_l2_hit hic2_detach""",
}
SCENES_DP = {
    "two ranks": """
        !stream dp_attach_rank0_busy dp_get_after_partial_attach !end
        dp_attach_retry dp_get_after_retry dp_detach dp_get_end"""
}
SCENES_PLAIN = {"no admin key": "nokey_hic_GET nokey_hic_PUT nokey_hic_DELETE nokey_clear"}

SAME = """
info_hicache_storage-backend
hic_GET_noauth hic_PUT_noauth hic_DELETE_noauth hic_clear_noauth hic_GET_wrongkey hic_PUT_wrongkey
hic_DELETE_wrongkey hic_clear_wrongkey
hic_get_initial hic_delete_initial hic_gen_cold hic_gen_l1 hic_flush1 hic_gen_after_flush_nostorage
hic_flush2 hic_get_after_failures
hic_attach_file hic_get_attached hic_gen_attached_cold hic_flush3 hic_gen_l3_then_l1
hic_reattach_same_cfg hic_get_2 hic_flush4 hic_flush5 hic_policy_back hic_clear_now hic_flush6
hic_gen_after_clear hic_uw_pirate hic_flush7 hic_uw_base
hic_detach hic_get_6 hic_detach_twice hic_detach_sim
hic2_attach_file hic2_cold hic2_flush1 hic2_l3_hit hic2_l1 hic2_flush2 hic2_after_recfg hic2_flush3
hic2_stale_base hic2_uw_pirate hic2_clear hic2_flush4 hic2_clean_lp hic2_flush5 hic2_l2_seed
hic2_l2_hit hic2_detach
dp_get_after_retry dp_get_end
nokey_hic_GET nokey_hic_PUT nokey_hic_DELETE
""".split()  # noqa: SIM905 - a table

_SHAPE = "same refusal; a bad body is named by field, in the shape of every native refusal"
_SECRET = "says what is wrong with the settings and does not repeat them: they may hold secrets"
_NO_FILES = "a request makes the engine read no file of its machine"
_PLACES = "SGLang's lines, and one that names the busy places"
_IN_EFFECT = "other settings for what is attached are refused, not recorded and left unused"
_TRUE = "tells what is in effect, and no secret"
_UNKNOWN = "a backend that this engine does not have is refused by name, whatever is attached"
_NOTHING = "a clear of nothing is no success"
_ADMIN = "admin routes need the admin key, however many workers"
_LAYOUT = "tells of any backend, and how pages lie, not of Mooncake alone"
_OWN_WEIGHTS = "a page is kept under its weights: nothing of the old ones is found"
_ALL_OR_NONE = "every rank attaches or none; the real server's idle rank stayed attached"
_ONE = "one sentence for all ranks"


def _busy(verb: str, result: str) -> re.Pattern[str]:
    return re.compile(
        rf"^Failed to {result}\.\n"
        rf"Reject {verb}: scheduler is not idle\. #queue-req=0 #running-req=1\n"
        r"not idle: rank 0 running=1[^\n]*\n$"
    )


def _no_attach(what: str) -> re.Pattern[str]:
    return re.compile(rf"^Failed to attach HiCache storage backend\.\n{what}\n$")


def _status(backend: str | None, config: str | None, prefetch: str) -> dict[str, Any]:
    return {
        "hicache_storage_backend": backend,
        "hicache_storage_backend_extra_config": config,
        "hicache_storage_prefetch_policy": prefetch,
        "hicache_write_policy": "write_through",
        "drift": False,
        "ranks": [{"attached": backend is not None, "hicache_storage_backend": backend}],
    }


def _layout() -> dict[str, Any]:
    return {
        "enabled": False,
        "backend": None,
        "page_size": 16,
        "hicache_object_layout": {"pools": [{"name": "kv", "layout": "page_first"}]},
        "reason": "no storage backend is attached",
    }


def _named(field: str) -> dict[str, Any]:
    return {"object": "error", "code": 400, "param": field, "error": {"param": field}}


def _tiers(device: int, host: int, storage: int) -> dict[str, Any]:
    cached = {"device": device, "host": host, "storage": storage}
    return {"meta_info": {"cached_tokens": sum(cached.values()), "cached_tokens_details": cached}}


_BACKEND, _EXTRA = "hicache_storage_backend", "hicache_storage_backend_extra_config_json"
_OTHER_SETTINGS = _no_attach("HiCache storage backend 'file' is attached with other settings.*")
_ATTACHED = _status("file", "{config}", "timeout")

BETTER: dict[str, Better] = {
    "mt_hic_get_noauth": Better(401, _ADMIN, {"error": "Unauthorized"}),
    "mt_hic_put_noauth": Better(401, _ADMIN, {"error": "Unauthorized"}),
    "mt_hic_delete_noauth": Better(401, _ADMIN, {"error": "Unauthorized"}),
    "nokey_clear": Better(
        400,
        "says why, where the real server said that it was cleared",
        {"error": re.compile("^This endpoint requires admin API key")},
    ),
    "info_get_hicache_l3_cache_layout": Better(200, _LAYOUT, _layout()),
    "hic_layout": Better(200, _LAYOUT, _layout()),
    # ---- refused
    "hic_put_empty": Better(400, _SHAPE, {"message": re.compile(f"missing .*`{_BACKEND}`")}),
    "hic_put_badjson": Better(
        400, _SHAPE, {"code": 400, "message": re.compile("^the body is no valid JSON: .*column 2")}
    ),
    "hic_put_extra_obj": Better(400, _SHAPE, _named(_EXTRA)),
    "hic_put_bad_policy": Better(400, _SHAPE, _named("hicache_storage_prefetch_policy")),
    "hic_put_bad_wpolicy": Better(400, _SHAPE, _named("hicache_write_policy")),
    "hic_put_unknown_backend": Better(400, _UNKNOWN, _named(_BACKEND)),
    "hic_attach_other": Better(400, _UNKNOWN, _named(_BACKEND)),
    "hic_attach_other_now": Better(400, _UNKNOWN, _named(_BACKEND)),
    "hic_put_bad_extra": Better(
        400, _SECRET, _no_attach(r"extra_config is no valid JSON: [^{\n]* at character 1")
    ),
    "hic_put_extra_list": Better(400, _SECRET, _no_attach("extra_config must be a JSON object")),
    "hic_put_extra_badtype": Better(400, _SECRET, _no_attach("[^{\n]*prefetch_threshold[^{\n]*")),
    "hic_put_extra_at_missing": Better(
        400, _NO_FILES, _no_attach("extra_config is no valid JSON: [^@/\n]*")
    ),
    "hic_put_extra_at_txt": Better(
        400, _NO_FILES, _no_attach("extra_config is no valid JSON: [^@/\n]*")
    ),
    "hic_put_mooncake": Better(
        400, "names the setting that is missing", _no_attach("[^\n]*master_server_address[^\n]*")
    ),
    "hic_put_busy": Better(400, _PLACES, _busy("attach", "attach HiCache storage backend")),
    "hic_delete_busy": Better(400, _PLACES, _busy("detach", "detach HiCache storage backend")),
    "hic_clear_busy": Better(
        400,
        "a clear needs an idle engine: nothing is deleted under requests that read it",
        _busy("clear", "clear the storage backend"),
    ),
    # ---- settings
    "hic_reattach_other_cfg": Better(400, _IN_EFFECT, _no_attach("[^\n]*secret_key[^\n]*")),
    "hic_get_3": Better(200, _TRUE, _ATTACHED),
    "hic_reattach_bad_json": Better(
        400, _IN_EFFECT, _no_attach(r"extra_config is no valid JSON: [^{\n]*")
    ),
    "hic_get_4": Better(200, _TRUE, _ATTACHED),
    "hic_get_5": Better(200, _TRUE, _ATTACHED),
    "hic_get_7": Better(200, _UNKNOWN, _status(None, None, "wait_complete")),
    "hic2_reattach_other_cfg": Better(400, _IN_EFFECT, _OTHER_SETTINGS),
    "hic2_get": Better(200, _TRUE, _status("file", '{{"prefetch_threshold":64}}', "wait_complete")),
    # ---- clear
    "hic_clear_nothing": Better(
        400, _NOTHING, re.compile("^Failed to clear .*\nno storage backend is attached\n$")
    ),
    "hic_clear_detached": Better(
        400, _NOTHING, re.compile("^Failed to clear .*\nno storage backend is attached\n$")
    ),
    "hic_clear_foreign": Better(
        200,
        "the same text; deletes this engine's pages only, not every file in the folder",
        re.compile(r"^Hierarchical cache storage backend cleared\.\n$"),
    ),
    # ---- other weights
    "hic2_stale_pirate_with_L3": Better(200, _OWN_WEIGHTS, _tiers(0, 0, 0)),
    "hic2_stale_lp": Better(
        200, "what is on the device was computed by these weights", _tiers(240, 0, 0)
    ),
    # ---- two ranks
    "dp_attach_rank0_busy": Better(
        400, _ALL_OR_NONE, _busy("attach", "attach HiCache storage backend")
    ),
    "dp_get_after_partial_attach": Better(
        200,
        _ALL_OR_NONE,
        {_BACKEND: None, "drift": False, "ranks": [{"attached": False}, {"attached": False}]},
    ),
    "dp_attach_retry": Better(
        200,
        _ALL_OR_NONE,
        re.compile(
            r"^HiCache storage backend attached\.\n"
            r"Attached HiCache storage backend successfully\.\n$"
        ),
    ),
    "dp_detach": Better(
        200,
        _ONE,
        re.compile(
            r"^HiCache storage backend detached\.\n"
            r"Detached HiCache storage backend successfully\.\n$"
        ),
    ),
}
