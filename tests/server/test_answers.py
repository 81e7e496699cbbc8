"""The two completion endpoints, on scripted engine events."""

from __future__ import annotations

from typing import Any

import pytest

from pykv import _core
from tests.server.fakes import CONTEXT, END, Client, Script, ScriptedEngine, events_of

HELLO = [{"role": "user", "content": "hi"}]


def chat(client: Client, **fields: Any) -> Any:
    reply = client.post("/v1/chat/completions", {"messages": HELLO} | fields)
    assert reply.status_code == 200, reply.text
    return events_of(reply.text) if fields.get("stream") else reply.json()


def complete(client: Client, prompt: Any = "hi", **fields: Any) -> Any:
    reply = client.post("/v1/completions", {"prompt": prompt} | fields)
    assert reply.status_code == 200, reply.text
    return events_of(reply.text) if fields.get("stream") else reply.json()


def test_chat_reply(client: Client, engine: ScriptedEngine) -> None:
    reply = chat(client)
    choice = reply["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert reply["object"] == "chat.completion"
    assert reply["model"] == "tiny"
    assert bytes(engine.requests[0].prompt) == b"[user]hi[assistant]"
    assert engine.requests[0].max_tokens == CONTEXT - 19
    assert list(engine.requests[0].stop_tokens) == [END]


def test_chat_stream(client: Client, engine: ScriptedEngine) -> None:
    engine.script = Script("grüße".encode())
    *chunks, done = chat(client, stream=True)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks[1:-1]]
    assert texts == ["g", "r", "ü", "ß", "e"]
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 6 + ["stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)


def test_stream_with_usage(client: Client) -> None:
    *chunks, usage, done = chat(client, stream=True, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 19,
        "completion_tokens": 6,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert all(chunk["usage"] is None for chunk in chunks)


def test_usage_reports_cached_tokens(client: Client) -> None:
    assert chat(client)["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert chat(client)["usage"]["prompt_tokens_details"] == {"cached_tokens": 18}
    assert chat(client, cache_prompt=False)["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 0
    }


def test_a_salt_separates(client: Client, engine: ScriptedEngine) -> None:
    for salt in (None, "a", "b", "a"):
        chat(client, cache_salt=salt)
    assert [request.name_space for request in engine.requests] == [0, 1, 2, 1]


def test_settings_reach_the_engine(client: Client, engine: ScriptedEngine) -> None:
    chat(client, temperature=0, top_k=3, top_p=0.5, min_p=0, seed=7, max_completion_tokens=5)
    request = engine.requests[0]
    assert (request.temperature, request.top_k, request.top_p) == (0, 3, 0.5)
    assert (request.min_p, request.seed, request.max_tokens) == (0, 7, 5)
    assert request.logprobs is None
    assert request.use_cache


def test_defaults(client: Client, engine: ScriptedEngine) -> None:
    for _ in range(2):
        complete(client)
    first, second = engine.requests
    assert (first.temperature, first.top_k, first.top_p, first.max_tokens) == (0.8, 40, 0.95, 16)
    assert first.min_p == 0.05
    assert first.seed != second.seed


def test_max_tokens_is_cut_at_the_context(client: Client, engine: ScriptedEngine) -> None:
    chat(client, max_tokens=2**31 - 1)
    assert engine.requests[0].max_tokens == CONTEXT - 19


def test_length_ends_an_answer(client: Client) -> None:
    reply = complete(client, max_tokens=3)
    assert reply["choices"][0]["text"] == "hel"
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stop", ["lo", ["xyz", "lo"], ["l" * 200, "o", "lo"]])
def test_stop_strings(client: Client, engine: ScriptedEngine, stop: Any) -> None:
    engine.script = Script(b"help hello world")
    reply = complete(client, stop=stop)
    assert reply["choices"][0]["text"] in {"help hel", "help hell"}
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == 10
    assert engine.generations[0].cancelled.is_set()


def test_stop_string_split_across_tokens_never_shows(
    client: Client, engine: ScriptedEngine
) -> None:
    engine.script = Script(b"one\nUs\nUser: two")
    *chunks, _ = chat(client, stream=True, stop="\nUser:")
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == "one\nUs"
    assert "\n" not in "".join(texts[:4])


def test_completion_stream(client: Client) -> None:
    *chunks, done = complete(client, stream=True)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hé", [[104, 195, 169]]),
        ([104, 0, 257], [[104, 0, 257]]),
        (["a", "bc"], [[97], [98, 99]]),
        ([[1, 2], "a"], [[1, 2], [97]]),
    ],
)
def test_forms_of_prompts(
    client: Client, engine: ScriptedEngine, prompt: Any, expected: list[list[int]]
) -> None:
    reply = complete(client, prompt)
    assert [list(request.prompt) for request in engine.requests] == expected
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(expected)))
    assert reply["usage"]["prompt_tokens"] == sum(map(len, expected))


def test_stream_of_several_prompts(client: Client) -> None:
    *chunks, _ = complete(client, ["a", "b", "c"], stream=True)
    texts = {0: "", 1: "", 2: ""}
    ended = []
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["text"]
        ended += [choice["index"]] * (choice["finish_reason"] == "stop")
    assert texts == {0: "hello", 1: "hello", 2: "hello"}
    assert sorted(ended) == [0, 1, 2]


def test_chat_logprobs(client: Client, engine: ScriptedEngine) -> None:
    engine.script = Script("ä".encode())
    content = chat(client, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA4]]
    assert content[0]["token"] == "\ufffd"
    assert content[0]["logprob"] == -0.25
    assert content[0]["top_logprobs"][1] == {"token": " ", "logprob": -2.5, "bytes": [32]}


def test_chat_logprobs_without_alternatives(client: Client) -> None:
    content = chat(client, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == list("hello")
    assert all(entry["top_logprobs"] == [] for entry in content)


def test_streamed_logprobs_equal_the_whole(client: Client) -> None:
    whole = chat(client, logprobs=True, stop="lo")["choices"][0]["logprobs"]["content"]
    *chunks, _ = chat(client, logprobs=True, stop="lo", stream=True)
    streamed = [
        entry
        for chunk in chunks
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole
    assert [entry["token"] for entry in whole] == list("hel")


def test_completion_logprobs(client: Client, engine: ScriptedEngine) -> None:
    engine.script = Script("aü".encode())
    logprobs = complete(client, logprobs=2)["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xbc"],
        "token_logprobs": [-0.25] * 3,
        "top_logprobs": [
            {"a": -0.25, " ": -2.5},
            {"bytes:\\xc3": -0.25, " ": -2.5},
            {"bytes:\\xbc": -0.25, " ": -2.5},
        ],
        "text_offset": [0, 1, 1],
    }


@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_a_logprob_that_json_cannot_write(
    client: Client, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.setattr("pykv.server.answer.Assembler.feed", _with_logprob(value))
    assert complete(client, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0] * 5


def _with_logprob(value: float) -> Any:
    from pykv.text import Assembler

    original = Assembler.feed
    return lambda self, token, logprob, top: original(self, token, value, top)


# --- failures ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (_core.Busy("[Engine.submit] 1024 requests wait"), 429, "queue_full"),
        (_core.OutOfCells("[Engine.submit] no cells"), 503, "out_of_cells"),
        (_core.InvalidArgument("[Engine.submit] top_k"), 400, "invalid_value"),
    ],
)
def test_what_the_engine_refuses(
    client: Client, engine: ScriptedEngine, error: Exception, status: int, code: str
) -> None:
    engine.refuse = error
    reply = client.post("/v1/chat/completions", {"messages": HELLO, "stream": True})
    assert reply.status_code == status
    assert reply.json()["error"]["code"] == code
    assert reply.json()["error"]["message"] == str(error)
    assert ("retry-after" in reply.headers) == (status in (429, 503))
    assert (reply.headers.get("x-should-retry") == "false") == (status == 400)


def test_an_unforeseen_error_shows_nothing(client: Client, engine: ScriptedEngine) -> None:
    engine.refuse = RuntimeError("secret inside")
    reply = client.post("/v1/completions", {"prompt": "a"})
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert reply.headers["x-request-id"] in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_failure_before_the_first_token_is_a_status(
    client: Client, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script = Script(b"", end="failed", started=False)
    reply = client.post("/v1/chat/completions", {"messages": HELLO, "stream": stream})
    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "[Engine.step] no cells are left"
    assert reply.headers["retry-after"] == "1"


def test_failure_in_a_whole_reply_is_a_status(client: Client, engine: ScriptedEngine) -> None:
    engine.script = Script(b"abc", end="failed")
    reply = client.post("/v1/completions", {"prompt": ["a", "b"]})
    assert reply.status_code == 503
    assert all(generation.cancelled.is_set() for generation in engine.generations)


def test_failure_in_a_stream_is_its_last_event(client: Client, engine: ScriptedEngine) -> None:
    engine.script = Script(b"abc", end="failed")
    *chunks, last = complete(client, stream=True)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "b", "c"]
    assert last["error"]["code"] == "engine_failed"
    assert last["error"]["type"] == "server_error"


def test_one_refused_prompt_takes_the_others_back(client: Client, engine: ScriptedEngine) -> None:
    reply = client.post("/v1/completions", {"prompt": ["a", "b" * CONTEXT]})
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert engine.requests == []
