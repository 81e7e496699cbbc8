"""From bytes to a JSON object, refusing whatever is not one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from starlette.requests import Request

from pykv.server.errors import ApiError, invalid, shown
from pykv.server.limits import Limits

_LARGE = 1 << 18  # bytes: parsed in some milliseconds


def _refuse_constant(name: str) -> NoReturn:
    raise invalid(None, f"The body is not valid JSON: {name} is not JSON.", "invalid_json")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Which of two equal keys counts differs between parsers, so both are refused."""
    found = dict(pairs)
    if len(found) != len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        message = f"The body has the key {shown(name)} twice in one object; send it once."
        raise invalid(name[:100], message, "invalid_json")
    return found


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
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    except RecursionError:
        message = f"The body is nested deeper than {limits.nesting} levels."
        raise invalid(None, message, "invalid_json") from None
    except json.JSONDecodeError as error:
        message = f"The body is not valid JSON: {str(error)[:200]}."
        raise invalid(None, message, "invalid_json") from None
    except ValueError:  # Python converts no more than some thousand digits
        message = "An integer in the body has too many digits; no field takes more than 20."
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


class Bodies:
    """Reads request bodies; those being read at one time stay below `limits.bodies_bytes`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0  # bytes
        self._parsing = asyncio.Semaphore(1)

    async def read_object(self, request: Request) -> dict[str, Any]:
        """The request's JSON object. ApiError: 400, 408, 413, 415 or 503."""
        _check_content_type(request.headers.get("content-type"))
        limits = self._limits
        chunks: list[bytes] = []
        try:
            await asyncio.wait_for(self._fill(chunks, request), limits.body_seconds)
            return await self._parsed(b"".join(chunks))
        except asyncio.TimeoutError:
            message = f"The body did not arrive within {limits.body_seconds:g} s."
            raise ApiError(408, message, code="body_timeout") from None
        finally:
            self._held -= sum(map(len, chunks))
            chunks.clear()  # an error's traceback would hold them until garbage is collected

    async def _parsed(self, data: bytes) -> dict[str, Any]:
        """Large bodies in a thread, beside which other requests go on, and one at a time: a list
        of numbers takes many times its bytes."""
        if len(data) <= _LARGE:
            return parse_object(data, self._limits)
        async with self._parsing:
            return await asyncio.to_thread(parse_object, data, self._limits)

    async def _fill(self, chunks: list[bytes], request: Request) -> None:
        limits = self._limits
        message = f"The body is larger than {limits.body_bytes} bytes."
        refusal = ApiError(413, message, code="body_too_large")
        length = request.headers.get("content-length", "0")
        announced = int(length[:20]) if length.isdecimal() else 0
        stream = request.stream()
        if announced > limits.body_bytes:
            if announced > limits.discard_bytes or "expect" in request.headers:
                raise refusal
            await _discard(stream, limits.discard_bytes)
            raise refusal
        size = 0
        async for chunk in stream:
            size += len(chunk)
            if size > limits.body_bytes:
                await _discard(stream, limits.discard_bytes)
                raise refusal
            if self._held + len(chunk) > limits.bodies_bytes:
                message = "Too many large bodies arrive at one time; try again later."
                raise ApiError(503, message, code="too_many_requests", retry_after=1)
            self._held += len(chunk)
            chunks.append(chunk)


async def _discard(stream: AsyncIterator[bytes], most: int) -> None:
    """Reads on for a while: a client that is still sending would not see the answer."""
    async for chunk in stream:
        most -= len(chunk)
        if most < 0:
            return
