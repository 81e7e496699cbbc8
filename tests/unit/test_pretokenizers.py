"""How each kind of pre-tokenizer cuts a text, and merging by rank inside the words."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykv import _core
from pykv.tokenizer import Tokenizer
from pykv.tokenizer.bpe import ByteLevelBpe, byte_alphabet
from pykv.tokenizer.pretokenizers import known_pre_tokenizers, pre_tokenizer
from tests.reference.tokenization import rank_merge

TEXT = "I'LL pay $12345, you're on\n\n  東京2go fooBar//x\té\n"

# The cuts of TEXT, marked by "|"; each kind's pattern read by hand.
CUTS = {
    "gpt-2": "I|'|LL| pay| $|12345|,| you|'re| on|\n\n | 東京|2|go| fooBar|//|x|\t|é|\n",
    "smollm": "I|'|LL| pay| $|1|2|3|4|5|,| you|'re| on|\n\n | 東京|2|go| fooBar|//|x|\t|é|\n",
    "llama-bpe": "I|'LL| pay| $|123|45|,| you|'re| on|\n\n| | 東京|2|go| fooBar|//|x|\té|\n",
    "dbrx": "I|'LL| pay| $|123|45|,| you|'re| on|\n\n| | 東京|2|go| fooBar|//|x|\té|\n",
    "qwen2": "I|'LL| pay| $|1|2|3|4|5|,| you|'re| on|\n\n| | 東京|2|go| fooBar|//|x|\té|\n",
    "qwen35": "I|'LL| pay| $|1|2|3|4|5|,| you|'re| on|\n\n| | 東京|2|go| fooBar|//|x|\té|\n",
    "deepseek-llm": "I|'|LL| pay| $|12345|,| you|'|re| on|\n|\n|  |東京|2|go| fooBar|//|x|\té|\n",
    "deepseek-coder": (
        "I|'|LL| pay| $|1|2|3|4|5|,| you|'|re| on|\n|\n| | |東京|2|go| fooBar|//|x|\té|\n"
    ),
    "deepseek-v3": "I|'LL| pay| $|123|45|,| you|'re| on|\n\n|  |東京|2|go| fooBar|//|x|\té|\n",
    "tekken": "I|'LL| pay| $|1|2|3|4|5|,| you|'re| on|\n\n| | 東京|2|go| foo|Bar|//|x|\té|\n",
    "gpt-4o": "I'LL| pay| $|123|45|,| you're| on|\n\n| | 東京|2|go| foo|Bar|//|x|\té|\n",
    "falcon": "I|'|LL| pay| |$|123|45|,| you|'|re| on|\n\n | 東京|2|go| fooBar|//|x|\t|é|\n",
    "default": "I|'|LL| pay| |$|123|45|,| you|'|re| on|\n\n | 東京|2|go| fooBar|//|x|\t|é|\n",
}


def cut(name: str, text: str) -> list[str]:
    words = pre_tokenizer(name).build().pre_tokenize_str(text)
    return [ByteLevelBpe.bytes_of(word).decode() for word, _ in words]


@pytest.mark.parametrize("name", CUTS)
def test_cuts(name: str) -> None:
    assert cut(name, TEXT) == CUTS[name].split("|")


def test_marks_stay_with_their_letters_in_some() -> None:
    text = "हिन्दी"
    joined = {name for name in known_pre_tokenizers() if cut(name, text) == [text]}
    assert {"qwen35", "deepseek-v3", "tekken", "gpt-4o", "deepseek-llm"} <= joined
    assert {"gpt-2", "llama-bpe", "qwen2", "deepseek-coder"}.isdisjoint(joined)


@pytest.mark.parametrize("name", known_pre_tokenizers())
def test_nothing_is_lost(name: str) -> None:
    text = TEXT + " \t\r\n ａ１①हिन्दी ﬁ ☕️ 'S  ꝑ𝒜 \u2028x\u00a0y"
    assert "".join(cut(name, text)) == text


@pytest.mark.parametrize(("name", "whole", "bos"), [
    ("llama-bpe", True, True), ("tekken", True, True), ("glm4", True, False),
    ("dbrx", False, False), ("qwen2", False, False), ("deepseek-v3", False, False),
])  # fmt: skip
def test_whole_words_and_begin_tokens(name: str, whole: bool, bos: bool) -> None:
    kind = pre_tokenizer(name)
    assert (kind.whole_words, kind.add_bos) == (whole, bos)


def test_unknown_kinds_are_refused_with_the_list() -> None:
    with pytest.raises(_core.UnsupportedModel) as caught:
        pre_tokenizer("klingon" * 100)
    message = str(caught.value)
    assert all(name in message for name in known_pre_tokenizers())
    assert len(message) < 1000


BYTES = byte_alphabet()
PAIRS = list(itertools.product(["a", "b", "ab", "ba", "aa", "abb"], repeat=2))


def byte_level(fake_metadata: Any, pre: str, tokens: list[str], merges: list[str]) -> Tokenizer:
    values = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges}
    return Tokenizer.from_gguf(fake_metadata({f"tokenizer.ggml.{k}": v for k, v in values.items()}))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(PAIRS), max_size=12), st.text(st.sampled_from("ab"), max_size=40))
def test_merging_is_as_defined(
    fake_metadata: Any, merges: list[tuple[str, str]], text: str
) -> None:
    """With repeated merges, where the first counts, and some that nothing can reach."""
    merges = [*merges, ("!", "!")]  # a vocabulary has at least one
    texts = dict.fromkeys(text for left, right in merges for text in (left, right, left + right))
    tokens = [*BYTES, *(text for text in texts if len(text) > 1)]
    tokenizer = byte_level(fake_metadata, "gpt-2", tokens, [" ".join(pair) for pair in merges])
    expected = [tokens.index(piece) for piece in rank_merge(text, merges)]
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(expected) == text


@pytest.mark.parametrize("text", ["a" * 1_000_000, "ab" * 500_000, " " * 1_000_000])
def test_a_million_byte_word(fake_metadata: Any, text: str) -> None:
    tokens = [*BYTES, "ab", "aa", "aaa", "ĠĠ"]
    tokenizer = byte_level(fake_metadata, "llama-bpe", tokens, ["a b", "a a", "aa a", "Ġ Ġ"])
    assert tokenizer.decode(tokenizer.encode(text)) == text
