"""What we make of each recorded exchange about weights, pauses and memory, told in scenes.

A scene is a list of names, replayed in order on an engine that serves the checkpoint `base` as
version "default"; `&name` goes on in the background until `;` or the scene's end. `SAME` is
answered like the real server. `BETTER` has our status, the reason, and what our answer must hold: a
pattern is looked for in the text, a dict must be part of the JSON. `{base}` and `{other}` are the
checksums of the two checkpoints as their sender computes them, `{name}` is the served name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_PAUSED = """
&pause_{0}_victim_stream pause_{0} loads_paused_{0} ready_paused_{0} ping_paused_{0}
flush_paused_{0}_t0 flush_paused_{0}_t1 pause_{0}_again &gen_while_paused_{0} health_paused_{0}
loads_paused_{0}_2 server_info_paused_{0} continue_{0}
"""
SCENES = {
    "paused in place": _PAUSED.format("in_place"),
    "paused by retracting": _PAUSED.format("retract"),
    "paused by aborting": _PAUSED.format("abort"),
    "pause and continue by themselves": """
        continue_not_paused continue_nobody pause_badmode pause_nobody pause_emptyobj_idle
        health_paused_full continue_after""",
    "reading back": """
        weights_checker_base weights_checker_get_nobody weights_checker_badaction
        weights_checker_snapshot weights_checker_compare get_weights_by_name_ok
        get_weights_by_name_2d get_weights_by_name_unknown get_weights_by_name_get_nobody
        get_weights_by_name_neg""",
    "from disk": """
        uwfd_good_pirate w_gen_pirate w_info_pirate w_models_pirate weights_checker_pirate
        uwfd_back_version w_info_back weights_checker_back
        uwfd_unknown_path w_info_after_unknown uwfd_hf_name uwfd_cfg_only
        uwfd_missing_tensor w_gen_after_missing w_info_after_missing weights_checker_missing
        uwfd_restore1 weights_checker_restored uwfd_bad_loadformat uwfd_wrongshape
        weights_checker_restored""",
    "fields": """
        uwfd_nobody uwfd_empty uwfd_unknownfield uwfd_dead_fields ready_after_keep_pause
        uwv_set w_info_v7 w_gen_v7 uwv_nobody uwv_int""",
    "sessions": """
        uwv_set sess_end_without_begin sess_end_nobody tensor_without_session sess_begin
        sess_begin_twice w_gen_in_session flush_in_session uwfd_in_session sess_end
        sess_begin_badsel sess_end2 dist_without_session destroy_group_none
        init_group_bad_backend""",
    "an update while a stream runs": """
        uw_base0 &uw1_stream uw1_during_stream &uw1_new_request uw1_after""",
    "an update that aborts": "uw8_reset &uw2_stream uw2_abort_all",
    "an update while retracted": """
        uw_base0 &uw3_stream uw3_pause uw3_update_paused_retract uw3_continue uw3_info""",
    "an update while paused in place": """
        uwfd_good_pirate &uw4_stream uw4_pause uw4_update_paused_in_place uw4_info_after_partial
        uw4_ck uw4_continue uw4_after uw4_info_end""",
    "an update while paused in place, without a flush": """
        uw_base0 &uw5_stream uw5_pause uw5_update_in_place_noflush uw5_continue uw5_info""",
    "two updates, the second at once": "&uw6_conc_1 uw6_conc_2 ; uw6_info uw6_gen uw6_ck",
    "two updates while paused": "uw7_pause &uw7_conc_paused_1 uw7_conc_paused_2 ; uw7_continue",
    "memory": """
        mt_uwfd_noauth release_nobody mt_release_idle mt_gen_after_release mt_resume
        mt_gen_after_release""",
}
# On an engine with two ranks.
SCENES_DP = {"two ranks": "dp_weights_by_name dp_uwfd uwfd_truncated dp_init_group dp_tensor"}

SAME = """
pause_in_place_victim_stream pause_in_place ready_paused_in_place ping_paused_in_place
flush_paused_in_place_t1 pause_in_place_again gen_while_paused_in_place server_info_paused_in_place
continue_in_place
pause_retract_victim_stream pause_retract ready_paused_retract ping_paused_retract
flush_paused_retract_t0 pause_retract_again gen_while_paused_retract server_info_paused_retract
continue_retract
pause_abort_victim_stream pause_abort ready_paused_abort ping_paused_abort flush_paused_abort_t0
flush_paused_abort_t1 pause_abort_again gen_while_paused_abort server_info_paused_abort
continue_abort
continue_not_paused pause_emptyobj_idle continue_after
get_weights_by_name_ok get_weights_by_name_2d get_weights_by_name_unknown
uwfd_good_pirate uwfd_back_version w_info_back w_info_after_unknown uwfd_restore1
ready_after_keep_pause uwv_set w_info_v7 w_gen_v7
sess_end_without_begin sess_begin sess_begin_twice w_gen_in_session flush_in_session
uwfd_in_session sess_end2
uw_base0 uw1_stream uw8_reset uw2_stream uw2_abort_all
uw3_pause uw3_update_paused_retract uw3_continue uw3_stream uw3_info
uw4_pause uw4_continue uw4_stream uw5_pause uw5_continue uw5_stream
uw6_conc_1 uw7_pause mt_release_idle mt_resume dp_weights_by_name
""".split()  # noqa: SIM905 - a table


@dataclass(frozen=True)
class Better:
    """Our status, why it is better, and what the answer holds."""

    status: int
    why: str
    holds: Any = None


_SHAPE = "same refusal; every native refusal has one shape and names the field"
_UNNAMED = "weights without a name are named by their checksum, not still as those before"
_NOT_HALF = "refused before anything is served, where the real server said success"
_LIVES = "refused, and goes on serving, where the real server ended"
_NOT_IDLE = re.compile("not idle: rank 0 running=1")
_SUMS = "names and numbers of the checkpoint's tensors, so that a sender can compute them"
_CHECKER_ONLY = "only checksums are taken: anything else is refused by name"
_TRUE = "the loads of now, not those frozen when the pause began"
_HEALTHY = "a paused engine is healthy: answered at once, and nothing is generated for it"
_AT_ONCE = "refused at once, naming the one that holds the engine"
_STAYS = "weights, version and what is told of them are one record, so no refusal splits them"


def _loads(running: int, waiting: int, held: int) -> dict[str, Any]:
    one = {"num_running_reqs": running, "num_waiting_reqs": waiting, "queues": {"held": held}}
    return {"loads": [one]}


def _checked(checksum: str) -> dict[str, Any]:
    place = {"role": "target", "tp_size": 1, "dp_rank": 0, "dp_size": 1, "pp_size": 1, "size": 1}
    ranks = [{"per_gpu_checksum": checksum, "parallelism_info": [place]}]
    return {"success": True, "desired_checksum": checksum, "ranks": ranks}


_BASE, _OTHER = _checked("{base}"), _checked("{other}")


def _version(text: str) -> dict[str, Any]:
    return {"weight_version": text}


BETTER: dict[str, Better] = {
    "loads_paused_in_place": Better(200, _TRUE, _loads(1, 0, 0)),
    "loads_paused_in_place_2": Better(200, _TRUE, _loads(1, 0, 1)),
    "loads_paused_retract": Better(200, _TRUE, _loads(0, 1, 0)),
    "loads_paused_retract_2": Better(200, _TRUE, _loads(0, 1, 1)),
    "loads_paused_abort": Better(200, _TRUE, _loads(0, 0, 0)),
    "loads_paused_abort_2": Better(200, _TRUE, _loads(0, 0, 1)),
    "health_paused_in_place": Better(200, _HEALTHY),
    "health_paused_retract": Better(200, _HEALTHY),
    "health_paused_abort": Better(200, _HEALTHY),
    "health_paused_full": Better(200, _HEALTHY),
    "flush_paused_in_place_t0": Better(
        400, "names the busy places", re.compile(r"^Flush cache failed\.\n.*rank 0 running=1")
    ),
    "flush_paused_retract_t1": Better(
        200, "who waits holds no KV, with a timeout as without one", re.compile("^Cache flushed")
    ),
    "continue_nobody": Better(400, _SHAPE),
    "pause_badmode": Better(400, _SHAPE, re.compile("mode")),
    "pause_nobody": Better(400, _SHAPE),
    # ---- reading back
    "weights_checker_base": Better(200, _SUMS, _BASE),
    "weights_checker_get_nobody": Better(200, _SUMS, _BASE),
    "weights_checker_pirate": Better(200, _SUMS, _OTHER | _version("{other:.12}")),
    "weights_checker_back": Better(200, _SUMS, _BASE | _version("v1")),
    "weights_checker_restored": Better(200, _SUMS, _BASE | _version("v1")),
    "weights_checker_badaction": Better(400, _SHAPE, re.compile("action")),
    "weights_checker_snapshot": Better(400, _CHECKER_ONLY, re.compile("action")),
    "weights_checker_compare": Better(400, _CHECKER_ONLY, re.compile("action")),
    "get_weights_by_name_get_nobody": Better(400, _SHAPE),
    "get_weights_by_name_neg": Better(
        400, "a length below zero is refused, not counted from the end", re.compile("truncate_size")
    ),
    # ---- from disk
    "w_gen_pirate": Better(200, _UNNAMED, {"meta_info": _version("{other:.12}")}),
    "w_info_pirate": Better(
        200, _UNNAMED, _version("{other:.12}") | {"weights": {"checksum": "{other}"}}
    ),
    "w_models_pirate": Better(
        200, "a model keeps its name; SGLang calls it by the new path", {"data": [{"id": "{name}"}]}
    ),
    "uwfd_unknown_path": Better(400, "says what is wrong with it", re.compile("No such file")),
    "uwfd_hf_name": Better(
        400, "nothing is looked for on a hub", re.compile("named by an absolute path")
    ),
    "uwfd_cfg_only": Better(
        400, "names the file that is missing", re.compile("model.safetensors: No such file")
    ),
    "uwfd_missing_tensor": Better(
        400, _NOT_HALF, {"success": False, "message": re.compile("missing from the checkpoint")}
    ),
    "w_gen_after_missing": Better(200, _NOT_HALF, {"meta_info": _version("v1")}),
    "w_info_after_missing": Better(200, _NOT_HALF, _version("v1")),
    "weights_checker_missing": Better(200, _NOT_HALF, _BASE | _version("v1")),
    "uwfd_bad_loadformat": Better(400, _LIVES, re.compile("load_format")),
    "uwfd_wrongshape": Better(
        400, _LIVES, {"success": False, "message": re.compile(r"shape \(.*\), expected \(")}
    ),
    "uwfd_truncated": Better(
        400, _LIVES, {"success": False, "message": re.compile("not a readable safetensors file")}
    ),
    "uwfd_nobody": Better(400, _SHAPE),
    "uwfd_empty": Better(400, _SHAPE, re.compile("model_path")),
    "uwfd_unknownfield": Better(
        400, "a field nobody knows is refused by name, not dropped", re.compile("bogus")
    ),
    "uwfd_dead_fields": Better(
        400, "a field that would do nothing is refused by name", re.compile("is_async")
    ),
    "uwv_nobody": Better(400, _SHAPE, re.compile("new_version")),
    "uwv_int": Better(400, _SHAPE, re.compile("new_version")),
    # ---- sessions and groups
    "sess_end_nobody": Better(400, _SHAPE),
    "sess_begin_badsel": Better(400, _SHAPE, re.compile("selector")),
    "sess_end": Better(400, "no bytes, no success", re.compile("nothing was received")),
    "tensor_without_session": Better(
        400, "one call needs no session; pickle is never read", re.compile("safetensors bytes")
    ),
    "dist_without_session": Better(
        400, "one call needs no session, but a group", re.compile("no group 'weight_update_group'")
    ),
    "destroy_group_none": Better(
        400, "names the group", re.compile("no group 'weight_update_group'")
    ),
    "init_group_bad_backend": Better(
        400, "refused at once, where the real scheduler stayed blocked", re.compile("backend")
    ),
    # ---- updates under way
    "uw1_during_stream": Better(
        400,
        "an update that was not told to wait changes nothing; the real one waited for 24 s, "
        "changed the weights, and said that it had failed",
        {"success": False, "message": _NOT_IDLE, "weights": {"checksum": "{base}"}},
    ),
    "uw1_new_request": Better(
        200, "served meanwhile by the weights that serve", {"meta_info": _version("A")}
    ),
    "uw1_after": Better(200, "a refusal changed nothing", {"meta_info": _version("A")}),
    "uw4_update_paused_in_place": Better(
        400, _STAYS, {"success": False, "message": _NOT_IDLE, "weights": {"checksum": "{other}"}}
    ),
    "uw4_info_after_partial": Better(200, _STAYS, _version("{other:.12}")),
    "uw4_ck": Better(200, _STAYS, _OTHER | _version("{other:.12}")),
    "uw4_after": Better(200, _STAYS, {"meta_info": _version("{other:.12}")}),
    "uw4_info_end": Better(200, _STAYS, _version("{other:.12}")),
    "uw5_update_in_place_noflush": Better(
        400,
        "a request that runs on with KV of other weights is refused, whatever flush_cache says",
        {"success": False, "message": _NOT_IDLE},
    ),
    "uw5_info": Better(200, _STAYS, _version("A")),
    "uw6_conc_2": Better(409, _AT_ONCE, {"error": {"code": "operation_pending"}}),
    "uw6_info": Better(200, _AT_ONCE, _version("A") | {"weights": {"checksum": "{base}"}}),
    "uw6_gen": Better(200, _AT_ONCE, {"meta_info": _version("A")}),
    "uw6_ck": Better(200, _AT_ONCE, _BASE),
    "uw7_conc_paused_1": Better(200, "answered; the real one was never heard of again"),
    "uw7_conc_paused_2": Better(409, _AT_ONCE, {"error": {"code": "operation_pending"}}),
    "uw7_continue": Better(200, "goes on, where the real server hung and ended"),
    # ---- memory
    "mt_uwfd_noauth": Better(401, "admin routes need the admin key, however many workers"),
    "release_nobody": Better(400, _SHAPE),
    "mt_gen_after_release": Better(
        503, "without weights nothing is said", re.compile("released|no weights are loaded")
    ),
    # ---- two ranks
    "dp_uwfd": Better(
        200,
        "one sentence, and what each rank did",
        {
            "message": "Succeeded to update model weights. Weight version updated to P.",
            "ranks": [{"state": "succeeded"}, {"state": "succeeded"}],
        },
    ),
    "dp_init_group": Better(400, "says what does not fit", re.compile("do not fit a world of 2")),
    "dp_tensor": Better(400, "refused with what to send", re.compile("safetensors bytes")),
}
