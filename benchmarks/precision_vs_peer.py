"""pykv's and llama.cpp's distance from the exact forward pass on the same positions.

    python -m benchmarks.precision_vs_peer MODEL.gguf [--llama-cpp PYTHON] [--texts FILE...]
        [--positions 4096] [--window 512] [--precisions fast,exact] [--types f16,q8_0]
        [--json FILE]

Texts are cut into windows that each start anew; every position of a window counts. By
default they are llama.cpp's golden prompt (the GPL), the Apache license, a page of the
documentation and a Python source, in equal parts. The reference is pykv's own pass with
exact layers and f32 KV, after its first 128 positions have been checked against NumPy's
(tests/reference/decoder_forward.py): it is within 1e-9 of it and far faster.

Prints mean, median, 99th percentile and maximum of the Kullback-Leibler divergence in nats.
Exits 3 if fast layers with f16 KV, the default, exceed 1.05 times llama.cpp's mean or 99th
percentile.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.logits import ROOT, compute, divergence, golden_text
from benchmarks.peers.environment import peer_python
from benchmarks.peers.worker import Worker
from pykv import _core
from pykv.tokenizer import Tokenizer
from tests.reference.decoder_forward import DecoderReference

DEFAULT_TEXTS = ("LICENSE", "docs/cache.md", "tests/reference/decoder_forward.py")
PEER_RATIO = 1.05
SPOT = 128
SPOT_LIMIT = 1e-8
PEER = "llama.cpp"
Values = npt.NDArray[np.float64]
Case = tuple[str, str]  # who, KV type
STATISTICS: dict[str, Callable[[Values], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "p99": lambda values: np.quantile(values, 0.99),
    "max": np.max,
}


def windows(texts: Sequence[Sequence[int]], size: int, positions: int) -> list[list[int]]:
    """Windows of `size` tokens, taken in turn from each text until they have `positions`."""
    left = [list(text) for text in texts]
    made: list[list[int]] = []
    while sum(map(len, made)) < positions:
        if not any(len(text) >= size for text in left):
            raise SystemExit(
                f"the texts have fewer than {positions} tokens in windows of {size}; "
                "name more --texts or lower --positions"
            )
        for i, text in enumerate(left):
            if len(text) >= size and sum(map(len, made)) < positions:
                made.append(text[:size])
                left[i] = text[size:]
    return made


def read_texts(gguf: _core.GgufFile, model: _core.Model, files: Sequence[Path]) -> list[list[int]]:
    tokenizer = Tokenizer.from_gguf(gguf)
    golden = [] if files else [golden_text(model, 1 << 20)]
    return golden + [
        tokenizer.encode(path.read_text(encoding="utf-8")) for path in files or default_files()
    ]


def default_files() -> list[Path]:
    return [ROOT / name for name in DEFAULT_TEXTS]


def check_reference(path: Path, model: _core.Model, backend: Any, tokens: list[int]) -> None:
    """Exits if our exact pass is not NumPy's."""
    ours = compute(model, backend, tokens, ("f32", "f32"))
    worst = float(divergence(DecoderReference(path).logits(tokens), ours).max())
    if worst > SPOT_LIMIT:
        raise SystemExit(f"the exact pass is {worst:.1e} nats from NumPy's, not {SPOT_LIMIT}")


def peer_logits(worker: Worker, tokens: list[int], kind: str, folder: str) -> Any:
    file = Path(folder) / "logits.npy"
    worker.ask(do="logits", tokens=tokens, file=str(file), cache_type_k=kind, cache_type_v=kind)
    return np.load(file)


def measure(options: argparse.Namespace) -> dict[Case, Values]:
    """Divergences of all positions by who computed them and how K and V were stored."""
    path, backend = options.model, _core.Backend()
    gguf = _core.GgufFile(path)
    models = {p: _core.Model(gguf, backend, precision=p) for p in {"exact", *options.precisions}}
    texts = read_texts(gguf, models["exact"], options.texts)
    parts = windows(texts, options.window, options.positions)
    check_reference(path, models["exact"], backend, parts[0][:SPOT])
    found: dict[Case, list[Values]] = {}
    python = options.llama_cpp or peer_python("llama-cpp")
    with (
        tempfile.TemporaryDirectory() as folder,
        Worker(python, "llama_cpp_worker.py", ["-m", str(path)]) as worker,
    ):
        for tokens in parts:
            exact = compute(models["exact"], backend, tokens, ("f32", "f32"))
            for kind in options.types:
                logits = peer_logits(worker, tokens, kind, folder)
                found.setdefault((PEER, kind), []).append(divergence(exact, logits))
                for name in options.precisions:
                    logits = compute(models[name], backend, tokens, (kind, kind))
                    found.setdefault((f"pykv {name}", kind), []).append(divergence(exact, logits))
    return {case: np.concatenate(values) for case, values in found.items()}


def rows_of(found: dict[Case, Values]) -> list[dict[str, Any]]:
    """One row per case and statistic, beside llama.cpp's at the same KV type."""
    rows = []
    for (name, kind), values in found.items():
        for statistic, of in STATISTICS.items():
            value, peer = float(of(values)), float(of(found[PEER, kind]))
            default = (name, kind) == ("pykv fast", "f16")
            bound = default and statistic in ("mean", "p99")
            rows.append(
                {
                    "row": f"KL {statistic}, {name}, {kind} KV",
                    "value": value,
                    "unit": "nats",
                    "peer": peer,
                    "limit": None,
                    "ratio": value / peer,
                    "target": PEER_RATIO if bound else None,
                    "ok": not bound or value <= PEER_RATIO * peer,
                }
            )
    return rows


def show(positions: int, rows: list[dict[str, Any]]) -> None:
    print(f"{positions} positions; ratio to llama.cpp at the same KV type in brackets")
    print("| | mean | median | p99 | max |\n|---|--:|--:|--:|--:|")
    for start in range(0, len(rows), len(STATISTICS)):
        own = rows[start : start + len(STATISTICS)]
        case = own[0]["row"].removeprefix("KL mean, ")
        print(
            f"| {case} | " + " | ".join(f"{r['value']:.2e} ({r['ratio']:.2f})" for r in own) + " |"
        )
    for row in rows:
        if not row["ok"]:
            print(
                f"missed: {row['row']} is {row['ratio']:.3f} of llama.cpp's, at most {PEER_RATIO}"
            )


def names(text: str) -> list[str]:
    return text.split(",")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="environment with llama-cpp-python")
    parser.add_argument("--texts", type=Path, nargs="+", default=[])
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--precisions", type=names, default=["fast", "exact"])
    parser.add_argument("--types", type=names, default=["f16"], help="KV types")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    found = measure(options)
    rows = rows_of(found)
    show(len(next(iter(found.values()))), rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
