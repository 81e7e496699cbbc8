"""An engine on a model with windows whose layers have a pool of their own: answers are those of
a cache that keeps all tokens, prefixes are reused, rewinds recompute little."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pykv import _core
from tests.reference.gguf_files import TinyModel, write_tiny_model
from tests.unit.engine_machine import EngineMachine

WINDOW = 32
SPACING = 64


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = TinyModel(
        "gemma3",
        metadata=(
            ("attention.sliding_window", WINDOW),
            ("attention.sliding_window_pattern", 2),
        ),
    )
    return write_tiny_model(tmp_path_factory.mktemp("windows") / "tiny.gguf", spec)


def windowed(
    path: Path, cells: int = 4096, limits: dict[str, Any] | None = None, **more: Any
) -> EngineMachine:
    machine = EngineMachine(path, cells=64, **(limits or {}))
    machine.cache = _core.Cache(
        layers=_core.with_window_pools(machine.model.layer_table),
        ropes=machine.model.ropes,
        backend=machine.backend,
        cells=cells,
        watermarks=(0.0, 0.0),
        **{"resume_spacing": SPACING, "resume_bytes": 1 << 20, **more},
    )
    machine.engine = _core.Engine(
        machine.model, machine.cache, **({"gap_factor": 0.0} | (limits or {}))
    )
    return machine


def solo(path: Path, prompt: Sequence[int], max_tokens: int, **more: Any) -> list[int]:
    machine = EngineMachine(path)
    request = machine.engine.submit(prompt, max_tokens, **more)
    machine.run()
    return machine.tokens[request]


def miss_tokens(machine: EngineMachine) -> dict[str, int]:
    misses: dict[str, int] = machine.engine.snapshot()["tenants"]["default"]["miss_tokens"]
    return misses


def test_answers_are_those_of_a_cache_that_keeps_all_tokens(tiny: Path) -> None:
    machine = windowed(tiny, limits={"parallel": 5, "batch_size": 24, "prefill_chunk": 7})
    pools = machine.cache.stats()["pools"]
    assert [pool["window"] for pool in pools] == [None, ("standard", WINDOW)]
    prompts = [machine.text(100, i % 3) + machine.text(5 + 9 * i, 50 + i) for i in range(10)]
    for seed, prompt in enumerate(prompts):
        machine.engine.submit(prompt, 40, temperature=1.0, seed=seed)
    machine.run()
    for seed, prompt in enumerate(prompts):
        assert machine.tokens[seed + 1] == solo(tiny, prompt, 40, temperature=1.0, seed=seed)
    machine.cache.check_integrity()
    assert machine.engine.snapshot()["tenants"]["default"]["hit_tokens"] > 0


def test_guesses_change_no_answer(tiny: Path) -> None:
    machine = windowed(tiny, limits={"draft_max": 8})
    prompt = machine.text(12, 3) * 6
    machine.greedy(prompt, 100)
    machine.run()
    assert machine.tokens[1] == solo(tiny, prompt, 100, temperature=0.0)
    machine.cache.check_integrity()


def test_the_same_prompt_again_computes_one_token(tiny: Path) -> None:  # C17
    machine = windowed(tiny)
    prompt = machine.text(300, 1)
    for _ in range(2):
        machine.greedy(prompt, 3)
        machine.run()
    snapshot = machine.engine.snapshot()
    assert machine.ends[2].cached_tokens == 299
    assert snapshot["computed_prompt_tokens"] == 301
    assert machine.tokens[1] == machine.tokens[2]
    assert miss_tokens(machine) == {"first_seen": 300, "last_token": 1}


def test_a_conversation_goes_on_where_its_last_turn_ended(tiny: Path) -> None:
    machine = windowed(tiny)
    turn = machine.text(200, 1)
    machine.greedy(turn, 20)
    machine.run()
    longer = turn + machine.tokens[1] + machine.text(50, 2)
    machine.greedy(longer, 5)
    machine.run()
    assert machine.ends[2].cached_tokens == 219  # the answer's last token is not stored
    assert machine.tokens[2] == solo(tiny, longer, 5, temperature=0.0)


def test_an_edited_message_recomputes_from_the_last_resume_point(tiny: Path) -> None:  # C16
    machine = windowed(tiny)
    before = machine.text(150, 1)
    machine.greedy(before + machine.text(100, 2), 5)
    machine.run()
    edited = before + machine.text(100, 3)
    machine.greedy(edited, 5)
    machine.run()
    reused = machine.ends[2].cached_tokens
    assert 150 - SPACING < reused <= 150
    assert reused == 128
    assert miss_tokens(machine)["no_resume_point"] == 22
    assert machine.tokens[2] == solo(tiny, edited, 5, temperature=0.0)
    again = before + machine.text(100, 4)
    machine.greedy(again, 5)
    machine.run()
    assert machine.ends[3].cached_tokens == 150, "where prompts parted once is a point"
    tenant = machine.engine.snapshot()["tenants"]["default"]
    assert tenant["query_tokens"] == tenant["hit_tokens"] + sum(tenant["miss_tokens"].values())


def test_followers_wait_for_a_prompt_that_is_computed(tiny: Path) -> None:
    machine = windowed(tiny, limits={"batch_size": 32, "prefill_chunk": 32}, resume_bytes=0)
    shared = machine.text(400, 1)
    for seed in range(4):
        machine.greedy(shared + machine.text(10, 10 + seed), 4)
    machine.run()
    computed = machine.engine.snapshot()["computed_prompt_tokens"]
    assert computed <= 400 + 4 * 10 + 3 * 32, "the shared part is computed once"
    for seed in range(4):
        alone = solo(tiny, shared + machine.text(10, 10 + seed), 4, temperature=0.0)
        assert machine.tokens[seed + 1] == alone


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_too_small_a_window_pool_changes_no_answer(tiny: Path, temperature: float) -> None:
    machine = windowed(
        tiny, window_cells=192, limits={"batch_size": 64, "prefill_chunk": 64}, resume_bytes=1 << 14
    )
    prompts = [machine.text(80 + 10 * i, 20 + i) for i in range(8)]
    for seed, prompt in enumerate(prompts):
        machine.engine.submit(prompt, 60, temperature=temperature, seed=seed)
    machine.run()
    for seed, prompt in enumerate(prompts):
        assert machine.ends[seed + 1].reason == "length"
        assert machine.tokens[seed + 1] == solo(
            tiny, prompt, 60, temperature=temperature, seed=seed
        )
    machine.cache.check_integrity()
