"""Typed access to the members of a JSON object. JSON's types are taken at their word: a
boolean is not a number, 1.5 is not a count, null is the same as absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pykv.server.errors import invalid, shown

T = TypeVar("T")


def check_text(value: object, param: str, max_chars: int | None = None) -> str:
    """`value` as text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise invalid(param, f"{param} must be a string, not {shown(value)}.", "invalid_type")
    if max_chars is not None and len(value) > max_chars:
        raise invalid(param, f"{param} has {len(value)} characters; at most {max_chars} fit.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"{param} holds half of a surrogate pair at character {error.start}."
        raise invalid(param, message) from None
    return value


def check_integer(value: object, param: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(param, f"{param} must be an integer, not {shown(value)}.", "invalid_type")
    if not low <= value <= high:
        raise invalid(param, f"{param} is {shown(value)}; it must be {low} … {high}.")
    return value


def check_number(value: object, param: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise invalid(param, f"{param} must be a number, not {shown(value)}.", "invalid_type")
    if not low <= value <= high:  # also false for infinity, which 1e999 is read as
        raise invalid(param, f"{param} is {shown(value)}; it must be {low:g} … {high:g}.")
    return float(value)


def check_tokens(value: list[object], param: str, vocab: int) -> list[int]:
    """Token ids in [0, vocab)."""
    tokens: list[int] = []
    for index, item in enumerate(value):
        if type(item) is int and 0 <= item < vocab:
            tokens.append(item)
        else:
            tokens.append(check_integer(item, f"{param}[{index}]", 0, vocab - 1))
    return tokens


class Reader:
    """Members of one object; every error names the member."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body

    def get(self, name: str) -> Any:
        return self._body.get(name)

    def required(self, name: str) -> Any:
        value = self._body.get(name)
        if value is None:
            raise invalid(name, f"{name} is missing.", "missing_required_parameter")
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self._body.get(name)
        return None if value is None else check_integer(value, name, low, high)

    def one_integer(self, names: Sequence[str], low: int, high: int) -> int | None:
        """Of names that mean the same; several only if they are equal."""
        values = [self.integer(name, low, high) for name in names]
        given = {value for value in values if value is not None}
        if len(given) > 1:
            shown_values = " and ".join(
                f"{name} ({value})" for name, value in zip(names, values, strict=True)
            )
            raise invalid(names[0], f"{shown_values} differ.")
        return given.pop() if given else None

    def number(self, name: str, low: float, high: float, otherwise: float) -> float:
        value = self._body.get(name)
        return otherwise if value is None else check_number(value, name, low, high)

    def boolean(self, name: str, otherwise: bool) -> bool:
        value = self._body.get(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            message = f"{name} must be true or false, not {shown(value)}."
            raise invalid(name, message, "invalid_type")
        return value

    def text(self, name: str, max_chars: int) -> str | None:
        value = self._body.get(name)
        return None if value is None else check_text(value, name, max_chars)
