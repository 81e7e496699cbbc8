"""How far the logits are from the exact float32 forward pass, per KV type.

    python -m benchmarks.precision MODEL.gguf [--tokens 698] [--types f32,f16,q8_0] [--json FILE]

Mean, median, 99th percentile and maximum of the Kullback-Leibler divergence in nats over
the positions of a text, of pykv's distribution from that of the NumPy forward pass
(tests/reference/decoder_forward.py). For q8_0 also that of the NumPy pass with K and V
rounded to q8_0: what the storage alone costs. Exits 3 if the mean at f32 exceeds 1e-5.
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
from tests.reference.decoder_forward import DecoderReference, log_softmax, through_q8_0

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {"f32": 1e-5}
Floats = npt.NDArray[np.floating[Any]]


def divergence(exact: Floats, logits: Floats) -> npt.NDArray[np.float64]:
    """KL(exact || ours) of each row, in nats."""
    values = np.empty(len(exact))
    for row, (p_logits, q_logits) in enumerate(zip(exact, logits, strict=True)):
        p, q = log_softmax(p_logits), log_softmax(q_logits)
        values[row] = np.sum(np.exp(p) * (p - q))
    return values


def golden_text(count: int) -> list[int]:
    """Token ids of the longest golden prompt of SmolLM2."""
    entries = json.loads((ROOT / "tests/data/golden_smollm2.json").read_text(encoding="utf-8"))
    longest: list[int] = max((e["prompt_tokens"] for e in entries), key=len)
    return longest[:count]


def compute(model: Any, backend: Any, tokens: Sequence[int], kv_type: str) -> Floats:
    """Logits [tokens, vocab] from pykv in one step."""
    cache = _core.Cache(
        layers=model.layer_table,
        backend=backend,
        cells=len(tokens),
        type_k=kv_type,
        type_v=kv_type,
    )
    plan = cache.plan([(cache.create(), list(tokens))])
    assert plan is not None  # the cache was made for exactly these tokens
    step = cache.commit(plan)
    logits: Floats = model.forward(step, tokens, range(len(tokens)))
    step.finish()
    return logits


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


def measure(path: Path, tokens: Sequence[int], types: Sequence[str]) -> list[dict[str, Any]]:
    backend = _core.Backend()
    model = _core.Model(_core.GgufFile(path), backend)
    reference = DecoderReference(path)
    exact = reference.logits(tokens)
    rows = []
    for kv_type in types:
        values = divergence(exact, compute(model, backend, tokens, kv_type))
        rows += table_rows(f"{kv_type} KV", values, TARGETS.get(kv_type))
    if "q8_0" in types:
        reference.store = through_q8_0
        rows += table_rows("q8_0 in NumPy", divergence(exact, reference.logits(tokens)), None)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=698, help="positions measured (default 698)")
    parser.add_argument("--types", default="f32,f16,q8_0", help="KV types, comma-separated")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    tokens = golden_text(options.tokens)
    rows = measure(options.model, tokens, options.types.split(","))
    print(f"{len(tokens)} positions")
    for row in rows:
        print(
            f"{row['row']:<26} {row['value']:.2e}  {'' if row['ok'] else 'target missed'}".rstrip()
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
