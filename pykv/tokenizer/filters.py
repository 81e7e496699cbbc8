"""The filters and tests of chat templates, each charged to the meter of the run.

What chat templates do not use (`format`, `center`, `urlize`, `attr`, `sum`, …) is absent:
a template that names it is rejected when it is compiled.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2.filters
import jinja2.tests
from jinja2 import Environment, pass_environment

from pykv.tokenizer.meter import Exhausted, current

_MAX_WIDTH = 256
_MAX_DIGITS = 1024

# As Jinja defines them. The first group returns parts of its argument, which cost nothing.
_SELECTING = ("d", "default", "first", "last", "max", "min")
_MAKING = (
    "abs", "capitalize", "count", "dictsort", "float", "int", "items", "length", "list",
    "lower", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "sort",
    "title", "trim", "truncate", "unique", "upper",
)  # fmt: skip


def replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    """`value.replace(old, new)`, charged before it is done."""
    meter = current()
    text, before, after = meter.text(value), meter.text(old), meter.text(new)
    places = text.count(before)
    if count is not None and count >= 0:
        places = min(places, count)
    meter.spend(1, len(text) + places * max(0, len(after) - len(before)))
    return text.replace(before, after, -1 if count is None else count)


@pass_environment
def _join(
    environment: Environment, value: Iterable[Any], d: Any = "", attribute: Any = None
) -> str:
    meter = current()
    items: Iterable[Any] = counted(value)
    if attribute is not None:
        items = map(jinja2.filters.make_attrgetter(environment, attribute), items)
    texts = [meter.text(item) for item in items]
    separator = meter.text(d)
    meter.spend(1, sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _indent(text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    size = width if isinstance(width, int) else len(width)
    if size > _MAX_WIDTH:
        raise Exhausted(f"it indents by more than {_MAX_WIDTH}")
    text = current().text(text)
    current().spend(1, (text.count("\n") + 1) * max(0, size))
    return jinja2.filters.do_indent(text, width, first, blank)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    meter = current()
    meter.spend(1, meter.measure(value))
    if indent is not None and not 0 <= int(indent) <= 16:
        raise Exhausted("it indents JSON by more than 16")
    if separators is not None and sum(map(len, separators)) > 16:
        raise Exhausted("its JSON separators are longer than 16 characters")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if not 0 <= precision <= 32:
        raise Exhausted("it rounds to more than 32 digits")
    return jinja2.filters.do_round(value, precision, method)


def _string(value: Any) -> str:
    return current().text(value)


def counted(items: Iterable[Any]) -> Iterator[Any]:
    """The items, one step each."""
    meter = current()
    for item in items:
        meter.spend()
        yield item


def _charge_size(value: Any, name: str) -> None:
    size = len(value) if isinstance(value, (str, list, tuple, dict, range)) else 0
    if name in ("int", "float") and isinstance(value, str) and size > _MAX_DIGITS:
        raise Exhausted(f"it reads a number of more than {_MAX_DIGITS} digits")
    lists_items = name in ("list", "sort", "title", "unique")
    current().spend(1 + (size if lists_items else size // 64))


def _filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`wraps` keeps the mark by which Jinja passes its context as the first argument."""
    subject = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if len(args) > subject:
            _charge_size(args[subject], name)
        result = function(*args, **kwargs)
        if isinstance(result, Iterator):
            return counted(result)
        return result if name in _SELECTING else current().made(result)

    return run


def _test(function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        current().spend()
        return function(*args, **kwargs)

    return run


_OWN: dict[str, Callable[..., Any]] = {
    "indent": _indent,
    "join": _join,
    "replace": replace,
    "round": _round,
    "safe": _string,
    "string": _string,
    "tojson": _tojson,
}

FILTERS: dict[str, Callable[..., Any]] = {
    name: _filter(name, function)
    for name, function in {
        **{name: jinja2.filters.FILTERS[name] for name in (*_SELECTING, *_MAKING)},
        **_OWN,
    }.items()
}
TESTS: dict[str, Callable[..., Any]] = {
    name: _test(function) for name, function in jinja2.tests.TESTS.items()
}
