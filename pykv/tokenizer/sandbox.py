"""A Jinja environment for templates that nobody has looked at.

A chat template is a program that comes with a model file. It reaches values of a few
plain types only, through the methods listed here; it loads nothing; and all that costs
time or memory is charged to a meter, so that it ends whatever it contains: `instrument`
puts the charges into the compiled template, `filters` into the filters.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from pykv.tokenizer import filters
from pykv.tokenizer.instrument import instrument
from pykv.tokenizer.meter import Exhausted, current

_STR = frozenset(
    {
        "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal",
        "isdigit", "islower", "isnumeric", "isspace", "isupper", "lower", "lstrip", "partition",
        "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit",
        "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper",
    }
)  # fmt: skip
_LIST = frozenset({"count", "index"})
_DICT = frozenset({"get", "items", "keys", "values"})
_LOOP = frozenset(
    {
        "changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length",
        "nextitem", "previtem", "revindex", "revindex0",
    }
)  # fmt: skip


class _Namespace(Namespace):
    """`namespace()` of templates. Holds values and lists of values, but no namespaces,
    so that nothing can contain itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, Namespace):
            raise Exhausted("it puts a namespace into a namespace")
        if isinstance(value, (list, tuple, dict)):
            current().measure(value)
        super().__setitem__(name, value)


class _Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is only read."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _output(context: Context, value: Any) -> str:
    """Everything that is written passes here, template text included."""
    text = current().text(value)
    current().spend(1, len(text))
    return text


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """`compile_template` makes templates whose `render` must run inside `metered`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, **functions: Callable[..., Any]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants are folded at compile time, where no meter runs
            autoescape=False,
            finalize=_output,
            extensions=[loopcontrols, _Generation],
        )
        self.filters = dict(filters.FILTERS)
        self.tests = dict(filters.TESTS)
        self.globals = {"range": safe_range, "namespace": _Namespace, "dict": dict, **functions}

    def compile_template(self, source: str) -> Template:
        tree = instrument(self.parse(source))
        tree.set_environment(self)
        return Template.from_code(self, self.compile(tree), self.globals)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, Namespace):
            return True
        allowed = {str: _STR, list: _LIST, tuple: _LIST, dict: _DICT, LoopContext: _LOOP}
        return attr in allowed.get(type(obj), ())

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"it reaches for {attribute!r} of a {type(obj).__name__}")

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` stays what it is and is refused like any method not listed:
        a width in its text can ask for any amount of memory."""
        return None

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter = current()
        meter.spend()
        if isinstance(obj, MethodType) and obj.__self__ is self:
            return obj(*args)  # one of the methods for `instrument` below
        if isinstance(obj, BuiltinMethodType) and isinstance(obj.__self__, str):
            return self._call_str(obj, args)
        if isinstance(obj, Macro) and (obj.catch_varargs or obj.catch_kwargs):
            for value in (*args, *kwargs.values()):
                if isinstance(value, (list, tuple)):
                    meter.measure(value)
        result = super().call(context, obj, *args, **kwargs)
        is_part = isinstance(obj, BuiltinMethodType) and obj.__name__ == "get"
        return result if is_part else meter.made(result)

    def _call_str(self, method: BuiltinMethodType, args: tuple[Any, ...]) -> Any:
        subject: str = method.__self__  # type: ignore[assignment]
        if method.__name__ == "replace":
            return filters.replace(subject, *args)
        if method.__name__ in ("split", "rsplit", "splitlines"):
            separator = args[0] if args and isinstance(args[0], str) else None
            current().spend(subject.count(separator) if separator else len(subject) // 2)
        return current().made(method(*args))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = current()
        if operator == "%" and isinstance(left, str):
            raise SecurityError("it formats text with %")
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str) and isinstance(times, int):
                    meter.spend(1, len(sequence) * max(0, times))
                elif isinstance(sequence, (list, tuple)) and isinstance(times, int):
                    meter.spend(len(sequence) * max(0, times))
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            meter.power(left, right)
        return meter.made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        current().spend()
        return super().getitem(obj, argument)

    # --- what `instrument` calls from compiled templates; `call` charges a step --------

    def tick(self) -> bool:
        return True

    def same(self, value: Any) -> Any:
        """A comparison's result or a new container."""
        return current().made(value)

    def concatenated(self, parts: list[Any]) -> str:
        texts = list(map(current().text, parts))
        current().spend(len(texts), sum(map(len, texts)))
        return "".join(texts)

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        return current().made(value[start:stop:step])
