"""A model, its cache and its backend in one object, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pykv import _core

Logits = npt.NDArray[np.float32]
Work = tuple[int, Sequence[int]]  # sequence, tokens to append


class Machine:
    """Runs steps by hand. Every method returns the logits of all rows it computed."""

    def __init__(
        self,
        path: Path,
        *,
        type_k: str = "f32",
        type_v: str = "f32",
        threads: int = 2,
        isa: str = "auto",
        cells: int = 4096,
        context: int = 0,
        precision: str = "exact",
        **options: Any,
    ) -> None:
        self.gguf = _core.GgufFile(path)
        self.backend = _core.Backend(threads=threads, isa=isa)
        self.model = _core.Model(self.gguf, self.backend, context=context, precision=precision)
        self.cells = cells
        self.options = options  # of the cache
        self.cache = self.make_cache(type_k, type_v)

    def make_cache(
        self, type_k: str, type_v: str, *, window_pools: bool = False, **more: int
    ) -> _core.Cache:
        """`window_pools`: layers with a window keep what it reaches only."""
        layers = self.model.layer_table
        return _core.Cache(
            layers=_core.with_window_pools(layers) if window_pools else layers,
            ropes=self.model.ropes,
            recurrent=self.model.recurrent_table,
            backend=self.backend,
            cells=self.cells,
            type_k=type_k,
            type_v=type_v,
            **(self.options | more),
        )

    @property
    def vocab(self) -> int:
        vocab: int = self.model.config["vocab"]
        return vocab

    def begin(self, seq: int, tokens: Sequence[int]) -> _core.Step:
        """An open step that appends `tokens` to one sequence."""
        plan = self.cache.plan([(seq, list(tokens))])
        assert plan is not None, "the pool of the test is too small"
        return self.cache.commit(plan)

    def step(self, work: Sequence[Work]) -> list[Logits]:
        """One step for several sequences: their logits, in order."""
        plan = self.cache.plan([(seq, list(tokens)) for seq, tokens in work])
        assert plan is not None, "the pool of the test is too small"
        flat = [token for _, tokens in work for token in tokens]
        step = self.cache.commit(plan)
        logits = self.model.forward(step, flat, range(len(flat)))
        step.finish()
        ends = np.cumsum([len(tokens) for _, tokens in work])
        return np.split(logits, ends[:-1])

    def extend(self, seq: int, tokens: Sequence[int], chunk: int | None = None) -> Logits:
        """Appends `tokens` in steps of `chunk` (None: one step)."""
        size = chunk or len(tokens)
        parts = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        return np.concatenate([self.step([(seq, part)])[0] for part in parts])

    def cold(self, tokens: Sequence[int], chunk: int | None = None) -> Logits:
        """Logits of a new sequence that shares nothing; it is gone afterwards."""
        seq = self.cache.create()
        logits = self.extend(seq, tokens, chunk)
        self.cache.erase(seq)
        self.cache.reset_prefixes()
        return logits


def random_tokens(count: int, vocab: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.integers(0, vocab, count)]
