"""Errors as OpenAI clients expect them: an object with message, type, param and code.

A status that says "the same request will fail again" carries `x-should-retry: false`,
429 and 503 carry `Retry-After`. Nothing of the server's inside is shown.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse

from pykv import _core

_SHOWN_CHARS = 80


def shown(value: object) -> str:
    """`value` as a message may quote it: in JSON's words, and short, however large it is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int) and value.bit_length() > 256:
        return "an integer of more than 77 digits"
    if isinstance(value, (dict, list)):
        kind = "object" if isinstance(value, dict) else "array"
        return f"an {kind} of {len(value)}" if value else f"an empty {kind}"
    text = repr(value[:_SHOWN_CHARS] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _as_utf8(text: str) -> str:
    """JSON may write halves of surrogate pairs in a name; UTF-8 cannot repeat them."""
    return text.encode("utf-8", "backslashreplace").decode()


class ApiError(Exception):
    """A refusal that the client is told about.

    Args:
        status: HTTP status.
        message: says the value, the limit and what to do.
        code: stable word for programs.
        param: the field that is wrong, as a path (`messages[2].content`).
        retry_after: seconds; only with 429 and 503.
        extra: further members of the error object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: int | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _as_utf8(message)
        self.code = code
        self.param = None if param is None else _as_utf8(param)
        self.retry_after = retry_after
        self.extra = extra or {}

    @property
    def kind(self) -> str:
        """OpenAI's `type` of the error."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """The reply, also sent as an event when a stream breaks off."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error | self.extra}

    def headers(self) -> dict[str, str]:
        """Headers that tell a client whether to try again."""
        if self.retry_after is not None:
            return {"retry-after": str(self.retry_after)}
        deterministic = (400 <= self.status < 500 and self.status != 408) or self.status == 501
        return {"x-should-retry": "false"} if deterministic else {}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers())


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, code=code, param=param)


def unsupported(param: str, message: str, status: int = 400) -> ApiError:
    return ApiError(status, message, code="unsupported_parameter", param=param)


def context_exceeded(prompt_tokens: int, context: int, param: str) -> ApiError:
    return ApiError(
        400,
        f"The prompt has {prompt_tokens} tokens, but the context holds {context}, of which one "
        "is needed for the answer. Shorten the prompt, or start the server with a larger "
        "--ctx-size if the model allows it.",
        code="context_length_exceeded",
        param=param,
        extra={"n_prompt_tokens": prompt_tokens, "n_ctx": context},
    )


def stopping() -> ApiError:
    return ApiError(503, "The server is stopping.", code="server_stopping", retry_after=1)


def failed(message: str) -> ApiError:
    """The engine gave the request up; the cause has passed with other requests' cells."""
    return ApiError(503, message or "The engine failed.", code="engine_failed", retry_after=1)


def from_core(error: Exception) -> ApiError | None:
    """What an exception of the core means to the client; None if it is our own fault."""
    message = str(error)
    if isinstance(error, _core.Busy):
        return ApiError(429, message, code="queue_full", retry_after=1)
    if isinstance(error, (_core.OutOfCells, _core.OutOfMemory)):
        return ApiError(503, message, code="out_of_cells", retry_after=1)
    if isinstance(error, _core.InvalidArgument):
        return invalid(None, message)
    if isinstance(error, (_core.Unsupported, _core.UnsupportedModel)):
        return ApiError(501, message, code="unsupported")
    return None


def timed_out(message: str) -> ApiError:
    """The time that the request allowed is over."""
    return ApiError(504, message, code="timeout", param="timeout")


_CODES = {404: "not_found", 405: "method_not_allowed", 400: "bad_request"}


def from_status(status: int, method: str, path: str, allow: str | None) -> ApiError:
    """Starlette's own refusals (unknown path, wrong method)."""
    if status == 404:
        message = f"Unknown path {shown(path)}; docs/api.md lists the endpoints."
    elif status == 405:
        message = f"{method[:16]} is not allowed on {shown(path)}; use {allow or 'another method'}."
    else:
        message = f"The request was refused with status {status}."
    return ApiError(status, message, code=_CODES.get(status, "bad_request"))
