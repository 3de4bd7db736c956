"""Fields of SGLang and OpenAI that this engine does not implement, a table a route.

Each maps a field to the values that mean "not used": those are accepted, any other is refused by
name.
"""

from __future__ import annotations

Unimplemented = dict[str, tuple[object, ...]]

_OF_SAMPLING: Unimplemented = {
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "stop_regex": (None, "", []),
    "custom_params": (None,),
    "spaces_between_special_tokens": (None, True),
}
_OF_A_REQUEST: Unimplemented = {
    "custom_logit_processor": (None,),
    "lora_path": (None, ""),
    "session_params": (None,),
    "return_hidden_states": (None, False),
    "priority": (None,),
    "bootstrap_host": (None,),
    "bootstrap_port": (None,),
    "bootstrap_room": (None,),
}
_OF_OPENAI: Unimplemented = {
    **_OF_SAMPLING,
    **_OF_A_REQUEST,
    "response_format": (None, {"type": "text"}),
    "store": (None, False),
    "service_tier": (None, "auto", "default"),
}

SAMPLING: Unimplemented = _OF_SAMPLING | {"stream_interval": (None,)}
GENERATE: Unimplemented = _OF_A_REQUEST | {
    "input_embeds": (None,),
    "image_data": (None,),
    "video_data": (None,),
    "audio_data": (None,),
    "modalities": (None,),
    "return_routed_experts": (None, False),
    "background": (None, False),
    "conversation_id": (None,),
    "require_reasoning": (None, False),
    "log_metrics": (None, True),
    "no_logs": (None, False, True),  # prompts are never logged
    "custom_labels": (None,),
}
COMPLETION: Unimplemented = _OF_OPENAI | {"best_of": (None, 1), "suffix": (None, "")}
CHAT: Unimplemented = _OF_OPENAI | {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none"),
    "reasoning_effort": (None,),
    "separate_reasoning": (None, True),
    "stream_reasoning": (None, True),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "continue_final_message": (None, False),
}
SCORE: Unimplemented = {
    "temperature": (None, 1, 1.0),
    "return_token_logprobs": (None, False),
    "return_pooled_hidden_states": (None, False),
    "score_extraction_token": (None,),
    "embed_override_token_id": (None,),
    "query_embed_overrides": (None,),
    "item_embed_overrides": (None,),
}
_OF_AN_UPDATE: Unimplemented = {
    "is_async": (None, False),
    "keep_pause": (None, False),
    "token_step": (None, 0),
    "manifest": (None,),
    "recapture_cuda_graph": (None, False),
    "selector": (None, "all", "target"),
}
UPDATE_FROM_DISK: Unimplemented = _OF_AN_UPDATE
UPDATE_FROM_TENSOR: Unimplemented = _OF_AN_UPDATE | {"load_format": (None, "safetensors")}
UPDATE_FROM_DISTRIBUTED: Unimplemented = _OF_AN_UPDATE
WEIGHTS_CHECKER: Unimplemented = {
    "allow_quant_error": (None, False),
    "skip_tensor_list": (None, []),
    "selector": (None, "all", "target"),
}
