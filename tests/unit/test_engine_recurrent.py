"""The engine on recurrent and hybrid models: prompts are cut where resume points are due, answers
equal those of an engine of their own, states run out like cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reference.recurrent_files import TinyRecurrent, write_tiny_recurrent
from tests.unit.engine_machine import EngineMachine, solo

SPECS = {
    "mamba2": TinyRecurrent("mamba2", "rr"),
    "hybrid": TinyRecurrent("granitehybrid", "rar"),
    "lfm2": TinyRecurrent("lfm2", "rra", taps=3),
}


@pytest.fixture(scope="module", params=SPECS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recurrent")
    return write_tiny_recurrent(folder / "model.gguf", SPECS[request.param])


def test_the_same_prompt_twice(path: Path) -> None:
    """C17."""
    machine = EngineMachine(path, batch_size=64)
    prompt = machine.text(150, 1)
    first = machine.greedy(prompt, 12)
    machine.run()
    second = machine.greedy(prompt, 12)
    machine.run()
    assert machine.ends[first].cached_tokens == 0
    assert machine.ends[second].cached_tokens == 149
    alone = solo(path, prompt, 12, temperature=0.0)
    assert machine.tokens[first] == machine.tokens[second] == alone
    machine.cache.check_integrity()


def test_the_next_turn_goes_on_where_the_last_ended(path: Path) -> None:
    machine = EngineMachine(path)
    prompt = machine.text(60, 2)
    first = machine.greedy(prompt, 9)
    machine.run()
    turn = prompt + machine.tokens[first] + machine.text(20, 3)
    second = machine.greedy(turn, 9)
    machine.run()
    assert machine.ends[second].cached_tokens == 60 + 8  # its last token was not computed
    assert machine.tokens[second] == solo(path, turn, 9, temperature=0.0)


def test_a_point_is_made_where_prompts_part(path: Path) -> None:
    machine = EngineMachine(path)
    system = machine.text(90, 4)
    prompts = [system + machine.text(30, seed) for seed in (5, 6, 7)]
    requests = []
    for prompt in prompts:
        requests.append(machine.greedy(prompt, 4))
        machine.run()
    cached = [machine.ends[request].cached_tokens for request in requests]
    assert cached == [0, 0, 90]  # the second one came by and left a point
    for request, prompt in zip(requests, prompts, strict=True):
        assert machine.tokens[request] == solo(path, prompt, 4, temperature=0.0)


def test_many_sessions_beside_each_other(path: Path) -> None:
    machine = EngineMachine(path, batch_size=40, prefill_chunk=16)
    system = machine.text(70, 8)
    prompts = [system + machine.text(5 + 7 * seed, seed) for seed in range(6)]
    requests = [machine.greedy(prompt, 15, draft_max=4) for prompt in prompts]
    machine.run()
    for request, prompt in zip(requests, prompts, strict=True):
        assert machine.tokens[request] == solo(path, prompt, 15, temperature=0.0)
    assert machine.engine.snapshot()["drafted_tokens"] == 0  # a state takes back no guess
    machine.cache.check_integrity()


def test_sessions_wait_for_states(path: Path) -> None:
    machine = EngineMachine(path, pool={"max_sequences": 2, "resume_bytes": 0})
    prompts = [machine.text(20, seed) for seed in range(5)]
    requests = [machine.greedy(prompt, 6) for prompt in prompts]
    machine.run()
    for request, prompt in zip(requests, prompts, strict=True):
        assert machine.tokens[request] == solo(path, prompt, 6, temperature=0.0)
    machine.cache.check_integrity()
    assert machine.cache.stats()["states"]["slots_used"] == 0
