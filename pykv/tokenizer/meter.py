"""The budget of one template run: what a template may cost, whatever it contains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jinja2 import Undefined

# Messages, tools and their arguments nest a few levels; deeper values attack code that
# recurses (printing, comparing, hashing).
MAX_DEPTH = 32
MAX_INTEGER_BITS = 4096

_LEAVES = (int, float, type(None), Undefined, range)


class Exhausted(Exception):
    """A template went over its budget; the message says which part of it."""


@dataclass(frozen=True)
class RenderLimits:
    """`max_steps`: loop turns, calls, operations and items of new lists. `max_chars`:
    characters made, in the result and on the way to it. `max_seconds`: by the injected
    clock, looked at in every step."""

    max_steps: int = 1_000_000
    max_chars: int = 16 << 20
    max_seconds: float = 2.0


class Meter:
    """Counts the cost of one run; every method raises `Exhausted` beyond the limits."""

    def __init__(self, limits: RenderLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._end = clock() + limits.max_seconds
        self._steps = 0
        self._chars = 0

    def spend(self, steps: int = 1, chars: int = 0) -> None:
        """Called before the work where its size is known, so that it is never done."""
        self._steps += steps
        self._chars += chars
        limits = self._limits
        if self._steps > limits.max_steps:
            raise Exhausted(f"it needs more than {limits.max_steps} steps")
        if self._chars > limits.max_chars:
            raise Exhausted(f"it makes more than {limits.max_chars} characters")
        if self._clock() > self._end:
            raise Exhausted(f"it runs for more than {limits.max_seconds} s")

    def made(self, value: Any) -> Any:
        """Charges for a value that an operation has made, and returns it."""
        if isinstance(value, str):
            self.spend(1, len(value))
        elif isinstance(value, (list, tuple, Mapping)):
            self.measure(value)
        elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise Exhausted(f"it makes a number of more than {MAX_INTEGER_BITS} bits")
        else:
            self.spend()
        return value

    def power(self, base: int, exponent: int) -> None:
        """Refuses a power that `made` would refuse, before it is computed."""
        if base.bit_length() * exponent > MAX_INTEGER_BITS:
            raise Exhausted(f"it makes a number of more than {MAX_INTEGER_BITS} bits")

    def measure(self, value: Any) -> int:
        """Characters in a nested value, where a part counts as often as it is mentioned:
        what printing or comparing it would cost. Every container is measured when it is
        made, so none can grow exponentially by sharing; cycles cannot be built, because
        namespaces do not go into containers."""
        limits = self._limits
        chars = 0
        level = [value]
        for _ in range(MAX_DEPTH):
            self.spend(1 + len(level))
            below: list[Any] = []
            for item in level:
                if isinstance(item, str):
                    chars += len(item)
                elif isinstance(item, (list, tuple)):
                    below += item
                elif isinstance(item, Mapping):
                    below += [*item.keys(), *item.values()]
                elif not isinstance(item, _LEAVES):
                    raise Exhausted(f"it puts a {type(item).__name__} into a list or mapping")
                if len(below) > limits.max_steps or chars > limits.max_chars:
                    raise Exhausted("it builds a nested value that is too large")
            if not below:
                return chars
            level = below
        raise Exhausted(f"it nests values more than {MAX_DEPTH} deep")

    def text(self, value: Any) -> str:
        """The value as a template prints it."""
        if isinstance(value, str):
            return value
        if isinstance(value, (list, tuple, Mapping)):
            self.measure(value)
        elif not isinstance(value, _LEAVES):
            raise Exhausted(f"it prints a {type(value).__name__}")
        return str(value)


_current: ContextVar[Meter] = ContextVar("meter")


def current() -> Meter:
    """The meter of the run that this thread is in."""
    return _current.get()


@contextmanager
def metered(limits: RenderLimits, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    token = _current.set(Meter(limits, clock))
    try:
        yield
    finally:
        _current.reset(token)
