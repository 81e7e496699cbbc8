"""Checks of time that no test may make: each a ratio of two measurements interleaved in
one process. Prints a table, writes JSON, exits 3 when a target is missed.

    python -m benchmarks.check MODEL.gguf [--json FILE]

C15: one active session of 1,000 tokens, alone and beside three idle sessions of 16,000
tokens; its step may take at most 1.05 times as long.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pykv import _core

ACTIVE_TOKENS = 1000
IDLE_TOKENS = 16_000
IDLE_SESSIONS = 3
ROUNDS = 7
STEPS = 24
CHUNK = 500


class Active:
    """A session that decodes one token a step, with or without idle neighbours."""

    def __init__(self, model: _core.Model, backend: _core.Backend, idle: int) -> None:
        self.model = model
        self.rng = random.Random(1)
        cells = ACTIVE_TOKENS + ROUNDS * STEPS + 64 + idle * IDLE_TOKENS
        self.cache = _core.Cache(layers=model.layer_table, backend=backend, cells=cells)
        for _ in range(idle):
            self._fill_with_noise(self.cache.create(), IDLE_TOKENS)
        self.sequence = self.cache.create()
        self._fill_with_noise(self.sequence, ACTIVE_TOKENS)

    def _fill_with_noise(self, sequence: int, tokens: int) -> None:
        """Writes K and V without the model: what lies there does not change the time."""
        noise = np.random.default_rng(0)
        for start in range(0, tokens, CHUNK):
            count = min(CHUNK, tokens - start)
            step = self._commit(sequence, count)
            for layer, spec in enumerate(self.model.layer_table):
                k = noise.standard_normal((count, spec.kv_heads * spec.k_dim), dtype=np.float32)
                v = noise.standard_normal((count, spec.kv_heads * spec.v_dim), dtype=np.float32)
                step.write(layer, k, v)
            step.finish()

    def _commit(self, sequence: int, what: Any) -> _core.Step:
        plan = self.cache.plan([(sequence, what)])
        assert plan is not None  # the cache was made large enough
        return self.cache.commit(plan)

    def decode(self) -> float:
        """Median time of a step over STEPS steps, in seconds."""
        times = []
        for _ in range(STEPS):
            token = [self.rng.randrange(int(self.model.config["vocab"]))]
            begin = time.perf_counter()
            step = self._commit(self.sequence, token)
            self.model.forward(step, token, [0])
            step.finish()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)


def check_idle_neighbours(model: _core.Model, backend: _core.Backend) -> dict[str, Any]:
    alone, beside = Active(model, backend, 0), Active(model, backend, IDLE_SESSIONS)
    pairs = [(alone.decode(), beside.decode()) for _ in range(ROUNDS)]
    ratio = statistics.median(b / a for a, b in pairs)
    return {
        "row": f"C15 step beside {IDLE_SESSIONS} x {IDLE_TOKENS} idle tokens",
        "value": statistics.median(b for _, b in pairs) * 1e3,
        "unit": "ms",
        "peer": statistics.median(a for a, _ in pairs) * 1e3,
        "limit": None,
        "ratio": ratio,
        "target": 1.05,
        "ok": ratio <= 1.05,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    backend = _core.Backend(threads=options.threads)
    model = _core.Model(_core.GgufFile(str(options.model)), backend)
    rows = [check_idle_neighbours(model, backend)]
    for row in rows:
        print(
            f"{row['row']:<44} {row['value']:8.2f} {row['unit']} alone {row['peer']:8.2f} "
            f"ratio {row['ratio']:.3f} (target {row['target']}) {'ok' if row['ok'] else 'MISSED'}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
