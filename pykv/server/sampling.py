"""How tokens are chosen, from the fields of a request. Names and definitions are llama-server's,
for presence_penalty, frequency_penalty and logit_bias OpenAI's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pykv.server.errors import invalid, shown
from pykv.server.limits import Limits
from pykv.server.reader import Reader, check_integer, check_number, check_text

NEVER = -math.inf
"""The bias of a token that is never chosen."""

Bias = tuple[int | str, float]
"""A token's id, or a text for each of whose tokens it holds, and what is added to the logit."""


@dataclass(frozen=True)
class Sampling:
    """Fields of GenerateRequest, but for `logit_bias`, which may still have texts."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[Bias, ...]
    ignore_eos: bool


def parse_sampling(reader: Reader, limits: Limits) -> Sampling:
    """ApiError naming field, value and limit."""
    top_k = reader.integer("top_k", 0, limits.top_k)
    penalty, last_n = _repeat(reader, limits)
    number = reader.number
    return Sampling(
        temperature=number("temperature", 0, limits.temperature, 0.8),
        top_k=40 if top_k is None else top_k,
        top_p=number("top_p", 0, 1, 0.95),
        min_p=number("min_p", 0, 1, 0.05),
        typical_p=number("typical_p", 0, 1, 1.0),
        top_n_sigma=number("top_n_sigma", -1, limits.top_n_sigma, -1.0),
        repeat_penalty=penalty,
        repeat_last_n=last_n,
        presence_penalty=number("presence_penalty", -limits.penalty, limits.penalty, 0.0),
        frequency_penalty=number("frequency_penalty", -limits.penalty, limits.penalty, 0.0),
        logit_bias=_biases(reader.get("logit_bias"), limits),
        ignore_eos=reader.boolean("ignore_eos", False),
    )


def _repeat(reader: Reader, limits: Limits) -> tuple[float, int]:
    """repeat_penalty with repeat_last_n, or repetition_penalty, which sees all tokens."""
    low = 1 / limits.repeat_penalty
    last_n = reader.integer("repeat_last_n", -1, limits.repeat_last_n)
    if reader.get("repetition_penalty") is None:
        penalty = reader.number("repeat_penalty", low, limits.repeat_penalty, 1.0)
        return penalty, 64 if last_n is None else last_n
    if reader.get("repeat_penalty") is not None or last_n is not None:
        message = (
            "repetition_penalty is repeat_penalty with repeat_last_n = -1; send one or the other."
        )
        raise invalid("repetition_penalty", message)
    return reader.number("repetition_penalty", low, limits.repeat_penalty, 1.0), -1


def _biases(value: Any, limits: Limits) -> tuple[Bias, ...]:
    """OpenAI's object of ids as strings, or llama-server's list of pairs."""
    if value is None or value == "":
        return ()
    if not isinstance(value, (dict, list)):
        message = f"logit_bias must be an object or an array, not {shown(value)}."
        raise invalid("logit_bias", message, "invalid_type")
    if len(value) > limits.biases:
        message = f"logit_bias has {len(value)} entries; at most {limits.biases} fit."
        raise invalid("logit_bias", message)
    if isinstance(value, dict):
        return tuple(
            (_id(name), _bias(bias, f"logit_bias[{shown(name)}]", limits))
            for name, bias in value.items()
        )
    return tuple(_pair(item, f"logit_bias[{i}]", limits) for i, item in enumerate(value))


def _id(name: str) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) <= 10):
        message = f"logit_bias has the key {shown(name)}; keys are token ids, as from /tokenize."
        raise invalid("logit_bias", message)
    return int(name)


def _pair(item: object, param: str, limits: Limits) -> Bias:
    if not isinstance(item, list) or len(item) != 2:
        message = f"{param} must be [token id or text, bias], not {shown(item)}."
        raise invalid(param, message, "invalid_type")
    token, bias = item
    if isinstance(token, str):
        if not check_text(token, param, limits.stop_chars):
            raise invalid(param, f"{param} has an empty text; name a token.")
        return token, _bias(bias, param, limits)
    return check_integer(token, param, 0, limits.max_tokens), _bias(bias, param, limits)


def _bias(value: object, param: str, limits: Limits) -> float:
    if value is False:
        return NEVER
    return check_number(value, param, -limits.bias, limits.bias)
