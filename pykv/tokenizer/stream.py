"""Token ids to text while they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns one token after another into text that is never broken UTF-8: bytes of an
    unfinished character wait for the next token; bytes that no next token can complete
    become U+FFFD. All texts together equal `Tokenizer.decode` of all ids. Not
    thread-safe; one per generation."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The text that this token completes; may be empty. Raises `InvalidArgument`
        for an id outside the vocabulary."""
        return self._decoder.decode(self._bytes_of(token))

    def flush(self) -> str:
        """What is left at the end: an unfinished character as U+FFFD. The decoder can
        then be used anew."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
