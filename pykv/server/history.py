"""Answers of this server that come back as history keep the tokens they were generated as.

A model samples tokens that spell a text in another way than the tokenizer would. When the
client sends the text back with its next message, tokenizing it anew gives other ids, and
nothing from there on can be reused. So the ids of finished answers are kept for a while.
They stand in for the tokenizer's where the same text follows the same tokens and ends at
a control token: the prompt still spells exactly what the client sent.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_ENTRY_BYTES = 400  # of a key, an array and their places in the table, beside what they hold
_LARGEST_SHARE = 4  # an answer may take a quarter of the memory


class Segment(Protocol):
    """What pykv.tokenizer's Segment offers."""

    @property
    def text(self) -> str: ...
    @property
    def ids(self) -> list[int]: ...
    @property
    def control(self) -> bool: ...


class Segmenter(Protocol):
    """What is used of the tokenizer."""

    @property
    def bos_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...
    def encode_segments(self, text: str, /, *, add_special: bool = True) -> Sequence[Segment]: ...
    def token_bytes(self, token: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Tail:
    """The open end of a prompt, which the answer will continue.

    Attributes:
        name_space: whose answers may stand in, and who may use this one.
        before: digest of the ids up to the last control token.
        text: what follows that token.
        ids: of that text.
    """

    name_space: int
    before: bytes
    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Ids of a prompt; `tail` for chats, whose answers are remembered."""

    ids: list[int]
    tail: Tail | None = None


class History:
    """Ids of finished answers, the least recently used forgotten first.

    Methods may be called from any thread. That a prefix is the same is known by a 128-bit
    digest of its ids. If two collided, a prompt would still spell the same text; only less
    of it would be reused. Name spaces and texts are compared themselves.
    """

    def __init__(self, tokenizer: Segmenter, capacity: int) -> None:
        """`capacity`: bytes of memory, 0: nothing is remembered."""
        self._tokenizer = tokenizer
        self._capacity = capacity
        self._used = 0
        self._known: OrderedDict[tuple[int, bytes, str], array[int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Never more than the capacity."""
        return self._used

    def __len__(self) -> int:
        return len(self._known)

    def assemble(self, text: str, name_space: int, *, reuse: bool = True) -> PromptTokens:
        """Ids of a rendered chat. `reuse`: remembered answers stand in for the tokenizer."""
        segments = list(self._tokenizer.encode_segments(text))
        begins = [s.ids for s in segments[:2] if s.control]
        if self._tokenizer.add_bos and begins == [[self._tokenizer.bos_id]] * 2:
            segments = segments[1:]  # the template wrote one too
        digest = hashlib.blake2b(digest_size=16)
        tail = Tail(name_space, digest.digest(), "", [])
        ids: list[int] = []
        for segment in segments:
            before, piece = digest.digest(), segment.ids
            if not segment.control and reuse:
                piece = self._find((name_space, before, segment.text)) or piece
            ids += piece
            digest.update(array("i", piece).tobytes())
            if segment.control:
                tail = Tail(name_space, digest.digest(), "", [])
            else:
                tail = Tail(name_space, before, segment.text, piece)
        return PromptTokens(ids, tail)

    def remember(self, tail: Tail, text: str, ids: Sequence[int]) -> None:
        """Keeps the ids of an answer that follows `tail`, if the tokenizer would give others.
        Nothing is kept if no number of its tokens spells exactly `text`, or if control
        tokens are written in it. Templates often trim, so the ids are kept for the text
        without white space at its end, too."""
        for shown in dict.fromkeys((text, text.rstrip())):
            count = self._count(shown, ids)
            whole, spelled = tail.text + shown, [*tail.ids, *ids[:count]]
            if count and self._is_other(whole, spelled):
                self._put((tail.name_space, tail.before, whole), array("i", spelled))

    def _count(self, text: str, ids: Sequence[int]) -> int:
        """How many of the ids spell the text, 0 if none do."""
        wanted = text.encode()
        length = 0
        for count, token in enumerate(ids):
            if length == len(wanted):
                return count
            piece = self._tokenizer.token_bytes(token)
            if not wanted.startswith(piece, length):
                return 0
            length += len(piece)
        return len(ids) if length == len(wanted) else 0

    def _is_other(self, text: str, ids: list[int]) -> bool:
        """Whether the tokenizer reads the text as one segment, all of it, with other ids."""
        first = self._tokenizer.encode_segments(text, add_special=False)[0]
        return not first.control and first.text == text and first.ids != ids

    def _find(self, key: tuple[int, bytes, str]) -> list[int] | None:
        with self._lock:
            found = self._known.get(key)
            if found is None:
                return None
            self._known.move_to_end(key)
            return found.tolist()

    def _put(self, key: tuple[int, bytes, str], ids: array[int]) -> None:
        size = _size(key, ids)
        if size > self._capacity // _LARGEST_SHARE:
            return
        with self._lock:
            old = self._known.pop(key, None)
            if old is not None:
                self._used -= _size(key, old)
            while self._used + size > self._capacity:
                self._used -= _size(*self._known.popitem(last=False))
            self._known[key] = ids
            self._used += size


def _size(key: tuple[int, bytes, str], ids: array[int]) -> int:
    return sys.getsizeof(key[2]) + ids.itemsize * len(ids) + _ENTRY_BYTES
