"""How long it takes until a model answers, and what hostile files cost.

    python -m benchmarks.load MODEL.gguf [--threads 2] [--vocabulary FILE.gguf] [--json FILE]

Load: from opening the model (tokenizer, weights, pool, engine) to the first token of a
one-token prompt, in a process that has imported pykv, median of three: at most 1 s for a model
of the size of SmolLM2, 2 s for one of the size of Gemma 3 270M.

Tokenizer: of the model, or of a file with a vocabulary alone, the first one of a process that
has imported pykv, median of five processes: at most 0.5 s.

C35: a small model file with every header field set to every absurd value, one at a time: at
most 1 s of the processor for each, and 64 MiB of memory for all.

Prints a table, writes JSON, exits 3 when a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pykv import Engine
from tests.reference.gguf_files import TinyModel, write_tiny_model

ROOT = Path(__file__).resolve().parents[1]
LOADS = 3
PROCESSES = 5
FIRST_TOKENIZER = """
import sys, time
from pykv import _core
from pykv.tokenizer import Tokenizer
begin = time.perf_counter()
size = Tokenizer.from_gguf(_core.GgufFile(sys.argv[1])).vocab_size
print(size, time.perf_counter() - begin)
"""
LARGE = 200_000_000  # bytes of a file


def measure_load(path: Path, threads: int) -> dict[str, Any]:
    times = []
    for _ in range(LOADS):
        begin = time.perf_counter()
        with Engine.open(path, threads=threads) as engine:
            engine.generate([1], max_tokens=1)
            times.append(time.perf_counter() - begin)
    limit = 2.0 if path.stat().st_size > LARGE else 1.0
    return limited("load to first token", statistics.median(times), "s", limit)


def measure_tokenizer(path: Path) -> dict[str, Any]:
    times = []
    command = [sys.executable, "-c", FIRST_TOKENIZER, str(path.resolve())]
    for _ in range(PROCESSES):
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        size, seconds = done.stdout.split()
        times.append(float(seconds))
    return limited(f"tokenizer of {int(size):,} tokens", statistics.median(times), "s", 0.5)


def measure_hostile_files() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        source, scratch = Path(folder, "tiny.gguf"), Path(folder, "hostile.gguf")
        write_tiny_model(source, TinyModel(weight_type="Q8_0", embedding_type="Q4_1", layers=1))
        command = [sys.executable, "-m", "tests.model.hostile", str(source), str(scratch)]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    files = len(result["refused"]) + result["opened"]
    return [
        limited(f"C35 slowest of {files} hostile files", result["slowest"], "s", 1.0),
        limited("C35 memory that they take", result["growth"] / 2**20, "MiB", 64.0),
    ]


def limited(row: str, value: float, unit: str, limit: float) -> dict[str, Any]:
    return {
        "row": row, "value": value, "unit": unit, "peer": None, "limit": limit,
        "ratio": value / limit, "target": 1.0, "ok": value <= limit,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--vocabulary", type=Path, help="file for the row of the tokenizer")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    rows = [
        measure_load(options.model, options.threads),
        measure_tokenizer(options.vocabulary or options.model),
        *measure_hostile_files(),
    ]
    for row in rows:
        verdict = "ok" if row["ok"] else "MISSED"
        value, limit, unit = row["value"], row["limit"], row["unit"]
        print(f"{row['row']:<44} {value:8.3f} {unit:<3} limit {limit:g} {verdict}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
