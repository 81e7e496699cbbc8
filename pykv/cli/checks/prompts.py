"""Where two prompts part: what stands before can be reused, what follows cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pykv._core import InvalidArgument

if TYPE_CHECKING:
    from pykv.tokenizer import Tokenizer

_MAX_BYTES = 16 << 20
_AROUND = 60  # characters shown on each side


@dataclass(frozen=True, slots=True)
class Divergence:
    """Two prompts against each other.

    Attributes:
        tokens: of each prompt.
        common_tokens: at the beginning of both; so many can be reused.
        common_chars: characters that are equal at the beginning; those after the common
            tokens are cut differently.
        line: where they part, counted from 1.
        column: in that line, in characters, from 1.
        before: text just before that place.
        after: what follows in each.
    """

    tokens: tuple[int, int]
    common_tokens: int
    common_chars: int
    line: int
    column: int
    before: str
    after: tuple[str, str]

    @property
    def same(self) -> bool:
        return self.tokens[0] == self.tokens[1] == self.common_tokens


def read_prompt(path: Path) -> str:
    """The text of a file. Raises InvalidArgument."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"[pykv doctor] cannot read {path}: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise InvalidArgument(f"[pykv doctor] {path} is larger than {_MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"[pykv doctor] {path} is not UTF-8 text: {error}") from None


def compare(tokenizer: Tokenizer, a: str, b: str) -> Divergence:
    """Tokenizes both as the server does with a rendered chat."""
    ids_a, ids_b = (tokenizer.encode(text, parse_special=True) for text in (a, b))
    common_tokens = _common(ids_a, ids_b)
    chars = _common(a, b)
    lines = a[:chars].split("\n")
    return Divergence(
        tokens=(len(ids_a), len(ids_b)),
        common_tokens=common_tokens,
        common_chars=chars,
        line=len(lines),
        column=len(lines[-1]) + 1,
        before=a[max(0, chars - _AROUND) : chars],
        after=(a[chars : chars + _AROUND], b[chars : chars + _AROUND]),
    )


def _common(a: Sequence[object], b: Sequence[object]) -> int:
    """How many items are equal from the beginning."""
    for place, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return place
    return min(len(a), len(b))
