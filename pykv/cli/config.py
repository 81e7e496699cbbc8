"""Where the values of options come from: flag, environment, configuration file, default.

The file is TOML: $PYKV_CONFIG, else $XDG_CONFIG_HOME/pykv/config.toml, else
~/.config/pykv/config.toml, if it is there. Keys at the top hold for every command that has
the option, keys in a table for the command it is named after:

    threads = 2
    [serve]
    port = 8090
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pykv._core import Error, InvalidArgument
from pykv.cli import output
from pykv.cli.options import ALL, MODEL, Option

_MAX_BYTES = 1 << 20
_YES_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Origin:
    """A value and the place that set it."""

    option: Option
    value: Any
    origin: str


def declare(
    parser: argparse.ArgumentParser,
    groups: Mapping[str, Sequence[Option]],
    *,
    json_help: str,
    positional: str = "",
) -> None:
    """Adds options to a command, the group "" to its own list, and the flags that every
    command has. `positional`: help of the model as an argument, "" for none."""
    if positional:
        parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=positional)
    for title, options in groups.items():
        group: Any = parser.add_argument_group(title) if title else parser
        for option in options:
            option.add_to(group)
    parser.add_argument("--json", action="store_true", help=json_help)
    common = parser.add_argument_group("configuration")
    common.add_argument("--config", metavar="FILE", help="TOML file of defaults")
    common.add_argument(
        "--print-config", action="store_true", help="print every value and where it is from"
    )
    parser.set_defaults(
        options=[option for options in groups.values() for option in options],
        usage_error=parser.error,
    )


def complete(
    args: argparse.Namespace, commands: Sequence[str], environ: Mapping[str, str] | None = None
) -> list[Origin]:
    """Sets the options that the command line did not, and says where each is from. Wrong
    values end as wrong flags do, with exit code 2. `commands`: names that tables of the
    file may have."""
    environ = os.environ if environ is None else environ
    try:
        path = _path(args.config, environ)
        file = {} if path is None else _read(path, commands)
        _take_positional(args)
        found = [_origin(option, args, environ, file, path) for option in args.options]
    except InvalidArgument as error:
        args.usage_error(str(error))
    for each in found:
        setattr(args, each.option.key, each.value)
    return found


def show(origins: Sequence[Origin], *, as_json: bool) -> None:
    """Prints every option, its value and its origin."""
    if as_json:
        values = {o.option.key: {"value": o.value, "origin": o.origin} for o in origins}
        print(json.dumps(values, ensure_ascii=False))
        return
    rows = [(o.option.key, _text(o.value), o.origin) for o in origins]
    print(output.table(("option", "value", "origin"), rows))


def _text(value: Any) -> str:
    return "–" if value is None else json.dumps(value, ensure_ascii=False)  # noqa: RUF001


def _take_positional(args: argparse.Namespace) -> None:
    given = getattr(args, "model_argument", None)
    if given is None:
        return
    if hasattr(args, MODEL.key):
        raise InvalidArgument("the model is given twice: as MODEL and with --model")
    setattr(args, MODEL.key, given)


def _origin(
    option: Option,
    args: argparse.Namespace,
    environ: Mapping[str, str],
    file: Mapping[str, Any],
    path: Path | None,
) -> Origin:
    if hasattr(args, option.key):
        return Origin(option, getattr(args, option.key), "command line")
    if environ.get(option.variable):
        place = f"environment {option.variable}"
        return Origin(option, _parsed(option, environ[option.variable], option.variable), place)
    own = file.get(args.command, {})
    for table, where in ((own, f"[{args.command}] "), (file, "")):
        if option.key in table:
            place = f"{path}: {where}{option.key}"
            return Origin(option, _parsed(option, _as_text(table[option.key], place), place), place)
    return Origin(option, option.default, "default")


def _parsed(option: Option, text: str, place: str) -> Any:
    try:
        if option.parse is not None:
            return option.parse(text)
        if text.lower() in _YES_NO:
            return _YES_NO[text.lower()]
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not true or false")
    except argparse.ArgumentTypeError as error:
        raise InvalidArgument(f"{place}: {error}") from None


def _as_text(value: Any, place: str) -> str:
    """A value of the file as one would write it on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list) and all(type(item) in (int, str) for item in value):
        return ",".join(map(str, value))
    kind = "table" if isinstance(value, dict) else type(value).__name__
    raise InvalidArgument(f"{place}: a {kind} is not a value of an option")


def _path(given: str | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read; one that was named must be there."""
    named = given or environ.get("PYKV_CONFIG")
    if named:
        path = Path(os.path.expanduser(named))
        if not path.exists():
            raise InvalidArgument(f"there is no configuration file {named}")
        return path
    base = environ.get("XDG_CONFIG_HOME", "")
    try:
        root = Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError:  # no home folder
        return None
    path = root / "pykv" / "config.toml"
    return path if path.is_file() else None


def _toml() -> Callable[[str], dict[str, Any]]:
    try:
        module = importlib.import_module("tomllib")
    except ModuleNotFoundError:  # Python 3.10
        module = importlib.import_module("tomli")
    loads: Callable[[str], dict[str, Any]] = module.loads
    return loads


def _read(path: Path, commands: Sequence[str]) -> dict[str, Any]:
    try:
        with path.open("rb") as source:
            data = source.read(_MAX_BYTES + 1)
    except OSError as error:
        raise Error(f"[pykv] cannot read {path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise InvalidArgument(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        values = _toml()(data.decode())
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8: byte {error.start} is {data[error.start]}"
        raise InvalidArgument(message) from None
    except ValueError as error:
        raise InvalidArgument(f"{path}: {error}") from None
    known = {option.key for option in ALL}
    file: dict[str, Any] = {}
    for key, value in values.items():
        name = _known(key, {*known, *commands}, str(path))
        if name in file:
            raise InvalidArgument(f"{path}: {name} stands twice, with - and with _; keep one")
        if isinstance(value, dict) != (name in commands):
            be = f"a table: [{key}]" if name in commands else "a value: tables are for commands"
            raise InvalidArgument(f"{path}: {key} must be {be}")
        inside = f"{path}: [{key}]"
        file[name] = (
            {_known(k, known, inside): v for k, v in value.items()} if name in commands else value
        )
    return file


def _known(key: str, known: set[str], place: str) -> str:
    name = key.replace("-", "_")
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidArgument(f"{place}: nothing is called {key[:40]!r}{hint}")
