"""The engine on a real (tiny) model, step by step."""

from __future__ import annotations

import ctypes
import os
import select
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pykv import _core
from tests.reference.gguf_files import write_tiny_model
from tests.unit.engine_machine import EngineMachine, solo


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("engine") / "tiny.gguf")


def test_second_session_computes_its_suffix_while_the_first_generates(tiny: Path) -> None:  # C1
    machine = EngineMachine(tiny)
    common = machine.text(300, 1)
    first = machine.greedy(common + machine.text(10, 2), 100)
    machine.run_until(first, 3)
    before = machine.engine.snapshot()
    prompt = common + machine.text(12, 3)
    second = machine.greedy(prompt, 5)
    machine.engine.step_once()
    after = machine.engine.snapshot()
    assert after["computed_prompt_tokens"] - before["computed_prompt_tokens"] == 12
    assert after["generating"] == 2
    assert [machine.cache.shared_cells(s) for s in machine.cache.sequences()] == [300, 300]
    machine.run()
    assert machine.ends[second].cached_tokens == 300
    assert machine.tokens[second] == solo(tiny, prompt, 5, temperature=0.0)


def test_a_hit_never_consumes_what_it_hit(tiny: Path) -> None:  # C2
    machine = EngineMachine(tiny)
    system = machine.text(100, 1)
    a, c = system + machine.text(40, 2), system + machine.text(40, 3)
    for prompt in (a, c, a):
        before = machine.engine.snapshot()["computed_prompt_tokens"]
        request = machine.greedy(prompt, 4)
        machine.run()
    assert machine.engine.snapshot()["computed_prompt_tokens"] - before == 1
    assert machine.ends[request].cached_tokens == 139
    assert machine.tokens[1] == machine.tokens[3]
    tenant = machine.engine.snapshot()["tenants"]["default"]
    assert tenant["query_tokens"] == 420
    assert tenant["hit_tokens"] == 239
    assert tenant["miss_tokens"] == {"first_seen": 180, "last_token": 1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_too_small_a_pool_changes_no_answer(tiny: Path, temperature: float) -> None:  # C9, C27
    machine = EngineMachine(tiny, cells=1024)
    prompts = [machine.text(8, seed) for seed in range(4)]
    for seed, prompt in enumerate(prompts):
        machine.engine.submit(prompt, 300, temperature=temperature, seed=seed)
    machine.run()
    snapshot = machine.engine.snapshot()
    assert snapshot["preempted"] == snapshot["resumed"] == 1
    assert list(machine.ends)[-1] == 4, "the youngest gives way and finishes later"
    for seed, prompt in enumerate(prompts):
        alone = solo(tiny, prompt, 300, temperature=temperature, seed=seed)
        assert machine.tokens[seed + 1] == alone
        assert machine.ends[seed + 1].reason == "length"
    assert snapshot["tenants"]["default"]["query_tokens"] == 32
    assert snapshot["tenants"]["default"]["hit_tokens"] == 0
    machine.cache.check_integrity()


def test_alone_and_in_a_crowd_the_tokens_are_equal(tiny: Path) -> None:
    machine = EngineMachine(tiny, parallel=5, batch_size=24, prefill_chunk=7)
    prompts = [machine.text(60, i % 3) + machine.text(5 + 3 * i, 50 + i) for i in range(10)]
    for seed, prompt in enumerate(prompts):
        machine.engine.submit(prompt, 12, temperature=1.0, seed=seed)
    machine.run()
    for seed, prompt in enumerate(prompts):
        assert machine.tokens[seed + 1] == solo(tiny, prompt, 12, temperature=1.0, seed=seed)


def test_snapshot_has_the_names_of_the_headers(tiny: Path) -> None:
    machine = EngineMachine(tiny, parallel=1)
    for seed in range(2):
        machine.greedy(machine.text(10, seed), 5, tenant="ann")
    machine.engine.step_once()
    snapshot = machine.engine.snapshot()
    headers = Path(__file__).parents[2] / "cpp/include/pykv"
    engine_h, cache_h = ((headers / name).read_text() for name in ("engine.h", "cache.h"))
    parts = {
        "struct EngineSnapshot": snapshot,
        "struct EngineLimits": snapshot["limits"],
        "struct Histogram": snapshot["step_duration"],
        "struct SessionView": snapshot["sessions"][0],
        "struct TenantCounters": snapshot["tenants"]["ann"],
    }
    for struct, part in parts.items():
        assert set(part) == fields_of(engine_h, struct), struct
    assert set(snapshot["cache"]) == fields_of(cache_h, "struct CacheStats")
    assert snapshot["sessions"][0]["state"] == "generating"
    assert snapshot["sessions"][1]["state"] == "waiting"
    assert snapshot["waiting"] == snapshot["generating"] == 1
    states = ("computing", "active", "pinned", "resume", "idle", "free")
    cache = snapshot["cache"]
    assert sum(cache[f"cells_{state}"] for state in states) == cache["cells_capacity"]


def fields_of(header: str, struct: str) -> set[str]:
    """Names of the data members of a struct in a header."""
    body = header.split(struct + " {", 1)[1].split("\n};", 1)[0]
    lines = (line.split("//")[0] for line in body.splitlines())
    names = set()
    for member in " ".join(lines).split(";"):
        for part in member.split(">")[-1].split(","):
            if part.split("=")[0].strip():
                names.add(part.split("=")[0].split()[-1])
    return names


def test_logprobs_and_events(tiny: Path) -> None:
    machine = EngineMachine(tiny)
    request = machine.greedy(machine.text(10, 1), 3, logprobs=2)
    while machine.engine.step_once():
        pass
    events = machine.engine.drain()
    assert [event.kind for event in events] == ["started", "token", "token", "token", "finished"]
    assert {event.request for event in events} == {request}
    for event in events[1:4]:
        assert event.top[0] == (event.token, event.logprob)
        assert len(event.top) == 2
        assert event.reason == "none"
    assert events[-1].reason == "length"
    assert events[-1].generated_tokens == 3
    assert "kind='finished'" in repr(events[-1])


def test_fd_is_readable_while_there_are_events(tiny: Path) -> None:
    machine = EngineMachine(tiny)
    fd = machine.engine.notify_fd()
    assert select.select([fd], [], [], 0)[0] == []
    machine.greedy(machine.text(10, 1), 3)
    machine.engine.step_once()
    assert select.select([fd], [], [], 0)[0] == [fd]
    machine.engine.drain()
    assert select.select([fd], [], [], 0)[0] == []


HUGE = 2**63 - 1
BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "prompt is empty"),
    ({"prompt": [-1]}, r"prompt\[0\] is -1, must be 0 to 2147483647"),
    ({"prompt": [HUGE]}, r"prompt\[0\] is 9223372036854775807"),
    ({"prompt": [10**6]}, r"prompt\[0\] is 1000000"),
    ({"prompt": [1] * 2000}, "2000 tokens and the context is 1024"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": -5}, "max_tokens is -5"),
    ({"max_tokens": HUGE}, "max_tokens is 9223372036854775807"),
    ({"max_tokens": 10**5000}, r"max_tokens is greater than 2\*\*63 - 1"),
    ({"top_k": -1}, "top_k is -1"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": float("nan")}, "top_p"),
    ({"min_p": -0.1}, "min_p"),
    ({"temperature": -1.0}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"typical_p": 2.0}, "typical_p"),
    ({"top_n_sigma": float("nan")}, "top_n_sigma"),
    ({"repeat_penalty": -1.0}, "repeat_penalty is -1"),
    ({"repeat_last_n": HUGE}, "repeat_last_n is"),
    ({"presence_penalty": 9.0}, "presence_penalty is 9"),
    ({"frequency_penalty": float("inf")}, "frequency_penalty"),
    ({"logit_bias": {10**6: 1.0}}, "a token of logit_bias is 1000000; token ids of this model"),
    ({"logit_bias": {HUGE: 1.0}}, "a token of logit_bias is 9223372036854775807"),
    ({"choices": 0}, "choices is 0"),
    ({"choices": 129}, "choices is 129; it must be 1 to 128"),
    ({"seed": -1}, "seed is -1, must be 0"),
    ({"seed": 2**64}, "seed is 18446744073709551616"),
    ({"seed": 10**5000}, "seed is of over 128 bits"),
    ({"logprobs": 21}, "logprobs is 21"),
    ({"logprobs": -1}, "logprobs is -1"),
    ({"stop_tokens": [10**6]}, "stop_tokens"),
    ({"name_space": -1}, "name_space is -1"),
    ({"name_space": HUGE}, "name_space is"),
    ({"tenant": ""}, "tenant"),
    ({"tenant": "x" * 200}, "tenant has 200 bytes"),
    ({"priority": HUGE}, "priority"),
    ({"draft_max": 33}, "draft_max is 33; the limit is 32"),
    ({"draft_max": -1}, "draft_max is -1"),
    ({"timeout": 0.0}, "timeout is 0.0.* s; it must be more than 0 and at most 86400"),
    ({"timeout": float("nan")}, "timeout is"),
]


@pytest.mark.parametrize(("change", "message"), BAD_REQUESTS)
def test_bad_numbers_are_refused_and_change_nothing(  # C34
    tiny: Path, change: dict[str, Any], message: str
) -> None:
    machine = EngineMachine(tiny)
    request: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 2} | change
    with pytest.raises(_core.InvalidArgument, match=message) as caught:
        machine.engine.submit(request.pop("prompt"), request.pop("max_tokens"), **request)
    assert str(caught.value).startswith("[")
    assert not machine.engine.step_once()
    assert machine.cache.sequences() == []


@pytest.mark.parametrize("prompt", ["text", 7, None, [1.5], ["a"], [None]])
def test_wrong_types_are_type_errors(tiny: Path, prompt: Any) -> None:
    machine = EngineMachine(tiny)
    with pytest.raises(TypeError, match=r"\[Engine.submit\] prompt"):
        machine.engine.submit(prompt, 5)
    with pytest.raises(TypeError, match="max_tokens"):
        machine.engine.submit([1], 2.5)


def test_engine_and_live_limits_are_checked(tiny: Path) -> None:
    machine = EngineMachine(tiny)
    for bad in (
        {"draft_max": 33},
        {"parallel": 0},
        {"parallel": -1},
        {"batch_size": HUGE},
        {"queue_length": 0},
    ):
        with pytest.raises(_core.InvalidArgument, match=next(iter(bad))):
            machine.engine.set_limits(**bad)
        with pytest.raises(_core.InvalidArgument, match=next(iter(bad))):
            _core.Engine(machine.model, machine.cache, **bad)
    with pytest.raises(_core.InvalidArgument, match="ageing_seconds is -1"):
        machine.engine.set_limits(ageing_seconds=-1.0)
    for factor in (1.0, -1.0, 101.0, float("nan")):
        with pytest.raises(_core.InvalidArgument, match=f"gap_factor is {factor}"):
            machine.engine.set_limits(gap_factor=factor)
    with pytest.raises(TypeError, match="speed"):
        machine.engine.set_limits(speed=3)
    with pytest.raises(_core.InvalidArgument, match="batch_size is 4 and parallel is 16"):
        machine.engine.set_limits(batch_size=4)
    for context, number in ((machine.context + 1, "1025"), (-1, "-1")):
        with pytest.raises(_core.InvalidArgument, match=f"context is {number}"):
            _core.Engine(machine.model, machine.cache, context=context)
    with pytest.raises(_core.InvalidArgument, match="event_capacity is 0"):
        _core.Engine(machine.model, machine.cache, event_capacity=0)
    with pytest.raises(_core.InvalidArgument):
        machine.engine.set_watermarks(0.5, float("nan"))
    with pytest.raises(_core.InvalidArgument, match="request is -1"):
        machine.engine.cancel(-1)
    machine.engine.cancel(HUGE)  # a valid id that nobody has
    assert machine.engine.snapshot()["limits"]["parallel"] == 16


def test_limits_change_one_at_a_time(tiny: Path) -> None:
    machine = EngineMachine(tiny, parallel=8)
    machine.engine.set_limits(prefill_chunk=32)
    machine.engine.set_limits(queue_length=5)
    machine.engine.set_limits(ageing_seconds=60.0)
    machine.engine.set_limits(gap_factor=3.0)
    machine.engine.set_limits(draft_max=4)
    machine.engine.set_watermarks(0.1, 0.2)
    assert machine.engine.step_once()
    snapshot = machine.engine.snapshot()
    assert snapshot["limits"] == {
        "parallel": 8,
        "batch_size": 256,
        "prefill_chunk": 32,
        "queue_length": 5,
        "ageing_seconds": 60.0,
        "gap_factor": 3.0,
        "draft_max": 4,
    }
    assert snapshot["watermarks"] == {"low": 0.1, "high": 0.2}


def test_full_queue_is_busy(tiny: Path) -> None:
    machine = EngineMachine(tiny, queue_length=1)
    machine.greedy([1], 1)
    with pytest.raises(_core.Busy, match="queue_length is 1"):
        machine.greedy([1], 1)
    machine.run()
    assert machine.engine.snapshot()["requests"]["rejected"] == 1


def test_start_and_stop_may_be_repeated(tiny: Path) -> None:
    machine = EngineMachine(tiny)
    machine.engine.stop()
    with pytest.raises(_core.Busy, match="stopped"):
        machine.greedy([1], 1)
    machine.engine.start()
    machine.engine.start()
    with pytest.raises(_core.InvalidArgument, match="thread is running"):
        machine.engine.step_once()
    request = machine.greedy([1, 2, 3], 900)
    machine.engine.stop()
    machine.engine.stop()
    machine.collect()
    assert machine.ends[request].reason == "cancelled"
    assert machine.cache.sequences() == []
    machine.engine.start()
    again = machine.greedy([1, 2, 3], 4)
    machine.await_end(again)
    assert machine.ends[again].reason == "length"


def test_an_engine_may_be_dropped_while_it_works(tiny: Path) -> None:
    machine = EngineMachine(tiny)
    machine.engine.start()
    machine.greedy([1, 2, 3], 900)
    cache = machine.cache
    del machine
    assert cache.sequences() == []


def test_holding_the_gil_changes_no_step(tiny: Path) -> None:
    machine = EngineMachine(tiny, queue_length=4)
    prompt, steps = machine.text(20, 1), 100
    machine.engine.start()
    request = machine.greedy(prompt, steps)
    # PyDLL keeps the GIL during the call: for two seconds no Python code runs at all.
    ctypes.PyDLL(None).usleep(2_000_000)
    machine.collect()  # the first Python since: everything must be there already
    assert len(machine.tokens[request]) == steps
    assert machine.ends[request].reason == "length"
    assert machine.engine.snapshot()["steps"] == steps


def test_two_readers_see_the_same_counters_and_they_only_grow(tiny: Path) -> None:  # C28
    machine = EngineMachine(tiny)
    seen: list[list[dict[str, Any]]] = [[], []]
    done = threading.Event()

    def read(into: list[dict[str, Any]]) -> None:
        while not done.is_set():
            into.append(machine.engine.snapshot())

    readers = [threading.Thread(target=read, args=(into,)) for into in seen]
    for reader in readers:
        reader.start()
    for seed in range(3):
        machine.greedy(machine.text(30, seed), 20)
    machine.run()
    done.set()
    for reader in readers:
        reader.join()
    assert machine.engine.snapshot() == machine.engine.snapshot()
    by_number: dict[int, dict[str, Any]] = {}
    for snapshots in seen:
        for earlier, later in pairwise(snapshots):
            assert later["number"] >= earlier["number"]
            for counter in ("steps", "prompt_tokens", "generated_tokens"):
                assert later[counter] >= earlier[counter]
        for snapshot in snapshots:
            assert by_number.setdefault(snapshot["number"], snapshot) == snapshot


def in_child(check: Callable[[], None]) -> int:
    """Exit status of a fork that runs `check` and leaves without Python's shutdown."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_refuses_to_use_the_engine(tiny: Path) -> None:
    machine = EngineMachine(tiny)

    def check() -> None:
        for call in (
            machine.engine.start,
            machine.engine.stop,
            machine.engine.drain,
            machine.engine.snapshot,
            machine.engine.step_once,
            lambda: machine.greedy([1], 1),
        ):
            with pytest.raises(_core.Error, match="this is a fork"):
                call()

    assert in_child(check) == 0
    machine.greedy([1], 1)
    machine.run()
    assert machine.ends[1].reason == "length"
