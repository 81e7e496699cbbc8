"""Kernels as shares of what the machine can do, both measured in one run.

    python -m benchmarks.kernels [--model MODEL.gguf] [--json FILE] [--plot FILE.png]

Limits: bytes read from memory, 8-bit and float32 operations of the instruction set in use, per
second, all threads together. A linear layer cannot take less time than its weights need from
memory (few rows: they lie there, not in a cache) nor than its multiply-adds need; its share is
that time divided by the measured one. With --model also one decoded token, against the bytes
of weights and KV that it reads. Limits are measured before and after each row; a row whose
limit moved by more than 10 % is measured again. Exits 3 when a target is missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pykv import _core

ROWS = (1, 4, 16, 64, 512)
CACHED = 8 << 20  # bytes of weights used with many rows, which are read again and again
COLD = 256 << 20  # bytes of weights used with few rows: more than caches hold
FEW_ROWS = 4
DRIFT = 0.10
TRIES = 4
TARGET_MANY_ROWS = 0.60
TARGET_DECODE = 0.75


@dataclass(frozen=True)
class Limits:
    """Per second."""

    read: float
    f32: float
    int8: float

    @classmethod
    def measure(cls, backend: _core.Backend) -> Limits:
        return cls(
            backend.measure_limit("read_bytes", 0.15),
            backend.measure_limit("f32_operations", 0.05),
            backend.measure_limit("int8_operations", 0.05),
        )

    def moved(self, other: Limits) -> float:
        pairs = ((self.read, other.read), (self.f32, other.f32), (self.int8, other.int8))
        return max(abs(a - b) / max(a, b) for a, b in pairs)

    def mean(self, other: Limits) -> Limits:
        return Limits(
            (self.read + other.read) / 2, (self.f32 + other.f32) / 2, (self.int8 + other.int8) / 2
        )


@dataclass(frozen=True)
class Measured:
    limits: Limits
    times: list[float]
    drift: float

    @property
    def time(self) -> float:
        return statistics.median(self.times)

    @property
    def spread(self) -> float:
        return (max(self.times) - min(self.times)) / self.time


def measure(backend: _core.Backend, run: Callable[[], list[float]]) -> Measured:
    """Times of `run` between two measurements of the limits that agree; else the last try."""
    before = Limits.measure(backend)
    for attempt in range(TRIES):
        times = run()
        after = Limits.measure(backend)
        drift = before.moved(after)
        if drift <= DRIFT or attempt == TRIES - 1:
            break
        before = after
    return Measured(before.mean(after), times, drift)


def record(
    name: str, value: float, unit: str, limit: float, target: float | None
) -> dict[str, Any]:
    ratio = value / limit
    return {
        "row": name,
        "value": value,
        "unit": unit,
        "peer": None,
        "limit": limit,
        "ratio": ratio,
        "target": target,
        "ok": target is None or ratio >= target,
    }


def show(row: dict[str, Any], measured: Measured, remark: str = "") -> dict[str, Any]:
    target = "" if row["target"] is None else f"{row['target']:.0%}"
    unit = "bytes" if row["unit"] == "bytes/s" else "ops"
    print(
        f"| {row['row']:<38} | {row['value'] / 1e9:8.1f} | {row['limit'] / 1e9:8.1f} "
        f"| {unit:<5} | {row['ratio']:6.1%} | {target:>6} | {measured.spread:6.0%} "
        f"| {remark}{'' if row['ok'] else ' MISSED'}",
        flush=True,
    )
    return row


def head(backend: _core.Backend) -> None:
    limits = Limits.measure(backend)
    print(
        f"{backend.isa}, {backend.threads} threads: {limits.read / 1e9:.1f} GB/s read, "
        f"{limits.f32 / 1e9:.0f} float32 and {limits.int8 / 1e9:.0f} int8 GOP/s\n\n"
        f"| {'row':<38} | {'G/s':>8} | {'limit':>8} | {'of':<5} | {'share':>6} | {'target':>6} "
        f"| {'spread':>6} |\n"
        + "".join("|" + "-" * width for width in (40, 10, 10, 7, 8, 8, 8))
        + "|",
        flush=True,
    )


class Matrices:
    """Weights of one type and shape, as many as lie outside the caches."""

    def __init__(self, backend: _core.Backend, kind: str, precision: str, shape: tuple[int, int]):
        self.backend, self.kind, self.precision = backend, kind, precision
        self.outputs, self.inputs = shape
        rng = np.random.default_rng(0)
        values = rng.normal(0, 0.05, self.outputs * self.inputs).astype(np.float32)
        data = _core.encode_row(kind, values)
        before = backend.weight_bytes
        copies = [backend.create_weight(kind, *shape, data, precision)]
        self.bytes = backend.weight_bytes - before
        for _ in range(COLD // self.bytes):
            copies.append(backend.create_weight(kind, *shape, data, precision))
        self.copies = copies

    def measure(self, rows: int, repeats: int) -> dict[str, Any]:
        few = rows <= FEW_ROWS
        count = len(self.copies) if few else max(1, CACHED // self.bytes)
        used = self.copies[:count]
        x = np.random.default_rng(1).normal(size=(rows, self.inputs)).astype(np.float32)

        def run() -> list[float]:
            self.backend.time_linear(used, self.outputs, x, 1)
            return [t / count for t in self.backend.time_linear(used, self.outputs, x, repeats)]

        measured = measure(self.backend, run)
        return show(self._record(rows, few, measured), measured)

    def _record(self, rows: int, few: bool, measured: Measured) -> dict[str, Any]:
        fast = self.precision == "fast"
        operations = 2.0 * rows * self.outputs * self.inputs
        peak = measured.limits.int8 if fast else measured.limits.f32
        name = f"linear {self.kind} {self.precision} {self.inputs} to {self.outputs}, rows {rows}"
        if few and self.bytes / measured.limits.read > operations / peak:
            return record(name, self.bytes / measured.time, "bytes/s", measured.limits.read, None)
        target = TARGET_MANY_ROWS if fast and not few else None
        return record(name, operations / measured.time, "operations/s", peak, target)


def decode_row(backend: _core.Backend, path: Path, repeats: int) -> dict[str, Any]:
    """One session, short: seconds of a step as bytes of weights and KV per second."""
    model = _core.Model(_core.GgufFile(path), backend)
    cache = _core.Cache(layers=model.layer_table, backend=backend, cells=4096)
    sequence = cache.create()

    def step(tokens: list[int]) -> float:
        begin = time.perf_counter()
        plan = cache.plan([(sequence, tokens)])
        assert plan is not None  # the cache has room for all steps
        opened = cache.commit(plan)
        model.forward(opened, tokens, [len(tokens) - 1])
        opened.finish()
        return time.perf_counter() - begin

    step(list(range(1, 17)))
    measured = measure(backend, lambda: [step([17 + i]) for i in range(repeats)])
    stats = cache.stats()
    kv = stats["bytes_per_cell"] * 32  # the cells of a short session
    size = model.weight_bytes + kv
    name = f"decode, 1 session, {path.name[:18]}"
    return show(
        record(name, size / measured.time, "bytes/s", measured.limits.read, TARGET_DECODE), measured
    )


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    pyplot = importlib.import_module("matplotlib.pyplot")  # not a dependency
    figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(rows) + 1))
    axes.barh([row["row"] for row in rows], [row["ratio"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("share of the machine's limit")
    figure.tight_layout()
    figure.savefig(path)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--types", default="q4_1,q4_0,q8_0", help="weight types (q4_1,q4_0,q8_0)")
    add("--precision", default="fast", choices=("fastest", "fast", "exact"))
    add("--inputs", type=int, default=1536)
    add("--outputs", type=int, default=3072)
    add("--rows", default=",".join(map(str, ROWS)), help="rows of activations")
    add("--repeats", type=int, default=9)
    add("--model", type=Path, help="also measure a decoded token of this GGUF file")
    add("--isa", default="auto")
    add("--threads", type=int, default=0)
    add("--json", type=Path, help="also write the rows to this file")
    add("--plot", type=Path, help="draw the shares (needs matplotlib)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    backend = _core.Backend(threads=options.threads, isa=options.isa)
    head(backend)
    rows: list[dict[str, Any]] = []
    if options.model:
        rows.append(decode_row(backend, options.model, options.repeats * 4))
    for kind in options.types.split(","):
        machine = _core.Backend(threads=options.threads, isa=options.isa)  # frees its weights
        shape = (options.outputs, options.inputs)
        matrices = Matrices(machine, kind, options.precision, shape)
        rows += [matrices.measure(int(n), options.repeats) for n in options.rows.split(",")]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if options.plot:
        plot(rows, options.plot)
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
