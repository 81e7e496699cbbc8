"""The real model behind HTTP, against llama.cpp's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import golden_answers
from tests.server.real_model import certain_length, names, serving

GOLDEN = golden_answers("smollm2")
CHATS = [entry for entry in GOLDEN if "messages" in entry]
CERTAIN = 0.3
"""Gap between the two most likely tokens, in nats, above which the choice must agree."""


@pytest.fixture(scope="module")
def http(smollm2_path: Path) -> Iterator[httpx.Client]:
    with serving(smollm2_path) as client:
        yield client


@pytest.mark.parametrize("entry", GOLDEN, ids=names)
def test_tokenize(http: httpx.Client, entry: Any) -> None:
    body = {"content": entry["prompt"], "add_special": True}
    reply = http.post("/tokenize", json=body).json()
    assert reply["tokens"] == entry["prompt_tokens"]


@pytest.mark.parametrize("entry", CHATS, ids=names)
def test_apply_template(http: httpx.Client, entry: Any) -> None:
    reply = http.post("/apply-template", json={"messages": entry["messages"]}).json()
    assert reply["prompt"] == entry["prompt"]


COMPLETIONS = [
    entry for entry in GOLDEN if "top10" in entry and certain_length(entry, CERTAIN) >= 1
]
SHORT = [entry for entry in COMPLETIONS if len(entry["prompt_tokens"]) <= 100]


def ask(http: httpx.Client, entry: Any) -> tuple[str, list[float], Any]:
    """Greedy text, log probabilities and usage of the tokens that must be as llama.cpp's."""
    body: dict[str, Any] = {"max_tokens": certain_length(entry, CERTAIN), "temperature": 0}
    if "messages" in entry:
        body |= {"messages": entry["messages"], "logprobs": True}
        reply = http.post("/v1/chat/completions", json=body).json()
        choice = reply["choices"][0]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        return choice["message"]["content"], logprobs, reply["usage"]
    body |= {"prompt": entry["prompt"], "logprobs": 0}
    reply = http.post("/v1/completions", json=body).json()
    choice = reply["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"], reply["usage"]


@pytest.mark.parametrize("entry", SHORT, ids=names)
def test_greedy_answers(http: httpx.Client, entry: Any) -> None:
    text, _, usage = ask(http, entry)
    ids = entry["greedy_tokens"][: certain_length(entry, CERTAIN)]
    assert text == http.post("/detokenize", json={"tokens": ids}).json()["content"]
    assert usage["prompt_tokens"] == len(entry["prompt_tokens"])


def test_log_probabilities(http: httpx.Client) -> None:
    differences = []
    for entry in SHORT:
        _, logprobs, _ = ask(http, entry)
        golden = [top[0][1] for top in entry["top10"][: len(logprobs)]]
        differences += [abs(a - b) for a, b in zip(logprobs, golden, strict=True)]
    assert len(differences) >= 20
    assert sum(differences) / len(differences) <= 0.1


def test_conversations_share_their_system_prompt(http: httpx.Client) -> None:
    first, second = (entry for entry in CHATS if len(entry["messages"]) == 2)
    for entry in (first, second):
        body = {"messages": entry["messages"], "max_tokens": 1}
        usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    shared = 0
    while first["prompt_tokens"][shared] == second["prompt_tokens"][shared]:
        shared += 1
    assert usage["prompt_tokens"] == len(second["prompt_tokens"])
    assert usage["prompt_tokens_details"]["cached_tokens"] == shared
