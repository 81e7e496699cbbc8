"""Gemma 3 behind HTTP, against llama.cpp's answers, beyond its window too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import golden_answers
from tests.server.real_model import certain_length, names, serving

GOLDEN = golden_answers("gemma3")
CERTAIN = 0.35
"""Gap between the two most likely tokens, in nats, above which the choice must agree."""


@pytest.fixture(scope="module")
def http(gemma3_path: Path) -> Iterator[httpx.Client]:
    with serving(gemma3_path) as client:
        yield client


@pytest.mark.parametrize("entry", GOLDEN, ids=names)
def test_tokenize(http: httpx.Client, entry: Any) -> None:
    body = {"content": entry["prompt"], "add_special": True}
    assert http.post("/tokenize", json=body).json()["tokens"] == entry["prompt_tokens"]


COMPLETIONS = [
    entry for entry in GOLDEN if "top10" in entry and certain_length(entry, CERTAIN) >= 1
]


@pytest.mark.parametrize("entry", COMPLETIONS, ids=names)
def test_greedy_answers(http: httpx.Client, entry: Any) -> None:
    count = certain_length(entry, CERTAIN)
    body = {"prompt": entry["prompt"], "max_tokens": count, "temperature": 0}
    reply = http.post("/v1/completions", json=body).json()
    ids = entry["greedy_tokens"][:count]
    expected = http.post("/detokenize", json={"tokens": ids}).json()["content"]
    assert reply["choices"][0]["text"] == expected
    assert reply["usage"]["prompt_tokens"] == len(entry["prompt_tokens"])


def test_a_prompt_beyond_the_window_is_reused(http: httpx.Client) -> None:
    prompt = next(entry for entry in GOLDEN if entry["id"] == "gemma3-long700")["prompt"]
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
    first, second = (http.post("/v1/completions", json=body).json() for _ in range(2))
    assert second["choices"][0]["text"] == first["choices"][0]["text"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 699
