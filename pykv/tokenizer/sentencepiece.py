"""SentencePiece BPE, `tokenizer.ggml.model` = "llama".

Every character is a symbol. As long as two neighbours together are a token, those with
the highest score are merged, the left-most of equal ones first. Characters without a
token become the tokens of their bytes. There is no list of merges: any two symbols merge
whose text is a token. Kudo and Richardson, "SentencePiece", 2018.

The `tokenizers` library needs such a list. For the 262,144 tokens of Gemma 3 it has
514,847 entries, and to derive it and build the model takes 4.7 s on the machine where
loading the vocabulary as below takes 0.3 s; and since each merge has a rank of its own
there, equal scores cannot be tried from left to right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from pykv._core import CorruptModel
from pykv.tokenizer.metadata import TokenType, Vocabulary

SPACE = "▁"  # U+2581, how vocabularies write a space
_CACHED_WORDS = 1 << 15
_CACHED_CHARS = 32  # longer words are not kept
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class SentencePieceBpe:
    """Merging by score. Methods may be called from many threads.

    Time: n log n in the characters of a text. Words that were seen lately are looked up:
    no more than 32,768, then all are forgotten.
    """

    def __init__(self, vocabulary: Vocabulary, ids: Mapping[str, int]) -> None:
        """`ids`: the tokens that text can become; neither special ones nor bytes."""
        assert vocabulary.scores is not None
        self._ids = ids
        self._length_bits = max(map(len, vocabulary.tokens)).bit_length()
        _, ranks = np.unique(-vocabulary.scores, return_inverse=True)
        self._ranks: list[int] = ranks.reshape(-1).tolist()
        self._bytes = _byte_ids(vocabulary)
        self._unknown = [] if vocabulary.unknown_id is None else [vocabulary.unknown_id]
        self._words = _word_ends(ids)
        self._seen: dict[str, tuple[int, ...]] = {}
        stated = vocabulary.add_space_prefix
        self.space_prefix = True if stated is None else stated

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        return [self._encode(text.replace(" ", SPACE)) for text in texts]

    @staticmethod
    def bytes_of(token: str) -> bytes:
        """What an ordinary token stands for."""
        return token.replace(SPACE, " ").encode()

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._words.split(text):
            found = self._seen.get(word)
            if found is None:
                found = tuple(self._merge(word))
                if len(word) <= _CACHED_CHARS:
                    if len(self._seen) >= _CACHED_WORDS:
                        self._seen.clear()
                    self._seen[word] = found
            ids += found
        return ids

    def _merge(self, word: str) -> list[int]:
        """A symbol is known by its first character: `end[first]` is where it ends, 0 for
        one that was merged into its left neighbour. An entry of the queue is one number:
        rank, first character and length of what a merge would give."""
        count = len(word)
        end = [*range(1, count + 1)]
        before = [*range(-1, count - 1)]
        length_bits, first_bits = self._length_bits, count.bit_length()
        length_mask, first_mask = (1 << length_bits) - 1, (1 << first_bits) - 1
        find, ranks = self._ids.get, self._ranks

        def entry(first: int, stop: int) -> int | None:
            token = find(word[first:stop])
            if token is None:
                return None
            return (ranks[token] << first_bits | first) << length_bits | (stop - first)

        pairs = (entry(first, first + 2) for first in range(count - 1))
        queue = [pair for pair in pairs if pair is not None]
        heapify(queue)
        while queue:
            best = heappop(queue)
            length, first = best & length_mask, best >> length_bits & first_mask
            middle = end[first]
            if not middle or middle == count or end[middle] - first != length:
                continue  # one of the two has been merged meanwhile
            stop = end[first] = end[middle]
            end[middle] = 0
            left = before[first]
            if left >= 0 and (pair := entry(left, stop)) is not None:
                heappush(queue, pair)
            if stop < count:
                before[stop] = first
                if (pair := entry(first, end[stop])) is not None:
                    heappush(queue, pair)
        return self._tokens(word, end)

    def _tokens(self, word: str, end: Sequence[int]) -> list[int]:
        ids: list[int] = []
        first = 0
        while first < len(word):
            stop = end[first]
            token = self._ids.get(word[first:stop])
            ids += self._fallback(word[first:stop]) if token is None else (token,)
            first = stop
        return ids

    def _fallback(self, char: str) -> list[int]:
        """A character without a token: its bytes, else the unknown token, else nothing."""
        if self._bytes is None:
            return self._unknown
        return [self._bytes[byte] for byte in char.encode()]


def byte_value(token: str) -> int | None:
    """The byte that a token of type BYTE is written for."""
    match = _BYTE.fullmatch(token)
    return None if match is None else int(match[1], 16)


def _byte_ids(vocabulary: Vocabulary) -> list[int] | None:
    """Id of each byte; None if the vocabulary does not have them all."""
    found: dict[int, int] = {}
    for index in vocabulary.ids([TokenType.BYTE]):
        value = byte_value(vocabulary.tokens[index])
        if value is None:
            raise CorruptModel(
                f"[Tokenizer.from_gguf] token {index} is a byte and is written "
                f"{vocabulary.tokens[index][:40]!r}; expected <0x00> … <0xFF>"
            )
        found.setdefault(value, index)
    return [found[byte] for byte in range(0x100)] if len(found) == 0x100 else None


def _word_ends(ids: Mapping[str, int]) -> re.Pattern[str]:
    """Where no merge can cross: before a space, unless some token has the character
    before it and the space in this order. So words can be merged one by one."""
    between = "\ud800"  # in no token, since they are Unicode
    inside = set(re.findall(f"([^{SPACE}{between}]){SPACE}", between.join(ids)))
    return re.compile(f"(?<=[^{SPACE}{re.escape(''.join(sorted(inside)))}])(?={SPACE})")
