"""The `pykv` command: exit codes, messages, pull and generate (with a scripted engine)."""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pykv import _core, models
from pykv.cli import generate, main, pull
from pykv.tokenizer import StreamDecoder

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Grüße, 世界"


@dataclass
class Event:
    kind: str
    token: int = 0
    request: int = 7
    reason: str = "none"
    error: str = ""
    prompt_tokens: int = 3
    cached_tokens: int = 1
    generated_tokens: int = 5
    queue_seconds: float = 0.25
    prompt_seconds: float = 0.5
    generate_seconds: float = 2.0


class ScriptedEngine:
    """Gives its events in two lots through a pipe, as the engine does."""

    def __init__(self, events: list[Event]) -> None:
        self.lots = [events[:3], events[3:]]
        self.submitted: Any = None
        self.reader, self.writer = os.pipe()
        self.started = False

    def start(self) -> None:
        self.started = True
        os.write(self.writer, b"x")

    def submit(self, prompt: list[int], max_tokens: int, **options: Any) -> int:
        self.submitted = {"prompt": prompt, "max_tokens": max_tokens, **options}
        return 7

    def notify_fd(self) -> int:
        return self.reader

    def drain(self) -> list[Event]:
        return self.lots.pop(0)


class ByteTokenizer:
    """A token is a byte; 256 ends a text."""

    eog_ids = frozenset({256})

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        return [*text.encode(), *([256] if parse_special else [])]

    def stream(self) -> StreamDecoder:
        return StreamDecoder(lambda token: bytes([token]) if token < 256 else b"")


@dataclass
class FakeRuntime:
    engine: ScriptedEngine
    closed: bool = False
    options: Any = None
    tokenizer: Any = field(default_factory=ByteTokenizer)
    template: Any = field(
        default_factory=lambda: SimpleNamespace(render=lambda m: f"<{m[0]['content']}>")
    )

    def close(self) -> None:
        self.closed = True
        for end in (self.engine.reader, self.engine.writer):
            os.close(end)


def answer(text: str = TEXT, **end: Any) -> list[Event]:
    other = Event("token", token=0x41, request=6)
    tokens = [Event("token", token=byte) for byte in text.encode()]
    finish = {"reason": "stop", **end}
    return [Event("started"), other, *tokens, Event("token", 256), Event("finished", **finish)]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `Runtime.open` give a runtime with these events."""

    def use(events: list[Event]) -> FakeRuntime:
        made = FakeRuntime(ScriptedEngine(events))

        def open_runtime(options: Any) -> FakeRuntime:
            made.options = options
            return made

        module: Any = ModuleType("pykv.runtime")
        module.Runtime = SimpleNamespace(open=open_runtime)
        module.RuntimeOptions = lambda **options: SimpleNamespace(**options)
        monkeypatch.setitem(sys.modules, "pykv.runtime", module)
        return made

    return use


def run(*arguments: str) -> int:
    return main.main(arguments)


def test_generate_streams_text_and_says_figures(runtime: Any, capsys: Any) -> None:
    made = runtime(answer())
    sampling = (
        "--temp 0 --seed 5 --typical-p 0.9 --top-n-sigma 2 --repeat-penalty 1.1 "
        "--repeat-last-n -1 --presence-penalty 0.5 --frequency-penalty -0.25"
    )
    arguments = ["-m", "x.gguf", "-p", "abc", "-n", "9", *sampling.split()]
    assert run("generate", *arguments) == 0
    out, err = capsys.readouterr()
    assert out == TEXT + "\n"
    assert err == (
        "3 prompt tokens (1 reused), first token after 750 ms; 5 generated, 2.0 tokens/s; "
        "ended by stop\n"
    )
    assert made.engine.started and made.closed
    assert made.options.model == "x.gguf"
    assert made.engine.submitted == {
        "prompt": list(b"abc"), "max_tokens": 9, "temperature": 0.0, "top_k": 40, "top_p": 0.95,
        "min_p": 0.05, "typical_p": 0.9, "top_n_sigma": 2.0, "repeat_penalty": 1.1,
        "repeat_last_n": -1, "presence_penalty": 0.5, "frequency_penalty": -0.25, "seed": 5,
        "stop_tokens": [256],
    }  # fmt: skip


def test_generate_options_reach_the_runtime(runtime: Any, capsys: Any) -> None:
    made = runtime(answer())
    types = ["--cache-type-k", "q8_0", "--cache-type-v", "f32"]
    assert run("generate", "-p", "abc", "--ctx-size", "512", "--threads", "2", *types) == 0
    assert vars(made.options) == {
        "model": models.DEFAULT_MODEL, "ctx_size": 512, "pool_bytes": 0, "cache_type_k": "q8_0",
        "cache_type_v": "f32", "precision": "fast", "threads": 2, "swa_full": False,
        "resume_bytes": None, "resume_spacing": 512,
    }  # fmt: skip


def test_generate_json(runtime: Any, capsys: Any) -> None:
    runtime(answer(reason="length"))
    assert run("generate", "-p", "abc", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "text": TEXT, "finish_reason": "length", "prompt_tokens": 3, "cached_tokens": 1,
        "generated_tokens": 5, "time_to_first_token": 0.75, "generate_seconds": 2.0,
        "tokens_per_second": 2.0,
    }  # fmt: skip
    assert err == ""


def test_generate_chat_uses_the_template(runtime: Any, capsys: Any) -> None:
    made = runtime(answer())
    assert run("generate", "--chat", "-p", "Hi") == 0
    assert made.engine.submitted["prompt"] == [*b"<Hi>", 256]


def test_generate_reads_stdin(runtime: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = runtime(answer())
    stdin = SimpleNamespace(buffer=SimpleNamespace(read=lambda: "é".encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run("generate", "-p", "-") == 0
    assert made.engine.submitted["prompt"] == list("é".encode())
    stdin.buffer.read = lambda: b"\xff"
    assert run("generate", "-p", "-") == 1
    assert "stdin is not UTF-8" in capsys.readouterr().err


def test_generate_ends_with_half_a_character(runtime: Any, capsys: Any) -> None:
    events = [Event("started"), Event("token", 0xE4), Event("finished", reason="length")]
    runtime(events + [Event("token", 0x41)])
    assert run("generate", "-p", "abc") == 0
    assert capsys.readouterr().out == "\ufffd\n"


def test_generate_fails_alone(runtime: Any, capsys: Any) -> None:
    made = runtime(answer("a", reason="failed", error="[Engine] no cells; raise --ctx-size"))
    assert run("generate", "-p", "abc") == 1
    assert "pykv: error: [Engine] no cells; raise --ctx-size" in capsys.readouterr().err
    assert made.closed


def test_empty_prompt(runtime: Any, capsys: Any) -> None:
    made = runtime(answer())
    assert run("generate", "-p", "") == 1
    assert "the prompt has no tokens" in capsys.readouterr().err
    assert made.closed


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["generate"],
        ["generate", "-p", "x", "-n", "0"],
        ["generate", "-p", "x", "-n", "-1"],
        ["generate", "-p", "x", "-n", "9223372036854775807"],
        ["generate", "-p", "x", "-n", "many"],
        ["generate", "-p", "x", "--top-p", "1.5"],
        ["generate", "-p", "x", "--temp", "nan"],
        ["generate", "-p", "x", "--temp", "-1"],
        ["generate", "-p", "x", "--seed", "18446744073709551616"],
        ["generate", "-p", "x", "--repeat-penalty", "0"],
        ["generate", "-p", "x", "--repeat-last-n", "-2"],
        ["generate", "-p", "x", "--cache-type-k", "q3"],
        ["generate", "-p", "x", "--no-such-flag"],
        ["pull", "a", "b"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
    assert "usage: pykv" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], *[[name] for name in main.COMMANDS]])
def test_help(command: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*command, "--help")
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "usage: pykv" in out
    assert command or all(re.search(rf"^ +{name}\s", out, re.M) for name in main.COMMANDS)


def test_version(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        run("--version")
    assert capsys.readouterr().out.startswith(f"pykv {_core.build_info()['version']} (")


def test_missing_model_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setenv("PYKV_MODELS", str(tmp_path))
    monkeypatch.setattr(pull, "run", lambda args: models.resolve(models.DEFAULT_MODEL))
    assert run("pull") == 1
    err = capsys.readouterr().err
    assert err.startswith("pykv: error: [models.resolve] smollm2-135m is not in")
    assert err.endswith("run: pykv pull smollm2-135m\n")
    monkeypatch.setenv("PYKV_DEBUG", "1")
    with pytest.raises(_core.Error):
        run("pull")


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def need(name: str) -> Any:
        def failing(args: argparse.Namespace) -> int:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        return failing

    monkeypatch.setattr(generate, "run", need("tokenizers.models"))
    assert run("generate", "-p", "x") == 1
    assert "'tokenizers' is missing; pip install 'pykv-cache[server]'" in capsys.readouterr().err
    monkeypatch.setattr(generate, "run", need("pykv.nothing"))
    with pytest.raises(ModuleNotFoundError):
        run("generate", "-p", "x")


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(pull, "run", interrupted)
    assert run("pull") == 130


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    """`pykv … | head`: no traceback, no message."""
    code = (
        "import sys; from pykv.cli import main, pull\n"
        "def run(args):\n"
        "    while True: print('x' * 999)\n"
        "pull.run = run\n"
        "sys.exit(main.main(['pull']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1


@pytest.mark.parametrize("arguments", [["completion", "zsh"], ["generate", "--print-config"]])
def test_a_full_disk_is_an_error_without_a_traceback(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pykv", *arguments],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "pykv: error: [Errno 28] No space left on device\n"


def test_pull(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    calls: list[Any] = []

    def fake(name: str, *, verify: bool, accept_license: bool) -> Path:
        calls.append((name, verify, accept_license))
        return file

    monkeypatch.setattr(models, "pull", fake)
    assert run("pull") == 0
    out, err = capsys.readouterr()
    assert out == f"{file}\n"
    assert "98 MB, Apache-2.0" in err
    assert run("pull", "smollm2-135m", "--verify", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"name": "smollm2-135m", "path": str(file), "bytes": 4}
    assert err == ""
    assert run("pull", "gemma3-270m", "--accept-license") == 0
    assert (
        "253 MB, Gemma Terms of Use (https://ai.google.dev/gemma/terms)" in capsys.readouterr().err
    )
    assert calls == [
        ("smollm2-135m", False, False), ("smollm2-135m", True, False), ("gemma3-270m", False, True),
    ]  # fmt: skip


def test_python_m_pykv() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pykv", "pull", "no-such-model"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "pykv: error: [models.pull] no model is called 'no-such-model'; "
        "models by name: smollm2-135m, gemma3-270m\n"
    )
    assert done.stdout == ""
