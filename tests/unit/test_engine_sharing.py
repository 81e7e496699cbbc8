"""Sessions that share: identical prompts at the same moment (C5), many on one prefix (C4); tenants
that must not (C3, C8); two engines on one model. A tiny random model; every answer equals that of
an engine of its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pykv import _core
from tests.reference.gguf_files import TinyModel, write_tiny_model
from tests.unit.engine_machine import EngineMachine, solo


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("sharing") / "tiny.gguf")


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Room for 10,100 tokens and an answer."""
    path = tmp_path_factory.mktemp("sharing") / "long.gguf"
    return write_tiny_model(path, TinyModel(layers=1, context=16384))


def computed(machine: EngineMachine) -> int:
    count: int = machine.engine.snapshot()["computed_prompt_tokens"]
    return count


def identical(machine: EngineMachine, count: int = 3) -> tuple[list[int], list[int]]:
    """A prompt, and that many requests for it with seeds of their own."""
    prompt = machine.text(400, 1)
    requests = [
        machine.engine.submit(prompt, 10, temperature=1.0, seed=seed) for seed in range(count)
    ]
    return prompt, requests


def check_answers(
    tiny: Path, machine: EngineMachine, prompt: list[int], requests: list[int]
) -> None:
    for request in requests:
        alone = solo(tiny, prompt, 10, temperature=1.0, seed=request - 1)
        assert machine.tokens[request] == alone
    machine.cache.check_integrity()


# --- C5 --------------------------------------------------------------------------


def test_identical_prompts_at_the_same_moment_are_computed_once(tiny: Path) -> None:
    machine = EngineMachine(tiny, batch_size=64)
    prompt, requests = identical(machine)
    machine.run()
    # The followers compute the last token, whose logits they need.
    assert computed(machine) == 400 + 2
    assert [machine.ends[r].cached_tokens for r in requests] == [0, 399, 399]
    check_answers(tiny, machine, prompt, requests)


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_the_leader_may_be_cancelled(tiny: Path, steps: int) -> None:
    machine = EngineMachine(tiny, batch_size=64)
    prompt, requests = identical(machine)
    for _ in range(steps):
        machine.engine.step_once()
    machine.engine.cancel(requests[0])
    machine.run()
    assert machine.ends[requests[0]].reason == "cancelled"
    assert computed(machine) == 400 + 1, "what the leader had computed is not computed again"
    check_answers(tiny, machine, prompt, requests[1:])


def test_a_follower_may_be_cancelled(tiny: Path) -> None:
    machine = EngineMachine(tiny, batch_size=64)
    prompt, requests = identical(machine)
    machine.engine.step_once()
    machine.engine.cancel(requests[1])
    machine.run()
    assert computed(machine) == 400 + 1
    check_answers(tiny, machine, prompt, [requests[0], requests[2]])


def test_the_leader_may_be_slow(tiny: Path) -> None:
    """Others generate, so that the leader gets 16 tokens a step; nobody computes ahead of it."""
    machine = EngineMachine(tiny, prefill_chunk=16)
    busy = [machine.greedy(machine.text(5, 90 + i), 200) for i in range(4)]
    machine.run_until(busy[0], 3)
    before = computed(machine)
    prompt = machine.text(400, 1)
    requests = [machine.engine.submit(prompt, 10, temperature=1.0, seed=s) for s in range(3)]
    for step in range(1, 25):
        machine.engine.step_once()
        machine.collect()
        assert computed(machine) - before == 16 * step
        assert machine.cache.stats()["cells_active"] <= 4 * 220 + 16 * step
    machine.run()
    assert computed(machine) - before == 400 + 2
    for seed, request in enumerate(requests):
        assert machine.tokens[request] == solo(tiny, prompt, 10, temperature=1.0, seed=seed)


def test_the_leader_may_be_preempted(tiny: Path) -> None:
    """A more important request takes the leader's place; the followers go on from its tokens."""
    machine = EngineMachine(tiny, batch_size=64, parallel=3)
    prompt, requests = identical(machine)
    machine.engine.step_once()
    machine.greedy(machine.text(30, 5), 5, priority=9)
    machine.run()
    assert machine.engine.snapshot()["preempted"] == 1
    assert computed(machine) <= 400 + 30 + 2
    check_answers(tiny, machine, prompt, requests)


def test_a_follower_that_comes_in_the_middle_waits_too(tiny: Path) -> None:
    machine = EngineMachine(tiny, batch_size=64)
    prompt = machine.text(400, 1)
    first = machine.engine.submit(prompt, 10, temperature=1.0, seed=0)
    for _ in range(3):
        machine.engine.step_once()
    second = machine.engine.submit(prompt, 10, temperature=1.0, seed=1)
    machine.run()
    assert computed(machine) == 400 + 1
    check_answers(tiny, machine, prompt, [first, second])


# --- C4 --------------------------------------------------------------------------


def test_ten_sessions_on_a_common_prefix_store_it_once(long: Path) -> None:
    machine = EngineMachine(long, cells=16384)
    common = machine.text(10_000, 1)
    prompts = [common + machine.text(100, 10 + i) for i in range(10)]
    for prompt in prompts:
        machine.greedy(prompt, 2)
    most = 0
    while machine.engine.step_once():
        machine.collect()
        stats = machine.cache.stats()
        most = max(most, stats["cells_capacity"] - stats["cells_free"])
    machine.collect()
    assert computed(machine) == 10_000 + 10 * 100
    # Each keeps a cell for the one token of its answer that has KV.
    assert 11_000 <= most <= 11_000 + 10 * 2
    assert machine.cache.stats()["cells_idle"] == most
    for index in (0, 9):
        alone = EngineMachine(long, cells=16384)
        request = alone.greedy(prompts[index], 2)
        alone.run()
        assert alone.tokens[request] == machine.tokens[index + 1]
    again = machine.greedy(prompts[4], 2)
    machine.run()
    assert machine.ends[again].cached_tokens == 10_099
    machine.cache.check_integrity()


# --- C3, C8 ----------------------------------------------------------------------

ROUNDS = 200
TENANTS = (1, 2)
POOL = 256


def test_nothing_crosses_between_tenants_whose_cells_are_reused(tiny: Path) -> None:
    """Both have one system prompt and the same texts behind a marker of their own. The texts come
    again and again in a pool that has room for four of them, beside the other's requests."""
    machine = EngineMachine(tiny, cells=POOL, parallel=4, batch_size=48)

    def marker(tenant: int) -> list[int]:
        return machine.text(8, 100 + tenant)

    system = machine.text(16, 1)
    texts = [machine.text(24, 10 + seed) for seed in range(8)]
    rng = random.Random(3)
    asked: dict[int, tuple[int, int]] = {}
    for round_number in range(ROUNDS):
        for tenant in TENANTS:
            which = rng.randrange(len(texts))
            prompt = [*system, *marker(tenant), *texts[which]]
            request = machine.engine.submit(prompt, 8, temperature=1.0, name_space=tenant)
            asked[request] = tenant, which
            if round_number == 0:
                machine.run()  # what the other one has stored is there to be found
        for _ in range(rng.randrange(4)):
            machine.engine.step_once()
            machine.collect()
    machine.run()
    alone = {
        (tenant, which): solo(tiny, [*system, *marker(tenant), *texts[which]], 8, temperature=1.0)
        for tenant, which in sorted(set(asked.values()))
    }
    assert len({tuple(answer) for answer in alone.values()}) > 12, "markers and texts matter"
    assert {request: machine.tokens[request] for request in asked} == {
        request: alone[which] for request, which in asked.items()
    }
    first = [min(r for r, (tenant, _) in asked.items() if tenant == each) for each in TENANTS]
    assert [machine.ends[request].cached_tokens for request in first] == [0, 0]
    snapshot = machine.engine.snapshot()
    assert snapshot["cache"]["evicted_cells_demand"] > 4 * POOL
    assert snapshot["tenants"]["default"]["hit_tokens"] > ROUNDS * len(system)
    machine.cache.check_integrity()


def test_probes_of_another_tenants_texts_reuse_nothing(tiny: Path) -> None:
    """C8: whether it guesses the whole text or its beginning."""
    machine = EngineMachine(tiny)
    private = [machine.text(60, seed) for seed in range(5)]
    for text in private:
        machine.greedy(text, 1, name_space=1)
    machine.run()
    guesses = [text[:length] for text, length in zip(private, (60, 40, 20, 5, 2), strict=True)]
    before = machine.cache.stats()["cells_idle"]
    probes = [machine.greedy(guess, 1, name_space=2) for guess in guesses]
    machine.run()
    assert [machine.ends[probe].cached_tokens for probe in probes] == [0] * 5
    assert machine.cache.stats()["cells_idle"] - before == sum(map(len, guesses))
    again = machine.greedy(private[0], 1, name_space=1)
    machine.run()
    assert machine.ends[again].cached_tokens == 59


# --- guesses ---------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.2, 0.7])
def test_guesses_change_no_token_of_a_real_forward_pass(tiny: Path, temperature: float) -> None:
    machine = EngineMachine(tiny, draft_max=16)
    prompts = [machine.text(9, seed) * 6 for seed in range(4)]
    for seed, prompt in enumerate(prompts):
        machine.engine.submit(prompt, 150, temperature=temperature, seed=seed, top_k=4)
    machine.run()
    assert machine.engine.snapshot()["accepted_tokens"] > 20
    for seed, prompt in enumerate(prompts):
        alone = solo(tiny, prompt, 150, temperature=temperature, seed=seed, top_k=4)
        assert machine.tokens[seed + 1] == alone
    machine.cache.check_integrity()


# --- several engines -------------------------------------------------------------


def test_two_engines_on_one_model_answer_side_by_side(tiny: Path) -> None:
    first = EngineMachine(tiny)
    second_cache = _core.Cache(
        layers=first.model.layer_table, backend=first.backend, cells=2048, watermarks=(0.0, 0.0)
    )
    engines = [first.engine, _core.Engine(first.model, second_cache)]
    prompts = [first.text(30, seed) for seed in range(2)]
    for engine in engines:
        engine.start()
    found: list[dict[int, list[int]]] = [{}, {}]
    ends: list[list[Any]] = [[], []]
    for engine in engines:
        for seed in range(4):
            engine.submit(prompts[seed % 2], 100, temperature=1.0, seed=seed)
    while min(map(len, ends)) < 4:
        for index, engine in enumerate(engines):
            for event in engine.drain():
                if event.kind == "token":
                    found[index].setdefault(event.request, []).append(event.token)
                elif event.kind == "finished":
                    ends[index].append(event)
    for engine in engines:
        engine.stop()
    assert {(event.reason, event.error) for each in ends for event in each} == {("length", "")}
    for seed in range(4):
        alone = solo(tiny, prompts[seed % 2], 100, temperature=1.0, seed=seed)
        assert found[0][seed + 1] == found[1][seed + 1] == alone
