"""Memory of windows and recurrent states: planned before loading, bounded when opened, and the
same pools in measurements as in the server."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pykv import _core, runtime
from pykv.bench.batched import BatchedBench, BatchedOptions, BatchedRow
from pykv.bench.perplexity import PerplexityBench, PerplexityOptions
from pykv.cli import main
from pykv.model_facts import ModelFacts
from pykv.pool_size import PoolRequest, memory_plan
from pykv.runtime import Runtime, RuntimeOptions
from tests.reference.peer_cases import write_case

KINDS = ("gemma3", "mamba2", "granitehybrid")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plans")
    return {name: write_case(folder / f"{name}.gguf", name) for name in KINDS}


@pytest.fixture
def run(capsys: Any) -> Any:
    def printed(*arguments: str, code: int = 0) -> str:
        assert main.main(arguments) == code
        out: str = capsys.readouterr().out
        return out

    return printed


def opened(path: Path, **options: Any) -> Runtime:
    return Runtime.open(RuntimeOptions(str(path), threads=1, **options))


@pytest.mark.parametrize("resume", [None, 0, 1 << 20])
@pytest.mark.parametrize("name", KINDS)
def test_the_plan_is_what_a_new_cache_says(
    models: dict[str, Path], name: str, resume: int | None
) -> None:
    runtime = opened(models[name], ctx_size=2048, parallel=3, resume_bytes=resume)
    request = PoolRequest(parallel=3, resume_bytes=resume, recurrent=runtime.model.recurrent_table)
    plan = memory_plan(runtime.model.layer_table, request, "f16", "f16", 2048)
    stats = runtime.cache.stats()
    assert {**stats, "generation": 0} == {**plan, "generation": 0}
    if resume is not None:
        assert stats["resume_bytes_budget"] == resume


@pytest.mark.parametrize("name", KINDS)
def test_the_default_pool_leaves_room_for_windows_and_states(
    models: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 8 << 20
    monkeypatch.setattr(runtime, "free_bytes", lambda: free)
    stats = opened(models[name]).cache.stats()
    beside = stats["bytes_reserved"] - stats["pools"][0]["bytes_reserved"]
    assert beside > 0
    block = sum(pool["bytes_per_cell"] for pool in stats["pools"]) * 64
    assert stats["bytes_reserved"] <= 0.6 * free + block  # capacities are whole blocks


def test_states_that_do_not_fit_are_refused(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "free_bytes", lambda: 1 << 20)
    with pytest.raises(_core.InvalidArgument, match=r"states of 64 sequences .* --parallel"):
        opened(models["mamba2"], parallel=64, batch_size=64)
    with pytest.raises(_core.InvalidArgument, match="lower --parallel or --resume-bytes"):
        opened(models["granitehybrid"], parallel=64, batch_size=64)
    few = opened(models["mamba2"], parallel=2, resume_bytes=0)
    assert few.cache.stats()["states"]["slots"] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resume_bytes": -1}, "--resume-bytes is -1"),
        ({"resume_spacing": -1}, "--resume-spacing is -1"),
        ({"resume_spacing": 2**31}, "--resume-spacing is 2147483648"),
    ],
)
def test_bad_values_name_the_flag(
    models: dict[str, Path], change: dict[str, int], message: str
) -> None:
    with pytest.raises(_core.InvalidArgument, match=message):
        opened(models["gemma3"], **change)


def test_start_up_says_windows_and_states(models: dict[str, Path]) -> None:
    assert re.search(
        r"and [0-9,]+ of 1,536 for windows of 50 ", opened(models["gemma3"]).describe()
    )
    assert re.search(r"and [0-9,]+ states of [0-9,]+ ", opened(models["mamba2"]).describe())


def test_info_and_doctor_show_every_pool(models: dict[str, Path], run: Any) -> None:
    text = run("info", str(models["gemma3"]), "--resume-bytes", "1048576")
    assert re.search(r"\nall tokens +1 ", text) and re.search(r"\nwindow of 50 +6 ", text)
    assert "Resume points, within that: 1.0 MiB at most." in text
    text = run("info", str(models["granitehybrid"]))
    assert re.search(r"\nall tokens +1 ", text) and re.search(r"\nstates +3 ", text)
    assert "window of" not in run("info", str(models["gemma3"]), "--swa-full")
    flags = ["--port", "0", "--admin-port", "0", "-m", str(models["mamba2"])]
    assert re.search(r"\nstates +3 ", run("doctor", *flags))


def test_info_as_json_has_states(models: dict[str, Path], run: Any) -> None:
    plan = json.loads(run("info", str(models["granitehybrid"]), "--json"))["plan"]
    facts = ModelFacts(_core.GgufFile(models["granitehybrid"]))
    states = plan["states"]
    assert states["slots"] >= 2 * PoolRequest().parallel
    assert states["bytes_per_slot"] >= 4 * sum(map(sum, facts.recurrent))
    assert plan["bytes_reserved"] == states["slots"] * states["bytes_per_slot"] + sum(
        pool["bytes_reserved"] for pool in plan["pools"]
    )
    tokens = facts.context
    assert plan["context_bytes"] == tokens * plan["bytes_per_token"] + states["bytes_per_slot"]


# --- measurements ------------------------------------------------------------------


def measure(path: Path, **changes: Any) -> list[BatchedRow]:
    options = BatchedOptions(path, npp=[400], ntg=[3], npl=[1, 20], batch_size=64, threads=1)
    return list(BatchedBench(replace(options, **changes)).run())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_bench_has_room_for_all_its_sequences(
    models: dict[str, Path], name: str, shared: bool
) -> None:
    rows = measure(models[name], shared_prompt=shared)
    assert [row.computed_tokens for row in rows] == [403, (1 if shared else 20) * 400 + 60]


def test_bench_keeps_of_windows_what_they_reach(models: dict[str, Path]) -> None:
    windows, full = (
        measure(models["gemma3"], swa_full=swa_full, resume_bytes=0)[1]
        for swa_full in (False, True)
    )
    assert windows.kv_bytes < 0.5 * full.kv_bytes


def test_eval_with_window_pools_gives_the_same_figures(models: dict[str, Path]) -> None:
    options = PerplexityOptions(
        models["gemma3"], [("f16", "f16"), ("q4_0", "q4_0")], window=300, windows=2, threads=1
    )
    text = "the cat sat on a mat and was not seen again " * 40
    windows = PerplexityBench(options, text).run()
    assert windows == PerplexityBench(replace(options, swa_full=True), text).run()
    assert windows.types[0].bytes_per_token == 7 * 2 * (32 + 32) * 2
