"""From bytes to a JSON object, refusing whatever is not one."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import Request

from pykv.server.errors import ApiError, invalid, shown
from pykv.server.limits import Limits


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_nesting(root: object, limit: int) -> None:
    level: list[object] = [root]
    for _ in range(limit + 1):
        deeper: list[object] = []
        for value in level:
            if isinstance(value, dict):
                deeper.extend(v for v in value.values() if isinstance(v, (dict, list)))
            elif isinstance(value, list):
                deeper.extend(v for v in value if isinstance(v, (dict, list)))
        if not deeper:
            return
        level = deeper
    raise invalid(None, f"The body is nested deeper than {limit} levels.", "invalid_json")


def parse_object(data: bytes, limits: Limits) -> dict[str, Any]:
    """The JSON object in `data`; ApiError for anything else."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"The body is not UTF-8: byte {error.start} is {shown(data[error.start])}."
        raise invalid(None, message, "invalid_json") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        message = f"The body is nested deeper than {limits.nesting} levels."
        raise invalid(None, message, "invalid_json") from None
    except ValueError as error:
        message = f"The body is not valid JSON: {str(error)[:200]}."
        raise invalid(None, message, "invalid_json") from None
    if not isinstance(value, dict):
        message = f"The body must be a JSON object, but is {shown(value)}."
        raise invalid(None, message, "invalid_json")
    _check_nesting(value, limits.nesting)
    return value


def _check_content_type(header: str | None) -> None:
    kind, _, parameters = (header or "").partition(";")
    charset = parameters.partition("charset=")[2].strip().strip('"').lower() or "utf-8"
    if kind.strip().lower() != "application/json" or charset not in ("utf-8", "utf8"):
        # Also keeps a web page from posting here without the browser asking first.
        raise ApiError(
            415,
            f"Content-Type is {shown(header or '')}; send 'Content-Type: application/json' "
            "(UTF-8).",
            code="unsupported_media_type",
        )


async def _read(request: Request, limits: Limits) -> bytes:
    refusal = ApiError(
        413, f"The body is larger than {limits.body_bytes} bytes.", code="body_too_large"
    )
    length = request.headers.get("content-length", "0")
    announced = int(length[:20]) if length.isdecimal() else 0
    refused = announced > limits.body_bytes
    if refused and (announced > limits.discard_bytes or "expect" in request.headers):
        raise refusal
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        refused = refused or size > limits.body_bytes
        if size > limits.discard_bytes:
            break
        if refused:
            chunks.clear()  # a client that is still sending would not see the answer
        else:
            chunks.append(chunk)
    if refused:
        raise refusal
    return b"".join(chunks)


async def read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """The request's JSON object. ApiError: 400, 408, 413 or 415."""
    _check_content_type(request.headers.get("content-type"))
    try:
        data = await asyncio.wait_for(_read(request, limits), limits.body_seconds)
    except asyncio.TimeoutError:
        message = f"The body did not arrive within {limits.body_seconds:g} s."
        raise ApiError(408, message, code="body_timeout") from None
    return parse_object(data, limits)
