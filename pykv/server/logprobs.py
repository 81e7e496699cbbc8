"""Log probabilities in the two forms that OpenAI's API has, and in llama-server's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pykv.text import TokenInfo

TokenBytes = Callable[[int], bytes]

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST else LOWEST  # NaN too


def _entry(token: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    data = token_bytes(token)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": _finite(logprob),
        "bytes": list(data),
    }


def chat_logprobs(tokens: Sequence[TokenInfo], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a chat answer or chunk."""
    content = [
        _entry(info.token, info.logprob, token_bytes)
        | {"top_logprobs": [_entry(token, value, token_bytes) for token, value in info.top]}
        for info in tokens
    ]
    return {"content": content, "refusal": None}


def llama_probabilities(
    tokens: Sequence[TokenInfo], token_bytes: TokenBytes
) -> list[dict[str, Any]]:
    """`completion_probabilities` of an answer of /completion, or of a part of one."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"id": token} | _entry(token, logprob, token_bytes)

    return [
        entry(info.token, info.logprob)
        | {"top_logprobs": [entry(token, value) for token, value in info.top]}
        for info in tokens
    ]


def _name(token: int, token_bytes: TokenBytes) -> str:
    """Text of a token, unique also where it is no whole character."""
    data = token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def completion_logprobs(tokens: Sequence[TokenInfo], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a completion or chunk. Offsets count characters of the answer."""
    return {
        "tokens": [_name(info.token, token_bytes) for info in tokens],
        "token_logprobs": [_finite(info.logprob) for info in tokens],
        "top_logprobs": [
            {_name(token, token_bytes): _finite(value) for token, value in info.top}
            for info in tokens
        ],
        "text_offset": [info.begin for info in tokens],
    }
