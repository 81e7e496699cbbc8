"""The table of remembered answers: what goes in, what is found, what it costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykv.server.history import History, Tail
from pykv.tokenizer import Tokenizer
from tests.server.fakes import spelled


@pytest.fixture
def history(tokenizer: Tokenizer) -> History:
    return History(tokenizer, 1 << 20)


def tail_of(history: History, text: str, name_space: int = 0) -> Tail:
    tail = history.assemble(text, name_space).tail
    assert tail is not None
    return tail


HEAD = "<|im_start|>assistant\n"


def test_only_other_spellings_are_kept(history: History, tokenizer: Tokenizer) -> None:
    tail = tail_of(history, HEAD)
    whole = tokenizer.encode("assistant\nthe cat")
    history.remember(tail, "the cat", whole[len(tail.ids) :])
    assert len(history) == 0  # the tokenizer gives them anyway
    history.remember(tail, "the cat", spelled(tokenizer, "the cat"))
    assert len(history) == 1


@pytest.mark.parametrize("text", ["", "the ca", "the cats", "the dog", "the caté"])
def test_ids_must_spell_the_text(history: History, tokenizer: Tokenizer, text: str) -> None:
    ids = spelled(tokenizer, "the cat")
    ids[-2:] = tokenizer.encode("at")  # no boundary inside "at"
    assert len(ids) == len("the cat") - 1
    history.remember(tail_of(history, HEAD), text, ids)
    assert len(history) == 0


def test_trimmed_text_is_found(history: History, tokenizer: Tokenizer) -> None:
    ids = spelled(tokenizer, "the cat \n")
    history.remember(tail_of(history, HEAD), "the cat \n", ids)
    for text in ("the cat \n", "the cat"):
        found = history.assemble(f"{HEAD}{text}<|im_end|>", 0).ids
        count = len(text)
        assert found[-1 - count : -1] == ids[:count]


def test_ends_in_the_middle_of_a_character(history: History, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é")[:1]
    history.remember(tail_of(history, HEAD), "\ufffd", ids)
    assert len(history) == 0


def test_memory_is_bounded(tokenizer: Tokenizer) -> None:
    history = History(tokenizer, 20_000)
    tail = tail_of(history, HEAD)
    for number in range(200):
        text = f"the {number} " + "x" * (number % 50)
        history.remember(tail, text, spelled(tokenizer, text))
        assert 0 < history.used_bytes <= 20_000
    kept = len(history)
    assert 10 <= kept < 60
    newest = "the 199 " + "x" * 49
    assert history.assemble(f"{HEAD}{newest}", 0).ids[-len(newest) :] == spelled(tokenizer, newest)
    oldest = "the 0 "
    assert history.assemble(f"{HEAD}{oldest}", 0).ids == tokenizer.encode(
        HEAD + oldest, parse_special=True
    )
    history.remember(tail, "the " * 2000, spelled(tokenizer, "the " * 2000))  # above a quarter
    assert len(history) == kept
    silent = History(tokenizer, 0)
    silent.remember(tail, "the cat", spelled(tokenizer, "the cat"))
    assert (len(silent), silent.used_bytes) == (0, 0)


def test_used_answers_stay(tokenizer: Tokenizer) -> None:
    history = History(tokenizer, 8_000)
    tail = tail_of(history, HEAD)
    ids = spelled(tokenizer, "the first")
    history.remember(tail, "the first", ids)
    for number in range(100):
        history.remember(tail, f"the {number}", spelled(tokenizer, f"the {number}"))
        assert history.assemble(HEAD + "the first", 0).ids[-len(ids) :] == ids


def test_one_entry_for_an_answer_given_twice(history: History, tokenizer: Tokenizer) -> None:
    tail = tail_of(history, HEAD)
    for _ in range(3):
        history.remember(tail, "the cat", spelled(tokenizer, "the cat"))
    used = history.used_bytes
    history.remember(tail, "the cat", [*tokenizer.encode("the"), *spelled(tokenizer, " cat")])
    assert len(history) == 1
    assert history.used_bytes < used  # fewer ids


def test_user_defined_tokens_do_not_cut_a_text(gemma3_gguf: Any) -> None:
    """In Gemma 3 every line break is a token of its own kind."""
    gemma3 = Tokenizer.from_gguf(gemma3_gguf)
    history = History(gemma3, 1 << 20)
    prompt = history.assemble("<start_of_turn>model\n", 0)
    assert prompt.ids == [2, 105, 4368, 107]
    text = "First\n\n  second"
    canonical = gemma3.encode(text, add_special=False)
    ids = [
        gemma3.encode("F", add_special=False)[0],
        *gemma3.encode("irst", add_special=False),
        *canonical[1:],
    ]
    assert gemma3.decode(ids) == text and ids != canonical
    assert prompt.tail is not None
    history.remember(prompt.tail, text, ids)
    again = history.assemble(f"<start_of_turn>model\n{text}<end_of_turn>\n", 0).ids
    assert again == [2, 105, 4368, 107, *ids, 106, 107]


pieces = st.lists(
    st.sampled_from(["the ", "cat", "<|im_end|>", "<|im_start|>", "é", "\n"]), max_size=9
)


@settings(deadline=None)
@given(pieces)
def test_without_memories_it_is_the_tokenizer(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    prompt = History(tokenizer, 1 << 20).assemble(text, 0)
    assert prompt.ids == tokenizer.encode(text, parse_special=True)
    segments = tokenizer.encode_segments(text)
    assert "".join(segment.text for segment in segments) == text
    assert [i for segment in segments for i in segment.ids] == prompt.ids
    assert prompt.tail is not None
    open_end = text.rpartition("|>")[2]
    assert (prompt.tail.text, prompt.tail.ids) == (open_end, tokenizer.encode(open_end))


def test_one_begin_token(gemma3_gguf: Any) -> None:
    gemma3 = Tokenizer.from_gguf(gemma3_gguf)
    assert History(gemma3, 0).assemble("<bos>hi", 0).ids == [2, 2202]
    assert History(gemma3, 0).assemble("hi", 0).ids == [2, 2202]
