"""Entry point of the `pykv` command.

Exit codes: 0 done, 1 error, 2 wrong usage, 3 a check failed, 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol, cast

from pykv._core import Error, build_info
from pykv.cli import config

EXAMPLES = """examples:
  pykv pull                           fetch the default model, SmolLM2-135M (98 MB)
  pykv serve                          serve it: OpenAI-compatible API and dashboard
  pykv run                            talk to it in the terminal
  pykv generate -p "Once upon a time" continue a text
  pykv doctor                         what is wrong on this machine, and what to do
  pykv COMMAND --help                 flags and examples of one command

environment:
  PYKV_MODELS   folder for model files (~/.cache/pykv/models)
  PYKV_CONFIG   TOML file of defaults (~/.config/pykv/config.toml, if it is there)
  PYKV_...      default of the flag of that name: PYKV_CTX_SIZE for --ctx-size
  PYKV_DEBUG    show the traceback of an error
  NO_COLOR      print without colours

A value is taken from the flag, else the environment, else the file; --print-config says
which.

exit codes: 0 done, 1 error, 2 wrong usage, 3 a check failed, 130 interrupted
"""

# Command -> what the overview says. The module is pykv.cli.<command>; it is imported
# only when its command is used, so that the others need none of its dependencies.
COMMANDS = {
    "pull": "fetch a model",
    "serve": "serve a model: OpenAI-compatible API and dashboard",
    "run": "talk to a model in the terminal",
    "generate": "continue a text or answer one question",
    "bench": "measure speed and memory",
    "eval": "measure what each KV type costs on a text",
    "tokenize": "show how a model cuts a text into tokens",
    "info": "show what is in a model file and what it needs",
    "doctor": "find what is wrong on this machine, and what to do",
    "completion": "print completion rules for a shell",
}

# Packages that only the extra `server` brings.
_EXTRA_PACKAGES = frozenset(
    {
        "flask",
        "jinja2",
        "prometheus_client",
        "rich",
        "starlette",
        "tokenizers",
        "tomli",
        "uvicorn",
        "waitress",
    }
)

_INTERRUPTED = 130


class _Command(Protocol):
    def add_parser(self, subparsers: Any) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code. Wrong usage leaves by `SystemExit(2)`,
    as `argparse` does."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # terminals that are not UTF-8
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # what does not fit on a disk is known here, not at exit
        return code
    except Error as error:
        return _report(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_PACKAGES:
            raise
        return _report(f"the package {package!r} is missing; pip install 'pykv-cache[server]'")
    except BrokenPipeError:  # the reader went away (`| head`)
        _discard_output()
        return 1
    except OSError as error:
        _discard_output()
        return _report(str(error))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _INTERRUPTED


def _run(arguments: list[str]) -> int:
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    command = _load(chosen) if chosen in COMMANDS else None
    parser = argparse.ArgumentParser(
        prog="pykv",
        description="A shared KV cache for LLM inference: one pool for all users of a model.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    for name, summary in COMMANDS.items():
        if command is not None and name == chosen:
            command.add_parser(subparsers)
        elif _exists(name):
            subparsers.add_parser(name, help=summary)
    args = parser.parse_args(arguments)
    if command is None:
        raise AssertionError("argparse accepted a command that is not in the table")
    if hasattr(args, "options"):
        origins = config.complete(args, list(COMMANDS))
        if args.print_config:
            config.show(origins, as_json=args.json)
            return 0
    return command.run(args)


def _exists(name: str) -> bool:
    return importlib.util.find_spec(f"pykv.cli.{name}") is not None


def _load(name: str) -> _Command | None:
    if not _exists(name):
        return None
    return cast(_Command, importlib.import_module(f"pykv.cli.{name}"))


def _version() -> str:
    info = build_info()
    return f"pykv {info['version']} ({info['backend']}, {info['compiler']}, {info['build_type']})"


def _discard_output() -> None:
    """What stdout did not take, it would be offered once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(message: str) -> int:
    """For the exception being handled."""
    if os.environ.get("PYKV_DEBUG"):
        raise
    print(f"pykv: error: {message}", file=sys.stderr)
    return 1
