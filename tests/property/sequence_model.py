"""What a sequence should be, token by token, for tests that compare a cache with it.

The value of a token is a hash of its namespace and its whole prefix, so a cell that is shared
wrongly, overwritten or read after it was freed shows up as another value.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from tests.reference.kernels import rope

DIM = 8


def chain(previous: bytes, token: object) -> bytes:
    return hashlib.blake2b(previous + repr(token).encode(), digest_size=DIM).digest()


@dataclass(frozen=True)
class Token:
    position: int
    id: int | None  # None: appended without
    value: bytes

    def at(self, position: int) -> Token:
        return replace(self, position=position)


def v_rows(tokens: list[Token], layer: int) -> np.ndarray:
    """float32 [n, 1, DIM]; every layer has values of its own."""
    flat = np.frombuffer(b"".join(t.value for t in tokens), dtype=np.uint8).astype(np.float32)
    return (flat + 256 * layer).reshape(len(tokens), 1, DIM)


def k_rows(tokens: list[Token], layer: int) -> np.ndarray:
    """float64 [n, 1, DIM], turned to where the tokens stand."""
    if not tokens:
        return np.zeros((0, 1, DIM))
    rows = v_rows(tokens, layer).reshape(-1, DIM) + 1
    turned = rope(rows, [t.position for t in tokens], 1, DIM, 10000.0, True)
    return turned.reshape(len(tokens), 1, DIM)


@dataclass
class Model:
    """A sequence: tokens in order, and how many of the first ones a cold run would also give."""

    namespace: int
    tokens: list[Token] = field(default_factory=list)
    exact: int = 0
    is_moved: bool = False

    @property
    def end(self) -> int:
        return self.tokens[-1].position + 1 if self.tokens else 0

    @property
    def bounds(self) -> tuple[int, int]:
        return (self.tokens[0].position, self.end) if self.tokens else (0, 0)

    @property
    def exact_ids(self) -> list[int]:
        return [t.id for t in self.tokens[: self.exact] if t.id is not None]

    def copy(self) -> Model:
        return Model(self.namespace, list(self.tokens), self.exact, self.is_moved)

    def within(self, span: tuple[int, int]) -> list[Token]:
        return [t for t in self.tokens if span[0] <= t.position < span[1]]

    def append(self, ids: list[int | None]) -> None:
        if self.exact == self.end and None not in ids:
            self.exact += len(ids)
        for token in ids:
            # No id: some other text, hence a value that no prefix of ids has.
            before = self.tokens[-1].value if self.tokens else b"ns%d" % self.namespace
            value = chain(before, token if token is not None else "no id")
            self.tokens.append(Token(self.end, token, value))

    def remove(self, span: tuple[int, int]) -> None:
        if self.within(span):
            self.exact = min(self.exact, span[0])
        self.tokens = [t for t in self.tokens if not span[0] <= t.position < span[1]]

    def copy_from(self, source: Model, span: tuple[int, int]) -> bool:
        """False if a position is taken."""
        copied = source.within(span)
        taken = {t.position for t in self.tokens}
        if any(t.position in taken for t in copied):
            return False
        if not copied:
            return True
        first = copied[0].position
        if not self.tokens and first == 0 and self.namespace == source.namespace:
            self.exact = min(source.exact, span[1])
        self.is_moved |= source.is_moved
        self.tokens = sorted([*self.tokens, *copied], key=lambda t: t.position)
        return True

    def room(self, span: tuple[int, int]) -> tuple[int, int]:
        """How far the tokens of the span, of which there are some, can move."""
        moved = self.within(span)
        before = [t.position for t in self.tokens if t.position < span[0]]
        behind = [t.position for t in self.tokens if t.position >= span[1]]
        lowest = (before[-1] + 1 if before else 0) - moved[0].position
        return lowest, (behind[0] if behind else 2**31 - 1) - 1 - moved[-1].position

    def shift(self, span: tuple[int, int], delta: int) -> None:
        moved = self.within(span)
        if moved and delta:
            self.exact = min(self.exact, moved[0].position)
            self.is_moved = True
            self.tokens = [t.at(t.position + delta) if t in moved else t for t in self.tokens]

    def can_divide(self, span: tuple[int, int], divisor: int) -> bool:
        moved = self.within(span)
        before = [t.position for t in self.tokens if t.position < span[0]]
        return not moved or not before or moved[0].position // divisor >= before[-1]

    def divide(self, span: tuple[int, int], divisor: int) -> None:
        moved = self.within(span)
        if moved and divisor > 1:
            self.exact = min(self.exact, moved[0].position // divisor)
            self.is_moved = True
            self.tokens = [t.at(t.position // divisor) if t in moved else t for t in self.tokens]
