"""One active session in a pool that many others have used at random. Prints a table, writes
JSON, exits 3 when a target is missed.

    python -m benchmarks.crowd MODEL.gguf [--json FILE]

A session of 1,000 tokens that grew token by token among 15 others, in a pool with 200,000
foreign cells, after 10,000 random appends, forks, removals and ends of them: its decode step
against one in a pool of its own, interleaved, before and after compaction. It must be at least
0.95 times as fast. With SmolLM2 the pool takes 5 GB.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.check import ACTIVE_TOKENS, ROUNDS, STEPS, Active, finish
from pykv import _core

FOREIGN_CELLS = 200_000
LOW, HIGH = 0.05, 0.10  # watermarks
OTHERS = 15
OPERATIONS = 10_000
BURST = 48  # tokens of an append, at most


class Crowd:
    """Sixteen sessions that grow side by side: one token at a time the measured one, in bursts
    the others, which are also forked, cut and ended. Idle prefixes are evicted by the
    watermarks, so that holes of all sizes come and go. Seeded."""

    def __init__(self, model: _core.Model, backend: _core.Backend, tokens: int, room: int) -> None:
        self.model = model
        self.rng = random.Random(7)
        cells = int((FOREIGN_CELLS + tokens + room + BURST) / (1 - HIGH))
        self.cache = _core.Cache(
            layers=model.layer_table, backend=backend, cells=cells, watermarks=(LOW, HIGH)
        )
        generator = np.random.default_rng(0)
        self.noise = generator.standard_normal((1 << 17,), dtype=np.float32)
        self.active = self.cache.create()
        self.others = [self.cache.create() for _ in range(OTHERS)]
        self._fill(int(cells * HIGH))
        for i in range(OPERATIONS):
            self._operate()
            self.cache.reclaim()  # as an engine does after each step
            if i * tokens // OPERATIONS != (i + 1) * tokens // OPERATIONS:
                self._append([self.active], [1])
        self._fill(int(cells * HIGH))

    def _fill(self, free: int) -> None:
        """Other sessions take all cells but `free`."""
        while (more := self._free() - free) > 0:
            count = min(500, more)
            self._append([self._other()], [count])

    def _free(self) -> int:
        return int(self.cache.stats()["cells_free"])

    def _other(self) -> int:
        return self.rng.choice(self.others)

    def _operate(self) -> None:
        kind = self.rng.randrange(10)
        if kind < 6:
            chosen = self.rng.sample(self.others, self.rng.randint(1, 4))
            self._append(chosen, [self.rng.randint(1, BURST) for _ in chosen])
        elif kind < 8:
            self._replace(self._other(), self.cache.fork(self._other()))
        else:
            self._cut(self._other())

    def _replace(self, old: int, new: int) -> None:
        self.others[self.others.index(old)] = new
        self.cache.erase(old)

    def _cut(self, sequence: int) -> None:
        begin, end = self.cache.bounds(sequence)
        if end - begin < 2:
            return
        first = self.rng.randrange(begin, end)
        self.cache.remove(sequence, (first, min(end, first + self.rng.randint(1, 2000))))

    def _append(self, sequences: list[int], counts: list[int]) -> None:
        needed = sum(counts)
        while (missing := needed - self._free()) > 0:
            if self.cache.evict(missing, "demand") == 0:
                self._cut(max(self.others, key=lambda s: self.cache.bounds(s)[1]))
        tokens = np.array([self.rng.randrange(1000) for _ in range(needed)], np.int32)
        plan = self.cache.plan(np.array(sequences), np.array(counts), tokens)
        assert plan is not None  # there are as many free cells
        step = self.cache.commit(plan)
        for layer, spec in enumerate(self.model.layer_table):
            k, v = (self._rows(needed, spec.kv_heads * d) for d in (spec.k_dim, spec.v_dim))
            step.write(layer, k, v)
        step.finish()

    def _rows(self, rows: int, width: int) -> npt.NDArray[np.float32]:
        """Values that attention can work with; which ones does not change its time."""
        return np.resize(self.noise[: rows * width], (rows, width))

    def foreign_cells(self) -> int:
        stats = self.cache.stats()
        begin, end = self.cache.bounds(self.active)
        return int(stats["cells_active"] + stats["cells_idle"]) - (end - begin)

    def runs(self) -> str:
        begin, end = self.cache.bounds(self.active)
        return f"{end - begin:,} tokens in {len(self.cache.runs(self.active))} runs"

    def compact(self) -> int:
        """All there is to do; returns the cells moved."""
        moved = 0
        while count := self.cache.compact(64 << 20):
            moved += count
        return moved


def compare(name: str, alone: Active, crowded: Active) -> dict[str, Any]:
    pairs = [(alone.decode(), crowded.decode()) for _ in range(ROUNDS)]
    ratio = statistics.median(a / b for a, b in pairs)
    return {
        "row": name,
        "value": statistics.median(b for _, b in pairs) * 1e3,
        "unit": "ms",
        "peer": statistics.median(a for a, _ in pairs) * 1e3,
        "limit": None,
        "ratio": ratio,
        "target": 0.95,
        "ok": ratio >= 0.95,
    }


def check(model: _core.Model, backend: _core.Backend) -> list[dict[str, Any]]:
    crowd = Crowd(model, backend, ACTIVE_TOKENS, room=2 * ROUNDS * STEPS + 64)
    crowded = Active(model, backend, 0)
    crowded.cache, crowded.sequence = crowd.cache, crowd.active
    print(f"{crowd.foreign_cells():,} foreign cells; {crowd.runs()}", flush=True)
    before = compare("step in a crowd", Active(model, backend, 0), crowded)
    begin = time.perf_counter()
    moved = crowd.compact()
    seconds = time.perf_counter() - begin
    print(f"compaction moved {moved:,} cells in {seconds:.2f} s; {crowd.runs()}", flush=True)
    crowd.cache.remove(crowd.active, (ACTIVE_TOKENS, crowd.cache.bounds(crowd.active)[1]))
    alone = Active(model, backend, 0)
    return [before, compare("step in a crowd, after compaction", alone, crowded)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    backend = _core.Backend(threads=options.threads)
    model = _core.Model(_core.GgufFile(str(options.model)), backend)
    return finish(check(model, backend), options.json)


if __name__ == "__main__":
    sys.exit(main())
