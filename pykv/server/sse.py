"""Server-sent events: framing, and a response that ends when the client goes."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pykv.server.answer import ClientGone, unless_gone
from pykv.server.errors import ApiError

DONE = b"data: [DONE]\n\n"

logger = logging.getLogger("pykv.server")


def event(body: dict[str, Any]) -> bytes:
    """One event. JSON has no raw line breaks, so a line is enough."""
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


class EventStream(Response):
    """Sends what `events` yields, then calls `on_end`, whatever happens.

    If the client disconnects, `events` is cancelled where it waits. If it raises, the stream
    ends with an error event instead of [DONE]: the status line is gone already.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], on_end: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pump() -> None:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            try:
                async for data in self._events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except ApiError as error:
                await send_last(error)
            except Exception:
                logger.exception("a stream failed")
                await send_last(ApiError(500, "The server failed.", code="internal_error"))
            else:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        async def send_last(error: ApiError) -> None:
            data = event(error.body())
            await send({"type": "http.response.body", "body": data, "more_body": False})

        try:
            with contextlib.suppress(ClientGone):
                await unless_gone(receive, pump)
        finally:
            self._on_end()
            await self._events.aclose()
