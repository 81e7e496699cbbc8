"""Bad input gets an error object that names the field, and the server goes on (C34)."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from pykv.server import create_app
from pykv.server.body import Bodies
from pykv.server.errors import ApiError
from pykv.server.limits import Limits
from pykv.server.namespaces import Namespaces
from tests.server.fakes import CONTEXT, VOCAB, Client, ScriptedEngine, fake_runtime

HELLO = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HUGE = 2**63 - 1


def refused(client: Client, path: str, body: Any, status: int = 400) -> Any:
    reply = client.post(path, body)
    assert reply.status_code == status, reply.text
    assert set(reply.json()["error"]) >= {"message", "type", "param", "code"}
    assert "Traceback" not in reply.text
    assert len(reply.text) < 2000
    assert reply.headers["x-request-id"]
    assert client.get("/health").json() == {"status": "ok"}
    return reply.json()["error"]


@pytest.fixture(autouse=True)
def nothing_is_submitted(engine: ScriptedEngine) -> Any:
    yield
    assert engine.requests == []


COUNTS = [True, "5", 1.5, [], {}, -1, -HUGE, HUGE, 2**31, 10**400]
BIASES = [
    5, "x", True, [1], [[1]], [[1, 2, 3]], [[True, 1]], [["", 1]], [[VOCAB, 1]], [[-1, 1]],
    [[HUGE, 1]], [[1, True]], [[1, "1"]], [[1, 101]], [[1, -10**400]], [["\ud800", 1]],
    {"5": 100.5}, {"5": None}, {"a": 1}, {"-1": 1}, {"1.0": 1}, {str(VOCAB): 1}, {"9" * 500: 1},
    {"²": 1}, {str(i): 1 for i in range(1025)},
]  # fmt: skip
NUMBERS = [True, "1", [], -0.1, -1e300, 1e9, HUGE, 10**400]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_tokens", value) for value in [*COUNTS, 0]],
        *[("max_completion_tokens", value) for value in [*COUNTS, 0]],
        *[("top_k", value) for value in COUNTS],
        *[("seed", value) for value in (True, "5", 1.5, -1, 2**64, 10**400)],
        *[("temperature", value) for value in NUMBERS],
        *[("top_p", value) for value in NUMBERS],
        *[("min_p", value) for value in NUMBERS],
        *[("logprobs", value) for value in (1, 0, "true", [])],
        *[("stream", value) for value in (1, 0, "true", [])],
        *[("cache_prompt", value) for value in (1, "no")],
        *[("cache_salt", value) for value in (1, "x" * 257, "\ud800")],
        *[("model", value) for value in (1, "x" * 257, ["tiny"])],
        *[("stop", value) for value in (1, "", ["a", ""], [1], "x" * 257, ["a"] * 17, {})],
        *[("stream_options", value) for value in ({"include_usage": True}, 1)],
        *[("n", value) for value in (0, 129, True, "1", HUGE, -1, 1.0)],
        *[("typical_p", value) for value in NUMBERS],
        *[("top_n_sigma", value) for value in (True, "1", -2, 1001, 10**400)],
        *[("repeat_penalty", value) for value in (True, "1", 0, -1, 1001, 10**400)],
        *[("repetition_penalty", value) for value in (True, "1", 0, -1, 1001, 10**400)],
        *[("repeat_last_n", value) for value in (True, "1", 1.5, -2, HUGE, 10**400)],
        *[("presence_penalty", value) for value in (2.5, -2.1, False, "0", 10**400)],
        *[("frequency_penalty", value) for value in (2.5, -2.1, False, "0", 10**400)],
        *[("logit_bias", value) for value in BIASES],
        *[("priority", value) for value in (True, "1", 1.5, -101, 101, HUGE)],
        *[("timeout", value) for value in (True, "1", 0, -1, 86401, 10**400)],
        *[("speculative.n_max", value) for value in (True, "1", 1.5, -1, 33, HUGE)],
        *[("ignore_eos", value) for value in (1, "true")],
        *[("tools", value) for value in ([{"type": "function"}], 5)],
        *[("tool_choice", value) for value in ("required", {"type": "function"})],
        *[("response_format", value) for value in ({"type": "json_object"}, "text")],
        ("store", True),
        ("functions", [{}]),
        ("chat_template", "{{ 1 }}"),
        ("grammar", "root ::= 'a'"),
        ("json_schema", {"type": "object"}),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "high"),
    ],
)
def test_chat_fields(client: Client, field: str, value: Any) -> None:
    error = refused(client, CHAT, {"messages": HELLO, field: value})
    assert error["param"].split("[")[0] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_tokens", value) for value in [*COUNTS, 0]],
        *[("logprobs", value) for value in (True, -1, 21, HUGE, "1", 1.0)],
        ("echo", True),
        ("suffix", "end"),
        ("best_of", 3),
        ("n", 129),
        ("prompt", []),
        ("prompt", ""),
        ("prompt", 5),
        ("prompt", {}),
        ("prompt", [[]]),
        ("prompt", [1, "a"]),
        ("prompt", ["a", 1]),
        ("prompt", ["a", None]),
        ("prompt", [None]),
        ("prompt", [True]),
        ("prompt", [1.0]),
        ("prompt", [-1]),
        ("prompt", [VOCAB]),
        ("prompt", [HUGE]),
        ("prompt", [10**400]),
        ("prompt", [[1], [VOCAB]]),
        ("prompt", ["a"] * 65),
        ("prompt", "\udfff"),
        ("messages", HELLO),
    ],
)
def test_completion_fields(client: Client, field: str, value: Any) -> None:
    error = refused(client, COMPLETIONS, {"prompt": "a", field: value})
    assert error["param"].split("[")[0] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        ([1], "messages[0]"),
        ([*HELLO, None], "messages[1]"),
        ([{}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content"),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
        ([{"role": "user", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "x", "colour": 1}], "messages[0].colour"),
        ([{"role": "user", "content": "refuse me"}], "messages"),
        (HELLO * 4097, "messages"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/apply-template"])
def test_messages(client: Client, path: str, messages: Any, param: str) -> None:
    assert refused(client, path, {"messages": messages})["param"] == param


def test_images_are_not_implemented(client: Client) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://example.com/a.png"}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    assert refused(client, CHAT, body, 501)["code"] == "unsupported_parameter"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/apply-template"])
def test_missing_and_unknown_fields(client: Client, path: str) -> None:
    assert refused(client, path, {})["code"] == "missing_required_parameter"
    assert refused(client, path, {"x" * 500: 1})["code"] == "unknown_parameter"


def test_a_typing_error_is_pointed_out(client: Client) -> None:
    error = refused(client, CHAT, {"messages": HELLO, "max_token": 5})
    assert "max_tokens" in error["message"]


def test_top_logprobs_need_logprobs(client: Client) -> None:
    assert refused(client, CHAT, {"messages": HELLO, "top_logprobs": 2})["param"] == "top_logprobs"


def test_two_different_limits_contradict(client: Client) -> None:
    body = {"messages": HELLO, "max_tokens": 5, "max_completion_tokens": 6}
    assert refused(client, CHAT, body)["param"] == "max_tokens"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/v1/models/other"])
def test_another_model(client: Client, path: str) -> None:
    bodies = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "a"}}
    if path.startswith("/v1/models"):
        error = client.get(path).json()["error"]
    else:
        error = refused(client, path, bodies.get(path, {"content": "a"}) | {"model": "gpt-9"}, 404)
    assert error["code"] == "model_not_found"
    assert "tiny" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        (COMPLETIONS, {"prompt": "a" * CONTEXT}, CONTEXT),
        (COMPLETIONS, {"prompt": [1] * (CONTEXT + 5)}, CONTEXT + 5),
        (CHAT, {"messages": [{"role": "user", "content": "a" * CONTEXT}]}, CONTEXT + 17),
    ],
)
def test_too_long_a_prompt(client: Client, path: str, body: Any, tokens: int) -> None:
    error = refused(client, path, body)
    assert error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == CONTEXT
    assert error["n_prompt_tokens"] <= tokens
    assert str(error["n_prompt_tokens"]) in error["message"]


def test_a_hopelessly_long_text_is_not_tokenized(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.server.fakes.ByteTokenizer.encode", None)
    body = {"prompt": "a" * 100_000}
    assert refused(client, COMPLETIONS, body)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
        ("/tokenize", {"content": "a", "parse_special": "yes"}, "parse_special"),
        ("/tokenize", {"content": "a", "with_pieces": 0}, "with_pieces"),
        ("/tokenize", {"content": "\ud800"}, "content"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, VOCAB]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [HUGE]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [[1]]}, "tokens[0]"),
        ("/apply-template", {"messages": HELLO, "tools": [{}]}, "tools"),
    ],
)
def test_token_endpoints(client: Client, path: str, body: Any, param: str) -> None:
    assert refused(client, path, body)["param"] == param


# --- bodies --------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "a", "prompt": "a"}',
        b'{"prompt": "a", "logit_bias": {"5": 1, "6": 1, "5": 2}}',
        b'{"prompt": "a", "\\ud800": 1, "\\ud800": 1}',
        b'{"prompt": "a", "\\ud800": 1}',
        b"[]",
        b"null",
        b'"text"',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": -Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "a\x00b"}',
        b'{"prompt": "a"} {"prompt": "b"}',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"metadata": ' + b"[" * 40 + b"]" * 40 + b', "prompt": "a"}',
        b'{"a":' * 50_000,
        "\ufeff{}".encode(),
    ],
)
def test_broken_bodies(client: Client, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    reply = client.request("POST", COMPLETIONS, content=body, headers=headers)
    assert reply.status_code == 400, reply.text
    assert reply.headers["x-should-retry"] == "false"
    assert len(reply.text) < 1000
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "kind",
    [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"],
)
def test_other_content_types(client: Client, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    reply = client.request("POST", COMPLETIONS, content=b'{"prompt": "a"}', headers=headers)
    assert reply.status_code == 415
    assert "application/json" in reply.json()["error"]["message"]


def test_a_large_body_is_never_parsed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pykv.server.body.parse_object", None)
    reply = client.post(COMPLETIONS, {"prompt": "a" * 10_000_000})
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "body_too_large"
    assert client.get("/health").status_code == 200


def test_a_large_body_without_a_length(client: Client) -> None:
    async def chunks() -> Any:
        for _ in range(10):
            yield b" " * 1_000_000

    headers = {"content-type": "application/json"}
    reply = client.request("POST", COMPLETIONS, content=chunks(), headers=headers)
    assert reply.status_code == 413


def test_a_large_body_in_one_piece_without_a_length(client: Client) -> None:
    scope = {
        "type": "http", "method": "POST", "path": COMPLETIONS, "query_string": b"",
        "headers": [(b"content-type", b"application/json")], "http_version": "1.1",
        "scheme": "http", "server": ("test", 80), "client": ("test", 1), "root_path": "",
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b" " * 10_000_000, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(client.app(scope, receive, send))
    assert sent[0]["status"] == 413


def test_bodies_that_are_too_large_together(engine: ScriptedEngine) -> None:
    app = create_app(fake_runtime(), engine=engine, limits=Limits(bodies_bytes=1000))
    client = Client(app)
    reply = client.post(COMPLETIONS, {"prompt": "a" * 1000})
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "1"
    for _ in range(10):  # what was refused is not held
        assert client.post(COMPLETIONS, {"prompt": "a" * 300}).status_code == 400


def test_a_body_that_does_not_end(engine: ScriptedEngine) -> None:
    async def chunks() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    app = create_app(fake_runtime(), engine=engine, limits=Limits(body_seconds=0.01))
    headers = {"content-type": "application/json"}
    reply = Client(app).request("POST", COMPLETIONS, content=chunks(), headers=headers)
    assert reply.status_code == 408


class Chunk(bytearray):
    """Bytes that can be watched."""


def test_a_body_that_is_broken_off_is_not_held() -> None:
    bodies = Bodies(Limits())
    watches: list[weakref.ref[Chunk]] = []

    async def receive() -> Any:
        if len(watches) == 2:
            return {"type": "http.disconnect"}
        chunk = Chunk(b"x" * 1000)
        watches.append(weakref.ref(chunk))
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def read() -> None:
        headers = [(b"content-type", b"application/json")]
        request = Request({"type": "http", "headers": headers}, receive)
        with pytest.raises(ClientDisconnect):
            await bodies.read_object(request)

    gc.disable()
    try:
        asyncio.run(read())
        assert watches[0]() is None
    finally:
        gc.enable()


# --- paths and methods ---------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat/completions/", "/%00"])
def test_unknown_paths(client: Client, path: str) -> None:
    reply = client.get(path)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", CHAT), ("DELETE", COMPLETIONS), ("POST", "/health"), ("PUT", "/tokenize")],
)
def test_wrong_methods(client: Client, method: str, path: str) -> None:
    reply = client.request(method, path)
    assert reply.status_code == 405
    assert reply.json()["error"]["code"] == "method_not_allowed"
    assert reply.headers["allow"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/rerank", "/lora-adapters"])
def test_paths_of_other_servers(client: Client, path: str) -> None:
    reply = client.post(path, {})
    assert reply.status_code == 501
    assert path in reply.json()["error"]["message"]
    assert reply.headers["x-should-retry"] == "false"


def test_too_many_open_requests(engine: ScriptedEngine) -> None:
    app = create_app(fake_runtime(), engine=engine, limits=Limits(open_requests=0))
    reply = Client(app).get("/health")
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "1"


# --- salts ---------------------------------------------------------------------


def test_a_forgotten_salt_gets_a_new_number() -> None:
    names = Namespaces(2)
    assert [names.number(salt) for salt in ("a", "b", "a", "c", "a", "b")] == [1, 2, 1, 3, 1, 4]
    assert len(names) == 2
    assert names.number(None) == 0
    assert names.number("") != 0


def test_the_messages_do_not_repeat_large_values(client: Client) -> None:
    error = refused(client, CHAT, {"messages": HELLO, "stop": json.dumps(["y" * 10_000])})
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, b'{"messages": {}}', "messages must be an array, not an empty object."),
        (CHAT, b'{"messages": [[1, 2]]}', "messages[0] must be an object, not an array of 2."),
        (COMPLETIONS, b'{"prompt": false}', "prompt must be a string or an array, not false."),
        (COMPLETIONS, b"null", "The body must be a JSON object, but is null."),
        (CHAT, b'{"prompt": "a"}', "Unknown field 'prompt': it belongs to /v1/completions."),
        (COMPLETIONS, b'{"messages": []}', "it belongs to /v1/chat/completions."),
        (COMPLETIONS, b'{"promt": "a"}', "Unknown field 'promt': did you mean prompt?"),
        (COMPLETIONS, b'{"seed": ' + b"9" * 5000 + b"}", "no field takes more than 20."),
        (COMPLETIONS, b'{"seed": NaN}', "The body is not valid JSON: NaN is not JSON."),
    ],
)
def test_messages_speak_of_json_and_not_of_python(
    client: Client, path: str, body: bytes, message: str
) -> None:
    reply = client.request("POST", path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].endswith(message)


@pytest.mark.parametrize(
    "body",
    [
        {"promt": "x"},
        {"prompt": [1, "x"]},
        {"prompt": [5] * (CONTEXT + 1)},
        {"prompt": "x" * 300_000, "seed": -1},
    ],
)
def test_a_refusal_does_not_hold_its_request(client: Client, body: Any) -> None:
    """Else memory grows by the bodies of all that was refused since the last collection."""

    def errors() -> int:
        return sum(isinstance(thing, ApiError) for thing in gc.get_objects())

    refused(client, COMPLETIONS, body)
    gc.collect()
    before = errors()
    gc.disable()
    try:
        refused(client, COMPLETIONS, body)
        assert errors() == before
    finally:
        gc.enable()
