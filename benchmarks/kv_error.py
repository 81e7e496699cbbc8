"""What each KV type costs in precision, stage by stage, on random data.

    python -m benchmarks.kv_error [--head-size 64] [--cells 4096] [--json FILE]

K: error of the scores q·k / sqrt(head size) of unit-variance queries. V: error of its
elements. Both in units of the data's own standard deviation (of scores, of elements), as
root mean square and maximum, for unit-variance data and for data of which every 16th
channel is ten times as large, with and without the Hadamard transform.

Attention: error of the output for the last 64 queries against the float64 definition over
the stored values, so of the kernel alone, in units of the output's standard deviation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pykv import _core
from tests.reference import kernels as reference

QUERIES = 64
Floats = npt.NDArray[np.floating[Any]]


class Stored:
    """k, v [cells, head size] in a pool of one head."""

    def __init__(self, kind: str, k: Floats, v: Floats, transform: bool) -> None:
        self.cells, self.size = k.shape
        self.backend = _core.Backend()
        layer = _core.LayerSpec(kv_heads=1, k_dim=self.size)
        blocks = -(-self.cells // 64)
        self.pool = self.backend.create_pool([layer], kind, kind, blocks, hadamard=transform)
        self.backend.commit_blocks(self.pool, np.arange(blocks))
        where = np.arange(self.cells)
        self.backend.write_kv(self.pool, 0, k, v, where)
        self.k, self.v = self.backend.read_kv(self.pool, 0, where, (self.size, self.size))

    def attention_error(self, q: Floats) -> Floats:
        """Of each element, for queries of the last tokens."""
        first, scale = self.cells - len(q), self.size**-0.5
        actual = self.backend.attend(
            self.pool, 0, q, segments=[(0, 0, self.cells, 0, 0)],
            groups=[(0, len(q), first, 0, 1, first)],
            heads=1, scale=scale, out_width=self.size,
        )  # fmt: skip
        exact = reference.attention(
            q, range(first, self.cells), reference.Tokens(self.k, self.v, range(self.cells), None),
            reference.Attention(1, 1, float(np.float32(scale))),
        )  # fmt: skip
        error: Floats = np.abs(actual - exact) / np.std(exact)
        return error


def data(rng: np.random.Generator, cells: int, size: int, outliers: bool) -> Floats:
    values = rng.normal(size=(cells, size))
    if outliers:
        values[:, 3::16] *= 10
    return values.astype(np.float32)


def errors(kind: str, outliers: bool, transform: bool, shape: tuple[int, int]) -> dict[str, float]:
    rng = np.random.default_rng(5)
    k, v = data(rng, *shape, outliers), data(rng, *shape, outliers)
    q = rng.normal(size=(QUERIES, shape[1])).astype(np.float32)
    cache = Stored(kind, k, v, transform)
    found = {}

    def add(stage: str, error: Floats) -> None:
        found[f"{stage} rms"] = float(np.sqrt(np.mean(error**2)))
        found[f"{stage} max"] = float(error.max())

    for stage, exact, actual in (
        ("K", q @ k.T.astype(np.float64), q @ cache.k.T.astype(np.float64)),
        ("V", v, cache.v.astype(np.float64)),
    ):
        add(stage, np.abs(actual - exact) / np.std(exact))
    add("attention", cache.attention_error(q))
    return found


def measure(shape: tuple[int, int]) -> list[dict[str, Any]]:
    rows = []
    for kind in _core.kv_types():
        for outliers in (False, True):
            for transform in (False, True):
                what = f"{kind}, {'outliers' if outliers else 'unit variance'}"
                what += ", transformed" if transform else ""
                for name, value in errors(kind, outliers, transform, shape).items():
                    rows.append({
                        "row": f"{name}, {what}", "value": value, "unit": "standard deviations",
                        "peer": "float64", "limit": None, "ratio": None, "target": None, "ok": True,
                    })  # fmt: skip
    return rows


SETTINGS = [
    f"{data}{how}" for data in ("unit variance", "outliers") for how in ("", ", transformed")
]


def print_tables(rows: Sequence[dict[str, Any]]) -> None:
    """For K, V and attention a line per type: RMS / maximum in the four settings."""
    values = {row["row"]: row["value"] for row in rows}
    for stage in ("K", "V", "attention"):
        print(f"| {stage} | " + " | ".join(SETTINGS) + " |")
        print("|---" * 5 + "|")
        for kind in _core.kv_types():
            rms = [values[f"{stage} rms, {kind}, {setting}"] for setting in SETTINGS]
            most = [values[f"{stage} max, {kind}, {setting}"] for setting in SETTINGS]
            pairs = [f"{a:.1e} / {b:.1e}" for a, b in zip(rms, most, strict=True)]
            print(f"| {kind} | " + " | ".join(pairs) + " |")
        print()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--head-size", type=int, default=64, help="elements of a head (default 64)")
    parser.add_argument("--cells", type=int, default=4096, help="rows measured (default 4096)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    rows = measure((options.cells, options.head_size))
    print_tables(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
