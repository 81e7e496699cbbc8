"""`pykv completion`: what bash offers, and that the rules name everything."""

import subprocess
from typing import Any

import pytest

from pykv import _core, models
from pykv.cli import completion, main
from pykv.cli.main import COMMANDS


@pytest.fixture
def run(capsys: Any) -> Any:
    def printed(*arguments: str, code: int = 0) -> str:
        assert main.main(arguments) == code
        out: str = capsys.readouterr().out
        return out

    return printed


def complete(run: Any, *words: str) -> set[str]:
    """What bash offers for the last word."""
    script = run("completion", "bash") + (
        f"COMP_WORDS=({' '.join(repr(w) for w in ('pykv', *words))}); COMP_CWORD={len(words)}\n"
        'COMPREPLY=(); _pykv; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_flags_and_values(run: Any) -> None:
    assert set(COMMANDS) <= complete(run, "")
    assert complete(run, "ser") == {"serve"}
    assert complete(run, "serve", "--po") == {"--port", "--pool-bytes"}
    assert complete(run, "serve", "--cache-type-k", "") == set(_core.kv_types())
    assert complete(run, "pull", "smol") == {models.DEFAULT_MODEL}
    assert complete(run, "bench", "b") == {"batched"}
    assert complete(run, "bench", "batched", "--output-format", "") == {"md", "jsonl"}
    assert complete(run, "completion", "") >= {"bash", "zsh", "fish"}
    assert complete(run, "serve", "--port", "") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_flag_is_in_the_rules(run: Any, shell: str) -> None:
    text = run("completion", shell)
    for command in completion.commands():
        assert command.name in text
        for flag in command.flags:
            for name in flag.names:
                shown = completion._fish_name(name) if shell == "fish" else name
                assert shown in text, (command.name, name)
