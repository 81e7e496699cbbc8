"""Byte-level BPE, `tokenizer.ggml.model` = "gpt2"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import models

from pykv._core import CorruptModel
from pykv.tokenizer.metadata import PREFIX, Vocabulary
from pykv.tokenizer.pretokenizers import PreTokenizer


def byte_alphabet() -> list[str]:
    """The 256 characters by which byte-level vocabularies write bytes: printable ones
    stand for themselves, the others are U+0100, U+0101, … in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(0x100)]


_BYTE_OF = {char: bytes((byte,)) for byte, char in enumerate(byte_alphabet())}


class MergePairs(Sequence[tuple[str, str]]):
    """Merges as pairs of tokens, each of which exists only while it is looked at: lists of
    the 253,000 of a large vocabulary take longer to make and free than the merges to read.
    The second part is empty where a merge is not two parts with a space between."""

    def __init__(self, merges: Sequence[str]) -> None:
        self._merges = merges

    def __len__(self) -> int:
        return len(self._merges)

    def __getitem__(self, index: Any) -> Any:
        return [*self][index]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for merge in self._merges:
            left, _, right = merge.partition(" ")
            if not left:  # the first part has a space only at its begin, the second anywhere
                left, _, right = right.partition(" ")
                left = " " + left
            yield left, right


class ByteLevelBpe:
    """The merging of the `tokenizers` library over the words that a pre-tokenizer cuts.

    Bytes for which the vocabulary has no token are left out (in SmolLM2 some control
    characters).
    """

    space_prefix = False

    def __init__(self, vocabulary: Vocabulary, ids: dict[str, int], pre: PreTokenizer) -> None:
        """`ids`: the tokens that text can become. Raises `CorruptModel` for merges that
        name other tokens."""
        merges: Any = MergePairs(vocabulary.merges)  # a list, says the library; it takes any
        try:
            model = models.BPE(vocab=ids, merges=merges, ignore_merges=pre.whole_words)
        except Exception as error:  # the library raises plain Exception
            raise CorruptModel(f"[Tokenizer.from_gguf] {_why_not(merges, error)}") from error
        self._bpe = tokenizers.Tokenizer(model)
        self._bpe.pre_tokenizer = pre.build()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        # The batch call is the one that leaves the GIL to others meanwhile.
        encoded = self._bpe.encode_batch_fast(list(texts), add_special_tokens=False)
        return [each.ids for each in encoded]

    @staticmethod
    def bytes_of(token: str) -> bytes:
        """What an ordinary token stands for."""
        return b"".join(_BYTE_OF.get(char) or char.encode() for char in token)


def _why_not(merges: MergePairs, error: Exception) -> str:
    for index, (left, right) in enumerate(merges):
        if not right:
            return f"{PREFIX}merges[{index}] is {left[:80]!r}; expected two parts"
    return f"the merges do not fit the tokens: {error}"
