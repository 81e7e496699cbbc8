"""Checks chat messages before a template sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pykv._core import InvalidArgument

_KNOWN = ("role", "content", "name")


def checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Plain dicts of `role`, `content` and, where given, `name`, all strings; text parts
    are joined. Roles are free: the template decides. Fields without a value are left
    out; anything else is refused, naming the message by its index."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise InvalidArgument(
            "[ChatTemplate.render] messages must be a list of at least one "
            '{"role": …, "content": …}'
        )
    return [_checked(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _checked(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise _refused(where, f"is a {type(message).__name__}; expected an object")
    for key, value in message.items():
        if key not in _KNOWN and value not in (None, [], {}):
            raise _refused(where, f"has a field {key!r}, which is not supported")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _refused(f"{where}.role", f"is {_kind(role)}; expected a string that is not empty")
    checked = {"role": role, "content": _content(message.get("content"), f"{where}.content")}
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise _refused(f"{where}.name", f"is {_kind(name)}; expected a string")
        checked["name"] = name
    return checked


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, (bytes, bytearray)):
        raise _refused(where, f"is {_kind(content)}; expected a string or a list of text parts")
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else None
        found = f"has type {kind!r}" if isinstance(kind, str) else f"is {_kind(part)}"
        raise _refused(where, f'{found}; only {{"type": "text", "text": …}} is supported')
    text = part.get("text")
    if not isinstance(text, str):
        raise _refused(f"{where}.text", f"is {_kind(text)}; expected a string")
    return text


def _kind(value: Any) -> str:
    if value is None:
        return "missing or null"
    return "empty" if value == "" else f"a {type(value).__name__}"


def _refused(where: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"[ChatTemplate.render] {where} {why}")
