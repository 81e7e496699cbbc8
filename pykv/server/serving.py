"""Runs the application with uvicorn until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from pykv.server.connection import connection_class
from pykv.server.service import Service

STOP_SECONDS = 10
"""How long replies may take to end after a signal."""


class _Server(uvicorn.Server):
    """Leaves signals to serve(): uvicorn would raise them again after a clean end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: Starlette, sock: socket.socket, *, verbose: bool, ready: Callable[[], None]
) -> None:
    """Serves on `sock` until SIGINT or SIGTERM; a second one does not wait for replies.

    On the first signal open requests end (streams with an error event), new ones are
    refused, then the sockets close. Calls `ready` once requests are accepted.
    """
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=connection_class(service.limits),
        ws="none",
        lifespan="on",
        log_config=None,  # the command line decides where logs go
        access_log=verbose,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    async def stop() -> None:
        await service.stop()
        server.should_exit = True

    def on_signal() -> None:
        if stops:
            server.should_exit = server.force_exit = True
        else:
            stops.append(loop.create_task(stop()))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    serving = loop.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            ready()
        await serving
        await asyncio.gather(*stops)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
