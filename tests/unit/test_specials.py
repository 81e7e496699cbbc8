"""Finding special tokens in a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykv import _core
from pykv.tokenizer.specials import MAX_SPECIAL_CHARS, SpecialTokens
from tests.reference.tokenization import split_specials


def test_the_longest_at_each_place() -> None:
    specials = SpecialTokens({"\n": 1, "\n\n": 2, "\n\n\n": 3, "<a>": 4, "<a>b": 5})
    assert specials.split("\n\n\n\n\nx<a>b<a><a") == [3, 2, "x", 5, 4, "<a"]
    assert specials.split("") == []
    assert specials.split("plain") == ["plain"]
    assert SpecialTokens({}).split("<a>") == ["<a>"]


def test_earlier_places_go_first() -> None:
    assert SpecialTokens({"ab": 1, "bcd": 2}).split("abcd") == [1, "cd"]


def test_white_space_after_some() -> None:
    specials = SpecialTokens({"<a>": 1, "<b>": 2}, frozenset({1}))
    assert specials.split("<a> \t\n<b> x<a>  ") == [1, 2, " x", 1]
    assert specials.split("<a>\u00a0x") == [1, "\u00a0x"]  # a space of ASCII only


def test_long_ones_are_refused() -> None:
    SpecialTokens({"x" * MAX_SPECIAL_CHARS: 0})
    with pytest.raises(_core.CorruptModel, match="special token 7 has 257 characters"):
        SpecialTokens({"x" * (MAX_SPECIAL_CHARS + 1): 7})


texts = st.text(st.sampled_from("ab]^-\\"), max_size=30)


@given(st.lists(texts.filter(bool), max_size=12, unique=True), texts)
def test_splitting_is_as_defined(specials: list[str], text: str) -> None:
    found = SpecialTokens({special: index for index, special in enumerate(specials)}).split(text)
    named = [(specials[p], True) if isinstance(p, int) else (p, False) for p in found]
    assert named == split_specials(text, specials)


def test_work_is_linear_in_the_text() -> None:
    """Six thousand tokens, all of them in a long text."""
    specials = SpecialTokens({f"<unused{n}>": n for n in range(6000)})
    text = "".join(f"<unused{n % 6001}>" for n in range(60_000))
    parts = specials.split(text)
    assert len(parts) == 60_000
    assert parts.count("<unused6000>") == 60_000 // 6001
