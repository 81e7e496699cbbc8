"""Random operations on models with windows, recurrent layers and both kinds of pools: whatever is
appended, forked, removed, rewound, evicted, parked or moved, every logit is that of a cold run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pykv
from pykv import _core, saved
from tests.model.machine import Logits, Machine, random_tokens
from tests.reference.peer_cases import write_case

KINDS = ("gemma2", "gemma3", "gpt-oss", "mamba2", "lfm2", "granitehybrid")
# K and V of "few bits"; heads of the hybrids are too small for blocks of 32.
FEW_BITS = {"lfm2": ("bf16", "f16"), "granitehybrid": ("bf16", "f16")}
LONGEST, SEQUENCES, STEP = 200, 6, 24
# Room for everything, or so little that steps wait and resume points go.
POOLS: dict[str, dict[str, Any]] = {
    "wide": {"cells": 2048},
    "few bits": {"cells": 2048},
    "tight": {"cells": 192, "window_cells": 128, "max_sequences": 3, "resume_bytes": 100_000},
    "no points": {"cells": 1024, "resume_bytes": 0},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("random")
    return lambda name: write_case(folder / f"{name}.gguf", name)


class Walk:
    """Sequences of one cache beside their tokens; a cache of its own says what is right."""

    def __init__(
        self, path: Path, seed: int, types: tuple[str, str], options: dict[str, Any]
    ) -> None:
        self.machine = Machine(path, resume_spacing=30, step_tokens=STEP, **options)
        self.machine.cache = self.cache = self.machine.make_cache(*types, window_pools=True)
        self.public = pykv.Cache.from_core(self.cache)
        self.reference = Machine(path, type_k=types[0], type_v=types[1])
        self.rng = np.random.default_rng(seed)
        self.prompt = random_tokens(90, self.machine.vocab, seed=14)
        self.has: dict[int, list[int]] = {}
        self.parked: list[tuple[saved.Saved, list[int]]] = []
        self.resumed = 0
        self.known: dict[tuple[int, ...], Logits] = {}

    def below(self, limit: int) -> int:
        return int(self.rng.integers(0, limit))

    def pick(self) -> int:
        return list(self.has)[self.below(len(self.has))]

    def cold(self, tokens: list[int]) -> Logits:
        key = tuple(tokens)
        if key not in self.known:
            self.known[key] = self.reference.cold(tokens)
        return self.known[key]

    # --- operations

    def open(self) -> None:
        if len(self.has) < SEQUENCES:
            own = random_tokens(2, self.machine.vocab, seed=self.below(3))
            tokens = self.prompt[: 2 + self.below(88)] + own
            new, reused, *_ = self.cache.open(tokens)
            self.has[new] = tokens[:reused]

    def append(self) -> None:
        work = {}
        for seq in {self.pick() for _ in range(1 + self.below(2))}:
            more = self.prompt[len(self.has[seq]) :][: 1 + self.below(12)]
            if not more or self.below(4) == 0:
                more = random_tokens(1 + self.below(12), self.machine.vocab, self.below(4))
            if len(self.has[seq]) + len(more) <= LONGEST:
                work[seq] = more
        plan = self.cache.plan(list(work.items())) if work else None
        if plan is not None:
            self.compute(plan, work)
        elif work:
            self.cache.make_room(sum(map(len, work.values())))

    def compute(self, plan: _core.Plan, work: dict[int, list[int]]) -> None:
        flat = [token for more in work.values() for token in more]
        step = self.cache.commit(plan)
        logits = self.machine.model.forward(step, flat, range(len(flat)))
        at = 0
        for seq, more in work.items():
            expected = self.cold(self.has[seq] + more)[len(self.has[seq]) :]
            assert np.array_equal(logits[at : at + len(more)], expected)
            at += len(more)
        if self.below(8) == 0:
            step.rollback()
            return
        step.finish()
        for seq, more in work.items():
            self.has[seq] = self.has[seq] + more

    def fork(self) -> None:
        if len(self.has) < SEQUENCES:
            seq = self.pick()
            self.has[self.cache.fork(seq)] = self.has[seq]

    def rewind(self) -> None:
        seq = self.pick()
        depth = self.cache.rewind(seq, self.below(len(self.has[seq]) + 1))
        self.has[seq] = self.has[seq][:depth]

    def remove(self) -> None:
        """The tail, if what comes before can be continued; anything else is refused."""
        seq = self.pick()
        size = len(self.has[seq])
        begin = self.below(size + 1) if self.below(2) else max(0, size - 1 - self.below(3))
        try:
            self.cache.remove(seq, (begin, size))
        except _core.Unsupported as error:
            assert begin > 0 and "rewind() goes back to position" in str(error)
        else:
            self.has[seq] = self.has[seq][:begin]

    def mark(self) -> None:
        self.cache.mark_resume(self.pick())

    def erase(self) -> None:
        self.erase_one(self.pick())

    def erase_one(self, seq: int) -> None:
        self.cache.erase(seq)
        del self.has[seq]

    def park(self) -> None:
        seq = self.pick()
        if self.has[seq] and len(self.parked) < SEQUENCES:
            self.parked.append((self.public.save(seq), self.has[seq]))
            self.erase_one(seq)

    def resume(self) -> None:
        if self.parked and len(self.has) < SEQUENCES:
            what, tokens = self.parked.pop(self.below(len(self.parked)))
            try:
                seq = self.public.restore(what, tokens).sequence
            except _core.OutOfCells:
                self.parked.append((what, tokens))
                self.cache.make_room(STEP)
            else:
                self.has[seq] = tokens
                self.resumed += 1

    def evict(self) -> None:
        self.cache.evict(1 + self.below(200))

    def move(self) -> None:
        self.cache.compact(1 << 20)

    def run(self, operations: int) -> None:
        names = ["append"] * 9 + ["open"] * 2
        names += ["fork", "rewind", "remove", "mark", "erase", "evict", "move", "park", "resume"]
        for _ in range(operations):
            name = names[self.below(len(names))]
            getattr(self, name if self.has else "open")()
            self.cache.check_integrity()


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", KINDS)
def test_random_operations_equal_a_cold_run(
    path: Callable[[str], Path], name: str, seed: int, pool: str
) -> None:
    types = FEW_BITS.get(name, ("q8_0", "q4_0")) if pool == "few bits" else ("f32", "f32")
    walk = Walk(path(name), seed, types, POOLS[pool])
    walk.run(200)
    stats = walk.cache.stats()
    assert walk.resumed > 0
    assert stats["match_hit_tokens"] > 0
    assert (stats["resume_points_used"] > 0) == (pool != "no points")
    assert (stats["alloc_failures"] > 0) == (pool == "tight")
    assert stats["resume_bytes"] <= stats["resume_bytes_budget"]
