"""What we make of each exchange recorded from a real SGLang 0.5.23 server.

`SAME`: replayed, and must be answered alike. `BETTER`: replayed, answered with our status, for the
reason given. `STORY`: needs more than one request; the named test tells it. `OUT`: a route or
feature this engine does not have. `scenes.py` holds the verdicts on weights, pauses and memory,
`storage_scenes.py` those on the hierarchical cache.
Each recorded name has exactly one verdict; a line without a path notes that the server ended.
"""

from __future__ import annotations

# Answered alike: same status, same text and ids where the recording is greedy, same keys.
SAME = """
info_health info_health_generate info_ready info_ping info_model_info info_get_model_info
info_server_info info_get_server_info info_v1_models info_v1_models_nope info_v1_loads
info_v1_loads_q_include=all info_v1_loads_q_format=prometheus&include=core info_get_load
metrics_head gen_normal gen_put gen_input_ids gen_batch gen_batch_sp_list gen_n2 gen_logprob
gen_logprob_default_start gen_max0_logprob gen_max0_logprob_startm1 gen_max0_token_ids_logprob
gen_max0_plain gen_stop gen_stop_token gen_return_prompt_ids gen_stream gen_stream_logprob
gen_stream_batch gen_bad_temp_neg gen_bad_top_p_0 gen_bad_top_p_2 gen_bad_top_k_0
gen_bad_top_k_m5 gen_bad_huge_max gen_bad_neg_max gen_bad_min_p_2 gen_bad_freq_5 gen_bad_rep_0
gen_bad_min_gt_max gen_bad_none gen_bad_too_long gen_len_edge_1023 gen_len_edge_1019_8
gen_bad_rank gen_rid_reuse_after w_gen_base w_gen_back w_gen_after_unknown w_gen_after_cfg_only
chat_normal chat_stream chat_stream_usage chat_logprobs chat_bad_empty_messages chat_bad_temp
chat_bad_temp3 chat_bad_max0 chat_bad_stream_temp comp_normal comp_stream comp_batch comp_ids
comp_bad_empty_list comp_bad_stream_too_long comp_stop_array flush_idle_post flush_idle_get
flush_q_zero flush_q_neg flush_q_nan flush_q_neginf flush_q_abc flush_q_empty flush_q_exp
flush_q_true flush_with_body flush_put flush_noauth flush_wrongkey cors_preflight abort_nobody
abort_badtype abort_get v1_score
""".split()  # noqa: SIM905 - a table

# Our status, and why it is better.
_SHAPE = "same refusal; every native refusal has one shape and names the field"
_UNKNOWN = "a field nobody knows is refused by name, not dropped"
_GRAMMAR = "grammars are not implemented: refused by name, never ignored"
BETTER: dict[str, tuple[int, str]] = {
    "info_v1_loads_q_include=bogus": (400, "a bad include is the caller's mistake, not a 500"),
    "info_v1_loads_q_dp_rank=5": (400, "a rank that does not exist is refused, not an empty list"),
    "gen_json_schema_ok": (400, _GRAMMAR),
    "gen_regex_ok": (400, _GRAMMAR),
    "gen_bad_bad_regex": (400, _GRAMMAR),
    "gen_bad_bad_schema": (400, _GRAMMAR),
    "gen_bad_schema_wrongtype": (400, _GRAMMAR),
    "gen_bad_regex_and_schema": (400, _GRAMMAR),
    "gen_bad_stream_regex": (400, "a bad request is a 400, streamed or not"),
    "gen_bad_stream_temp_neg": (400, "a bad request is a 400, streamed or not"),
    "gen_bad_stream_too_long": (400, "a bad request is a 400, streamed or not"),
    "gen_bad_stop_int": (400, _SHAPE),
    "gen_bad_unknown_key": (400, _SHAPE),
    "gen_bad_temp_str": (400, _SHAPE),
    "gen_bad_temp_nan_str": (400, _SHAPE),
    "gen_bad_logit_bias_bad": (400, _SHAPE),
    "gen_bad_max_str": (400, _SHAPE),
    "gen_bad_stop_token_ids_str": (400, _SHAPE),
    "gen_bad_nan": (400, _SHAPE),
    "gen_bad_ids_str": (400, _SHAPE),
    "gen_bad_json": (400, _SHAPE),
    "gen_bad_ct": (400, _SHAPE),
    "gen_lora_unknown": (400, _SHAPE),
    "gen_dup_rid_batch": (400, _SHAPE),
    "gen_bad_n0": (400, "n=0 is refused on every route, not read as 1"),
    "gen_bad_empty_text": (400, "an empty prompt ended the real server"),
    "gen_bad_empty_list": (400, "an empty batch is refused, not answered with nothing"),
    "gen_bad_both": (400, "text and input_ids together are refused, not one of them dropped"),
    "gen_bad_unknown_field": (400, _UNKNOWN),
    "gen_bad_ids_neg": (400, "a negative token id ended the real server"),
    "comp_unknown_field": (400, _UNKNOWN),
    "comp_bad_no_prompt": (400, _SHAPE),
    "comp_max0_echo": (200, "max_tokens 0 with echo scores the prompt, as OpenAI's API does"),
    "comp_echo_logprobs": (200, "text_offset counts characters, not -1"),
    "comp_bad_best_of": (200, "best_of 1 means not used"),
    "chat_bad_no_messages": (400, _SHAPE),
    "chat_bad_role": (400, _SHAPE),
    "chat_bad_n0": (400, "says that n must be at least 1"),
    "chat_bad_max": (400, "says both numbers of the sum"),
    "chat_bad_json": (400, _SHAPE),
    "chat_bad_ct": (400, _SHAPE),
    "flush_q_inf": (400, "a flush that waits for ever is refused"),
    "flush_q_huge": (400, "a timeout is bounded by a day"),
    "flush_q_dup": (400, "a parameter given twice is refused, not guessed"),
    "abort_unknown": (200, "says that nothing was aborted"),
    "abort_empty": (200, "says that nothing was aborted"),
}

_FLUSH = "tests/engine/process/test_flush_http.py::"
_REQUESTS = "tests/engine/process/test_requests_http.py::"
_FAULTS = "tests/engine/process/test_faults.py::"
STORY: dict[str, str] = {
    **dict.fromkeys(
        ("flush_busy_t0", "flush_busy_get", "flush_busy_t2_expire", "flush_busy_nan"),
        _FLUSH + "test_the_text_answers_are_sglangs",
    ),
    **dict.fromkeys(
        (
            *("flush_conc_A_t3", "flush_conc_B_t2", "flush_conc_C_t3", "flush_conc_D_t0"),
            *(f"mt_flush_par_{n}" for n in range(6)),
        ),
        _FLUSH + "test_two_at_once_do_not_queue_behind_each_other",
    ),
    "flush_busy_inf": _FLUSH + "test_bad_parameters_are_refused_by_name",
    "flush_busy_t30_to_idle": _FLUSH + "test_two_at_once_do_not_queue_behind_each_other",
    **dict.fromkeys(
        ("flush_client_timeout_1s", "flush_after_client_timeout_t0", "cache_after_abandoned_flush"),
        _FLUSH + "test_a_caller_that_hangs_up_frees_the_slot",
    ),
    **dict.fromkeys(
        ("flush_starved_t4", "flush_starved_t4_b"),
        _FLUSH + "test_drain_under_steady_load_succeeds_and_changes_no_text",
    ),
    **dict.fromkeys(
        ("cache_warm1", "cache_warm2", "cache_before_deferred", "dp_flush_idle"),
        _FLUSH + "test_a_flush_empties_the_cache_of_every_rank",
    ),
    "bg_during_flush_refused": _FLUSH + "test_a_timeout_expires_on_time_and_disturbs_nobody",
    **dict.fromkeys(
        tuple(f"dp_flush_busy_rank{r}_{n}" for r in (0, 1) for n in (0, 1, 2))
        + tuple(f"dp_after_flush_{who}_{r}" for who in ("busy", "other") for r in (0, 1))
        + ("dp_warm0_0", "dp_warm1_0", "dp_warm0_1", "dp_warm1_1"),
        _FLUSH + "test_one_busy_rank_refuses_for_all",
    ),
    **dict.fromkeys(
        ("gen_dup_rid", "gen_dup_rid_stream"),
        _REQUESTS + "test_a_live_id_is_refused_and_a_finished_or_aborted_one_is_free",
    ),
    **dict.fromkeys(
        (
            "abort_stream_ab", "abort_stream_a", "abort_nonstream_victim", "abort_prefix_a",
            "abort_ab", "abort_ns", "abort_all_busy", "abort_all_chat", "abort_chat_victim",
            "dp_abort_0", "dp_abort_1", "mt_abort_all",
        ),
        _REQUESTS + "test_abort_takes_exact_ids_and_says_how_many",
    ),
    **dict.fromkeys(
        ("dp_gen_rank0", "dp_gen_rank1", "dp_gen_rank2", "dp_gen_rank_neg", "dp_loads"),
        _REQUESTS + "test_a_bad_body_is_a_400_that_says_what",
    ),
    **dict.fromkeys(
        ("nokey_flush", "nokey_flush_anybearer", "mt_flush_noauth", "mt_flush_wrong",
         "mt_model_info", "mt_model_info_12_calls"),
        _FAULTS + "test_keys_open_what_they_are_for",
    ),
}  # fmt: skip

# Not part of this engine: other routes.
OUT_PREFIXES = ("info_list_external",)
OUT_PATHS = (
    "/tokenize", "/detokenize", "/encode", "/v1/embeddings", "/update_weights_from_ipc",
)  # fmt: skip
