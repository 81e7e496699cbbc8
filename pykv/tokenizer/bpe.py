"""The byte-level BPE tokenizer of a GGUF file. Ids equal llama.cpp's."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex

import tokenizers
from tokenizers import models

from pykv._core import CorruptModel, InvalidArgument
from pykv.tokenizer.metadata import Metadata, TokenType, Vocabulary, read_vocabulary
from pykv.tokenizer.pretokenizers import pre_tokenizer
from pykv.tokenizer.stream import StreamDecoder

_VERBATIM = frozenset({TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED})
_ALWAYS_PARSED = frozenset({TokenType.USER_DEFINED})


def _byte_alphabet() -> dict[str, int]:
    """The 256 characters by which byte-level vocabularies write bytes: printable ones
    stand for themselves, the others are U+0100, U+0101, … in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(0x100) if b not in set(printable)]
    alphabet = {chr(b): b for b in printable}
    alphabet.update({chr(0x100 + n): b for n, b in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()


class Tokenizer:
    """Immutable; methods may be called from many threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises `UnsupportedModel` for an unknown pre-tokenizer and `CorruptModel` for
        tokens and merges that do not fit together."""
        pre = pre_tokenizer(vocabulary.pre)
        add_bos = pre.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
        self._tokens = vocabulary.tokens
        self._types = vocabulary.types
        self._bpe = _build(vocabulary, pre.whole_words)
        self._bpe.pre_tokenizer = pre.build()
        self._specials = _specials(vocabulary)
        self._bytes: list[bytes | None] = [None] * len(vocabulary.tokens)
        self._prefix = _present(vocabulary.bos_id if add_bos else None)
        self._suffix = _present(vocabulary.eos_id if vocabulary.add_eos else None)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eog_ids = vocabulary.eog_ids
        self.vocab_size = len(vocabulary.tokens)

    @classmethod
    def from_gguf(cls, gguf: Metadata) -> Tokenizer:
        return cls(read_vocabulary(gguf))

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """`add_special`: the begin and end tokens that the file asks for (SmolLM2: none).
        `parse_special`: control tokens written in `text` become those tokens; without it
        they are plain text, so that nobody's words can pose as a turn. Bytes for which
        the vocabulary has no token are left out (in SmolLM2 some control characters).
        Raises `InvalidArgument` for text that is not Unicode (lone surrogates)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"[Tokenizer.encode] character {error.start} of the text is a lone surrogate "
                f"(U+{ord(text[error.start]):04X}); send valid Unicode"
            ) from None
        ids = list(self._prefix) if add_special else []
        parts = self._fragments(text, parse_special)
        # The batch call is the one that leaves the GIL to others meanwhile.
        texts = [part for part in parts if isinstance(part, str)]
        encoded = iter(self._bpe.encode_batch_fast(texts, add_special_tokens=False))
        for part in parts:
            ids += next(encoded).ids if isinstance(part, str) else [part]
        return ids + self._suffix if add_special else ids

    def decode(self, ids: Iterable[SupportsIndex], *, skip_special: bool = False) -> str:
        """Text of the tokens; bytes that are not UTF-8 become U+FFFD. Control tokens are
        written out unless `skip_special`."""
        return self.decode_bytes(ids, skip_special=skip_special).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[SupportsIndex], *, skip_special: bool = False) -> bytes:
        piece = self._visible_bytes if skip_special else self.token_bytes
        return b"".join(piece(i) for i in ids)

    def token_bytes(self, token: SupportsIndex) -> bytes:
        """The bytes one token stands for; control tokens as they are written. Raises
        `InvalidArgument` for an id outside the vocabulary."""
        index = self._checked(token)
        found = self._bytes[index]
        if found is None:
            found = self._bytes[index] = self._to_bytes(index)
        return found

    def is_control(self, token: SupportsIndex) -> bool:
        return self._types[self._checked(token)] == TokenType.CONTROL

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """For text shown while it is generated; control tokens are not shown."""
        return StreamDecoder(self._visible_bytes if skip_special else self.token_bytes)

    def _checked(self, token: SupportsIndex) -> int:
        index = operator.index(token)
        if not 0 <= index < self.vocab_size:
            raise InvalidArgument(
                f"[Tokenizer.token_bytes] token id {index} is not in the vocabulary "
                f"(0 … {self.vocab_size - 1})"
            )
        return index

    def _visible_bytes(self, token: SupportsIndex) -> bytes:
        return b"" if self.is_control(token) else self.token_bytes(token)

    def _to_bytes(self, index: int) -> bytes:
        text = self._tokens[index]
        if self._types[index] in _VERBATIM:
            return text.encode()
        return b"".join(
            bytes((_BYTE_OF[char],)) if char in _BYTE_OF else char.encode() for char in text
        )

    def _fragments(self, text: str, parse_special: bool) -> list[str | int]:
        parts: list[str | int] = [text] if text else []
        for special, index in self._specials:
            if special not in text:
                continue
            if not parse_special and self._types[index] not in _ALWAYS_PARSED:
                continue
            parts = [piece for part in parts for piece in _split(part, special, index)]
        return parts


def _present(token: int | None) -> list[int]:
    return [] if token is None else [token]


def _split(part: str | int, special: str, index: int) -> list[str | int]:
    if isinstance(part, int) or special not in part:
        return [part]
    pieces: list[str | int] = []
    for plain in part.split(special):
        pieces += [plain, index]
    return [piece for piece in pieces[:-1] if piece != ""]


def _specials(vocabulary: Vocabulary) -> list[tuple[str, int]]:
    """Longest first, so that no special token hides inside a longer one."""
    found = [
        (text, index)
        for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in _VERBATIM and text
    ]
    return sorted(found, key=lambda special: (-len(special[0].encode()), special[1]))


def _build(vocabulary: Vocabulary, whole_words: bool) -> tokenizers.Tokenizer:
    ids: dict[str, int] = {}
    for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if text in ids:
            raise CorruptModel(
                f"[Tokenizer.from_gguf] token {text!r} has the ids {ids[text]} and {index}"
            )
        # Special tokens are not in the alphabet of words: text can never merge into one.
        if kind not in _VERBATIM and text:
            ids[text] = index
    try:
        return tokenizers.Tokenizer(
            models.BPE(vocab=ids, merges=list(vocabulary.merges), ignore_merges=whole_words)
        )
    except Exception as error:  # the library raises plain Exception
        raise CorruptModel(
            f"[Tokenizer.from_gguf] the merges do not fit the tokens: {error}"
        ) from error
