"""Checks of time that no test may make: ratios of two measurements interleaved in one process,
and times against a limit. Prints a table, writes JSON, exits 3 when a target is missed.

    python -m benchmarks.check MODEL.gguf [--json FILE]

C15: one active session of 1,000 tokens, alone and beside three idle sessions of 16,000
tokens; its step may take at most 1.05 times as long.

C32: a prompt of 8,000 tokens (or as many as the model's context allows) beside eight sessions
of 1,000 tokens that generate: the 99th percentile of the time between their tokens against the
time without the prompt (mean of before and after, since the sessions grow); the prompt's first
token against its time alone; all tokens in a second against the two apart. Medians of five runs,
four minutes: what the slowest steps of one run say is which moments the machine was held up in.

Load: from opening the file to the first token of a prompt of one token, and what the tokenizer
takes of it, against what they may take; Python's own start does not count.

    --cpu-time    the calling thread's processor time instead of the clock, with --threads 1:
                  for a machine that does other work, too
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pykv import Engine, _core
from pykv.tokenizer import Tokenizer

ACTIVE_TOKENS = 1000
IDLE_TOKENS = 16_000
IDLE_SESSIONS = 3
ROUNDS = 7
STEPS = 24
CHUNK = 500
PROMPT_TOKENS = 8000
LONG_PROMPT_RUNS = 5
DECODERS = 8
DECODER_TOKENS = 1000
LOAD_SECONDS, LOAD_SECONDS_LARGE = 1.0, 2.0  # with a vocabulary above LARGE_VOCABULARY
LARGE_VOCABULARY = 200_000
TOKENIZER_SECONDS = 0.5

Clock = Callable[[], float]


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
    return _row(
        f"C15 step beside {IDLE_SESSIONS} x {IDLE_TOKENS} idle tokens",
        statistics.median(b for _, b in pairs) * 1e3,
        "ms",
        statistics.median(a for a, _ in pairs) * 1e3,
        ratio,
        1.05,
    )


class LongPrompt:
    """An engine whose steps are run and timed here, so that a step is the time between two
    tokens of every session that generates."""

    def __init__(self, model: _core.Model, backend: _core.Backend, clock: Clock) -> None:
        self.clock = clock
        self.rng = random.Random(1)
        self.vocab = int(model.config["vocab"])
        self.length = min(PROMPT_TOKENS, int(model.config["context"]) - 2)
        cells = self.length * 2 + DECODERS * (DECODER_TOKENS + self.length)
        self.cache = _core.Cache(layers=model.layer_table, backend=backend, cells=cells)
        self.engine = _core.Engine(model, self.cache)

    def submit(self, length: int, tokens: int) -> int:
        prompt = [self.rng.randrange(self.vocab) for _ in range(length)]
        return self.engine.submit(prompt, tokens, temperature=0.0, use_cache=False)

    def steps(self, request: int) -> list[float]:
        """Seconds of each step until the request's first token."""
        times: list[float] = []
        while True:
            begin = self.clock()
            self.engine.step_once()
            times.append(self.clock() - begin)
            events = self.engine.drain()
            if any(e.request == request and e.kind == "token" for e in events):
                return times

    def gap(self, count: int = 40) -> float:
        """Seconds between two tokens of the sessions that generate."""
        times: list[float] = []
        for _ in range(count):
            begin = self.clock()
            self.engine.step_once()
            times.append(self.clock() - begin)
        self.engine.drain()
        return statistics.median(times)


def check_long_prompt(
    model: _core.Model, backend: _core.Backend, clock: Clock, runs: int
) -> list[dict[str, Any]]:
    """Row by row the run with the median ratio; an odd number of them."""
    made = [run_long_prompt(model, backend, clock) for _ in range(runs)]
    return [
        sorted(rows, key=lambda row: row["ratio"])[runs // 2] for rows in zip(*made, strict=True)
    ]


def run_long_prompt(
    model: _core.Model, backend: _core.Backend, clock: Clock
) -> list[dict[str, Any]]:
    run = LongPrompt(model, backend, clock)
    alone = sum(run.steps(run.submit(run.length, 1)))
    for _ in range(DECODERS):
        last = run.submit(DECODER_TOKENS, run.length)
    run.steps(last)
    before = run.gap()
    steps = run.steps(run.submit(run.length, 1))
    gap = (before + run.gap()) / 2
    together = sum(steps)
    slowest = statistics.quantiles(steps, n=100)[98]
    row = f"C32 {run.length} tokens beside {DECODERS} x {DECODER_TOKENS}: "
    return [
        _row(row + "p99 gap", slowest * 1e3, "ms", gap * 1e3, slowest / gap, 3.0),
        _row(row + "first token", together, "s", alone, together / alone, 2.5),
        _row(
            row + "tokens/s",
            (run.length + DECODERS * len(steps)) / together,
            "1/s",
            (run.length + DECODERS * len(steps)) / (alone + len(steps) * gap),
            (alone + len(steps) * gap) / together,
            0.8,
            at_least=True,
        ),
    ]


def check_load(path: Path, threads: int) -> list[dict[str, Any]]:
    whole: list[float] = []
    tokenizer: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        with Engine.open(path, threads=threads) as engine:
            engine.generate([1], 1, temperature=0.0)
            whole.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        file = _core.GgufFile(path)
        vocabulary = Tokenizer.from_gguf(file).vocab_size
        tokenizer.append(time.perf_counter() - begin)
    limit = LOAD_SECONDS_LARGE if vocabulary > LARGE_VOCABULARY else LOAD_SECONDS
    return [
        _row(name, seconds, "s", most, seconds / most, 1.0)
        for name, seconds, most in (
            ("load, open to first token", statistics.median(whole), limit),
            (f"load, tokenizer of {vocabulary:,}", statistics.median(tokenizer), TOKENIZER_SECONDS),
        )
    ]


def _row(
    row: str,
    value: float,
    unit: str,
    peer: float,
    ratio: float,
    target: float,
    *,
    at_least: bool = False,
) -> dict[str, Any]:
    ok = ratio >= target if at_least else ratio <= target
    return {
        "row": row, "value": value, "unit": unit, "peer": peer, "limit": None, "ratio": ratio,
        "target": target, "ok": ok,
    }  # fmt: skip


def finish(rows: list[dict[str, Any]], path: Path | None) -> int:
    """Prints rows beside what they are compared with, writes them as JSON; the exit code."""
    for row in rows:
        print(
            f"{row['row']:<48} {row['value']:8.2f} {row['unit']:<3} beside {row['peer']:8.2f} "
            f"ratio {row['ratio']:.3f} (target {row['target']}) {'ok' if row['ok'] else 'MISSED'}"
        )
    if path is not None:
        path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in rows) else 3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=("C15", "C32", "load"))
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args(argv)
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time needs --threads 1: the time of other threads does not count")
    wanted = (options.only,) if options.only else ("C15", "C32", "load")
    clock = time.thread_time if options.cpu_time else time.perf_counter
    rows: list[dict[str, Any]] = []
    if "load" in wanted:
        rows += check_load(options.model, options.threads)
    backend = _core.Backend(threads=options.threads)
    model = _core.Model(_core.GgufFile(str(options.model)), backend)
    if "C15" in wanted:
        rows.append(check_idle_neighbours(model, backend))
    if "C32" in wanted:
        rows += check_long_prompt(model, backend, clock, LONG_PROMPT_RUNS)
    return finish(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
