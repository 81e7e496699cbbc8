"""Checks of arguments: another type is a TypeError of one line, which names the argument."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pykv import _core


def integer(what: str, value: Any, lowest: int = 0) -> int:
    """From `lowest` to 2**32 - 1."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong_type(what, "an int", value)
    number = int(value.__index__())
    if not lowest <= number < 2**32:
        raise _core.InvalidArgument(f"{what} is {number}, must be {lowest} to {2**32 - 1}")
    return number


def boolean(what: str, value: Any) -> bool:
    """NumPy's too, but no number."""
    if not isinstance(value, bool | np.bool_):
        raise _wrong_type(what, "a bool", value)
    return bool(value)


def real(what: str, value: Any) -> float:
    """Any number, also infinity and NaN: what takes it knows its range."""
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        raise _wrong_type(what, "a float", value)
    return float(value)


def finite(what: str, value: Any) -> float:
    """A number of float32."""
    number = real(what, value)
    if not math.isfinite(number) or abs(number) > 3e38:
        raise _core.InvalidArgument(f"{what} is {number}, must be finite in float32")
    return number


def text(what: str, value: Any) -> str:
    """A str."""
    if not isinstance(value, str):
        raise _wrong_type(what, "a str", value)
    return value


def mapping(what: str, value: Any) -> dict[Any, Any]:
    """A dict or what is like one."""
    if not isinstance(value, Mapping):
        raise _wrong_type(what, "a mapping", value)
    return dict(value)


def reals(what: str, value: Any) -> list[float]:
    """Finite ones."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _wrong_type(what, "a sequence of floats", value)
    return [finite(f"{what}[{index}]", each) for index, each in enumerate(value)]


def shares(what: str, value: Any) -> tuple[float, float]:
    """Two numbers, low and high."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{what} must be a pair (low, high), not {value!r}")
    return real(f"{what}[0]", value[0]), real(f"{what}[1]", value[1])


def _wrong_type(what: str, wanted: str, value: Any) -> TypeError:
    return TypeError(f"{what} must be {wanted}, not {type(value).__name__}")
