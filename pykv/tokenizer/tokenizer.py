"""The tokenizer of a GGUF file. Ids equal llama.cpp's."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsIndex

from pykv._core import CorruptModel, InvalidArgument
from pykv.tokenizer.bpe import ByteLevelBpe
from pykv.tokenizer.metadata import SPECIAL, Metadata, TokenType, Vocabulary, read_vocabulary
from pykv.tokenizer.pretokenizers import pre_tokenizer
from pykv.tokenizer.sentencepiece import SentencePieceBpe, byte_value
from pykv.tokenizer.specials import SpecialTokens
from pykv.tokenizer.stream import StreamDecoder


class _Model(Protocol):
    """How text without special tokens becomes ids, and what an ordinary token stands for."""

    @property
    def space_prefix(self) -> bool:
        """Whether a space goes before a text, and before what follows a special token."""

    def encode(self, texts: Sequence[str], /) -> list[list[int]]: ...

    def bytes_of(self, token: str, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """A control token, or the text between two of them, with its ids."""

    text: str
    ids: list[int]
    control: bool


class Tokenizer:
    """Immutable; methods may be called from many threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises `UnsupportedModel` for an unknown pre-tokenizer and `CorruptModel` for
        tokens and merges that do not fit together."""
        self._tokens = vocabulary.tokens
        self._types = vocabulary.types.tobytes()
        ids, special, user_defined = _tables(vocabulary)
        self._model, add_bos = _model(vocabulary, ids)
        self._all_special = SpecialTokens(special, vocabulary.strip_after)
        self._user_defined = SpecialTokens(user_defined, vocabulary.strip_after)
        self._bytes: list[bytes | None] = [None] * len(self._tokens)
        self._prefix = _present(vocabulary.bos_id if add_bos else None)
        self._suffix = _present(vocabulary.eos_id if vocabulary.add_eos else None)
        self.kind = vocabulary.model
        self.pre = vocabulary.pre
        self.add_bos = add_bos
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eog_ids = vocabulary.eog_ids
        self.vocab_size = len(self._tokens)

    @classmethod
    def from_gguf(cls, gguf: Metadata) -> Tokenizer:
        return cls(read_vocabulary(gguf))

    @property
    def max_token_bytes(self) -> int:
        """No token stands for more bytes than this."""
        return max(map(len, map(str.encode, self._tokens)))

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """`add_special`: the begin and end tokens that the file asks for (SmolLM2: none).
        `parse_special`: control tokens written in `text` become those tokens; without it
        they are plain text, so that nobody's words can pose as a turn. Vocabularies with
        a space prefix (Llama 2) get a space before the text and after special tokens.
        Raises `InvalidArgument` for text that is not Unicode (lone surrogates)."""
        ids = list(self._prefix) if add_special else []
        for _, piece in self._encoded(text, parse_special):
            ids += piece
        return ids + self._suffix if add_special else ids

    def encode_segments(self, text: str, *, add_special: bool = True) -> list[Segment]:
        """The ids of `encode` with `parse_special`, cut at control tokens, each of which is
        a segment of its own. No segment depends on another one's text."""
        segments = self._control(self._prefix if add_special else [])
        written: list[str] = []
        ids: list[int] = []
        for part, piece in self._encoded(text, True):
            if isinstance(part, str) or self._types[part] == TokenType.USER_DEFINED:
                written.append(part if isinstance(part, str) else self._tokens[part])
                ids += piece
                continue
            if ids:
                segments.append(Segment("".join(written), ids, False))
                written, ids = [], []
            segments += self._control(piece)
        if ids:
            segments.append(Segment("".join(written), ids, False))
        return segments + self._control(self._suffix if add_special else [])

    def _control(self, ids: list[int]) -> list[Segment]:
        return [Segment(self._tokens[index], [index], True) for index in ids]

    def _encoded(self, text: str, parse_special: bool) -> Iterator[tuple[str | int, list[int]]]:
        """Plain texts and special tokens with their ids, in order."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"[Tokenizer.encode] character {error.start} of the text is a lone surrogate "
                f"(U+{ord(text[error.start]):04X}); send valid Unicode"
            ) from None
        parts = (self._all_special if parse_special else self._user_defined).split(text)
        space = " " if self._model.space_prefix else ""
        plain = [
            space + part if index == 0 or isinstance(parts[index - 1], int) else part
            for index, part in enumerate(parts)
            if isinstance(part, str)
        ]
        encoded = iter(self._model.encode(plain))
        for part in parts:
            yield part, next(encoded) if isinstance(part, str) else [part]

    def decode(
        self, ids: Iterable[SupportsIndex], *, skip_special: bool = False, whole: bool = False
    ) -> str:
        """Text of the tokens; bytes that are not UTF-8 become U+FFFD. Control tokens are
        written out unless `skip_special`. `whole`: the ids are a text as `encode` makes
        it, so the spaces that it put in are taken out again."""
        return self.decode_bytes(ids, skip_special=skip_special, whole=whole).decode(
            errors="replace"
        )

    def decode_bytes(
        self, ids: Iterable[SupportsIndex], *, skip_special: bool = False, whole: bool = False
    ) -> bytes:
        """As `decode`, as bytes."""
        shown = self._visible_bytes if skip_special else self.token_bytes
        if not (whole and self._model.space_prefix):
            return b"".join(map(shown, ids))
        pieces = []
        prefixed = True
        for token in ids:
            piece = shown(token)
            special = self._types[operator.index(token)] in SPECIAL
            pieces.append(piece.removeprefix(b" ") if prefixed and not special else piece)
            prefixed = special
        return b"".join(pieces)

    def token_bytes(self, token: SupportsIndex) -> bytes:
        """The bytes one token stands for; control tokens as they are written. Raises
        `InvalidArgument` for an id outside the vocabulary."""
        index = self._checked(token)
        found = self._bytes[index]
        if found is None:
            found = self._bytes[index] = self._to_bytes(index)
        return found

    def token_text(self, token: SupportsIndex) -> str:
        """The token as the vocabulary writes it."""
        return self._tokens[self._checked(token)]

    def token_type(self, token: SupportsIndex) -> TokenType:
        return TokenType(self._types[self._checked(token)])

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
        text, kind = self._tokens[index], self._types[index]
        if kind in SPECIAL:
            return text.encode()
        if kind == TokenType.BYTE and (value := byte_value(text)) is not None:
            return bytes((value,))
        return self._model.bytes_of(text)


def _present(token: int | None) -> list[int]:
    return [] if token is None else [token]


def _model(vocabulary: Vocabulary, ids: dict[str, int]) -> tuple[_Model, bool]:
    """The model, and whether a begin token is added."""
    if vocabulary.model == "llama":
        model: _Model = SentencePieceBpe(vocabulary, ids)
        by_kind = True
    else:
        pre = pre_tokenizer(vocabulary.pre)
        model, by_kind = ByteLevelBpe(vocabulary, ids, pre), pre.add_bos
    return model, by_kind if vocabulary.add_bos is None else vocabulary.add_bos


def _tables(vocabulary: Vocabulary) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Ids by text: of the tokens that text can become by merging, of all special tokens,
    of the user-defined ones. Special tokens and bytes are not in the first, so text can
    never merge into one. Raises `CorruptModel` if two ordinary tokens are the same."""
    tokens = vocabulary.tokens
    apart = vocabulary.ids([*SPECIAL, TokenType.BYTE])
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) == len(tokens):
        for index in apart:
            del ids[tokens[index]]
    else:
        ids = _distinct(tokens, frozenset(apart))
    ids.pop("", None)
    special = {tokens[i]: i for i in reversed(vocabulary.ids(SPECIAL)) if tokens[i]}
    user_defined = vocabulary.ids([TokenType.USER_DEFINED])
    return ids, special, {tokens[i]: i for i in reversed(user_defined) if tokens[i]}


def _distinct(tokens: Sequence[str], apart: frozenset[int]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for index, text in enumerate(tokens):
        if index in apart or not text:
            continue
        if text in ids:
            raise CorruptModel(
                f"[Tokenizer.from_gguf] token {text[:80]!r} has the ids {ids[text]} and {index}"
            )
        ids[text] = index
    return ids
