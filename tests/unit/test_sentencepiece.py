"""SentencePiece vocabularies: a small one for the rules, a slow reference, Gemma 3's ids."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykv import _core
from pykv.tokenizer import ChatTemplate, Tokenizer, sentencepiece
from tests.reference.tokenization import sentencepiece_merge

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
HEAD = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<tool>", USER_DEFINED)]
BYTES = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
FIRST_WORD = len(HEAD) + len(BYTES)


def vocabulary(words: Sequence[tuple[str, float]], **changes: Any) -> dict[str, Any]:
    """Metadata of a vocabulary whose ordinary tokens are `words` with their scores."""
    made = {
        "model": "llama",
        "tokens": [text for text, _ in HEAD + BYTES] + [text for text, _ in words],
        "token_type": [kind for _, kind in HEAD + BYTES] + [NORMAL] * len(words),
        "scores": [0.0] * FIRST_WORD + [score for _, score in words],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in made.items() if v is not None}


WORDS = [
    ("▁", -1.0), ("a", -2.0), ("b", -3.0), ("c", -4.0), ("▁a", -5.0), ("ab", -6.0), ("▁ab", -7.0),
    ("bc", -5.5), ("abc", -9.0), ("aa", -6.0), ("aaa", -8.0), ("b▁c", -20.0),
]  # fmt: skip
ID = {text: FIRST_WORD + place for place, (text, _) in enumerate(WORDS)}


@pytest.fixture(scope="module")
def make(fake_metadata: Any) -> Any:
    return lambda words=WORDS, **changes: Tokenizer.from_gguf(
        fake_metadata(vocabulary(words, **changes))
    )


@pytest.fixture(scope="module")
def small(make: Any) -> Tokenizer:
    return make(add_space_prefix=False, add_bos_token=False)


@pytest.fixture(scope="module")
def gemma3(gemma3_gguf: Any) -> Tokenizer:
    return Tokenizer.from_gguf(gemma3_gguf)


def test_the_highest_score_merges_first(small: Tokenizer) -> None:
    assert small.encode("aabc") == [ID["aa"], ID["bc"]]  # bc, aa; with ab first: aa, b, c
    assert small.encode(" abc") == [ID["▁a"], ID["bc"]]
    assert small.encode(" ab") == [ID["▁ab"]]


def test_equal_scores_merge_from_the_left(small: Tokenizer) -> None:
    assert small.encode("aab") == [ID["aa"], ID["b"]]
    assert small.encode("aaaaa") == [ID["aa"], ID["aaa"]]


def test_a_token_with_a_space_inside_joins_words(small: Tokenizer, make: Any) -> None:
    assert small.encode("b c") == [ID["b"], ID["▁"], ID["c"]]  # no two of them are a token
    joined = make([*WORDS, ("b▁", -0.5)], add_space_prefix=False, add_bos_token=False)
    assert joined.encode("b c") == [ID["b▁c"]]


def test_characters_without_a_token_become_bytes(small: Tokenizer, make: Any) -> None:
    assert small.encode("é") == [len(HEAD) + byte for byte in "é".encode()]
    types = [kind for _, kind in HEAD + BYTES]
    types[-1] = UNUSED
    partial = make(add_bos_token=False, add_space_prefix=False, token_type=types + [1] * len(WORDS))
    assert partial.encode("aé") == [ID["a"], 0]  # not all bytes have tokens: unknown
    silent = make(
        add_bos_token=False, add_space_prefix=False, unknown_token_id=None,
        token_type=types + [1] * len(WORDS),
    )  # fmt: skip
    assert silent.encode("aé") == [ID["a"]]


def test_bytes_and_specials_are_never_made_from_text(small: Tokenizer) -> None:
    for text in ("<0x61>", "<s>", "</s>", "<unk>"):
        ids = small.encode(text)
        assert all(len(HEAD) <= i for i in ids)
        assert small.decode(ids) == text


def test_space_prefix_and_begin_token(make: Any) -> None:
    tokenizer = make()
    assert tokenizer.encode("ab") == [1, ID["▁ab"]]
    assert tokenizer.encode("ab</s>ab", parse_special=True) == [1, ID["▁ab"], 2, ID["▁ab"]]
    assert tokenizer.encode("<tool>ab") == [1, 3, ID["▁ab"]]
    assert tokenizer.encode("") == [1]
    assert make(add_bos_token=False).encode("ab") == [ID["▁ab"]]
    assert make(add_eos_token=True).encode("ab") == [1, ID["▁ab"], 2]


def test_whole_texts_lose_the_spaces_that_were_put_in(make: Any) -> None:
    tokenizer = make(add_bos_token=False)
    for text in ("ab", " ab", "  ab", "ab</s>ab", "ab</s> ab<tool>ab</s>", ""):
        ids = tokenizer.encode(text, parse_special=True)
        assert tokenizer.decode(ids, whole=True) == text
    assert tokenizer.decode(tokenizer.encode("ab")) == " ab"  # as a stream shows it


def test_white_space_after_phi_3s_specials(fake_metadata: Any) -> None:
    values = vocabulary(WORDS, add_space_prefix=False, add_bos_token=False)
    named = Tokenizer.from_gguf(fake_metadata({**values, "general.name": "Phi-3 mini"}))
    text = "</s> \n\tab<s> ab"
    assert named.encode(text, parse_special=True) == [2, ID["ab"], 1, ID["▁ab"]]
    assert (
        Tokenizer.from_gguf(fake_metadata(values)).encode(text, parse_special=True)[1] != ID["ab"]
    )


def test_chat_templates_know_the_begin_token(fake_metadata: Any) -> None:
    values = {**vocabulary(WORDS), "tokenizer.chat_template": "{{ bos_token }}x{{ eos_token }}"}
    gguf = fake_metadata(values)
    hello = [{"role": "user", "content": "Hello"}]
    tokenizer = Tokenizer.from_gguf(gguf)
    for known in (None, tokenizer):
        assert ChatTemplate.from_gguf(gguf, known).render(hello) == "x</s>"


letters = st.text(st.sampled_from("ab▁"), min_size=1, max_size=4)
words = st.dictionaries(letters, st.integers(-6, 0), max_size=14)


@settings(deadline=None, max_examples=300)
@given(words, st.text(st.sampled_from("ab c"), max_size=24))
def test_merging_is_as_defined(make: Any, scores: dict[str, int], text: str) -> None:
    """On random vocabularies, with equal scores and tokens that no merge can reach."""
    scores = dict.fromkeys("ab▁", -9) | scores
    tokenizer = make([*scores.items()], add_bos_token=False, add_space_prefix=False)
    ids = {piece: FIRST_WORD + place for place, piece in enumerate(scores)}
    expected: list[int] = []
    for piece in sentencepiece_merge(text.replace(" ", "▁"), scores):
        expected += [ids[piece]] if piece in ids else [len(HEAD) + b for b in piece.encode()]
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode(text) == expected  # from remembered words
    assert tokenizer.decode(expected) == text


def test_remembered_words_are_bounded(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentencepiece, "_CACHED_WORDS", 5)
    tokenizer = make(add_bos_token=False, add_space_prefix=False)
    texts = ["".join(letters) for letters in itertools.product("abc", repeat=3)]
    fresh = [make(add_bos_token=False, add_space_prefix=False).encode(text) for text in texts]
    for _ in range(2):
        assert [tokenizer.encode(text) for text in texts] == fresh
        assert len(tokenizer._model._seen) <= 5
    tokenizer.encode("ab" * 1000)
    assert all(len(word) <= 32 for word in tokenizer._model._seen)


@pytest.mark.parametrize(
    "text",
    ["a" * 1_000_000, "abc" * 300_000, " " * 1_000_000, "é" * 300_000, "<tool" * 200_000],
    ids=["one letter", "one word", "spaces", "bytes", "half a token"],
)
def test_a_million_byte_word(small: Tokenizer, text: str) -> None:
    """Work grows as n log n: quadratic work would not end in an hour."""
    assert small.decode(small.encode(text)) == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores is missing"),
        ({"scores": [0.0]}, "scores has 1 entries for 272"),
        ({"tokens": ["<0xGG>" if t == "<0x41>" else t for t, _ in HEAD + BYTES + WORDS]},
         "token 69 is a byte and is written '<0xGG>'"),
        ({"tokens": ["ab" if t == "c" else t for t, _ in HEAD + BYTES + WORDS]},
         "token 'ab' has the ids 263 and 265"),
        ({"token_type": [9] * (FIRST_WORD + len(WORDS))}, r"token_type\[0\] is 9; expected 0 … 6"),
        ({"tokens": ["x" * 257, *(t for t, _ in (HEAD + BYTES + WORDS)[1:])]},
         "special token 0 has 257 characters"),
        ({"tokens": [*(t for t, _ in (HEAD + BYTES + WORDS)[:-1]), "x" * 70000]},
         "a token has 70000 characters"),
        ({"unknown_token_id": 272}, "unknown_token_id is 272"),
    ],
)  # fmt: skip
def test_hostile_vocabularies(make: Any, changes: Any, message: str) -> None:
    with pytest.raises(_core.CorruptModel, match=message):
        make(**changes)


def test_scores_that_are_no_numbers_change_the_order_only(make: Any) -> None:
    scores = [0.0] * FIRST_WORD + [float("nan"), float("inf"), float("-inf")] * 4
    tokenizer = make(scores=scores)
    assert (
        tokenizer.decode(tokenizer.encode("ab c aab"), whole=True, skip_special=True) == "ab c aab"
    )


def test_equal_special_tokens_are_the_first(make: Any) -> None:
    tokens = [text for text, _ in HEAD + BYTES] + [text for text, _ in WORDS]
    tokens[2] = "<s>"
    tokenizer = make(tokens=tokens, add_bos_token=False)
    assert tokenizer.encode("<s>", parse_special=True) == [1]


def test_gemma3_ids_equal_the_golden_ones(gemma3: Tokenizer, golden_gemma3: Any) -> None:
    assert len(golden_gemma3) == 16
    for entry in golden_gemma3:
        ids = gemma3.encode(entry["prompt"], parse_special=True)
        assert ids == entry["prompt_tokens"], entry["id"]
        assert (
            gemma3.decode(ids, skip_special="<" not in entry["prompt"]).removeprefix("<bos>")
            == (entry["prompt"])
        )


def test_gemma3_text_equals_the_golden_text(gemma3: Tokenizer, golden_gemma3: Any) -> None:
    generated = [entry for entry in golden_gemma3 if "greedy_text" in entry]
    assert len(generated) == 7
    for entry in generated:
        stream = gemma3.stream()
        text = "".join(map(stream.feed, entry["greedy_tokens"])) + stream.flush()
        assert text == entry["greedy_text"], entry["id"]


def test_gemma3_specials(gemma3: Tokenizer) -> None:
    assert (gemma3.bos_id, gemma3.eos_id, gemma3.vocab_size) == (2, 1, 262144)
    assert gemma3.eog_ids == {1, 106, 212}  # llama.cpp's; 212 is </s>, user-defined in the file
    assert gemma3.encode("a</s>b") == [2, 236746, 954, 236751, 236813, 236763]  # as llama.cpp
    assert gemma3.encode("a</s>b", parse_special=True) == [2, 236746, 212, 236763]
    assert 106 not in gemma3.encode("<end_of_turn>")
    assert gemma3.max_token_bytes == 48


@settings(deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁")))
def test_gemma3_text_survives(gemma3: Tokenizer, text: str) -> None:
    for parse_special in (False, True):
        ids = gemma3.encode(text, add_special=False, parse_special=parse_special)
        assert gemma3.decode(ids) == text
