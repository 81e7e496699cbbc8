"""Stop strings and characters never leak in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pykv.text import Assembler, Part, StopFilter
from tests.server.fakes import END, ByteDecoder

letters = st.text(alphabet="ab\n", max_size=12)
stops = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


@given(st.lists(letters, max_size=10), stops)
def test_chunking_does_not_change_what_is_shown(chunks: list[str], stops: list[str]) -> None:
    whole = "".join(chunks)
    found = [at for at in (whole.find(stop) for stop in stops) if at >= 0]
    filter_ = StopFilter(stops)
    shown = "".join(filter_.feed(chunk) for chunk in chunks)
    assert filter_.stopped == bool(found)
    if not filter_.stopped:
        shown += filter_.flush()
    # The stop string that is complete first wins, as if the text had come by characters.
    if found:
        assert shown in {whole[:at] for at in found}
    else:
        assert shown == whole


@given(letters, stops)
def test_no_character_of_a_stop_string_is_shown_early(text: str, stops: list[str]) -> None:
    filter_ = StopFilter(stops)
    shown = ""
    for character in text:
        shown += filter_.feed(character)
        assert not any(stop in shown for stop in stops)
        if filter_.stopped:
            assert any(text.startswith(shown + stop) for stop in stops)
            return


def test_holds_back_no_more_than_a_possible_beginning() -> None:
    filter_ = StopFilter(["<end>"])
    assert filter_.feed("one <e") == "one "
    assert filter_.feed("lse") == "<else"
    assert filter_.feed("<end") == ""
    assert filter_.flush() == "<end"


def feed_bytes(assembler: Assembler, data: bytes) -> list[Part]:
    return [assembler.feed(byte, -0.5, []) for byte in data]


def test_a_character_of_four_tokens_comes_whole() -> None:
    assembler = Assembler(ByteDecoder(), [], frozenset({END}))
    parts = feed_bytes(assembler, "a😀b".encode())
    assert [part.text for part in parts] == ["a", "", "", "", "😀", "b"]
    assert [info.token for part in parts for info in part.tokens] == list("a😀b".encode())


def test_a_broken_end_becomes_a_replacement_character() -> None:
    assembler = Assembler(ByteDecoder(), [], frozenset({END}))
    feed_bytes(assembler, "a😀".encode()[:3])
    assert assembler.finish().text == "\ufffd"


def test_hidden_tokens_are_not_shown() -> None:
    assembler = Assembler(ByteDecoder(), [], frozenset({END}))
    assert not assembler.feed(END, -0.5, [])


def test_tokens_come_with_their_text_and_not_beyond_the_stop() -> None:
    assembler = Assembler(ByteDecoder(), ["STOP"], frozenset({END}))
    parts = feed_bytes(assembler, b"abSTxSTOPcd")
    assert "".join(part.text for part in parts) == "abSTx"
    assert [len(part.tokens) for part in parts] == [1, 1, 0, 0, 3, 0, 0, 0, 0, 0, 0]
    assert [info.begin for part in parts for info in part.tokens] == [0, 1, 2, 3, 4]
    assert assembler.stopped
    assert not assembler.finish()


def test_a_token_cut_by_the_stop_string_counts_as_shown() -> None:
    class Words(ByteDecoder):
        def feed(self, token: int) -> str:
            return ["ab", "c\n", "\nd"][token]

    assembler = Assembler(Words(), ["\n\n"], frozenset())
    parts = [assembler.feed(token, -0.5, []) for token in range(3)]
    assert [part.text for part in parts] == ["ab", "c", ""]
    assert [[info.token for info in part.tokens] for part in parts] == [[0], [], [1]]
