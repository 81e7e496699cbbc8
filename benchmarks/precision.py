"""How far the logits are from the exact float32 forward pass, per KV type.

    python -m benchmarks.precision MODEL.gguf [--precision fast] [--tokens 698]
        [--types f32,f16,q8_0,q8_0/q4_0] [--no-hadamard] [--numpy] [--json FILE]

Mean, median, 99th percentile and maximum of the Kullback-Leibler divergence in nats over
the positions of a text, of pykv's distribution from that of the NumPy forward pass
(tests/reference/decoder_forward.py). A type is that of K and V, or K/V. With --numpy also
the divergence of the NumPy pass with K and V rounded as the cache stores them: what the
storage alone costs.

With --precision fast, the default, also llama.cpp's divergence and pykv's on llama.cpp's
golden answers to short prompts, over the ten tokens that it lists and all others together.
Exits 3 if a mean exceeds its target, or mean or 99th percentile 1.05 times llama.cpp's.
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

from benchmarks.logits import Floats, compute, divergence, divergences_of_answers, golden_text
from pykv import _core
from tests.reference.decoder_forward import DecoderReference
from tests.reference.kv_storage import stored, transform_size

TARGETS = {"exact": {"f32": 1e-5, "f16": 1e-5, "q8_0": 1e-3}, "fast": {}, "fastest": {}}
PEER_RATIO = 1.05


def table_rows(
    name: str, values: npt.NDArray[np.float64], target: float | None
) -> list[dict[str, Any]]:
    statistics = {
        "mean": values.mean(),
        "median": np.median(values),
        "p99": np.quantile(values, 0.99),
        "max": values.max(),
    }
    limits = {"mean": target}
    return [
        {
            "row": f"KL {statistic}, {name}",
            "value": float(value),
            "unit": "nats",
            "peer": "exact float32 forward pass",
            "limit": None,
            "ratio": None,
            "target": limits.get(statistic),
            "ok": bool(value <= (limits.get(statistic) or np.inf)),
        }
        for statistic, value in statistics.items()
    ]


def store_like_the_cache(types: tuple[str, str], transform: bool) -> Any:
    """What a cache of these types does to K and V of the NumPy pass."""

    def store(k: Floats, v: Floats) -> tuple[Floats, Floats]:
        sides: list[Floats] = []
        for side, kind, x in (("k", types[0], k), ("v", types[1], v)):
            size = transform_size(side, kind, x.shape[-1]) if transform else 0  # type: ignore[arg-type]
            sides.append(stored(kind, x.astype(np.float32), size))
        return sides[0], sides[1]

    return store


def compare_with_llama_cpp(path: Path) -> list[dict[str, Any]]:
    ours, theirs = divergences_of_answers(path)
    rows = []
    for name, part in (("mean", None), ("p99", 0.99)):
        value, peer = (
            float(np.mean(x) if part is None else np.quantile(x, part)) for x in (ours, theirs)
        )
        rows.append(
            {
                "row": f"KL {name}, answers (llama.cpp {peer:.2e})",
                "value": value,
                "unit": "nats",
                "peer": peer,
                "limit": None,
                "ratio": value / peer,
                "target": PEER_RATIO,
                "ok": value <= PEER_RATIO * peer,
            }
        )
    return rows


def measure(path: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    backend = _core.Backend()
    model = _core.Model(_core.GgufFile(path), backend, precision=options.precision)
    tokens = golden_text(model, options.tokens)
    print(f"{len(tokens)} positions, precision {options.precision}")
    reference = DecoderReference(path)
    exact = reference.logits(tokens)
    rows = []
    for name in options.types.split(","):
        type_k, _, type_v = name.partition("/")
        types = (type_k, type_v or type_k)
        values = divergence(exact, compute(model, backend, tokens, types, options.hadamard))
        rows += table_rows(f"{name} KV", values, TARGETS[options.precision].get(name))
        if options.numpy:
            reference.store = store_like_the_cache(types, options.hadamard)
            rows += table_rows(
                f"{name} in NumPy", divergence(exact, reference.logits(tokens)), None
            )
    if options.precision == "fast":
        rows += compare_with_llama_cpp(path)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=698, help="positions measured (default 698)")
    parser.add_argument("--types", default="f32,f16,q8_0", help="comma-separated")
    parser.add_argument(
        "--no-hadamard", dest="hadamard", action="store_false", help="store K and V as they are"
    )
    parser.add_argument("--precision", default="fast", choices=("fastest", "fast", "exact"))
    parser.add_argument("--numpy", action="store_true", help="also the NumPy pass, rounded alike")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    rows = measure(options.model, options)
    for row in rows:
        print(
            f"{row['row']:<38} {row['value']:.2e}  {'' if row['ok'] else 'target missed'}".rstrip()
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
