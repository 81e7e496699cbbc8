"""AsyncEngine, Generation and generate_blocking on a tiny model."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from pykv import _core
from pykv.engine import AsyncEngine, GenerateRequest, Generation, generate_blocking
from tests.reference.gguf_files import write_tiny_model
from tests.unit.engine_machine import EngineMachine, solo


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("engine") / "tiny.gguf")


def greedy(prompt: list[int], max_tokens: int) -> GenerateRequest:
    return GenerateRequest(prompt=prompt, max_tokens=max_tokens, temperature=0.0)


async def tokens_of(generation: Generation) -> list[int]:
    return [event.token async for event in generation if event.kind == "token"]


async def no_sequences(machine: EngineMachine) -> None:
    """Returns when the pool has no sequence any more."""
    while machine.cache.sequences():
        await asyncio.sleep(0)


def test_answers_arrive_at_who_asked(tiny: Path) -> None:
    machine = EngineMachine(tiny)
    prompts = [machine.text(20 + i, i) for i in range(6)]

    async def main() -> list[list[int]]:
        engine = AsyncEngine(machine.engine)
        await engine.start()
        answers = await asyncio.gather(
            *(
                tokens_of(engine.generate(greedy(prompt, 10 + i)))
                for i, prompt in enumerate(prompts)
            )
        )
        await engine.stop()
        return answers

    for i, answer in enumerate(asyncio.run(main())):
        assert answer == solo(tiny, prompts[i], 10 + i, temperature=0.0)


def test_events_of_a_generation(tiny: Path) -> None:
    machine = EngineMachine(tiny)

    async def main() -> None:
        engine = AsyncEngine(machine.engine)
        await engine.start()
        generation = engine.generate(greedy([1, 2, 3], 2))
        events = [event async for event in generation]
        assert [event.kind for event in events] == ["started", "token", "token", "finished"]
        assert {event.request for event in events} == {generation.request_id}
        with pytest.raises(StopAsyncIteration):
            await anext(generation)
        generation.cancel()
        await engine.stop()

    asyncio.run(main())


def test_cancel_ends_with_a_finished_event(tiny: Path) -> None:
    machine = EngineMachine(tiny)

    async def main() -> None:
        engine = AsyncEngine(machine.engine)
        await engine.start()
        generation = engine.generate(greedy([1, 2, 3], 900))
        assert (await anext(generation)).kind == "started"
        generation.cancel()
        last = [event async for event in generation][-1]
        assert (last.kind, last.reason) == ("finished", "cancelled")
        assert machine.cache.sequences() == []
        await engine.stop()

    asyncio.run(main())


def test_closing_or_dropping_the_iterator_cancels(tiny: Path) -> None:
    machine = EngineMachine(tiny)

    async def main() -> None:
        engine = AsyncEngine(machine.engine)
        await engine.start()
        closed = engine.generate(greedy([1, 2, 3], 900))
        await anext(closed)
        await closed.aclose()
        assert [event async for event in closed] == []
        await no_sequences(machine)

        dropped = engine.generate(greedy([4, 5, 6], 900))
        await anext(dropped)
        del dropped
        gc.collect()
        await no_sequences(machine)
        await engine.stop()

    asyncio.run(main())
    assert machine.engine.snapshot()["requests"]["cancelled"] == 2


def test_cancelling_the_waiting_task_cancels_the_request(tiny: Path) -> None:
    machine = EngineMachine(tiny, parallel=1)

    async def main() -> None:
        engine = AsyncEngine(machine.engine)
        await engine.start()
        first = engine.generate(greedy([1, 2, 3], 900))
        await anext(first)
        queued = asyncio.create_task(tokens_of(engine.generate(greedy([4], 5))))
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        while machine.engine.snapshot()["requests"]["cancelled"] == 0:
            await asyncio.sleep(0)
        assert len(machine.cache.sequences()) == 1
        await engine.stop()

    asyncio.run(main())


def test_stop_ends_open_answers_and_start_may_follow(tiny: Path) -> None:
    machine = EngineMachine(tiny)

    async def main() -> None:
        engine = AsyncEngine(machine.engine)
        with pytest.raises(_core.Busy, match="not started"):
            engine.generate(greedy([1], 1))
        await engine.start()
        await engine.start()
        generation = engine.generate(greedy([1, 2, 3], 900))
        await anext(generation)
        await engine.stop()
        await engine.stop()
        assert [event async for event in generation][-1].reason == "cancelled"
        with pytest.raises(_core.Busy, match="not started"):
            engine.generate(greedy([1], 1))
        await engine.start()
        assert len(await tokens_of(engine.generate(greedy([1], 3)))) == 3
        await engine.stop()

    asyncio.run(main())


def test_a_second_event_loop_is_refused(tiny: Path) -> None:
    machine = EngineMachine(tiny)
    engine = AsyncEngine(machine.engine)

    async def elsewhere() -> None:
        with pytest.raises(_core.Error, match="another event loop"):
            engine.generate(greedy([1], 1))
        with pytest.raises(_core.Error, match="another event loop"):
            await engine.start()
        with pytest.raises(_core.Error, match="another event loop"):
            await engine.stop()

    async def main() -> None:
        await engine.start()
        await asyncio.to_thread(asyncio.run, elsewhere())
        assert len(await tokens_of(engine.generate(greedy([1], 2)))) == 2
        await engine.stop()

    asyncio.run(main())


def test_refusals_come_from_generate(tiny: Path) -> None:
    machine = EngineMachine(tiny, queue_length=1)

    async def main() -> None:
        engine = AsyncEngine(machine.engine)
        await engine.start()
        with pytest.raises(_core.InvalidArgument, match="prompt is empty"):
            engine.generate(greedy([], 1))
        with pytest.raises(_core.InvalidArgument, match="max_tokens is 0"):
            engine.generate(greedy([1], 0))
        await engine.stop()

    asyncio.run(main())


def test_blocking_generation(tiny: Path) -> None:
    machine = EngineMachine(tiny)
    machine.engine.start()
    prompt = machine.text(20, 1)
    events = list(generate_blocking(machine.engine, greedy(prompt, 8)))
    assert events[0].kind == "started"
    assert events[-1].kind == "finished"
    tokens = [event.token for event in events if event.kind == "token"]
    assert tokens == solo(tiny, prompt, 8, temperature=0.0)


def test_closing_a_blocking_generation_cancels_it(tiny: Path) -> None:
    machine = EngineMachine(tiny)
    machine.engine.start()
    events = generate_blocking(machine.engine, greedy([1, 2, 3], 900))
    next(events)
    events.close()
    assert machine.cache.sequences() == []
    assert machine.engine.snapshot()["requests"]["cancelled"] == 1
