"""Random operations on a cache that computes, each of whose logits must be those of a cold run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

import pykv
from pykv import saved
from tests.model.machine import Logits, Work, random_tokens

LONGEST, SEQUENCES, STEP = 200, 6, 24
OFTEN: Mapping[str, int] = {"append": 9, "open": 2}
OPERATIONS = (
    "append", "open", "fork", "rewind", "remove", "mark", "erase", "evict", "compact", "park",
    "resume",
)  # fmt: skip


class Subject(Protocol):
    """A cache and what computes on it."""

    cache: pykv.Cache
    vocab: int

    def append(self, work: Sequence[Work], keep: bool) -> list[Logits] | None:
        """A step, rolled back unless `keep`: its logits by sequence. None: it does not fit."""

    def cold(self, tokens: list[int]) -> Logits:
        """Logits of all tokens, of a cache of its own that keeps all cells."""


class Walk:
    """Sequences of a subject beside their tokens. `changed` counts the operations that did
    something, `refused` those that a sequence cannot undergo."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self.subject = subject
        self.cache = subject.cache
        self.rng = np.random.default_rng(seed)
        self.prompt = random_tokens(90, subject.vocab, seed=14)
        self.has: dict[int, list[int]] = {}
        self.parked: list[tuple[saved.Saved, list[int]]] = []
        self.known: dict[tuple[int, ...], Logits] = {}
        self.changed: Counter[str] = Counter()
        self.refused = 0

    def run(self, operations: int) -> None:
        names = [name for name in OPERATIONS for _ in range(OFTEN.get(name, 1))]
        for _ in range(operations):
            name = names[self.below(len(names))] if self.has else "open"
            self.changed[name] += bool(getattr(self, name)())
            self.cache.check_integrity()

    def below(self, limit: int) -> int:
        return int(self.rng.integers(0, limit))

    def pick(self) -> int:
        return list(self.has)[self.below(len(self.has))]

    def cold(self, tokens: list[int]) -> Logits:
        key = tuple(tokens)
        if key not in self.known:
            self.known[key] = self.subject.cold(tokens)
        return self.known[key]

    # --- operations: whether they changed anything

    def open(self) -> bool:
        """True: with tokens that were computed before."""
        if len(self.has) == SEQUENCES:
            return False
        own = random_tokens(2, self.subject.vocab, seed=self.below(3))
        tokens = self.prompt[: 2 + self.below(88)] + own
        opened = self.cache.open(tokens)
        self.has[opened.sequence] = tokens[: opened.reused]
        return opened.reused > 0

    def append(self) -> bool:
        work = {}
        for seq in {self.pick() for _ in range(1 + self.below(2))}:
            more = self.prompt[len(self.has[seq]) :][: 1 + self.below(12)]
            if not more or self.below(4) == 0:
                more = random_tokens(1 + self.below(12), self.subject.vocab, self.below(4))
            if len(self.has[seq]) + len(more) <= LONGEST:
                work[seq] = more
        return bool(work) and self.compute(work, keep=self.below(8) > 0)

    def compute(self, work: dict[int, list[int]], keep: bool) -> bool:
        logits = self.subject.append(list(work.items()), keep)
        if logits is None:
            self.cache.make_room(sum(map(len, work.values())))
            return False
        for (seq, more), rows in zip(work.items(), logits, strict=True):
            before = self.has[seq]
            assert np.array_equal(rows, self.cold(before + more)[len(before) :])
            if keep:
                self.has[seq] = before + more
        return keep

    def fork(self) -> bool:
        if len(self.has) == SEQUENCES:
            return False
        seq = self.pick()
        self.has[self.cache.fork(seq)] = self.has[seq]
        return bool(self.has[seq])

    def rewind(self) -> bool:
        seq = self.pick()
        depth = self.cache.rewind(seq, self.below(len(self.has[seq]) + 1))
        return self.cut(seq, depth)

    def cut(self, seq: int, depth: int) -> bool:
        before = len(self.has[seq])
        self.has[seq] = self.has[seq][:depth]
        return depth < before

    def remove(self) -> bool:
        """The tail, if what comes before can be continued; anything else is refused."""
        seq = self.pick()
        size = len(self.has[seq])
        begin = max(0, size - 2) if self.below(3) == 0 else self.below(size + 1)
        possible = self.cache.match(self.has[seq][:begin])
        if self.below(3) == 0:
            begin = possible
        try:
            self.cache.remove(seq, (begin, size))
        except pykv.Unsupported as error:
            assert begin > possible and f"rewind() goes back to position {possible}," in str(error)
            self.refused += 1
            return False
        return self.cut(seq, begin)

    def mark(self) -> bool:
        return self.cache.mark_resume(self.pick())

    def erase(self) -> bool:
        seq = self.pick()
        self.cache.erase(seq)
        return bool(self.has.pop(seq))

    def park(self) -> bool:
        seq = self.pick()
        if not self.has[seq] or len(self.parked) == SEQUENCES:
            return False
        self.parked.append((self.cache.save(seq), self.has.pop(seq)))
        self.cache.erase(seq)
        return True

    def resume(self) -> bool:
        if not self.parked or len(self.has) == SEQUENCES:
            return False
        what, tokens = self.parked.pop(self.below(len(self.parked)))
        try:
            seq = self.cache.restore(what, tokens).sequence
        except pykv.OutOfCells:
            self.parked.append((what, tokens))
            self.cache.make_room(STEP)
            return False
        self.has[seq] = tokens
        return True

    def evict(self) -> bool:
        return self.cache.evict(1 + self.below(200)) > 0

    def compact(self) -> bool:
        return self.cache.compact(1 << 20) > 0
