"""The ASGI application of the data plane."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pykv.server import completions, info, tokens
from pykv.server.answer import ClientGone
from pykv.server.errors import ApiError, from_core, from_status
from pykv.server.limits import LIMITS, Limits
from pykv.server.service import EngineLike, Service
from pykv.server.settings import DEFAULTS, Defaults

if TYPE_CHECKING:
    from pykv.runtime import Runtime

logger = logging.getLogger("pykv.server")

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Manners:
    """Every request gets an id, an answer, and no look inside.

    Bounds the number of open requests, puts `x-request-id` on every reply (the client's,
    if it sent a decent one) and turns exceptions into error objects.
    """

    def __init__(self, app: ASGIApp, open_requests: int) -> None:
        self._app = app
        self._free = open_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._request_id(scope)
        started = False
        reply: Response | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        self._free -= 1
        try:
            try:
                if self._free < 0:
                    message = "Too many requests are open; try again later."
                    raise ApiError(503, message, code="too_many_requests", retry_after=1)
                await self._app(scope, receive, send_with_id)
            except (ClientGone, ClientDisconnect):
                logger.debug("request %s: the client has gone", request_id.decode())
            except Exception as error:
                if started:
                    raise
                reply = self._refusal(error, request_id.decode()).response()
            if reply is not None:  # by now the error is gone, whose traceback holds the body
                await reply(scope, receive, send_with_id)
        finally:
            self._free += 1

    @staticmethod
    def _request_id(scope: Scope) -> bytes:
        for name, value in scope["headers"]:
            if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                return bytes(value)
        return f"req_{secrets.token_hex(12)}".encode()

    @staticmethod
    def _refusal(error: Exception, request_id: str) -> ApiError:
        if isinstance(error, ApiError):
            return error
        refusal = from_core(error)
        if refusal is not None:
            return refusal
        logger.error("request %s failed", request_id, exc_info=error)
        message = f"The server failed; its log has the cause under {request_id}."
        return ApiError(500, message, code="internal_error")


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allow = (error.headers or {}).get("Allow")
    reply = from_status(error.status_code, request.method, request.url.path, allow).response()
    if allow:
        reply.headers["allow"] = allow
    return reply


def _routes() -> list[Route]:
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return [
        Route("/health", info.health),
        Route("/v1/health", info.health),
        Route("/v1/models", info.models),
        Route("/models", info.models),
        Route("/v1/models/{name:path}", info.model),
        Route("/props", info.props),
        Route("/slots", info.slots),
        Route("/v1/chat/completions", completions.chat_completions, methods=["POST"]),
        Route("/chat/completions", completions.chat_completions, methods=["POST"]),
        Route("/v1/completions", completions.completions, methods=["POST"]),
        Route("/completion", completions.llama_completion, methods=["POST"]),
        Route("/completions", completions.llama_completion, methods=["POST"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/apply-template", tokens.apply_template, methods=["POST"]),
        *(Route(path, info.unsupported, methods=methods) for path in info.UNSUPPORTED),
    ]


def create_app(
    runtime: Runtime,
    *,
    engine: EngineLike | None = None,
    limits: Limits = LIMITS,
    defaults: Defaults = DEFAULTS,
    alias: str | None = None,
) -> Starlette:
    """The application; `app.state.service` is its Service.

    The engine starts and stops with the ASGI lifespan. Whoever runs the application
    without one calls `service.start()` and `service.stop()`.

    Args:
        runtime: an open Runtime; the caller closes it after the application ended.
        engine: answers requests in place of the runtime's engine (tests).
        limits: bounds on requests.
        defaults: for what requests do not say.
        alias: name of the model towards clients; None for the runtime's.
    """
    service = Service(runtime, engine=engine, limits=limits, defaults=defaults, alias=alias)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = Starlette(
        routes=_routes(),
        middleware=[Middleware(Manners, open_requests=limits.open_requests)],
        exception_handlers={HTTPException: _http_exception},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app
