"""pykv.Engine on a tiny model: answers, streams, sessions, threads, tasks, cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import pykv
from pykv.stream import GenerateOptions
from tests.reference.gguf_files import write_tiny_model
from tests.reference.peer_cases import write_case

GREEDY: GenerateOptions = {"temperature": 0.0}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("inference") / "tiny.gguf")


@pytest.fixture
def engine(tiny: Path) -> Iterator[pykv.Engine]:
    with pykv.Engine.open(tiny, threads=1, ctx_size=4096) as opened:
        yield opened


def computed(engine: pykv.Engine) -> int:
    count: int = engine.stats()["computed_prompt_tokens"]
    return count


def wait_until_idle(engine: pykv.Engine) -> None:
    for _ in range(10_000):
        if not engine.runtime.cache.sequences():
            return
        threading.Event().wait(0.001)
    raise AssertionError("a request is still running")


def wait_until_counted(engine: pykv.Engine, status: str, count: int) -> None:
    """Cells are free a moment before the statistics say why."""
    wait_until_idle(engine)
    for _ in range(10_000):
        if engine.stats()["requests"][status] == count:
            return
        threading.Event().wait(0.001)
    raise AssertionError(f"not {count} {status}: {engine.stats()['requests']}")


def test_an_answer_streamed_and_whole_is_the_same(engine: pykv.Engine) -> None:
    whole = engine.generate("the cat", max_tokens=20, **GREEDY)
    stream = engine.stream("the cat", max_tokens=20, **GREEDY)
    assert "".join(stream) == stream.text == whole.text
    assert stream.tokens == whole.tokens
    assert stream.result().cached_tokens == whole.prompt_tokens - 1
    assert whole.generated_tokens == len(whole.tokens)
    assert whole.finish_reason in ("stop", "length")
    assert whole.logprobs is None


def test_prompts_are_texts_ids_or_messages(engine: pykv.Engine) -> None:
    ids = engine.tokens("the cat")
    texts = [engine.generate(p, max_tokens=5, **GREEDY).tokens for p in ("the cat", ids)]
    assert texts[0] == texts[1]
    messages = [{"role": "user", "content": "the cat"}]
    text = engine.template.render(messages)
    assert engine.tokens(messages) == engine.tokenizer.encode(text, parse_special=True)


def test_max_tokens_defaults_to_the_end_of_the_context(engine: pykv.Engine) -> None:
    prompt = [5] * (engine.context - 7)
    answer = engine.generate(prompt, stop_tokens=(), **GREEDY)
    assert (answer.finish_reason, answer.generated_tokens) == ("length", 7)


def test_a_stop_string_ends_the_text(engine: pykv.Engine) -> None:
    whole = engine.generate("the", max_tokens=40, stop_tokens=(), **GREEDY)
    stop = whole.text[10:13]
    cut = engine.generate("the", max_tokens=40, stop_tokens=(), stop=stop, **GREEDY)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    with pytest.raises(pykv.InvalidArgument, match="empty string"):
        engine.generate("the", max_tokens=4, stop=[""])


def test_logprobs_come_with_the_tokens(engine: pykv.Engine) -> None:
    answer = engine.generate("the", max_tokens=6, logprobs=2, stop_tokens=(), **GREEDY)
    assert answer.logprobs is not None
    for token, info in zip(answer.tokens, answer.logprobs, strict=False):
        assert info.token == token
        assert info.top[0] == (token, info.logprob)


def test_several_answers_compute_the_prompt_once(engine: pykv.Engine) -> None:
    options: GenerateOptions = {"temperature": 1.0, "stop_tokens": ()}
    before = computed(engine)
    streams = engine.streams([9] * 100, 4, max_tokens=10, seed=3, **options)
    tokens = [stream.result().tokens for stream in streams]
    assert computed(engine) - before == 100
    for index, own in enumerate(tokens):
        alone = engine.generate([9] * 100, max_tokens=10, seed=3 + index, **options)
        assert alone.tokens == own


def test_ten_threads_share_one_engine(engine: pykv.Engine) -> None:
    prompts = [f"the cat {i}" for i in range(10)]
    alone = [engine.generate(p, max_tokens=12, **GREEDY).text for p in prompts]
    found: dict[int, str] = {}

    def ask(index: int) -> None:
        found[index] = engine.generate(prompts[index], max_tokens=12, **GREEDY).text

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(10)] == alone


def test_tasks_of_two_event_loops_share_one_engine(tiny: Path) -> None:
    async def ask(engine: pykv.Engine) -> list[str]:
        whole = await engine.generate_async("the", max_tokens=8, **GREEDY)
        pieces = [p async for p in engine.stream("the", max_tokens=8, **GREEDY)]
        return [whole.text, "".join(pieces)]

    async def main() -> list[str]:
        async with await pykv.Engine.open_async(tiny, threads=1, ctx_size=1024) as engine:
            other: list[str] = []
            thread = threading.Thread(target=lambda: other.extend(asyncio.run(ask(engine))))
            thread.start()
            own = await ask(engine)
            await asyncio.to_thread(thread.join)
            return own + other

    texts = asyncio.run(main())
    assert len(texts) == 4
    assert len(set(texts)) == 1


def test_cancelling_a_task_frees_its_cells(engine: pykv.Engine) -> None:
    async def main() -> None:
        task = asyncio.create_task(engine.generate_async("the", stop_tokens=(), **GREEDY))
        while not engine.runtime.cache.sequences():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until_counted(engine, "cancelled", 1)


def test_closing_or_dropping_a_stream_frees_its_cells(engine: pykv.Engine) -> None:
    with engine.stream("the", stop_tokens=(), **GREEDY) as stream:
        next(stream)
    assert list(stream) == []
    with pytest.raises(pykv.Error, match="closed before its end"):
        stream.result()
    dropped = engine.stream("the", stop_tokens=(), **GREEDY)
    next(dropped)
    del dropped
    wait_until_counted(engine, "cancelled", 2)


def test_a_timeout_ends_an_answer_and_keeps_what_was_read(engine: pykv.Engine) -> None:
    stream = engine.stream("the", stop_tokens=(), timeout=0.001, **GREEDY)
    with pytest.raises(TimeoutError, match=r"had 0.001 s.*raise timeout"):
        stream.result()
    assert stream.ended
    wait_until_counted(engine, "timeout", 1)


def test_a_cancelled_stream_keeps_what_it_had(engine: pykv.Engine) -> None:
    stream = engine.stream("the", stop_tokens=(), **GREEDY)
    next(stream)
    stream.cancel()
    answer = stream.result()
    assert answer.finish_reason == "cancelled"
    assert answer.text == stream.text != ""


def test_close_ends_what_is_open_and_may_be_repeated(tiny: Path) -> None:
    engine = pykv.Engine.open(tiny, threads=1, ctx_size=1024)
    stream = engine.stream("the", stop_tokens=(), **GREEDY)
    engine.close()
    engine.close()
    assert stream.result().finish_reason in ("cancelled", "length")
    with pytest.raises(pykv.Busy, match="closed; open another"):
        engine.generate("the", max_tokens=1)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("use_cache", "a bool"), ("temperature", "a float"), ("timeout", "a float"),
        ("frequency_penalty", "a float"), ("tenant", "a str"), ("logit_bias", "a mapping"),
        ("top_k", "an int"), ("logprobs", "an int"), ("priority", "an int"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [[1], b"no", object()])
def test_an_option_of_a_wrong_type_is_told_in_one_line(
    engine: pykv.Engine, name: str, wanted: str, value: object
) -> None:
    options: dict[str, Any] = {name: value}
    told = rf"\[Engine.submit\] {name} must be {wanted}, not {type(value).__name__}"
    with pytest.raises(TypeError, match=f"^{told}$"):
        engine.generate([1, 2], 1, **options)


def test_a_read_only_mapping_may_bias_logits(engine: pykv.Engine) -> None:
    bias = MappingProxyType({3: 100.0})
    assert engine.generate([1, 2], 1, temperature=0.0, logit_bias=bias).tokens == [3]


def test_wrong_options_are_refused_by_name(engine: pykv.Engine) -> None:
    wrong: dict[str, Any] = {"top_q": 3}
    with pytest.raises(TypeError, match="unknown options: top_q"):
        engine.generate("the", max_tokens=1, **wrong)
    with pytest.raises(pykv.InvalidArgument, match="top_p"):
        engine.generate("the", max_tokens=1, top_p=1.5)
    with pytest.raises(pykv.InvalidArgument, match="max_tokens is 0"):
        engine.generate("the", max_tokens=0)
    several: dict[str, Any] = {"choices": 3}  # not ignored: `streams` has them
    with pytest.raises(TypeError, match="unknown options: choices"):
        engine.generate("the", max_tokens=1, **several)


@pytest.mark.parametrize("stop", [["a", 5], 5, None, [b"a"]])
def test_a_wrong_stop_is_refused_before_anything_is_queued(engine: pykv.Engine, stop: Any) -> None:
    with pytest.raises(TypeError, match=r"stop is .*; it must be a string or several"):
        engine.generate("the", stop=stop)
    engine.generate("the", max_tokens=1)
    assert engine.stats()["requests"]["length"] == 1
    wait_until_idle(engine)
    assert sum(engine.stats()["requests"].values()) == 1


@pytest.mark.parametrize("prompt", [b"the", None, 5, {"role": "user", "content": "the"}])
def test_other_kinds_of_prompts_are_refused_by_name(engine: pykv.Engine, prompt: Any) -> None:
    with pytest.raises(TypeError, match=f"token ids or messages, not {type(prompt).__name__}"):
        engine.generate(prompt, max_tokens=1)


def test_messages_may_be_any_mappings(engine: pykv.Engine) -> None:
    message = {"role": "user", "content": "the cat"}
    assert engine.tokens([MappingProxyType(message)]) == engine.tokens([message])
    mixed: Any = [message, 5]
    with pytest.raises(pykv.InvalidArgument, match=r"messages\[1\] is a int"):
        engine.tokens(mixed)


# --- sessions --------------------------------------------------------------------


def test_a_session_goes_on_without_computing_again(engine: pykv.Engine) -> None:
    session = engine.session("the cat sat on", stop_tokens=(), temperature=0.0)
    first = session.generate(8)
    assert session.tokens == engine.tokens("the cat sat on") + first.tokens
    session.append(" and the dog")
    before = computed(engine)
    session.generate(4)
    fresh = len(engine.tokens(" and the dog", add_special=False))
    assert computed(engine) - before == fresh + 1  # the first answer's last token had no KV
    whole = engine.generate(session.tokens[:-4], max_tokens=4, stop_tokens=(), **GREEDY)
    assert whole.tokens == session.tokens[-4:]


def test_forks_of_a_half_finished_answer_go_their_own_ways(engine: pykv.Engine) -> None:
    session = engine.session("the cat", stop_tokens=(), temperature=0.0)
    stream = session.stream(30)
    while len(session) < len(engine.tokens("the cat")) + 10:
        next(stream)
    fork = session.fork(temperature=1.0, seed=7)
    prefix = fork.tokens
    before = computed(engine)
    sampled = fork.generate(12)
    assert computed(engine) - before == 1, "only the last token, whose logits are needed"
    assert fork.tokens == prefix + sampled.tokens
    rest = stream.result().tokens
    assert rest == engine.generate("the cat", max_tokens=30, stop_tokens=(), **GREEDY).tokens
    again = engine.generate(prefix, max_tokens=12, stop_tokens=(), temperature=1.0, seed=7)
    assert again.tokens == sampled.tokens


def test_rewind_goes_on_from_an_earlier_token(engine: pykv.Engine) -> None:
    session = engine.session("the cat", stop_tokens=(), temperature=0.0)
    answer = session.generate(20).tokens
    session.rewind(len(session) - 12)
    before = computed(engine)
    assert session.generate(12).tokens == answer[8:]
    assert computed(engine) - before == 1


def test_edit_equals_a_session_of_the_edited_tokens(engine: pykv.Engine) -> None:
    session = engine.session([7, 8, 9, 10] * 50, stop_tokens=(), temperature=0.0)
    session.generate(10)
    session.edit(100, 104, [20, 21])
    assert session.tokens[98:104] == [9, 10, 20, 21, 7, 8]
    tokens = session.tokens
    before = computed(engine)
    edited = session.generate(10).tokens
    assert computed(engine) - before == len(tokens) - 100
    fresh = engine.generate(tokens, max_tokens=10, use_cache=False, stop_tokens=(), **GREEDY)
    assert edited == fresh.tokens


@pytest.mark.parametrize("name", ["gemma3", "mamba2", "granitehybrid"])
def test_an_edit_costs_the_way_from_the_last_resume_point(name: str, tmp_path: Path) -> None:
    """C16, of layers that forget; the session then goes on as a fresh one."""
    options: Any = {"resume_spacing": 32, "resume_bytes": 1 << 22}
    path = write_case(tmp_path / "model.gguf", name)
    with pykv.Engine.open(path, threads=1, ctx_size=4096, **options) as engine:
        session = engine.session([7, 8, 9, 10] * 50, stop_tokens=(), temperature=0.0)
        session.generate(10)
        session.edit(100, 104, [20, 21])
        tokens, before = session.tokens, computed(engine)
        edited = session.generate(10).tokens
        assert computed(engine) - before == len(tokens) - 96
        fresh = engine.generate(tokens, max_tokens=10, use_cache=False, stop_tokens=(), **GREEDY)
        assert edited == fresh.tokens


def test_changing_a_session_ends_its_stream(engine: pykv.Engine) -> None:
    session = engine.session("the cat", stop_tokens=(), temperature=0.0)
    stream = session.stream()
    next(stream)
    session.rewind(2)
    assert stream.ended
    wait_until_idle(engine)
    assert len(session) == 2


@pytest.mark.parametrize("bad", [-1, 10**6, 2**63])
def test_positions_outside_a_session_are_refused(engine: pykv.Engine, bad: int) -> None:
    session = engine.session("the cat")
    tokens = session.tokens
    with pytest.raises(pykv.InvalidArgument, match=f"length is {bad}; it must be 0 to"):
        session.rewind(bad)
    with pytest.raises(pykv.InvalidArgument, match=f"begin is {bad}"):
        session.edit(bad, 2, [1])
    with pytest.raises(pykv.InvalidArgument, match=f"end is {bad}; it must be 1 to"):
        session.edit(1, bad, [1])
    with pytest.raises(TypeError, match="length"):
        session.rewind("2")  # type: ignore[arg-type]
    assert session.tokens == tokens


# --- opening ---------------------------------------------------------------------


def test_progress_tells_stages_in_order(tiny: Path) -> None:
    seen: list[tuple[str, float]] = []
    pykv.Engine.open(
        tiny, threads=1, ctx_size=256, progress=lambda stage, part: seen.append((stage, part))
    ).close()
    stages = list(dict.fromkeys(stage for stage, _ in seen))
    assert stages == ["file", "weights", "pool"]
    assert seen[-1] == ("pool", 1.0)
    for stage in stages:
        parts = [part for name, part in seen if name == stage]
        assert parts == sorted(parts)
        assert 0.0 <= parts[0] <= parts[-1] <= 1.0
    weights = [part for name, part in seen if name == "weights"]
    assert weights[-1] == 1.0
    assert len(weights) > 15, "every tensor is told"


def test_what_progress_raises_ends_the_loading(tiny: Path) -> None:
    class Cancelled(Exception):
        pass

    for least in (0.0, 0.5):
        told: list[float] = []

        def cancel(stage: str, fraction: float, least: float = least) -> None:
            if stage == "weights" and fraction >= least:
                told.append(fraction)  # noqa: B023
                raise Cancelled

        with pytest.raises(Cancelled):
            pykv.Engine.open(tiny, threads=1, progress=cancel)
        assert len(told) == 1, "nothing is loaded after that"


def test_a_missing_model_is_refused() -> None:
    with pytest.raises(pykv.InvalidArgument, match="no file"):
        pykv.Engine.open("no-such-model.gguf")
