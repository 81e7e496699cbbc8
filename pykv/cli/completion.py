"""`pykv completion`: rules by which a shell completes the command."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pykv.cli.options import ALL

EXAMPLES = """examples:
  pykv completion bash > ~/.local/share/bash-completion/completions/pykv
  pykv completion zsh > ~/.zfunc/_pykv         (a folder of $fpath)
  pykv completion fish > ~/.config/fish/completions/pykv.fish
"""

_SHELLS = ("bash", "zsh", "fish")
_NAMES = {flag: option.names for option in ALL for flag in option.flags}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print completion rules for a shell",
        description="Prints rules for commands, flags, names of models and of KV types.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=_SHELLS)


def run(args: argparse.Namespace) -> int:
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]
    print("\n".join(script(commands())))
    return 0


@dataclass(frozen=True)
class Flag:
    """A flag of a command; `words` are the values it may have, `files` whether a path fits."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    words: tuple[str, ...]
    files: bool


@dataclass(frozen=True)
class Command:
    """A command; `words` and `files` say what stands in it without a flag."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]
    files: bool


def commands() -> list[Command]:
    """Every command with its flags, as their parsers know them."""
    from pykv.cli.main import COMMANDS

    root = argparse.ArgumentParser(prog="pykv")
    subparsers = root.add_subparsers()
    for name in COMMANDS:
        importlib.import_module(f"pykv.cli.{name}").add_parser(subparsers)
    return [_command(name, COMMANDS[name], parser) for name, parser in subparsers.choices.items()]


def _command(name: str, summary: str, parser: argparse.ArgumentParser) -> Command:
    flags: list[Flag] = []
    words: list[str] = []
    files = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):  # bench: its kinds, and their flags
            for kind, inner in action.choices.items():
                words.append(kind)
                flags += _command(kind, "", inner).flags
        elif action.option_strings:
            flags.append(_flag(action))
        else:
            found, path = _values(action)
            words += found
            files = files or path
    return Command(name, summary, tuple(dict.fromkeys(flags)), tuple(words), files)


def _flag(action: argparse.Action) -> Flag:
    takes_value = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    words, files = _values(action) if takes_value else ((), False)
    return Flag(tuple(action.option_strings), action.help or "", takes_value, words, files)


def _values(action: argparse.Action) -> tuple[tuple[str, ...], bool]:
    """The words that a value may be, and whether it may be a path."""
    from pykv import models

    if action.choices:
        return tuple(map(str, action.choices)), False
    if action.dest in ("model", "model_argument"):
        return tuple(models.CATALOG), True
    if action.dest == "name":
        return tuple(models.CATALOG), False
    known = [_NAMES[flag] for flag in action.option_strings if _NAMES.get(flag)]
    return (known[0] if known else ()), action.dest in ("config", "file", "plot", "prompts")


def _bash(all_commands: list[Command]) -> Iterator[str]:
    yield "# bash completion of pykv"
    yield "_pykv() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield "  COMPREPLY=()"
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    names = " ".join([*(c.name for c in all_commands), "--help", "--version"])
    yield f'    COMPREPLY=($(compgen -W "{names}" -- "$word")); return'
    yield "  fi"
    yield '  case "${COMP_WORDS[1]}:$before" in'
    for command in all_commands:
        for flag in command.flags:
            if flag.takes_value:
                pattern = "|".join(f"{command.name}:{name}" for name in flag.names)
                yield f"    {pattern}) {_bash_words(flag.words, flag.files)}; return;;"
    yield "  esac"
    yield '  case "${COMP_WORDS[1]}" in'
    for command in all_commands:
        flags = tuple(name for flag in command.flags for name in flag.names)
        yield f"    {command.name}) {_bash_words((*command.words, *flags), command.files)};;"
    yield "  esac"
    yield "}"
    yield "complete -o filenames -F _pykv pykv"


def _bash_words(words: tuple[str, ...], files: bool) -> str:
    paths = " -f" if files else ""
    return f'COMPREPLY=($(compgen{paths} -W "{" ".join(words)}" -- "$word"))'


def _zsh(all_commands: list[Command]) -> Iterator[str]:
    yield "#compdef pykv"
    yield "_pykv() {"
    yield "  local -a commands"
    yield "  commands=("
    for command in all_commands:
        yield f"    {_quoted(f'{command.name}:{command.help}')}"
    yield "  )"
    yield "  if (( CURRENT == 2 )); then _describe command commands; return; fi"
    yield '  case "$words[2]" in'
    for command in all_commands:
        yield f"    {command.name})"
        yield "      _arguments \\"
        for flag in command.flags:
            value = f":value:{_zsh_values(flag.words, flag.files)}" if flag.takes_value else ""
            summary = flag.help.replace("[", "(").replace("]", ")").replace(":", " –")  # noqa: RUF001
            for name in flag.names:
                yield f"        {_quoted(f'{name}[{summary}]{value}')} \\"
        yield f"        {_quoted(f'*:argument:{_zsh_values(command.words, command.files)}')};;"
    yield "  esac"
    yield "}"
    yield 'if [ "$funcstack[1]" = "_pykv" ]; then _pykv; else compdef _pykv pykv; fi'


def _zsh_values(words: tuple[str, ...], files: bool) -> str:
    if files and words:
        return f'{{_alternative "names:name:({" ".join(words)})" "files:file:_files"}}'
    if files:
        return "_files"
    return f"({' '.join(words)})" if words else " "


def _fish(all_commands: list[Command]) -> Iterator[str]:
    yield "# fish completion of pykv"
    yield "complete -c pykv -f"
    for command in all_commands:
        yield (
            f"complete -c pykv -n __fish_use_subcommand -a {command.name} "
            f"-d {_fish_quoted(command.help)}"
        )
    for command in all_commands:
        begin = f"complete -c pykv -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            yield f"{begin} -a {_fish_quoted(' '.join(command.words))}"
        if command.files:
            yield f"{begin} -F"
        for flag in command.flags:
            parts = [begin, *(_fish_name(name) for name in flag.names)]
            if flag.takes_value:
                parts.append("-r -F" if flag.files else "-x")
            if flag.words:
                parts.append(f"-a {_fish_quoted(' '.join(flag.words))}")
            yield " ".join([*parts, f"-d {_fish_quoted(flag.help)}"])


def _fish_name(name: str) -> str:
    """Fish tells apart -x, --long and the old style -long."""
    if name.startswith("--"):
        return f"-l {name[2:]}"
    return f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"


def _quoted(text: str) -> str:
    """For bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
