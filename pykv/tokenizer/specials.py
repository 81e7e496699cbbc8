"""Finds special tokens as they are written in a text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from pykv._core import CorruptModel

# The longest in use have about 40 characters; the cost of a search grows with it.
MAX_SPECIAL_CHARS = 256
_WHITE_SPACE = re.compile(r"[ \t\n\v\f\r]*")


class SpecialTokens:
    """Cuts texts at special tokens: from left to right, at each place the longest one.
    Immutable.

    A vocabulary may have thousands of them (Gemma 3: 6,400), so only places that begin as
    one of them are looked at: one regular expression for the first characters, then a
    table for the first two. Cost: linear in the text.
    """

    def __init__(self, ids: Mapping[str, int], strip_after: frozenset[int] = frozenset()) -> None:
        """`ids`: id of each text, none empty. White space that follows one of
        `strip_after` is dropped."""
        self._ids = ids
        self._strip_after = strip_after
        lengths: dict[str, set[int]] = defaultdict(set)
        for text, index in ids.items():
            if len(text) > MAX_SPECIAL_CHARS:
                raise CorruptModel(
                    f"[Tokenizer.from_gguf] special token {index} has {len(text)} characters; "
                    f"the limit is {MAX_SPECIAL_CHARS}"
                )
            lengths[text[:2]].add(len(text))
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        firsts = "".join(sorted({head[0] for head in lengths}))
        self._firsts = re.compile(f"[{re.escape(firsts)}]" if firsts else "(?!)")

    def split(self, text: str) -> list[str | int]:
        """The text as pieces without special tokens, none empty, and ids between them."""
        parts: list[str | int] = []
        done = 0
        for match in self._firsts.finditer(text):
            begin = match.start()
            length = self._longest(text, begin) if begin >= done else 0
            if not length:
                continue
            if begin > done:
                parts.append(text[done:begin])
            index = self._ids[text[begin : begin + length]]
            parts.append(index)
            done = begin + length
            if index in self._strip_after:
                done = _WHITE_SPACE.match(text, done).end()  # type: ignore[union-attr]
        if done < len(text):
            parts.append(text[done:])
        return parts

    def _longest(self, text: str, begin: int) -> int:
        """Characters of the longest special token that stands at `begin`, or 0."""
        for length in self._lengths.get(text[begin : begin + 2], ()):
            if text[begin : begin + length] in self._ids:
                return length
        return 1 if text[begin] in self._ids else 0
