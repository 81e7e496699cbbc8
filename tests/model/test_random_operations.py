"""Random operations on every configuration of the cache, of models and of mixes that none has:
whatever is appended, forked, removed, rewound, evicted, parked or moved, every logit is that of a
cold run. PYKV_WALK_OPERATIONS sets the number of operations (make test-long)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pykv
from tests.model.machine import Logits, Machine, Work
from tests.model.toy import MIXES, Toy
from tests.model.walk import OPERATIONS, STEP, Walk
from tests.reference.gguf_files import TinyModel, write_tiny_model
from tests.reference.peer_cases import write_case

COUNT = int(os.environ.get("PYKV_WALK_OPERATIONS", "400"))
# All tokens, windows, states, and states beside all tokens.
KINDS = ("llama", "gemma2", "gemma3", "gpt-oss", "mamba2", "lfm2", "granitehybrid")
# K and V of "few bits"; heads of the hybrids are too small for blocks of 32.
FEW_BITS = {"lfm2": ("bf16", "f16"), "granitehybrid": ("bf16", "f16")}
# Room for everything, or so little that steps wait and resume points go.
POOLS: dict[str, dict[str, Any]] = {
    "wide": {"cells": 2048},
    "few bits": {"cells": 2048},
    "tight": {"cells": 192, "window_cells": 128, "max_sequences": 3, "resume_bytes": 200_000},
    "no points": {"cells": 1024, "resume_bytes": 0},
}
SPACING = {"resume_spacing": 30, "step_tokens": STEP}


class OfModel:
    """A model whose windows have pools of their own."""

    def __init__(self, path: Path, types: tuple[str, str], options: dict[str, Any]) -> None:
        self.machine = Machine(path, **SPACING, **options)
        self.machine.cache = self.machine.make_cache(*types, window_pools=True)
        self.cache = pykv.Cache.from_core(self.machine.cache)
        self.vocab = self.machine.vocab
        self.reference = Machine(path, type_k=types[0], type_v=types[1])

    def append(self, work: Sequence[Work], keep: bool) -> list[Logits] | None:
        plan = self.machine.cache.plan([(seq, list(tokens)) for seq, tokens in work])
        if plan is None:
            return None
        flat = [token for _, tokens in work for token in tokens]
        step = self.machine.cache.commit(plan)
        logits = self.machine.model.forward(step, flat, range(len(flat)))
        if keep:
            step.finish()
        else:
            step.rollback()
        return np.split(logits, np.cumsum([len(tokens) for _, tokens in work])[:-1])

    def cold(self, tokens: list[int]) -> Logits:
        return self.reference.cold(tokens)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("random")

    def written(name: str) -> Path:
        file = folder / f"{name}.gguf"
        return write_tiny_model(file, TinyModel()) if name == "llama" else write_case(file, name)

    return written


def check(walk: Walk, pool: str) -> None:
    """What can happen in such a pool did happen, and nothing else."""
    print(dict(walk.changed), "refused", walk.refused)
    stats = walk.cache.stats()
    has_states = stats["states"]["slots"] > 0
    forgets = len(stats["pools"]) > 1 or has_states
    has_points = forgets and pool != "no points"
    without_effect = {name for name in OPERATIONS if walk.changed[name] == 0}
    if pool == "tight":
        without_effect.discard("compact")  # whole blocks are seldom free there
    assert without_effect == (set() if has_points else {"mark"})
    assert walk.refused > 0 if has_states else forgets or walk.refused == 0
    assert (stats["resume_points_used"] > 0) == has_points
    assert (stats["alloc_failures"] > 0) == (pool == "tight")
    assert stats["resume_bytes"] <= stats["resume_bytes_budget"]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", KINDS)
def test_models(path: Callable[[str], Path], name: str, pool: str) -> None:
    types = FEW_BITS.get(name, ("q8_0", "q4_0")) if pool == "few bits" else ("f32", "f32")
    walk = Walk(OfModel(path(name), types, POOLS[pool]), seed=0)
    walk.run(COUNT)
    check(walk, pool)


@pytest.mark.parametrize("pool", ["wide", "tight", "no points"])
@pytest.mark.parametrize("mix", MIXES)
def test_mixes(mix: str, pool: str) -> None:
    walk = Walk(Toy(MIXES[mix], **SPACING, **POOLS[pool]), seed=1)
    walk.run(COUNT)
    check(walk, pool)
