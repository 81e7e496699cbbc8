"""Tokenizer and stream decoder: a small vocabulary for the rules, SmolLM2 for the ids."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykv import _core
from pykv.tokenizer import StreamDecoder, Tokenizer
from pykv.tokenizer.bpe import MergePairs, byte_alphabet

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
BYTES = byte_alphabet()  # token id = byte value
WORDS = ["ab", "abc", "Ġab", "12"]
SPECIAL = ["<|im_end|>", "<|im_end|>x", "<tool>", "<unk>"]
IM_END, IM_END_X, TOOL, UNK = range(260, 264)


def values(**changes: Any) -> dict[str, Any]:
    made = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [*BYTES, *WORDS, *SPECIAL],
        "token_type": [NORMAL] * 260 + [CONTROL, CONTROL, USER_DEFINED, UNKNOWN],
        "merges": ["a b", "ab c", "Ġ ab", "1 2"],
        "bos_token_id": 0,
        "eos_token_id": 1,
        **changes,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in made.items() if v is not None}


@pytest.fixture(scope="module")
def make(fake_metadata: Any) -> Any:
    return lambda **changes: Tokenizer.from_gguf(fake_metadata(values(**changes)))


@pytest.fixture(scope="module")
def small(make: Any) -> Tokenizer:
    return make()


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Any) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_gguf)


def test_merges_words_and_splits_digits(small: Tokenizer) -> None:
    assert small.encode("abc") == [257]
    assert small.encode("ab ab") == [256, 258]
    assert small.encode("12") == [ord("1"), ord("2")]  # the merge "1 2" is never used


@pytest.mark.parametrize(
    ("pre", "ids"),
    [("gpt-2", [259]), ("llama-bpe", [0, 259]), ("qwen2", [49, 50]), ("default", [259])],
)
def test_digits_and_begin_token_by_pre_tokenizer(make: Any, pre: str, ids: list[int]) -> None:
    assert make(pre=pre).encode("12") == ids


def test_where_merges_are_cut() -> None:
    """The first part may begin with a space, the second may have them anywhere."""
    pairs = MergePairs(["a b", " a b", "a  b", "a b c ", "  c", "a b"])
    assert [*pairs] == [
        ("a", "b"), (" a", "b"), ("a", " b"), ("a", "b c "), (" ", "c"), ("a", "b"),
    ]  # fmt: skip
    assert (len(pairs), pairs[1]) == (6, (" a", "b"))


def test_the_first_of_two_equal_merges_has_the_rank(make: Any) -> None:
    tokens = [*BYTES, "ab", "bc"]
    twice = make(pre="gpt-2", tokens=tokens, token_type=None, merges=["a b", "b c", "a b"])
    assert twice.encode("abc") == [256, ord("c")]


def test_missing_pre_tokenizer_is_the_default_one(make: Any) -> None:
    assert make(pre=None).encode("12") == [259]


def test_whole_words_need_no_merges(make: Any) -> None:
    assert make(pre="llama-bpe", merges=["a b"]).encode("abc", add_special=False) == [257]
    assert make(pre="gpt-2", merges=["a b"]).encode("abc") == [256, ord("c")]


def test_control_tokens_only_when_parsed(small: Tokenizer) -> None:
    text = "ab<|im_end|>"
    assert small.encode(text, parse_special=True) == [256, IM_END]
    plain = small.encode(text)
    assert IM_END not in plain
    assert small.decode(plain) == text


def test_user_defined_tokens_always(small: Tokenizer) -> None:
    assert small.encode("<tool>ab<tool>") == [TOOL, 256, TOOL]


def test_longest_special_token_first(small: Tokenizer) -> None:
    assert small.encode("<|im_end|>x<|im_end|>", parse_special=True) == [IM_END_X, IM_END]
    assert small.encode("<unk>", parse_special=True) == [UNK]


def test_begin_and_end_tokens_as_the_file_says(make: Any) -> None:
    tokenizer = make(add_bos_token=True, add_eos_token=True)
    assert tokenizer.encode("ab") == [0, 256, 1]
    assert tokenizer.encode("") == [0, 1]
    assert tokenizer.encode("ab", add_special=False) == [256]
    assert make(add_bos_token=True, bos_token_id=None).encode("ab") == [256]
    assert make(add_eos_token=True, eos_token_id=0).encode("ab") == [256, 0]
    assert make(pre="llama-bpe", add_bos_token=False).encode("ab") == [256]


def test_special_ids(small: Tokenizer, make: Any) -> None:
    assert (small.bos_id, small.eos_id, small.vocab_size) == (0, 1, 264)
    assert small.eog_ids == {1, IM_END}
    assert make(eos_token_id=None).eog_ids == {IM_END}
    assert make(eot_token_id=7).eog_ids == {1, 7, IM_END}
    assert make(fim_pad_token_id=9).eog_ids == {1, 9, IM_END}
    types = values()["tokenizer.ggml.token_type"]
    plain = make(token_type=[*types[:IM_END], NORMAL, *types[IM_END + 1 :]])
    assert plain.eog_ids == {1, IM_END}


def test_texts_that_end_a_turn(make: Any) -> None:
    def ends(*specials: tuple[str, int]) -> set[str]:
        tokens = [*BYTES, *WORDS, *(text for text, _ in specials)]
        types = [NORMAL] * 260 + [kind for _, kind in specials]
        found = make(tokens=tokens, token_type=types, eos_token_id=None).eog_ids
        return {tokens[i] for i in found}

    assert ends(("</s>", CONTROL), ("<EOT>", USER_DEFINED)) == {"</s>", "<EOT>"}
    assert ends(("</s>", USER_DEFINED)) == {"</s>"}
    assert ends(("</s>", NORMAL), ("<|tool_response>", CONTROL)) == {"<|tool_response>"}
    assert ends(("<|end|>", CONTROL), ("<|return|>", CONTROL)) == {"<|end|>", "<|return|>"}
    harmony = [("<|end|>", CONTROL), ("<|return|>", CONTROL), ("<|call|>", CONTROL)]
    assert ends(*harmony) == {"<|return|>", "<|call|>"}
    assert ends(("<REPO>", NORMAL), ("<reponame>", CONTROL)) == {"<REPO>"}  # one of a kind


def test_ends_known_by_their_text_are_control_tokens(make: Any) -> None:
    def kinds(*specials: tuple[str, int]) -> list[int]:
        tokens = [*BYTES, *WORDS, *(text for text, _ in specials)]
        types = [NORMAL] * 260 + [kind for _, kind in specials]
        made = make(tokens=tokens, token_type=types, eos_token_id=None)
        return [int(made.token_type(260 + i)) for i in range(len(specials))]

    assert kinds(("</s>", USER_DEFINED), ("<EOT>", NORMAL)) == [CONTROL, NORMAL]
    tag = [("</s>", USER_DEFINED), ("<|tool_response>", CONTROL)]  # of HTML, as in Gemma 4
    assert kinds(*tag) == [USER_DEFINED, CONTROL]
    harmony = [("<|end|>", CONTROL), ("<|return|>", CONTROL), ("<|call|>", CONTROL)]
    assert kinds(*harmony) == [USER_DEFINED, CONTROL, CONTROL]


def test_bytes_of_tokens(small: Tokenizer) -> None:
    assert [small.token_bytes(b) for b in range(256)] == [bytes([b]) for b in range(256)]
    assert small.token_bytes(258) == b" ab"
    assert small.token_bytes(IM_END) == b"<|im_end|>"
    assert small.decode_bytes([0xE4, 0xBD]) == b"\xe4\xbd"
    assert small.decode([0xE4, 0xBD, 0x41]) == "\ufffdA"
    assert small.decode([256, IM_END, TOOL], skip_special=True) == "ab<tool>"
    assert small.decode([]) == ""


@pytest.mark.parametrize("bad", [-1, 264, 2**31, 2**63])
def test_ids_outside_the_vocabulary(small: Tokenizer, bad: int) -> None:
    for call in (small.token_bytes, small.is_control, small.stream().feed):
        with pytest.raises(_core.InvalidArgument, match=rf"token id {bad}.*0 … 263"):
            call(bad)
    with pytest.raises(_core.InvalidArgument):
        small.decode([0, bad])


def test_surrogates_are_refused(small: Tokenizer) -> None:
    with pytest.raises(_core.InvalidArgument, match=r"character 1.*U\+D800"):
        small.encode("a\ud800")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "bert"}, _core.UnsupportedModel, "'bert'.*gpt2.*llama"),
        ({"model": None}, _core.CorruptModel, "model is missing"),
        ({"model": 3}, _core.CorruptModel, "is a int"),
        ({"pre": "klingon"}, _core.UnsupportedModel, "'klingon'.*smollm"),
        ({"tokens": None}, _core.CorruptModel, "tokens is missing"),
        ({"tokens": [*BYTES, "a"]}, _core.CorruptModel, "264 entries for 257"),
        ({"tokens": BYTES, "token_type": [1]}, _core.CorruptModel, "1 entries for 256"),
        ({"tokens": [*BYTES, "a"], "token_type": None}, _core.CorruptModel, "ids 97 and 256"),
        ({"merges": None}, _core.CorruptModel, "merges is missing"),
        ({"merges": ["ab"]}, _core.CorruptModel, r"merges\[0\] is 'ab'"),
        ({"merges": ["a b", " ab"]}, _core.CorruptModel, r"merges\[1\] is ' ab'"),
        ({"merges": ["a x"]}, _core.CorruptModel, "do not fit"),
        ({"merges": ["a  "]}, _core.CorruptModel, "do not fit"),
        ({"merges": ["no t"]}, _core.CorruptModel, "do not fit"),
        ({"eos_token_id": 264}, _core.CorruptModel, "eos_token_id is 264"),
        ({"bos_token_id": "0"}, _core.CorruptModel, "bos_token_id is '0'"),
    ],
)
def test_bad_metadata(make: Any, changes: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make(**changes)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=0, max_size=5), max_size=12))
def test_stream_never_breaks_a_character(pieces: list[bytes]) -> None:
    decoder = StreamDecoder(pieces.__getitem__)
    texts = [decoder.feed(i) for i in range(len(pieces))] + [decoder.flush()]
    assert "".join(texts) == b"".join(pieces).decode(errors="replace")


def test_stream_holds_back_unfinished_characters(small: Tokenizer) -> None:
    stream = small.stream()
    assert [stream.feed(b) for b in "世".encode()] == ["", "", "世"]
    assert stream.feed(0xE4) == ""
    assert stream.flush() == "\ufffd"
    assert stream.feed(0x41) == "A"
    assert stream.feed(0xFF) == "\ufffd"
    assert stream.feed(IM_END) == ""
    assert small.stream(skip_special=False).feed(IM_END) == "<|im_end|>"


def test_ids_equal_the_golden_ones(smollm2: Tokenizer, golden: Any) -> None:
    assert len(golden) == 19
    for entry in golden:
        ids = smollm2.encode(entry["prompt"], parse_special=True)
        assert ids == entry["prompt_tokens"], entry["id"]
        assert smollm2.decode(ids) == entry["prompt"], entry["id"]


def test_text_equals_the_golden_text(smollm2: Tokenizer, golden: Any) -> None:
    generated = [entry for entry in golden if "greedy_text" in entry]
    assert generated
    for entry in generated:
        stream = smollm2.stream()
        text = "".join(map(stream.feed, entry["greedy_tokens"])) + stream.flush()
        assert text == entry["greedy_text"], entry["id"]


def test_smollm2_specials(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_id, smollm2.eos_id, smollm2.vocab_size) == (1, 2, 49152)
    assert smollm2.eog_ids == {0, 2, 4}  # 4: <reponame>; llama.cpp's, all three
    assert smollm2.encode("<|im_end|>") != [2]


@settings(deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Co", "Cn"])))
def test_text_survives(smollm2: Tokenizer, text: str) -> None:
    for parse_special in (False, True):
        assert smollm2.decode(smollm2.encode(text, parse_special=parse_special)) == text
