"""What each KV type costs in precision, stage by stage, on random data.

    python -m benchmarks.kv_error [--head-size 64] [--cells 4096] [--json FILE]

K: error of the scores q·k / sqrt(head size) of unit-variance queries. V: error of its
elements. Both in units of the data's own standard deviation (of scores, of elements), as
root mean square and maximum, for unit-variance data and for data of which every 16th
channel is ten times as large, with and without the Hadamard transform.
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

QUERIES = 64
Floats = npt.NDArray[np.floating[Any]]


def stored(kind: str, k: Floats, v: Floats, transform: bool) -> tuple[Floats, Floats]:
    """k, v [cells, head size] as a cache of this type gives them back."""
    cells, size = k.shape
    backend = _core.Backend()
    layer = _core.LayerSpec(kv_heads=1, k_dim=size)
    blocks = -(-cells // 64)
    pool = backend.create_pool([layer], kind, kind, blocks, hadamard=transform)
    backend.commit_blocks(pool, np.arange(blocks))
    where = np.arange(cells)
    backend.write_kv(pool, 0, k, v, where)
    return backend.read_kv(pool, 0, where, (size, size))


def data(rng: np.random.Generator, cells: int, size: int, outliers: bool) -> Floats:
    values = rng.normal(size=(cells, size))
    if outliers:
        values[:, 3::16] *= 10
    return values.astype(np.float32)


def errors(kind: str, outliers: bool, transform: bool, shape: tuple[int, int]) -> dict[str, float]:
    rng = np.random.default_rng(5)
    k, v = data(rng, *shape, outliers), data(rng, *shape, outliers)
    q = rng.normal(size=(QUERIES, shape[1]))
    stored_k, stored_v = (x.astype(np.float64) for x in stored(kind, k, v, transform))
    found = {}
    for stage, exact, actual in (("K", q @ k.T, q @ stored_k.T), ("V", v, stored_v)):
        error = np.abs(actual - exact) / np.std(exact)
        found[f"{stage} rms"] = float(np.sqrt(np.mean(error**2)))
        found[f"{stage} max"] = float(error.max())
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


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """A line per type: RMS / maximum of K, then of V, in the four settings."""
    values = {row["row"]: row["value"] for row in rows}
    settings = [
        f"{data}{how}" for data in ("unit variance", "outliers") for how in ("", ", transformed")
    ]
    print("| type | " + " | ".join(f"{stage}, {s}" for stage in "KV" for s in settings) + " |")
    print("|---" * 9 + "|")
    for kind in _core.kv_types():
        cells = [
            f"{values[f'{stage} rms, {kind}, {s}']:.1e} / {values[f'{stage} max, {kind}, {s}']:.1e}"
            for stage in "KV"
            for s in settings
        ]
        print(f"| {kind} | " + " | ".join(cells) + " |")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--head-size", type=int, default=64, help="elements of a head (default 64)")
    parser.add_argument("--cells", type=int, default=4096, help="rows measured (default 4096)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    rows = measure((options.cells, options.head_size))
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
