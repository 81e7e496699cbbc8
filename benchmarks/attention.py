"""Attention as a share of what the machine can do, and shared prefixes against own ones.

    python -m benchmarks.attention [--types f16,q8_0,q4_0] [--precision fast] [--json FILE]

Layers have SmolLM2-135M's shape: 9 query heads on 3 KV heads of 64 elements.

Decode: one session, whose K and V of all layers together are larger than caches; bytes of K and
V per second against the bytes that all threads read. Shared: sessions that continue one prefix,
whose cells are read once for all of them; multiply-adds against the float32 peak, and the time
against that of sessions of which each has the prefix in cells of its own, which is the last
column and may never be below 1. Limits are measured as in benchmarks.kernels. Exits 3 when a
target is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.kernels import Measured, head, measure, record, show
from pykv import _core

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADS, KV_HEADS, DIM = 9, 3, 64
LAYERS = 30
DECODE_TOKENS = 4096
SHARED = ((16, 4096), (16, 1024), (16, 256), (4, 4096), (4, 300), (2, 4096), (2, 64))
TARGET_DECODE = 0.75
TARGET_SHARED = 0.60
TARGET_GAIN = {(16, 4096): 1.8}


class Layers:
    """A cache of layers of one shape, and random rows to fill it with."""

    def __init__(self, backend: _core.Backend, kind: str, precision: str, layers: int, cells: int):
        spec = _core.LayerSpec(kv_heads=KV_HEADS, k_dim=DIM)
        self.precision, self.layers = precision, list(range(layers))
        self.cache = _core.Cache(
            layers=[spec] * layers, backend=backend, cells=cells, type_k=kind, type_v=kind
        )
        self.rng = np.random.default_rng(0)

    @contextmanager
    def step(self, sequences: Sequence[int], tokens: int) -> Iterator[_core.Step]:
        """Written, and finished at the end."""
        plan = self.cache.plan([(sequence, tokens) for sequence in sequences])
        assert plan is not None  # the cache was made large enough
        step = self.cache.commit(plan)
        kv = self.rng.normal(size=(step.rows, KV_HEADS * DIM)).astype(np.float32)
        for layer in self.layers:
            step.write(layer, kv, kv)
        yield step
        step.finish()

    def grown(self, tokens: int) -> int:
        """A new sequence of so many tokens."""
        sequence = self.cache.create()
        for _ in range(0, tokens, 64):
            with self.step([sequence], min(64, tokens)):
                pass
        return sequence

    def time(self, step: _core.Step, repeats: int) -> list[float]:
        q = self.rng.normal(size=(step.rows, HEADS * DIM)).astype(np.float32)
        rounds = step.time_attend(
            self.layers, q, HEADS, DIM**-0.5, precision=self.precision, repeats=repeats + 1
        )
        return rounds[1:]  # the first one makes room


def decode(
    backend: _core.Backend, kind: str, precision: str, repeats: int
) -> tuple[dict[str, Any], Measured]:
    made = Layers(backend, kind, precision, LAYERS, DECODE_TOKENS + 64)
    sequence = made.grown(DECODE_TOKENS)
    with made.step([sequence], 1) as step:
        measured = measure(backend, lambda: made.time(step, repeats))
    size = made.cache.stats()["bytes_per_cell"] * DECODE_TOKENS
    target = TARGET_DECODE if kind in ("f16", "q8_0") else None
    name = f"decode, {DECODE_TOKENS} tokens, {kind} {precision}"
    return record(name, size / measured.time, "bytes/s", measured.limits.read, target), measured


def shared(
    backend: _core.Backend, kind: str, precision: str, shape: tuple[int, int], repeats: int
) -> tuple[dict[str, Any], Measured]:
    sessions, tokens = shape
    made = Layers(backend, kind, precision, 1, sessions * (tokens + 128) + tokens)
    first = made.grown(tokens)
    together = [first, *(made.cache.fork(first) for _ in range(1, sessions))]
    apart = [made.grown(tokens) for _ in range(sessions)]
    with made.step(together, 1) as step:
        measured = measure(backend, lambda: made.time(step, repeats))
    with made.step(apart, 1) as step:
        own = statistics.median(made.time(step, repeats))
    operations = 4.0 * sessions * HEADS * DIM * (tokens + 1)
    target = TARGET_SHARED if shape in TARGET_GAIN else None
    name = f"{sessions} sessions on {tokens}, {kind} {precision}"
    row = record(name, operations / measured.time, "operations/s", measured.limits.f32, target)
    row["gain"] = own / measured.time
    row["gain_target"] = TARGET_GAIN.get(shape, 1.0)
    row["ok"] = row["ok"] and row["gain"] >= row["gain_target"]
    return row, measured


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--types", default="f16,q8_0,q4_0", help="KV types (f16,q8_0,q4_0)")
    add("--precision", default="fast", choices=("fastest", "fast", "exact"))
    add("--repeats", type=int, default=15)
    add("--isa", default="auto")
    add("--threads", type=int, default=0)
    add("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    backend = _core.Backend(threads=options.threads, isa=options.isa)
    head(backend)
    rows: list[dict[str, Any]] = []
    for kind in options.types.split(","):
        rows.append(show(*decode(backend, kind, options.precision, options.repeats)))
        for shape in SHARED:
            row, measured = shared(backend, kind, options.precision, shape, options.repeats)
            rows.append(show(row, measured, f"{row['gain']:5.2f} x own"))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
