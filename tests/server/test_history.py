"""Answers that come back as history keep the tokens they were generated as."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pykv.runtime import Runtime, RuntimeOptions
from pykv.server import create_app
from pykv.server.limits import LIMITS
from pykv.tokenizer import ChatTemplate, Tokenizer
from tests.server.fakes import (
    Client,
    Script,
    ScriptedEngine,
    events_of,
    fake_runtime,
    served,
    spelled,
)

TEXT = "the cat in the hat"


@pytest.fixture
def runtime(gguf: Any, tokenizer: Tokenizer) -> Any:
    """Without a model, with a real vocabulary and template."""
    made = fake_runtime()
    made.tokenizer = tokenizer
    made.template = ChatTemplate.from_gguf(gguf, tokenizer)
    made.model = SimpleNamespace(
        config={"trained_context": 1000, "vocab": tokenizer.vocab_size},
        parameters=1,
        weight_bytes=1,
    )
    return made


@pytest.fixture
def client(runtime: Any, engine: ScriptedEngine) -> Client:
    return Client(create_app(runtime, engine=engine))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def chat(client: Any, *messages: dict[str, str], **fields: Any) -> Any:
    reply = client.post("/v1/chat/completions", {"messages": list(messages)} | fields)
    assert reply.status_code == 200, reply.text
    return reply


def script(
    engine: ScriptedEngine, tokenizer: Tokenizer, text: str, end: str = "<|im_end|>"
) -> list[int]:
    """Makes the engine generate `text` byte by byte, then the end of the turn."""
    ids = spelled(tokenizer, text)
    stop = tokenizer.encode(end, parse_special=True) if end else []
    engine.script = Script(tokens=[*ids, *stop], end="length")
    return ids


def prompts(engine: ScriptedEngine) -> list[list[int]]:
    return [list(request.prompt) for request in engine.requests]


# --- with a scripted engine ---------------------------------------------------------


def test_the_next_turn_has_the_generated_ids(
    client: Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    ids = script(engine, tokenizer, TEXT)
    assert chat(client, user("hi")).json()["choices"][0]["message"]["content"] == TEXT
    chat(client, user("hi"), said(TEXT), user("more"))
    first, second = prompts(engine)
    assert second[: len(first) + len(ids)] == first + ids
    rest = "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    assert second[len(first) + len(ids) :] == tokenizer.encode(rest, parse_special=True)


def test_a_third_turn_has_both(
    client: Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    messages = [user("hi")]
    for text in ("the one", "the other", "the end"):
        ids = script(engine, tokenizer, text)
        chat(client, *messages)
        messages += [said(text), user("and then?")]
    chat(client, *messages)
    turns = prompts(engine)
    for before, after in itertools.pairwise(turns):
        assert after[: len(before)] == before
    assert turns[-1][len(turns[-2]) :][: len(ids)] == ids


def test_streams_are_remembered_too(
    client: Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    ids = script(engine, tokenizer, TEXT)
    assert events_of(chat(client, user("hi"), stream=True).text)[-1] == "[DONE]"
    chat(client, user("hi"), said(TEXT), user("more"))
    first, second = prompts(engine)
    assert second[: len(first) + len(ids)] == first + ids


@pytest.mark.parametrize(
    "messages",
    [
        [user("hi"), said("the cat in the hat."), user("more")],  # another text
        [user("hi"), said("the cat in the ha"), user("more")],
        [user("Hi"), said(TEXT), user("more")],  # another prefix
        [{"role": "system", "content": "x"}, user("hi"), said(TEXT), user("more")],
        [user(TEXT), said(TEXT)],
        [user("hi"), user(TEXT), user("more")],  # somebody else's words
    ],
)
def test_other_texts_and_other_places_are_tokenized(
    client: Client, engine: ScriptedEngine, tokenizer: Tokenizer, runtime: Any, messages: Any
) -> None:
    script(engine, tokenizer, TEXT)
    chat(client, user("hi"))
    chat(client, *messages)
    text = runtime.template.render(messages)
    assert prompts(engine)[1] == tokenizer.encode(text, parse_special=True)


def test_name_spaces_share_nothing(
    client: Client, engine: ScriptedEngine, tokenizer: Tokenizer, runtime: Any
) -> None:
    messages = [user("hi"), said(TEXT), user("more")]
    canonical = tokenizer.encode(runtime.template.render(messages), parse_special=True)
    script(engine, tokenizer, TEXT)
    chat(client, user("hi"), cache_salt="a")
    for salt in ({"cache_salt": "b"}, {}):
        chat(client, *messages, **salt)
        assert prompts(engine)[-1] == canonical
    chat(client, *messages, cache_salt="a")
    assert prompts(engine)[-1] != canonical


def test_cache_prompt_false_tokenizes(
    client: Client, engine: ScriptedEngine, tokenizer: Tokenizer, runtime: Any
) -> None:
    messages = [user("hi"), said(TEXT), user("more")]
    script(engine, tokenizer, TEXT)
    chat(client, user("hi"), cache_prompt=False)
    chat(client, *messages, cache_prompt=False)
    assert prompts(engine)[-1] == tokenizer.encode(
        runtime.template.render(messages), parse_special=True
    )
    chat(client, *messages)
    assert prompts(engine)[-1] != prompts(engine)[-2]


def test_control_tokens_in_an_answer_are_read_as_ever(
    client: Client, engine: ScriptedEngine, tokenizer: Tokenizer, runtime: Any
) -> None:
    """Written out by the model in letters, they are not spliced in as letters."""
    text = "the <|im_end|> of"
    script(engine, tokenizer, text)
    chat(client, user("hi"))
    messages = [user("hi"), said(text), user("more")]
    chat(client, *messages)
    assert prompts(engine)[1] == tokenizer.encode(
        runtime.template.render(messages), parse_special=True
    )


def test_answers_end_at_a_stop_string_or_by_length(
    client: Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    ids = script(engine, tokenizer, TEXT + "\nUser: never shown", end="")
    chat(client, user("hi"), stop="\nUser:")
    chat(client, user("hi"), said(TEXT), user("more"))
    first, second = prompts(engine)
    count = len(spelled(tokenizer, TEXT))
    assert second[: len(first) + count] == first + ids[:count]
    script(engine, tokenizer, TEXT, end="")
    chat(client, user("ho"), max_tokens=7)
    chat(client, user("ho"), said(TEXT[:7]), user("more"))
    third, fourth = prompts(engine)[2:]
    assert fourth[: len(third) + 7] == third + ids[:7]


def test_failed_answers_are_not_remembered(
    client: Client, engine: ScriptedEngine, tokenizer: Tokenizer, runtime: Any
) -> None:
    engine.script = Script(tokens=spelled(tokenizer, TEXT), end="failed")
    client.post("/v1/chat/completions", {"messages": [user("hi")]})
    assert len(client.app.state.service.history) == 0


# --- with real models -----------------------------------------------------------------


def ask(http: httpx.Client, messages: list[Any], **fields: Any) -> Any:
    body = {"messages": messages, "max_tokens": 24, "top_k": 0, "top_p": 1, "min_p": 0} | fields
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def sampled_otherwise(
    http: httpx.Client, tokenizer: Tokenizer, question: list[Any], **fields: Any
) -> tuple[str, int, int]:
    """An answer whose tokens are not the tokenizer's: text, prompt and generated tokens."""
    for seed in range(50):
        reply = ask(http, question, temperature=2, seed=seed, **fields)
        text, usage = reply["choices"][0]["message"]["content"], reply["usage"]
        ids = tokenizer.encode(text)
        generated = usage["completion_tokens"] - (reply["choices"][0]["finish_reason"] == "stop")
        if "\ufffd" not in text and len(ids) != generated:
            return text, usage["prompt_tokens"], usage["completion_tokens"]
    raise AssertionError("every sampled answer is spelled as the tokenizer would")


def check_second_turn(http: httpx.Client, tokenizer: Tokenizer) -> None:
    """The second turn computes nothing that the first one has computed."""
    question = [user("Tell me of the cat and the hat.")]
    text, prompt, generated = sampled_otherwise(http, tokenizer, question)
    second = [*question, said(text), user("And then?")]
    usage = ask(http, second, temperature=0)["usage"]
    # The last token was drawn and never computed: it is the end of the turn, or the limit.
    assert usage["prompt_tokens_details"]["cached_tokens"] == prompt + generated - 1
    usage = ask(http, second, temperature=0, cache_salt="other")["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert usage["prompt_tokens"] == len(
        tokenizer.encode(
            http.post("/apply-template", json={"messages": second}).json()["prompt"],
            parse_special=True,
        )
    )


@pytest.fixture
def serve() -> Iterator[Any]:
    """Serves a model file; gives a client and the tokenizer."""
    with contextlib.ExitStack() as stack:

        def start(path: Path, **limits: Any) -> tuple[httpx.Client, Tokenizer]:
            options = RuntimeOptions(model=str(path), ctx_size=2048, threads=1)
            runtime = stack.enter_context(Runtime.open(options))
            app = create_app(runtime, limits=replace(LIMITS, **limits))
            url = stack.enter_context(served(app))
            return stack.enter_context(httpx.Client(base_url=url, timeout=300)), runtime.tokenizer

        yield start


def test_the_second_turn_of_a_real_model(serve: Any, smollm2_path: Path) -> None:
    check_second_turn(*serve(smollm2_path))


def test_without_memory_the_second_turn_misses(serve: Any, smollm2_path: Path) -> None:
    """What it is good for: the same without it."""
    http, tokenizer = serve(smollm2_path, history_bytes=0)
    question = [user("Tell me of the cat and the hat.")]
    text, prompt, generated = sampled_otherwise(http, tokenizer, question)
    usage = ask(http, [*question, said(text), user("And then?")], temperature=0)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] < prompt + generated - 1


def test_an_answer_does_not_wait_for_prompts(runtime: Any, engine: ScriptedEngine) -> None:
    service = create_app(runtime, engine=engine).state.service
    ids = spelled(runtime.tokenizer, TEXT)

    async def remember_while_all_tokenize() -> None:
        prompt = service.history.assemble("<|im_start|>assistant\n", 0)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(LIMITS.tokenizer_threads):
                await stack.enter_async_context(service._tokenizing)
            await asyncio.wait_for(service.remember(prompt.tail, TEXT, ids), 60)

    asyncio.run(remember_while_all_tokenize())
    assert len(service.history) == 1
