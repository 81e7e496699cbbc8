"""`pykv doctor --prompts`: where two prompts part."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykv.cli import main
from pykv.cli.checks.prompts import compare
from pykv.tokenizer import Tokenizer
from tests.reference.gguf_files import write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def run(capsys: Any, *arguments: str, code: int = 0) -> str:
    assert main.main(["doctor", *arguments]) == code
    out: str = capsys.readouterr().out
    return out


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Any) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_gguf)


def test_where_prompts_part(tokenizer: Tokenizer) -> None:
    head = "<|im_start|>system\nYou help. Today is "
    found = compare(tokenizer, head + "Monday.\nHello", head + "Tuesday.\nHello")
    assert found.common_tokens == len(tokenizer.encode(head.rstrip(), parse_special=True))
    assert (found.line, found.column) == (2, len("You help. Today is ") + 1)
    assert found.before == head
    assert found.after == ("Monday.\nHello", "Tuesday.\nHello")
    assert not found.same and compare(tokenizer, head, head).same


def test_tokens_may_part_before_the_characters(tokenizer: Tokenizer) -> None:
    found = compare(tokenizer, "I like tea", "I like teapots")
    assert found.common_chars == len("I like tea")
    assert found.common_tokens == 2 and found.after == ("", "pots")


@given(
    a=st.text(st.sampled_from("ab \n"), max_size=12),
    b=st.text(st.sampled_from("ab \n"), max_size=12),
)
def test_reports_agree_with_the_texts(tokenizer: Tokenizer, a: str, b: str) -> None:
    found = compare(tokenizer, a, b)
    n = found.common_chars
    assert a[:n] == b[:n] and (a[n : n + 1] != b[n : n + 1] or a == b)
    ids = [tokenizer.encode(text, parse_special=True) for text in (a, b)]
    assert ids[0][: found.common_tokens] == ids[1][: found.common_tokens]
    lines = a[:n].split("\n")
    assert (found.line, found.column) == (len(lines), len(lines[-1]) + 1)
    assert found.same == (ids[0] == ids[1])


def test_the_command(capsys: Any, tmp_path: Path, tiny: str) -> None:
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_text("the cat sat\x1b[2J 1")
    b.write_text("the cat sat\x1b[2J 2")
    text = run(capsys, "-m", tiny, "--prompts", str(a), str(b))
    assert "part at line 1, column 17" in text and "…the cat sat\\x1b[2J " in text
    report = json.loads(run(capsys, "-m", tiny, "--json", "--prompts", str(a), str(b)))
    assert report["after"] == ["1", "2"]
    assert report["common_tokens"] == report["tokens"][0] - 1
    b.write_text(a.read_text())
    assert "are the same" in run(capsys, "-m", tiny, "--prompts", str(a), str(b))
    b.write_bytes(b"\xff")
    assert main.main(["doctor", "-m", tiny, "--prompts", str(a), str(b)]) == 1
    assert "is not UTF-8" in capsys.readouterr().err
    assert main.main(["doctor", "-m", tiny, "--prompts", str(a), str(tmp_path / "c")]) == 1
    assert "cannot read" in capsys.readouterr().err
