"""Completion rules in the shells themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pykv import _core
from pykv.cli.main import main


@pytest.fixture
def rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        (tmp_path / f"pykv.{shell}").write_text(capsys.readouterr().out)
    return tmp_path


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_zsh_takes_the_rules(rules: Path) -> None:
    run("zsh", "-n", "pykv.zsh", cwd=rules)
    load = "autoload -U compinit; compinit -u -d dump; source ./pykv.zsh; print $_comps[pykv]"
    assert run("zsh", "-f", "-c", load, cwd=rules) == "_pykv\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pykv ser", {"serve"}),
        ("pykv serve --cache-type-k ", set(_core.kv_types())),
        ("pykv bench b", {"batched"}),
        ("pykv bench batched -np", {"-npp", "-npl"}),
    ],
)
def test_fish_completes(rules: Path, line: str, words: set[str]) -> None:
    out = run("fish", "-c", f"source pykv.fish; complete -C '{line}'", cwd=rules)
    assert {row.split("\t")[0] for row in out.splitlines()} == words
