"""What happens to each field of a request: one table, so that nothing is ignored in silence.

USED      read and acted upon
ACCEPTED  cannot change the answer; any value passes
Neutral   would change the answer and is not supported: passes only with a value that
          means "off", and is refused by name otherwise
A field that is in no table is refused as unknown. docs/api.md repeats the tables (a test
compares).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from pykv.server.errors import invalid, shown, unsupported

USED = "used"
ACCEPTED = "accepted"


@dataclass(frozen=True)
class Neutral:
    """Values (beside null) that leave the answer as it is, and what to do instead."""

    values: tuple[Any, ...] = ()
    instead: str = ""


Treatment = str | Neutral

_OFF = Neutral((0,))
_EMPTY = Neutral(([], {}, ""))
_TOOLS = Neutral(([], "none", "auto"), "tools are not supported")

SAMPLERS = [
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
]  # fmt: skip
"""The order in which llama-server applies them unless told otherwise, and this server always."""

COMMON: dict[str, Treatment] = {
    "model": USED,
    "stream": USED,
    "stream_options": USED,
    "max_tokens": USED,
    "temperature": USED,
    "top_p": USED,
    "top_k": USED,
    "min_p": USED,
    "seed": USED,
    "stop": USED,
    "priority": USED,
    "timeout": USED,
    "speculative.n_max": USED,
    "logprobs": USED,
    "cache_prompt": USED,
    "cache_salt": USED,
    "prompt_cache_key": ACCEPTED,
    "prompt_cache_retention": ACCEPTED,
    "safety_identifier": ACCEPTED,
    "user": ACCEPTED,
    "metadata": ACCEPTED,
    "prediction": ACCEPTED,
    "service_tier": Neutral(("auto", "default")),
    "store": Neutral((False,), "answers are not stored"),
    "n": USED,
    "presence_penalty": USED,
    "frequency_penalty": USED,
    "repeat_penalty": USED,
    "repetition_penalty": USED,
    "repeat_last_n": USED,
    "typical_p": USED,
    "top_n_sigma": USED,
    "logit_bias": USED,
    "ignore_eos": USED,
    "dry_multiplier": Neutral((0,), "use repeat_penalty or frequency_penalty"),
    "xtc_probability": Neutral((0,), "use min_p, typical_p or top_n_sigma"),
    "dynatemp_range": _OFF,
    "mirostat": Neutral((0,), "use typical_p or top_n_sigma"),
    "min_tokens": _OFF,
    "min_keep": _OFF,
    "n_keep": _OFF,
    "n_probs": Neutral((0,), "use logprobs"),
    "n_predict": Neutral((), "use max_tokens"),
    "n_cache_reuse": _OFF,
    "id_slot": ACCEPTED,
    "samplers": Neutral(([], {}, "", SAMPLERS)),
    "stop_token_ids": Neutral(([],), "use stop"),
    "grammar": _EMPTY,
    "json_schema": _EMPTY,
    "lora": _EMPTY,
    "return_tokens": Neutral((False,), "use logprobs or /tokenize"),
    "timings_per_token": Neutral((False,)),
    "return_progress": Neutral((False,)),
    "skip_special_tokens": Neutral((True,)),
}

CHAT: dict[str, Treatment] = COMMON | {
    "messages": USED,
    "max_completion_tokens": USED,
    "top_logprobs": USED,
    "tools": _TOOLS,
    "tool_choice": _TOOLS,
    "parallel_tool_calls": ACCEPTED,
    "functions": _TOOLS,
    "function_call": _TOOLS,
    "response_format": Neutral(({"type": "text"},), "only plain text is supported"),
    "modalities": Neutral((["text"],), "only text is supported"),
    "audio": Neutral((), "only text is supported"),
    "web_search_options": Neutral(),
    "reasoning_effort": Neutral(("none",)),
    "reasoning_format": Neutral(("none", "auto")),
    "verbosity": Neutral(("medium",)),
    "chat_template": Neutral((), "the model's own template is used"),
    "chat_template_kwargs": _EMPTY,
    "add_generation_prompt": Neutral((True,)),
    "continue_final_message": Neutral((False,)),
}

COMPLETIONS: dict[str, Treatment] = COMMON | {
    "prompt": USED,
    "suffix": Neutral(("",)),
    "echo": Neutral((False,), "put the prompt before the answer yourself"),
    "best_of": Neutral((1,)),
}

LLAMA: dict[str, Treatment] = {
    name: treatment for name, treatment in COMMON.items() if name != "stream_options"
} | {
    "prompt": USED,
    "n_predict": USED,
    "n_cmpl": USED,
    "n_probs": USED,
    "return_tokens": USED,
    "response_fields": USED,
    "logprobs": Neutral((0,), "use n_probs"),
    "post_sampling_probs": Neutral((False,), "probabilities are the model's own"),
    "t_max_predict_ms": Neutral((0, -1), "use timeout"),
    "n_indent": _OFF,
    "n_discard": _OFF,
    "dynatemp_exponent": ACCEPTED,
    "dry_base": ACCEPTED,
    "dry_allowed_length": ACCEPTED,
    "dry_penalty_last_n": ACCEPTED,
    "dry_sequence_breakers": ACCEPTED,
    "xtc_threshold": ACCEPTED,
    "mirostat_tau": ACCEPTED,
    "mirostat_eta": ACCEPTED,
    "speculative.n_min": ACCEPTED,
    "speculative.p_min": ACCEPTED,
    "sse_ping_interval": ACCEPTED,
}

PROMPT: dict[str, Treatment] = {
    "prompt_string": USED,
    "multimodal_data": Neutral(([],), "only text is supported"),
}

MESSAGE: dict[str, Treatment] = {
    "role": USED,
    "content": USED,
    "name": USED,
    "refusal": Neutral(("",)),
    "annotations": _EMPTY,
    "audio": Neutral(),
    "tool_calls": _TOOLS,
    "tool_call_id": Neutral((), "tools are not supported"),
    "function_call": Neutral((), "tools are not supported"),
    "reasoning_content": Neutral(("",)),
    "reasoning": Neutral(("",)),
}

STREAM_OPTIONS: dict[str, Treatment] = {
    "include_usage": USED,
    "include_obfuscation": ACCEPTED,
    "continuous_usage_stats": Neutral((False,)),
}

TOKENIZE: dict[str, Treatment] = {
    "model": USED,
    "content": USED,
    "add_special": USED,
    "parse_special": USED,
    "with_pieces": USED,
}
DETOKENIZE: dict[str, Treatment] = {"model": USED, "tokens": USED}
APPLY_TEMPLATE: dict[str, Treatment] = {
    "model": USED,
    "messages": USED,
    **{name: CHAT[name] for name in ("tools", "chat_template", "chat_template_kwargs")},
    "add_generation_prompt": CHAT["add_generation_prompt"],
}

_TABLES = (
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", COMPLETIONS),
    ("/completion", LLAMA),
    ("/tokenize", TOKENIZE),
    ("/detokenize", DETOKENIZE),
)


def _same(value: object, neutral: object) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _unknown(name: str, path: str, table: dict[str, Treatment]) -> Exception:
    used = [known for known, treatment in table.items() if treatment == USED]
    close = difflib.get_close_matches(name[:64], used, 1)
    elsewhere = [at for at, fields in _TABLES if name == path and fields.get(name) == USED]
    hint = f"did you mean {close[0]}?" if close else "remove it."
    if elsewhere:
        hint = f"it belongs to {elsewhere[0]}."
    return invalid(path[:100], f"Unknown field {shown(path)}: {hint}", "unknown_parameter")


def check_fields(body: dict[str, Any], table: dict[str, Treatment], prefix: str = "") -> None:
    """Refuses what `table` refuses. `prefix` is put before the names in messages."""
    for name, value in body.items():
        treatment = table.get(name)
        if treatment is None:
            raise _unknown(name, prefix + name, table)
        if value is None or not isinstance(treatment, Neutral):
            continue
        if not any(_same(value, neutral) for neutral in treatment.values):
            instead = treatment.instead or "leave it out"
            message = f"{prefix}{name} = {shown(value)} is not supported: {instead}."
            raise unsupported(prefix + name, message)
