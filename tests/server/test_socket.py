"""Over a real socket: clients that go away, replies that overlap, a server that stops."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from pykv.server import create_app
from tests.server.fakes import Script, ScriptedEngine, events_of, fake_runtime, served, wait_until

HELLO = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def app(engine: ScriptedEngine) -> Any:
    return create_app(fake_runtime(), engine=engine)


@pytest.fixture
def url(app: Any) -> Iterator[str]:
    with served(app) as url:
        yield url


def send_raw(url: str, data: bytes) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = socket.create_connection((parts.hostname, parts.port or 0), timeout=10)
    connection.sendall(data)
    return connection


def post_raw(url: str, body: Any) -> socket.socket:
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    return send_raw(url, head.encode() + b"Content-Type: application/json\r\n\r\n" + data)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_client_that_goes_takes_its_request_along(
    url: str, engine: ScriptedEngine, stream: bool, started: bool
) -> None:
    engine.script = Script(b"ab", end="hang", started=started)
    if not started:
        engine.script.tokens = []
    connection = post_raw(url, HELLO | {"stream": stream})
    if stream and started:
        assert b"200 OK" in connection.recv(4096)
    wait_until(lambda: len(engine.generations) == 1)
    assert not engine.generations[0].cancelled.is_set()
    connection.close()
    wait_until(engine.generations[0].cancelled.is_set)
    assert httpx.get(url + "/health").status_code == 200


def test_a_client_that_goes_does_not_touch_the_others(url: str, engine: ScriptedEngine) -> None:
    engine.script = Script(b"", end="hang")
    gone, stays = post_raw(url, HELLO), post_raw(url, HELLO)
    wait_until(lambda: len(engine.generations) == 2)
    gone.close()
    wait_until(lambda: any(g.cancelled.is_set() for g in engine.generations))
    assert [g.cancelled.is_set() for g in engine.generations].count(True) == 1
    stays.close()


def test_a_client_that_goes_before_its_body_is_complete(url: str) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    send_raw(url, head + b"Content-Length: 100\r\n\r\n{").close()
    assert httpx.get(url + "/health").status_code == 200


def test_replies_overlap(url: str, engine: ScriptedEngine) -> None:
    engine.script = Script(b"", end="hang")
    waiting = post_raw(url, HELLO)
    wait_until(lambda: len(engine.generations) == 1)
    engine.script = Script(b"quick")
    reply = httpx.post(url + "/v1/chat/completions", json=HELLO)
    assert reply.json()["choices"][0]["message"]["content"] == "quick"
    waiting.close()


@pytest.mark.parametrize("stream", [False, True])
def test_stopping_ends_open_replies(
    app: Any, url: str, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script = Script(b"ab", end="hang")
    replies: list[httpx.Response] = []

    def ask() -> None:
        body = HELLO | {"stream": stream}
        replies.append(httpx.post(url + "/v1/chat/completions", json=body, timeout=30))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: len(engine.generations) == 1)
    app.state.service.stopping = True
    engine.generations[0].cancel()
    thread.join(30)
    if stream:
        assert events_of(replies[0].text)[-1]["error"]["code"] == "server_stopping"
    else:
        assert replies[0].status_code == 503
    for path in ("/health", "/v1/health"):
        assert httpx.get(url + path).status_code == 503
    assert httpx.post(url + "/v1/chat/completions", json=HELLO).status_code == 503


def test_a_large_body_is_refused_readably(url: str) -> None:
    reply = httpx.post(url + "/v1/completions", json={"prompt": "a" * 10_000_000})
    assert reply.status_code == 413
    assert reply.headers["x-request-id"]


def test_request_ids(url: str) -> None:
    own = httpx.get(url + "/health", headers={"x-request-id": "client-7"})
    assert own.headers["x-request-id"] == "client-7"
    drawn = [
        httpx.get(url + "/health", headers={"x-request-id": "a b\x7f"}).headers["x-request-id"]
        for _ in range(2)
    ]
    assert drawn[0] != drawn[1]
    assert all(value.startswith("req_") for value in drawn)


def test_a_stream_is_framed_as_events(url: str) -> None:
    with httpx.stream("POST", url + "/v1/chat/completions", json=HELLO | {"stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["cache-control"] == "no-cache"
        reply.read()
    assert events_of(reply.text)[-1] == "[DONE]"


def test_the_engine_runs_with_the_server(engine: ScriptedEngine) -> None:
    with served(create_app(fake_runtime(), engine=engine)):
        assert engine.running
    assert not engine.running
