"""`pykv doctor`: each check in good and bad weather."""

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pykv import _core
from pykv.cli import doctor, main
from pykv.cli.checks import Finding, install, machine, ports
from pykv.memory import limit_bytes
from tests.reference.gguf_files import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Own folders for models and state, so that a run finds nothing wrong."""
    monkeypatch.setenv("PYKV_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def free_ports() -> list[str]:
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        one, two = (str(sock.getsockname()[1]) for sock in (a, b))
    return ["--port", one, "--admin-port", two]


def run(capsys: Any, *arguments: str, code: int = 0) -> str:
    assert main.main(["doctor", *arguments]) == code
    out: str = capsys.readouterr().out
    return out


def states(text: str) -> dict[str, str]:
    return {each["name"]: each["state"] for each in json.loads(text)}


def test_a_healthy_machine(capsys: Any, healthy: Path) -> None:
    found = states(run(capsys, "--json", *free_ports()))
    assert set(found) == {
        "system", "processor", "kernels", "threads", "memory", "API", "dashboard", "models",
        "state", "packages",
    }  # fmt: skip
    assert "problem" not in found.values()
    assert found["models"] == "note"  # none is here
    text = run(capsys, *free_ports())
    assert "→ run: pykv pull" in text and "found" not in text


def test_problems_fail_the_check(capsys: Any, healthy: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        text = run(capsys, "--port", port, "--admin-port", "0", code=3)
    assert f"127.0.0.1 port {port} is held by " in text
    assert f"(process {os.getpid()})" in text
    assert "→ stop it, or choose another with --port" in text
    assert text.endswith("\n1 problem found.\n")


def test_threads_and_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cores = _core.Backend(threads=0).threads
    finding = machine._threads(cores + 1)
    assert finding.state == "problem" and f"--threads {cores}" in finding.advice
    assert machine._threads(0).state == "ok"
    monkeypatch.setattr(machine.os, "cpu_count", lambda: cores + 5)
    assert "container limit" in machine._threads(0).found
    (tmp_path / "proc").mkdir()
    assert machine._processor(tmp_path).state == "note"
    (tmp_path / "proc/cpuinfo").write_text(
        "model name\t: Fast\x1b[31m One\nflags\t\t: fpu avx2 fma lm avx512_vnni\n"
    )
    assert machine._processor(tmp_path).found == "Fast\\x1b[31m One: fma avx2 avx512_vnni"
    (tmp_path / "proc/cpuinfo").write_text("Features\t: fp asimd asimddp\n")
    assert machine._processor(tmp_path).found.endswith(": asimd asimddp")


def test_forced_tiers_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        isa, threads = "scalar", 1

        def __init__(self, threads: int) -> None: ...

        @staticmethod
        def available_isas() -> list[str]:
            return ["scalar", "avx2"]

    monkeypatch.setattr(machine._core, "Backend", Slow)
    finding = machine._kernels(0)
    assert finding.state == "note" and "avx2 is faster" in finding.advice


def test_memory_and_container_limits(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/meminfo", f"MemAvailable: {8 * GIB // 1024} kB\n")
    assert limit_bytes(tmp_path) is None
    assert machine._memory(tmp_path).found == "8.0 GiB free"
    write("proc/self/cgroup", "0::/a/b\n")
    write("sys/fs/cgroup/memory.max", "max\n")
    write("sys/fs/cgroup/a/memory.max", f"{2 * GIB}\n")
    write("sys/fs/cgroup/a/memory.current", f"{GIB}\n")
    write("sys/fs/cgroup/a/b/memory.max", f"{3 * GIB}\n")
    assert limit_bytes(tmp_path) == 2 * GIB
    assert machine._memory(tmp_path).found == "1.0 GiB free, container limit 2.0 GiB"
    write("sys/fs/cgroup/a/memory.current", f"{2 * GIB - 100}\n")
    finding = machine._memory(tmp_path)
    assert finding.state == "problem" and "--pool-bytes" in finding.advice
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")  # version 1
    assert limit_bytes(tmp_path) == GIB


def test_builds_without_optimization(monkeypatch: pytest.MonkeyPatch) -> None:
    info = _core.build_info() | {"build_type": "Debug"}
    monkeypatch.setattr(machine._core, "build_info", lambda: info)
    assert machine._system().state == "note"


def test_who_holds_a_port(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/tcp").write_text(
        "  sl  local_address rem_address   st ...\n"
        "   0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 00000000  1000  0 4242 1\n"
        "   1: 0100007F:1F90 0100007F:9999 01 0:0 00:0 00000000  1000  0 4243 1\n"
    )
    for process, inode in (("17", 4243), ("23", 4242)):
        (tmp_path / "proc" / process / "fd").mkdir(parents=True)
        (tmp_path / "proc" / process / "fd/3").symlink_to(f"socket:[{inode}]")
        (tmp_path / "proc" / process / "comm").write_text("a\x1bb\n")
    (tmp_path / "proc/99").mkdir()  # one that ended meanwhile
    assert ports.holder_of(0x1F90, tmp_path) == "a\\x1bb (process 23)"
    assert ports.holder_of(0x1F91, tmp_path) == ""
    assert ports.holder_of(0x1F90, tmp_path / "nothing") == ""


def test_addresses(capsys: Any, healthy: Path) -> None:
    ok = ["--port", "0", "--admin-port", "0"]
    found = json.loads(run(capsys, "--json", "--host", "203.0.113.7", *ok, code=3))
    assert [e["state"] for e in found if e["name"] == "API"] == ["problem", "note"]
    assert ports.reachable("0.0.0.0") and not ports.reachable("127.0.0.1")
    assert not ports.reachable("::1") and not ports.reachable("no.such.host.invalid")


def test_folders_that_cannot_be_used(healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.os, "access", lambda path, mode: False)
    found = install.check_folders()
    assert [each.state for each in found] == ["problem", "problem"]
    assert "PYKV_MODELS" in found[0].advice and "XDG_STATE_HOME" in found[1].advice


def test_models_that_are_here(healthy: Path, smollm2_path: Path) -> None:
    (healthy / "models").mkdir()
    (healthy / "models" / smollm2_path.name).symlink_to(smollm2_path)
    finding = install._models_folder()
    assert finding.state == "ok" and "smollm2-135m (93.8 MiB)" in finding.found


def test_open_secrets_are_problems(healthy: Path) -> None:
    folder = healthy / "state/pykv"
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / "admin.json").write_text("{}")
    (folder / "admin.json").chmod(0o600)
    assert [each.state for each in install._state_folder()] == ["ok"]
    (folder / "admin.json").chmod(0o640)
    (finding,) = install._state_folder()
    assert finding.advice == f"run: chmod 600 {folder / 'admin.json'}"
    folder.chmod(0o777)
    assert [each.advice.split()[2] for each in install._state_folder()] == ["700", "600"]


def test_strangers_files(healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (healthy / "state/pykv").mkdir(parents=True)
    monkeypatch.setattr(install.os, "geteuid", lambda: -1)
    assert "another user" in install._state_folder()[0].found


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["numpy>=1.24", "tokenizers>=99999; extra == 'server'", "no-such-package>=1",
             "tomli>=2; python_version < '3.11'"]  # fmt: skip
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)
    ok, missing, old = install.check_packages()
    assert ok.state == "ok" and "numpy " in ok.found
    assert missing.found == "missing: no-such-package"
    assert missing.state == "problem"
    assert missing.advice.startswith("pip install 'pykv-cache[server]'")
    assert old.found == "too old: needs tokenizers>=99999"

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["numpy", "no-such", "none"])
    assert [each.state for each in install.check_packages()] == ["ok", "note"]  # the library

    def absent(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert [each.state for each in install.check_packages()] == ["ok"]
    assert install._release("2.10.1rc1") == (2, 10, 1)
    assert install._release("dev") == ()


def test_it_runs_without_the_server_s_packages(capsys: Any, healthy: Path, tiny: str) -> None:
    """Which is when one needs it."""
    code = (
        "import sys\n"
        "for name in ('starlette', 'flask', 'rich', 'tokenizers', 'jinja2'):\n"
        "    sys.modules[name] = None\n"
        "from pykv.cli.main import main\n"
        f"codes = [main(['doctor', *{free_ports()}, '-m', {tiny!r}]), main(['info', {tiny!r}])]\n"
        "sys.exit(codes != [0, 0])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note     state" in done.stdout
    assert "the package 'jinja2' is missing" in done.stdout


def test_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: None)
    assert "ensurepip" in install.check_packages()[-1].advice


def test_a_model_and_its_memory_plan(capsys: Any, healthy: Path, tiny: str) -> None:
    ok = [*free_ports(), "-m", tiny]
    text = run(capsys, *ok, "-c", "4096")
    assert "4,096 cells" in text and "default pool" in text
    text = run(capsys, *ok, "-c", str(2**31 - 1), code=3)
    assert "use at most --ctx-size" in text
    assert states(run(capsys, *ok, "--json"))["pool"] == "ok"


def test_models_that_are_not_there(capsys: Any, healthy: Path) -> None:
    found = json.loads(run(capsys, "--json", *free_ports(), "-m", "none.gguf", code=3))
    assert "there is no file 'none.gguf'" in found[-1]["found"]


def test_the_report_is_aligned() -> None:
    findings = [Finding("a", "ok", "fine"), Finding("longer", "problem", "bad", "do it")]
    assert doctor._text(findings * 2) == (
        "ok       a       fine\n"
        "problem  longer  bad\n"
        "                 → do it\n"
        "ok       a       fine\n"
        "problem  longer  bad\n"
        "                 → do it\n"
        "\n2 problems found."
    )
