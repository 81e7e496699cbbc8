"""Opening a model, and how large the pool becomes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pykv import _core, runtime
from pykv.engine import AsyncEngine, GenerateRequest
from pykv.memory import free_bytes
from pykv.runtime import Runtime, RuntimeOptions
from tests.reference.gguf_files import write_tiny_model

CONTEXT = 1024  # of the tiny model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("runtime") / "tiny.gguf"))


def with_free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(runtime, "free_bytes", lambda: count)


def test_opens_everything(tiny: str) -> None:
    with Runtime.open(RuntimeOptions(tiny, threads=1)) as opened:
        assert opened.model_path == Path(tiny)
        assert opened.model_id == "tiny"
        ids = opened.tokenizer.encode("the")
        assert opened.tokenizer.decode(ids) == "the"
        assert "hello" in opened.template.render([{"role": "user", "content": "hello"}])

        async def answer() -> int:
            engine = AsyncEngine(opened.engine)
            await engine.start()
            request = GenerateRequest(prompt=ids, max_tokens=3)
            count = len([e async for e in engine.generate(request) if e.kind == "token"])
            await engine.stop()
            return count

        assert asyncio.run(answer()) == 3
    opened.close()


def test_default_pool_is_64_contexts(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 1 << 40)
    facts = Runtime.open(RuntimeOptions(tiny)).pool_facts()
    assert facts.cells == 64 * CONTEXT
    assert facts.longest_request == CONTEXT


def test_default_pool_is_60_percent_of_free_memory(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_cell = Runtime.open(RuntimeOptions(tiny)).pool_facts().bytes_per_cell
    with_free(monkeypatch, 10_000 * per_cell)
    assert Runtime.open(RuntimeOptions(tiny)).pool_facts().cells in range(6_000, 6_064)


def test_less_than_one_context_is_refused(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    per_cell = Runtime.open(RuntimeOptions(tiny)).pool_facts().bytes_per_cell
    with_free(monkeypatch, 1_000 * per_cell)
    with pytest.raises(_core.InvalidArgument, match="--ctx-size 600") as caught:
        Runtime.open(RuntimeOptions(tiny))
    assert "holds 600 cells" in str(caught.value)
    assert "1024 tokens" in str(caught.value)
    with pytest.raises(_core.InvalidArgument, match="--pool-bytes"):
        Runtime.open(RuntimeOptions(tiny, pool_bytes=500 * per_cell))


def test_a_small_ctx_size_bounds_requests(tiny: str) -> None:
    opened = Runtime.open(RuntimeOptions(tiny, ctx_size=128))
    assert opened.pool_facts().cells == 128
    assert opened.pool_facts().longest_request == 128
    with pytest.raises(_core.InvalidArgument, match=r"129 tokens and the context is 128"):
        opened.engine.submit([1] * 129, 1)


def test_pool_bytes_bound_requests(tiny: str) -> None:
    per_cell = Runtime.open(RuntimeOptions(tiny)).pool_facts().bytes_per_cell
    opened = Runtime.open(RuntimeOptions(tiny, ctx_size=4096, pool_bytes=300 * per_cell))
    longest = opened.pool_facts().longest_request
    assert 192 <= longest <= 300
    with pytest.raises(_core.InvalidArgument, match=f"room for {longest}"):
        opened.engine.submit([1] * 301, 1)


def test_more_than_the_memory_is_refused(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 1 << 20)
    with pytest.raises(_core.InvalidArgument, match="--ctx-size 1000000 needs"):
        Runtime.open(RuntimeOptions(tiny, ctx_size=1_000_000))
    with pytest.raises(_core.InvalidArgument, match=f"--pool-bytes {1 << 30} is more than"):
        Runtime.open(RuntimeOptions(tiny, pool_bytes=1 << 30))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ctx_size": -1}, "--ctx-size is -1"),
        ({"ctx_size": 2**63 - 1}, "--ctx-size is 9223372036854775807"),
        ({"parallel": 0}, "--parallel is 0"),
        ({"parallel": 5000}, "--parallel is 5000"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"batch_size": 9000}, "--batch-size is 9000"),
        ({"batch_size": 8}, "--batch-size 8 is less than --parallel 16"),
        ({"threads": -1}, "--threads is -1"),
        ({"threads": 10**6}, "--threads is 1000000"),
        ({"pool_bytes": -1}, "--pool-bytes is -1"),
        ({"pool_bytes": 2**63}, "--pool-bytes"),
        ({"cache_type_k": "q3"}, "--cache-type-k 'q3' is not one of f32, f16, .*q8_0"),
        ({"cache_type_v": ""}, "--cache-type-v ''"),
    ],
)
def test_bad_options_name_the_flag(tiny: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(_core.InvalidArgument, match=message):
        Runtime.open(replace(RuntimeOptions(tiny), **change))


def test_wrong_types_are_type_errors(tiny: str) -> None:
    for value in ("4", 4.0, True, None):
        with pytest.raises(TypeError, match="--ctx-size"):
            Runtime.open(RuntimeOptions(tiny, ctx_size=value))  # type: ignore[arg-type]


def test_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(_core.Error):
        Runtime.open(RuntimeOptions(str(tmp_path / "none.gguf")))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(_core.Error):
        Runtime.open(RuntimeOptions(str(broken)))


def test_describe_says_cells_bytes_and_tokens(tiny: str) -> None:
    opened = Runtime.open(RuntimeOptions(tiny, ctx_size=2048, cache_type_v="q8_0"))
    text = opened.describe()
    assert "2,048 cells" in text
    assert f"{opened.pool_facts().bytes_per_cell:,} bytes" in text
    assert "K f16, V q8_0" in text
    assert "1,024 of one" in text


def test_a_fork_may_leave_an_open_runtime_behind(tiny: str) -> None:
    opened = Runtime.open(RuntimeOptions(tiny))
    opened.engine.start()
    child = os.fork()
    if child == 0:
        del opened  # would hang if it waited for threads that a fork does not have
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    opened.close()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 80 kB\n"}


def test_free_memory_of_the_machine(tmp_path: Path) -> None:
    assert free_bytes(write(tmp_path, MEMINFO)) == 80 * 1024


def test_free_memory_of_a_container(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/a/b"
    root = write(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "0::/a/b\n",
            f"{group}/memory.max": "max\n",
            f"{group}/memory.current": "5000\n",
            "sys/fs/cgroup/a/memory.max": "20000\n",
            "sys/fs/cgroup/a/memory.current": "15000\n",
            "sys/fs/cgroup/a/memory.stat": "anon 9000\ninactive_file 1000\n",
        },
    )
    assert free_bytes(root) == 6000
    (root / "sys/fs/cgroup/a/memory.current").write_text("30000\n")
    assert free_bytes(root) == 0


def test_free_memory_of_a_container_of_the_first_version(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu:/x\n3:memory:/elsewhere\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "30000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "10000\n",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 500\n",
    }
    root = write(tmp_path, MEMINFO | files)
    assert free_bytes(root) == 20500
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert free_bytes(root) == 80 * 1024
