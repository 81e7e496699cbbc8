"""Clients that send too slowly, or take nothing, lose their connection and nobody else does."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest
import uvicorn

from pykv.server import create_app
from pykv.server.connection import connection_class
from pykv.server.limits import Limits
from tests.server.fakes import Script, ScriptedEngine, fake_runtime, served, wait_until
from tests.server.test_socket import HELLO, post_raw, send_raw

HURRIED = Limits(header_seconds=0.3, stall_seconds=0.3)


def ended(connection: socket.socket) -> bool:
    """Whether the server closed it; fails by a timeout if it stays open."""
    with connection:
        try:
            return connection.recv(4096) == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize("data", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_headers_that_do_not_come(engine: ScriptedEngine, data: bytes) -> None:
    with served(create_app(fake_runtime(), engine=engine, limits=HURRIED)) as url:
        assert ended(send_raw(url, data))
        assert httpx.get(f"{url}/health").status_code == 200


def test_single_bytes_do_not_put_the_deadline_off(engine: ScriptedEngine) -> None:
    with (
        served(create_app(fake_runtime(), engine=engine, limits=HURRIED)) as url,
        send_raw(url, b"GET /health HTTP/1.1\r\nX: ") as connection,
    ):

        def refused() -> bool:
            try:
                connection.sendall(b"a")
            except ConnectionError:
                return True
            return False

        wait_until(refused)


def test_an_answer_that_takes_long_keeps_its_connection(engine: ScriptedEngine) -> None:
    engine.script = Script(b"ab", end="hang", started=True)
    with served(create_app(fake_runtime(), engine=engine, limits=HURRIED)) as url:
        connection = post_raw(url, HELLO | {"stream": True})
        wait_until(lambda: len(engine.generations) == 1)
        assert ended(send_raw(url, b""))  # as long as a deadline takes
        assert not engine.generations[0].cancelled.is_set()
        connection.close()
        wait_until(engine.generations[0].cancelled.is_set)


class Taker(asyncio.Transport):
    """The transport of a client that takes what is sent, or does not."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()

    def is_closing(self) -> bool:
        return self.aborted.is_set()

    def abort(self) -> None:
        self.aborted.set()


@pytest.mark.parametrize("takes_it", [False, True])
def test_a_reply_that_nobody_takes_is_given_up(takes_it: bool) -> None:
    async def main() -> bool:
        limits = Limits(stall_seconds=0.05)
        app = create_app(fake_runtime(), engine=ScriptedEngine())
        config = uvicorn.Config(app, http=connection_class(limits))
        state = uvicorn.server.ServerState()
        connection: Any = connection_class(limits)(  # type: ignore[call-arg]
            config=config, server_state=state, app_state={}
        )
        client, other = Taker(), Taker()
        connection.connection_made(client)
        connection.pause_writing()
        if takes_it:
            connection.resume_writing()
        loop = asyncio.get_running_loop()
        loop.call_later(limits.stall_seconds, other.abort)  # due after the connection's
        await other.aborted.wait()
        connection.connection_lost(ConnectionError())
        return client.aborted.is_set()

    assert asyncio.run(main()) is not takes_it
