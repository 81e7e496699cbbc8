"""Pools of a million cells in the shapes of benchmarks/control_plane/pools.h, made and
measured through `import pykv`, with int32 arrays."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

import pykv

CELLS = 1_000_000
PROMPT = 4096  # tokens of the prompt that is matched
LEAF = 9  # tokens of a leaf that is evicted
SESSIONS = 16
WINDOW = 512
BATCH = 100  # forks that take one step together
SAMPLES = 301

Ids = npt.NDArray[np.int32]
Action = Callable[[], object]


def nothing() -> None:
    pass


def median(
    timed: Action, before: Action = nothing, after: Action = nothing, samples: int = SAMPLES
) -> float:
    """Median time of `timed` in microseconds; `before` and `after` are not timed."""
    times = []
    for _ in range(samples):
        before()
        begin = time.perf_counter()
        timed()
        times.append(time.perf_counter() - begin)
        after()
    return statistics.median(times) * 1e6


class Pool:
    """A cache with the smallest possible layers: only bookkeeping is large."""

    def __init__(self, shape: str) -> None:
        layers = [pykv.Layer(kv_heads=1, k_dim=8, v_dim=8)]
        if shape == "windows":
            layers.append(replace(layers[0], window=("standard", WINDOW)))
        config = pykv.CacheConfig(layers=layers, cells=CELLS)
        self.shape = shape
        self.layers = len(layers)
        self.cache = pykv.Cache(config, threads=1, isa="scalar")
        self.next_token = 0
        self.prompt = np.empty(0, np.int32)  # in the pool
        self.source = self.cache.create()  # what is forked
        getattr(self, shape)()
        assert self.cache.match(self.prompt) == PROMPT
        self.sessions = np.array(
            [self.cache.fork(self.source) for _ in range(SESSIONS)], dtype=np.int32
        )

    def text(self, length: int) -> Ids:
        """Ids that were never used in this pool: what shares nothing."""
        self.next_token += length
        return np.arange(self.next_token - length, self.next_token, dtype=np.int32)

    def append(self, sequences: Ids, counts: Ids, tokens: Ids | None) -> None:
        plan = self.cache.plan(sequences, counts, tokens)
        with self.cache.step(plan) as step:
            self.write(step)

    def append_to(self, sequence: int, tokens: Ids) -> None:
        one = np.array([sequence], np.int32)
        self.append(one, np.array([len(tokens)], np.int32), tokens)

    def write(self, step: pykv.Step) -> None:
        rows = np.zeros((step.rows, 1, 8), np.float32)
        for layer in range(self.layers):
            step.write(layer, rows, rows)

    def add_leaves(self, sequence: int, count: int) -> None:
        """Forks the sequence `count` times, appends a leaf to each and erases them."""
        while count > 0:
            batch = min(count, BATCH)
            forks = [self.cache.fork(sequence) for _ in range(batch)]
            counts = np.full(batch, LEAF, np.int32)
            self.append(np.array(forks, np.int32), counts, self.text(batch * LEAF))
            for fork in forks:
                self.cache.erase(fork)
            count -= batch

    # --- shapes

    def tree(self) -> None:
        """100,000 nodes of some tokens each; the prompt goes through 64 of them."""
        for _ in range(1000):
            root = self.cache.create()
            self.append_to(root, self.text(60))
            self.add_leaves(root, 98)
            self.cache.erase(root)
        parts = []
        for _ in range(PROMPT // 64):
            parts.append(self.text(64))
            self.append_to(self.source, parts[-1])
            self.add_leaves(self.source, 1)
        self.prompt = np.concatenate(parts)

    def chain(self) -> None:
        """One of 900,000 tokens with branches."""
        tokens = self.text(900_000)
        for part in np.split(tokens, 1800):
            self.append_to(self.source, part)
            self.add_leaves(self.source, 1)
        self.prompt = tokens[:PROMPT].copy()

    def star(self) -> None:
        """One node with 100,000 children."""
        self.prompt = self.text(PROMPT)
        self.append_to(self.source, self.prompt)
        self.add_leaves(self.source, 100_000)

    def singles(self) -> None:
        """Every run of every sequence has length 1."""
        ones: list[int] = []
        while free := self.cache.stats()["cells_free"]:
            count = min(free, 1000)
            made = [self.cache.create() for _ in range(count)]
            self.append(np.array(made, np.int32), np.ones(count, np.int32), None)
            ones += made
        halves: tuple[list[int], list[int]] = ([], [])
        for sequence in ones:
            halves[self.cache.runs(sequence)[0].cell % 2].append(sequence)
        for parity in (0, 1):
            for sequence in halves[parity]:
                self.cache.erase(sequence)
            for _ in range(450):
                filler = self.cache.create()
                self.append_to(filler, self.text(1000))
                self.cache.erase(filler)
            if parity == 0:
                self.prompt = self.text(PROMPT)
                self.append_to(self.source, self.prompt)
        self.add_leaves(self.source, 2000)

    def comb(self) -> None:
        """A sequence ends at every token of the prompt."""
        self.prompt = self.text(PROMPT)
        for token in self.prompt:
            self.cache.fork(self.source)
            self.append_to(self.source, np.array([token], np.int32))
        others = self.cache.create()
        self.append_to(others, self.text(64))
        self.add_leaves(others, 20_000)

    def windows(self) -> None:
        """Beside the layer that sees all of the prompt another one has a window."""
        self.prompt = self.text(PROMPT)
        self.append_to(self.source, self.prompt)

    # --- measurements, in microseconds

    def measure(self) -> Iterator[tuple[str, float]]:
        cache = self.cache
        yield "stats", median(cache.stats)
        yield "fork", self.fork()
        yield "match 4096", median(lambda: cache.match(self.prompt))
        if self.shape != "windows":  # no idle leaves there, no removal of what windows have let go
            yield "evict a leaf", median(lambda: cache.evict(LEAF))
            yield "remove 4096 private", self.remove(self.private)
            longer = np.append(self.prompt, np.int32(0))
            yield "remove 4096 shared", self.remove(lambda: cache.open(longer).sequence)
        yield "plan + commit 16 x 1", self.step(SESSIONS, 1)
        yield "plan + commit 1 x 16", self.step(1, SESSIONS)

    def fork(self) -> float:
        made: list[int] = []
        return median(
            lambda: made.append(self.cache.fork(self.source)),
            after=lambda: self.cache.erase(made.pop()),
        )

    def private(self) -> int:
        sequence = self.cache.create()
        self.append(np.array([sequence]), np.array([PROMPT]), None)
        return sequence

    def remove(self, make: Callable[[], int]) -> float:
        made: list[int] = []
        return median(
            lambda: self.cache.remove(made[-1], (0, PROMPT)),
            before=lambda: made.append(make()),
            after=lambda: self.cache.erase(made.pop()),
            samples=101,
        )

    def step(self, sessions: int, tokens: int) -> float:
        cache, times = self.cache, []
        sequences = self.sessions[:sessions]
        counts = np.full(sessions, tokens, np.int32)
        for _ in range(SAMPLES):
            ids = self.text(sessions * tokens)
            begin = time.perf_counter()
            with cache.step(cache.plan(sequences, counts, ids)) as step:
                times.append(time.perf_counter() - begin)
                self.write(step)
        return statistics.median(times) * 1e6
