"""`pykv serve`, from flags to exit code."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pykv.cli.main import main
from tests.reference.gguf_files import TinyModel, write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
LONG = 32768
"""Tokens that even a tiny model needs seconds for."""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = TinyModel(context=LONG)
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", spec)


@pytest.fixture(autouse=True)
def no_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; the tests that start one use another."""
    monkeypatch.setattr("pykv.runtime.Runtime.open", None)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--port", "-1"], "--port"),
        (["--port", "65536"], "--port"),
        (["--port", "http"], "--port"),
        (["--admin-port", "9" * 30], "--admin-port"),
        (["--port", "8081"], "--admin-port"),
        (["--ctx-size", "-5"], "--ctx-size"),
        (["-c", "1.5"], "--ctx-size"),
        (["-c", str(2**63 - 1)], "--ctx-size"),
        (["--pool-bytes", "-1"], "--pool-bytes"),
        (["-np", "0"], "--parallel"),
        (["-np", "5000"], "--parallel"),
        (["-b", "0"], "--batch-size"),
        (["-b", "8", "-np", "16"], "--batch-size"),
        (["-ctk", "q3_9"], "--cache-type-k"),
        (["--cache-type-v", "F16"], "--cache-type-v"),
        (["-t", "-1"], "--threads"),
        (["--default-priority", "101"], "--default-priority"),
        (["--default-timeout", "-1"], "--default-timeout"),
        (["--alias", "two words"], "--alias"),
        (["--alias", ""], "--alias"),
        (["one.gguf", "-m", "two.gguf"], "--model"),
        (["--kv-unify"], "--kv-unify"),
    ],
)
def test_bad_flags(capsys: pytest.CaptureFixture[str], flags: list[str], named: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["serve", *flags])
    assert exit_.value.code == 2
    assert named in capsys.readouterr().err


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["serve", "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--port", "--admin-port", "--ctx-size", "--parallel", "--batch-size", "--threads"):
        assert flag in text


def test_a_missing_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYKV_MODELS", str(tmp_path))
    assert main(["serve"]) == 1
    assert "pykv pull" in capsys.readouterr().err
    assert main(["serve", "-m", str(tmp_path / "none.gguf")]) == 1
    assert "none.gguf" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "other"), [("--port", "--admin-port"), ("--admin-port", "--port")]
)
def test_an_occupied_port(
    capsys: pytest.CaptureFixture[str], model_file: Path, flag: str, other: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = main(["serve", str(model_file), flag, str(port), other, "0"])
    message = capsys.readouterr().err
    assert code == 1
    assert str(port) in message
    assert flag in message


def test_an_address_of_another_machine(
    capsys: pytest.CaptureFixture[str], model_file: Path
) -> None:
    address = "192.0.2.1"  # of the network for documentation
    code = main(["serve", str(model_file), "--host", address, "--port", "0", "--admin-port", "0"])
    assert code == 1
    assert f"on {address} cannot be used" in (message := capsys.readouterr().err)
    assert "choose another with --host" in message


def test_an_unusable_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found before the model is loaded, which cannot be done here."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    assert main(["serve", "-m", str(model), "--port", "0", "--admin-port", "0"]) == 1
    assert "XDG_STATE_HOME" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid", "256.1.1.1"])
def test_an_address_that_is_not_ours(
    capsys: pytest.CaptureFixture[str], model_file: Path, host: str
) -> None:
    assert main(["serve", str(model_file), "--host", host, "--port", "0"]) == 1
    assert host in capsys.readouterr().err


class Server:
    """A `pykv serve` process."""

    def __init__(self, model: Path, home: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "pykv", "serve", str(model), "-c", str(LONG), "-t", "1"]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--admin-port", "0", "--alias", "tiny", *flags],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.printed = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if "-d '" in line:
                break
        found = re.search(r"API +(http://127\.0\.0\.1:\d+)/v1", self.printed)
        assert found, self.printed + self.process.communicate()[1]
        self.url = found[1]

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, error = self.process.communicate(timeout=60)
        return self.process.returncode, error


@pytest.fixture
def server(model_file: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The parameter of the fixture is more flags."""
    server = Server(model_file, tmp_path, *getattr(request, "param", ()))
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(server: Server, number: signal.Signals) -> None:
    """Open streams end with an error event; the exit code is 0."""
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = {"prompt": "the cat", "max_tokens": LONG, "stream": True, "temperature": 0}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as reply:
            for line in reply.iter_lines():
                lines.append(line)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(30)
    code, error = server.stop(number)
    reader.join(30)
    assert code == 0, error
    assert "Traceback" not in error
    assert "server_stopping" in [line for line in lines if line][-1]


def test_what_it_prints(server: Server) -> None:
    assert "curl " in server.printed
    reply = httpx.get(f"{server.url}/v1/models")
    assert reply.json()["data"][0]["id"] == "tiny"
    code, error = server.stop(signal.SIGTERM)
    assert code == 0, error
    assert "Loading" in error
    assert re.search(r"cells", error)
    assert "Stopped." in error


@pytest.mark.parametrize("server", [["--default-timeout", "0.05"]], indirect=True)
def test_the_default_timeout_ends_what_gives_none(server: Server) -> None:
    body = {"prompt": "the cat", "max_tokens": LONG, "temperature": 0, "ignore_eos": True}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 504
    assert "0.05 s" in reply.json()["error"]["message"]
