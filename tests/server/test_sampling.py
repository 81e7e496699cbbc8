"""Sampling fields, `n` and `timeout`, from HTTP to the engine and back, on a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pykv.runtime import Runtime, RuntimeOptions
from pykv.server import create_app
from pykv.server.settings import Defaults
from tests.reference.gguf_files import write_tiny_model
from tests.server.fakes import Client, ScriptedEngine, fake_runtime, served

PROMPT = "The cat sat on the mat and in the end it was a fine thing to be on."
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    path = write_tiny_model(tmp_path_factory.mktemp("sampling") / "tiny.gguf")
    with Runtime.open(RuntimeOptions(model=str(path), ctx_size=4096, threads=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def http(runtime: Runtime) -> Iterator[httpx.Client]:
    with served(create_app(runtime)) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def complete(http: httpx.Client, **fields: Any) -> Any:
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True} | fields
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def names(http: httpx.Client, **fields: Any) -> list[str]:
    """Texts of the tokens of a greedy answer."""
    reply = complete(http, logprobs=0, **fields)
    tokens: list[str] = reply["choices"][0]["logprobs"]["tokens"]
    assert len(tokens) == 24
    return tokens


def test_every_field_reaches_the_engine(client: Client, engine: ScriptedEngine) -> None:
    sent = {
        "temperature": 0.5, "top_k": 3, "top_p": 0.75, "min_p": 0.125, "typical_p": 0.25,
        "top_n_sigma": 1.5, "repeat_penalty": 1.25, "repeat_last_n": -1, "presence_penalty": -1.0,
        "frequency_penalty": 2.0, "seed": 9, "priority": -3,
        "timeout": 60.0,
    }  # fmt: skip
    client.post("/v1/chat/completions", {"messages": CHAT, "logit_bias": {"5": -100}, **sent})
    request = engine.requests[0]
    for name, value in sent.items():
        assert getattr(request, name) == value, name
    assert request.logit_bias == {5: -100.0}


@pytest.mark.parametrize(
    ("sent", "used"),
    [
        ({}, (7, 30.0)),
        ({"priority": None, "timeout": None}, (7, 30.0)),
        ({"priority": 0}, (0, 30.0)),
        ({"timeout": 60}, (7, 60.0)),
    ],
)
def test_what_a_request_does_not_say_the_operator_does(
    engine: ScriptedEngine, sent: dict[str, Any], used: tuple[int, float]
) -> None:
    defaults = Defaults(priority=7, timeout=30.0)
    client = Client(create_app(fake_runtime(), engine=engine, defaults=defaults))
    client.post("/v1/chat/completions", {"messages": CHAT, **sent})
    request = engine.requests[0]
    assert (request.priority, request.timeout) == used
    assert request.choices == 1


def test_a_bias_of_a_token_that_the_model_lacks(client: Client) -> None:
    answer = client.post("/v1/completions", {"prompt": "a", "logit_bias": {"99999999": 1}})
    assert answer.status_code == 400
    assert (
        "logit_bias names token 99999999; this model has 0 to" in answer.json()["error"]["message"]
    )


def test_both_forms_of_logit_bias(client: Client, engine: ScriptedEngine) -> None:
    forms = ({"65": 3, "66": -1.5}, [[65, 3], ["B", -1.5]], [["AB", 2], [65, 3], [66, -1.5]])
    for form in forms:
        client.post("/v1/completions", {"prompt": "a", "logit_bias": form})
        assert engine.requests[-1].logit_bias == {65: 3.0, 66: -1.5}
    client.post("/v1/completions", {"prompt": "a", "logit_bias": [["A", False]]})
    assert engine.requests[-1].logit_bias == {65: float("-inf")}
    for empty in ({}, [], "", None):
        client.post("/v1/completions", {"prompt": "a", "logit_bias": empty})
        assert engine.requests[-1].logit_bias == {}


def test_repetition_penalty_sees_all_tokens(client: Client, engine: ScriptedEngine) -> None:
    client.post("/v1/completions", {"prompt": "a", "repetition_penalty": 1.5})
    assert (engine.requests[0].repeat_penalty, engine.requests[0].repeat_last_n) == (1.5, -1)
    reply = client.post(
        "/v1/completions", {"prompt": "a", "repetition_penalty": 1.5, "repeat_last_n": 3}
    )
    assert reply.status_code == 400
    assert "send one or the other" in reply.json()["error"]["message"]


def test_ignore_eos_bans_what_ends_answers(client: Client, engine: ScriptedEngine) -> None:
    client.post("/v1/completions", {"prompt": "a", "ignore_eos": True})
    assert engine.requests[0].logit_bias == {257: float("-inf")}


def test_penalties_and_biases_change_a_greedy_answer(http: httpx.Client) -> None:
    plain = names(http)
    assert names(http, presence_penalty=0, repeat_penalty=1, logit_bias={}) == plain
    penalized = names(http, frequency_penalty=2.0, presence_penalty=2.0)
    assert len(set(penalized)) > len(set(plain))
    assert names(http, repeat_penalty=1.5, repeat_last_n=-1) != plain
    text = complete(http, logit_bias={"70": 100})["choices"][0]["text"]
    assert len(set(text)) == 1


def test_n_answers_equal_n_requests_and_count_the_prompt_once(http: httpx.Client) -> None:
    options = {"temperature": 1.0, "logprobs": 2, "presence_penalty": 0.5}
    reply = complete(http, n=3, seed=7, **options)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    for choice in reply["choices"]:
        alone = complete(http, seed=7 + choice["index"], **options)["choices"][0]
        assert choice == alone | {"index": choice["index"]}
    one = complete(http)["usage"]["prompt_tokens"]
    assert reply["usage"]["prompt_tokens"] == one
    assert reply["usage"]["completion_tokens"] == 3 * 24
    assert reply["usage"]["total_tokens"] == one + 3 * 24


def test_n_computes_the_prompt_once(http: httpx.Client, runtime: Runtime) -> None:
    before = runtime.engine.snapshot()["computed_prompt_tokens"]
    reply = complete(http, prompt=list(range(10, 210)), n=5, max_tokens=3, cache_prompt=False)
    assert runtime.engine.snapshot()["computed_prompt_tokens"] - before == 200
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = complete(http, prompt=list(range(10, 210)), n=5, max_tokens=3)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 199


def test_choices_of_several_prompts_are_numbered_in_order(http: httpx.Client) -> None:
    options: dict[str, Any] = {"n": 2, "seed": 3, "temperature": 1.0}
    reply = complete(http, prompt=["the cat", "a dog"], **options)
    texts = [choice["text"] for choice in sorted(reply["choices"], key=lambda c: c["index"])]
    first = complete(http, prompt="the cat", **options)["choices"]
    second = complete(http, prompt="a dog", **options)["choices"]
    assert texts == [choice["text"] for choice in first + second]
    counts = [complete(http, prompt=p)["usage"]["prompt_tokens"] for p in ("the cat", "a dog")]
    assert reply["usage"]["prompt_tokens"] == sum(counts)


def test_choices_are_streamed_by_their_index(http: httpx.Client) -> None:
    body: dict[str, Any] = {"messages": CHAT, "n": 3, "seed": 1, "max_tokens": 12}
    whole = http.post("/v1/chat/completions", json=body).json()
    texts = dict.fromkeys(range(3), "")
    roles: list[int] = []
    ends: list[int] = []
    options = {"include_usage": True}
    reply = http.post(
        "/v1/chat/completions", json=body | {"stream": True, "stream_options": options}
    )
    events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    for chunk in map(json.loads, events[:-2]):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles += [choice["index"]] * ("role" in choice["delta"])
        ends += [choice["index"]] * (choice["finish_reason"] is not None)
    assert sorted(roles) == sorted(ends) == [0, 1, 2]
    assert list(texts.values()) == [c["message"]["content"] for c in whole["choices"]]
    usage = json.loads(events[-2])["usage"]
    assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_a_request_that_takes_too_long_is_refused_and_frees_its_cells(
    http: httpx.Client, runtime: Runtime
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "timeout": 0.001}
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 504
    error = reply.json()["error"]
    assert error["code"] == "timeout"
    assert "0.001 s" in error["message"]
    assert "raise timeout" in error["message"]
    assert runtime.cache.sequences() == []
