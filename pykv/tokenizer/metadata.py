"""What the tokenizer and the chat template read from a model file."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pykv._core import CorruptModel, UnsupportedModel
from pykv.tokenizer.endings import ALL_TEXTS, END_TEXTS, FILL_IN_TEXTS, ends_no_turn

PREFIX = "tokenizer.ggml."
MODELS = {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE"}
"""`tokenizer.ggml.model` values that are understood."""

_MAX_TOKEN_CHARS = 1 << 16


class Metadata(Protocol):
    """The part of `pykv.GgufFile` that this package needs."""

    def scalar(self, key: str, /) -> bool | int | float | str | None: ...

    def array_size(self, key: str, /) -> int | None: ...

    def string_array(self, key: str, /) -> Sequence[str]: ...

    def integer_array(self, key: str, /) -> Iterable[Any]: ...

    def float_array(self, key: str, /) -> Iterable[Any]: ...


class TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type` as GGUF numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL = frozenset({TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED})
"""Tokens that are found as they are written, before the text between them is cut."""


@dataclass(frozen=True)
class Vocabulary:
    """The checked tokenizer metadata of one file; the index in `tokens` is the id."""

    model: str  # a key of MODELS
    tokens: Sequence[str]
    types: npt.NDArray[np.uint8]  # TokenType of each token
    merges: Sequence[str]  # byte-level BPE only; two tokens with a space between, none twice
    scores: npt.NDArray[np.float32] | None  # SentencePiece only
    pre: str
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eog_ids: frozenset[int]
    add_bos: bool | None  # None: the file does not say, the kind of tokenizer decides
    add_eos: bool
    add_space_prefix: bool | None  # None: the file does not say
    strip_after: frozenset[int]  # special tokens that swallow the white space behind them

    def ids(self, types: Iterable[TokenType]) -> list[int]:
        """Ids of the tokens of these types, ascending."""
        wanted = np.isin(self.types, [int(kind) for kind in types])
        found: list[int] = np.flatnonzero(wanted).tolist()
        return found


def read_vocabulary(gguf: Metadata) -> Vocabulary:
    """Raises `UnsupportedModel` for other tokenizer models, `CorruptModel` for missing
    or inconsistent metadata."""
    model = tokenizer_model(gguf)
    tokens = _strings(gguf, PREFIX + "tokens")
    longest = max(map(len, tokens))
    if longest > _MAX_TOKEN_CHARS:
        raise _corrupt(f"a token has {longest} characters; the limit is {_MAX_TOKEN_CHARS}")
    types = _types(gguf, len(tokens))
    bos_id, eos_id = (_token_id(gguf, name, len(tokens)) for name in ("bos", "eos"))
    eog_ids, types = _ends(gguf, tokens, types, eos_id)
    return Vocabulary(
        model=model,
        tokens=tokens,
        types=types,
        merges=_merges(gguf) if model == "gpt2" else [],
        scores=_scores(gguf, len(tokens)) if model == "llama" else None,
        pre=text_of(gguf, PREFIX + "pre", "default"),
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=_token_id(gguf, "unknown", len(tokens)),
        eog_ids=eog_ids,
        add_bos=flag(gguf, "add_bos_token"),
        add_eos=bool(flag(gguf, "add_eos_token")),
        add_space_prefix=flag(gguf, "add_space_prefix"),
        strip_after=_strip_after(gguf, tokens, types),
    )


def tokenizer_model(gguf: Metadata) -> str:
    """The kind of tokenizer; raises `UnsupportedModel` naming the supported ones."""
    model = text_of(gguf, PREFIX + "model")
    if model not in MODELS:
        known = ", ".join(f"{name} ({what})" for name, what in MODELS.items())
        raise UnsupportedModel(
            f"[Tokenizer.from_gguf] tokenizer model {model[:80]!r} is not supported; "
            f"supported: {known}"
        )
    return model


def text_of(gguf: Metadata, key: str, otherwise: str | None = None) -> str:
    """A string value; raises `CorruptModel` if it is absent (without a default) or of
    another kind."""
    value = gguf.scalar(key)
    if value is None:
        value = otherwise
    if not isinstance(value, str):
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise _corrupt(f"{key} is {found}; expected a string")
    return value


def flag(gguf: Metadata, name: str) -> bool | None:
    """A yes or no; None: the file does not say."""
    value = gguf.scalar(PREFIX + name)
    return None if value is None else bool(value)


def _corrupt(why: str) -> CorruptModel:
    return CorruptModel(f"[Tokenizer.from_gguf] {why}")


def _strings(gguf: Metadata, key: str) -> Sequence[str]:
    if not gguf.array_size(key):
        raise _corrupt(f"{key} is missing or empty")
    return gguf.string_array(key)


def _types(gguf: Metadata, count: int) -> npt.NDArray[np.uint8]:
    key = PREFIX + "token_type"
    if gguf.array_size(key) is None:
        return np.full(count, TokenType.NORMAL, np.uint8)
    types = np.asarray(gguf.integer_array(key), np.int64)
    if len(types) != count:
        raise _corrupt(f"{key} has {len(types)} entries for {count} tokens")
    unknown = np.flatnonzero((types < 0) | (types > max(TokenType)))
    if len(unknown):
        raise _corrupt(
            f"{key}[{unknown[0]}] is {types[unknown[0]]}; expected 0 … {int(max(TokenType))}"
        )
    return types.astype(np.uint8)


def _scores(gguf: Metadata, count: int) -> npt.NDArray[np.float32]:
    key = PREFIX + "scores"
    if gguf.array_size(key) is None:
        raise _corrupt(f"{key} is missing; a SentencePiece vocabulary merges by score")
    scores = np.asarray(gguf.float_array(key), np.float32)
    if len(scores) != count:
        raise _corrupt(f"{key} has {len(scores)} entries for {count} tokens")
    return scores


def _merges(gguf: Metadata) -> Sequence[str]:
    merges = _strings(gguf, PREFIX + "merges")
    # The first of two equal merges has the rank.
    return list(dict.fromkeys(merges)) if len(set(merges)) < len(merges) else merges


def _token_id(gguf: Metadata, name: str, count: int) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    value = gguf.scalar(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise _corrupt(f"{key} is {value!r}; expected 0 … {count - 1}")
    return value


def _ends(
    gguf: Metadata, tokens: Sequence[str], types: npt.NDArray[np.uint8], eos_id: int | None
) -> tuple[frozenset[int], npt.NDArray[np.uint8]]:
    """Ids of the tokens that end a text, and the types with those known by their text as
    control tokens instead of user-defined ones, so that nobody's words can pose as an end.
    Ordinary tokens stay what they are, since merges lead to them (Qwen's "</s>")."""
    places = {text: tokens.index(text) for text in ALL_TEXTS.intersection(tokens)}
    texts = places.keys() & END_TEXTS
    found = {eos_id, *(_token_id(gguf, name, len(tokens)) for name in ("eot", "eom"))}
    for name, known in FILL_IN_TEXTS.items():
        token = _token_id(gguf, name, len(tokens))
        found.add(token)
        if token is None:
            texts = {*texts, *[text for text in known if text in places][:1]}
    if exception := ends_no_turn(texts):
        texts = texts - {exception}
    ends = [places[text] for text in texts]
    types = types.copy()
    types[[i for i in ends if types[i] == TokenType.USER_DEFINED]] = TokenType.CONTROL
    if exception == "<|end|>":
        types[places[exception]] = TokenType.USER_DEFINED  # shown: it parts channels
    found.update(ends)
    return frozenset(token for token in found if token is not None), types


def _strip_after(
    gguf: Metadata, tokens: Sequence[str], types: npt.NDArray[np.uint8]
) -> frozenset[int]:
    """Phi-3 was trained so; its files do not say it, except by their name."""
    name = gguf.scalar("general.name")
    if not isinstance(name, str) or not any(n in name.lower() for n in ("phi-3", "phi3")):
        return frozenset()
    special = np.flatnonzero(np.isin(types, [int(kind) for kind in SPECIAL])).tolist()
    keeps = {"<unk>", "<s>", "<|endoftext|>"}
    return frozenset(i for i in special if tokens[i] not in keeps)
