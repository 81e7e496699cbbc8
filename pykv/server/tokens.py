"""POST /tokenize, /detokenize and /apply-template; bodies and replies as llama-server's."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pykv.server import fields
from pykv.server.errors import invalid, shown
from pykv.server.fields import check_fields
from pykv.server.reader import Reader, check_text, check_tokens
from pykv.server.service import Service
from pykv.server.settings import parse_messages


async def _reader(request: Request, service: Service, table: dict[str, fields.Treatment]) -> Reader:
    body = await service.bodies.read_object(request)
    check_fields(body, table)
    reader = Reader(body)
    service.check_model(reader.text("model", service.limits.name_chars))
    return reader


def _piece(data: bytes) -> str | list[int]:
    """Text of a token, or its bytes if they are no whole characters."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


async def tokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    reader = await _reader(request, service, fields.TOKENIZE)
    ids = await service.tokenize(
        check_text(reader.required("content"), "content"),
        add_special=reader.boolean("add_special", False),
        parse_special=reader.boolean("parse_special", True),
    )
    if not reader.boolean("with_pieces", False):
        return JSONResponse({"tokens": ids})
    token_bytes = service.tokenizer.token_bytes
    pieces: list[dict[str, Any]] = [{"id": i, "piece": _piece(token_bytes(i))} for i in ids]
    return JSONResponse({"tokens": pieces})


async def detokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    reader = await _reader(request, service, fields.DETOKENIZE)
    value = reader.required("tokens")
    if not isinstance(value, list):
        message = f"tokens must be an array, not {shown(value)}."
        raise invalid("tokens", message, "invalid_type")
    ids = check_tokens(value, "tokens", service.vocab)
    return JSONResponse({"content": service.tokenizer.decode(ids)})


async def apply_template(request: Request) -> Response:
    service: Service = request.app.state.service
    reader = await _reader(request, service, fields.APPLY_TEMPLATE)
    messages = parse_messages(reader.required("messages"), service.limits)
    return JSONResponse({"prompt": await service.render(messages)})
