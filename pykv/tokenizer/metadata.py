"""What the tokenizer and the chat template read from a model file."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pykv._core import CorruptModel, UnsupportedModel


class Metadata(Protocol):
    """The part of `pykv.GgufFile` that this package needs."""

    def scalar(self, key: str, /) -> bool | int | float | str | None: ...

    def array_size(self, key: str, /) -> int | None: ...

    def string_array(self, key: str, /) -> Sequence[str]: ...

    def integer_array(self, key: str, /) -> Iterable[Any]: ...


class TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type` as GGUF numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Tokens that end a turn or a text in the chat formats in use.
_END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<|return|>",
        "<EOT>",
        "</s>",
    }
)

_SUPPORTED_MODELS = ("gpt2",)


@dataclass(frozen=True)
class Vocabulary:
    """The checked tokenizer metadata of one file; the index in `tokens` is the id."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]
    pre: str
    bos_id: int | None
    eos_id: int | None
    eog_ids: frozenset[int]
    add_bos: bool | None  # None: the file does not say, the pre-tokenizer decides
    add_eos: bool


def read_vocabulary(gguf: Metadata) -> Vocabulary:
    """Raises `UnsupportedModel` for other tokenizer models, `CorruptModel` for missing
    or inconsistent metadata."""
    model = text_of(gguf, "tokenizer.ggml.model")
    if model not in _SUPPORTED_MODELS:
        raise UnsupportedModel(
            f"[Tokenizer.from_gguf] tokenizer model {model!r} is not supported; "
            f"supported: {', '.join(_SUPPORTED_MODELS)} (byte-level BPE)"
        )
    tokens = _strings(gguf, "tokenizer.ggml.tokens")
    types = _types(gguf, len(tokens))
    bos_id = _token_id(gguf, "bos", len(tokens))
    eos_id = _token_id(gguf, "eos", len(tokens))
    return Vocabulary(
        tokens=tokens,
        types=types,
        merges=_merges(gguf),
        pre=text_of(gguf, "tokenizer.ggml.pre", "default"),
        bos_id=bos_id,
        eos_id=eos_id,
        eog_ids=_end_ids(gguf, tokens, types, eos_id),
        add_bos=_flag(gguf, "tokenizer.ggml.add_bos_token"),
        add_eos=bool(_flag(gguf, "tokenizer.ggml.add_eos_token")),
    )


def text_of(gguf: Metadata, key: str, otherwise: str | None = None) -> str:
    """A string value; raises `CorruptModel` if it is absent (without a default) or of
    another kind."""
    value = gguf.scalar(key)
    if value is None:
        value = otherwise
    if not isinstance(value, str):
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise CorruptModel(f"[Tokenizer.from_gguf] {key} is {found}; expected a string")
    return value


def _flag(gguf: Metadata, key: str) -> bool | None:
    value = gguf.scalar(key)
    return None if value is None else bool(value)


def _strings(gguf: Metadata, key: str) -> tuple[str, ...]:
    if not gguf.array_size(key):
        raise CorruptModel(f"[Tokenizer.from_gguf] {key} is missing or empty")
    return tuple(gguf.string_array(key))


def _types(gguf: Metadata, count: int) -> tuple[int, ...]:
    key = "tokenizer.ggml.token_type"
    if gguf.array_size(key) is None:
        return (int(TokenType.NORMAL),) * count
    types = tuple(map(int, gguf.integer_array(key)))
    if len(types) != count:
        raise CorruptModel(
            f"[Tokenizer.from_gguf] {key} has {len(types)} entries for {count} tokens"
        )
    return types


def _merges(gguf: Metadata) -> tuple[tuple[str, str], ...]:
    key = "tokenizer.ggml.merges"
    pairs: dict[tuple[str, str], None] = {}  # the first of two equal merges has the rank
    for index, merge in enumerate(_strings(gguf, key)):
        space = merge.find(" ", 1)
        if space < 0:
            raise CorruptModel(
                f"[Tokenizer.from_gguf] {key}[{index}] is {merge!r}; expected two parts"
            )
        pairs.setdefault((merge[:space], merge[space + 1 :]))
    return tuple(pairs)


def _token_id(gguf: Metadata, name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = gguf.scalar(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise CorruptModel(f"[Tokenizer.from_gguf] {key} is {value!r}; expected 0 … {count - 1}")
    return value


def _end_ids(
    gguf: Metadata, tokens: Sequence[str], types: Sequence[int], eos_id: int | None
) -> frozenset[int]:
    count = len(tokens)
    named = {eos_id, _token_id(gguf, "eot", count), _token_id(gguf, "eom", count)}
    special = (TokenType.CONTROL, TokenType.USER_DEFINED)
    by_text = {i for i, text in enumerate(tokens) if text in _END_TEXTS and types[i] in special}
    # In the "harmony" format <|end|> only ends a channel; <|return|> ends the turn.
    texts = {tokens[i] for i in by_text}
    if {"<|end|>", "<|return|>"} <= texts:
        by_text -= {i for i in by_text if tokens[i] == "<|end|>"}
    return frozenset(by_text | {i for i in named if i is not None})
