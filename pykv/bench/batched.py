"""llama-batched-bench on the shared pool: same arguments, columns and formulas.

T_PP is the time to compute the prompts, T_TG the time of `tg` steps of `pl` tokens.
All rows use one cache, as the original's use one context: what a row has committed serves the next.
With a shared prompt (`pps`) the prompt is computed once and forked:

    N_KV = pp + pl * tg                      shared; otherwise pl * (pp + tg)
    S_PP = pp / T_PP                         shared; otherwise pl * pp / T_PP
    S_TG = pl * tg / T_TG
    S    = ((pp or pl * pp) + pl * tg) / (T_PP + T_TG)
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from pykv import _core
from pykv.memory import free_bytes
from pykv.pool_size import PoolRequest, memory_plan, pool_layers

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class BatchedOptions:
    """What to measure. `batch_size` is the number of prompt tokens per forward pass; the names
    of the cache's options are those of pykv.runtime.RuntimeOptions."""

    model: Path
    npp: list[int]
    ntg: list[int]
    npl: list[int]
    shared_prompt: bool = False
    ctx_size: int = 0
    batch_size: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    swa_full: bool = False
    resume_bytes: int | None = None
    resume_spacing: int = 512
    precision: str = "fast"
    threads: int = 0
    seed: int = 1

    def rows(self) -> list[tuple[int, int, int]]:
        """(pp, tg, pl) in the original's order: pp outermost, pl innermost."""
        return list(product(self.npp, self.ntg, self.npl))

    def cells(self, pp: int, tg: int, pl: int) -> int:
        """N_KV of a row."""
        return pp + pl * tg if self.shared_prompt else pl * (pp + tg)


@dataclass(frozen=True)
class BatchedRow:
    """One measured row; times in seconds, speeds in tokens per second."""

    pp: int
    tg: int
    pl: int
    n_kv: int
    t_pp: float
    t_tg: float
    shared_prompt: bool
    options: BatchedOptions = field(repr=False)
    threads: int = 0
    n_kv_max: int = 0
    weight_bytes: int = 0  # of the weights as they lie in memory
    kv_bytes: int = 0  # bytes of KV blocks that this row and those before it committed
    computed_tokens: int = 0  # tokens that went through the model, warm-up apart

    @property
    def prompt_tokens(self) -> int:
        return self.pp if self.shared_prompt else self.pl * self.pp

    @property
    def speed_pp(self) -> float:
        return self.prompt_tokens / self.t_pp if self.t_pp > 0 else 0.0

    @property
    def speed_tg(self) -> float:
        return self.pl * self.tg / self.t_tg if self.t_tg > 0 else 0.0

    @property
    def t(self) -> float:
        return self.t_pp + self.t_tg

    @property
    def speed(self) -> float:
        return (self.prompt_tokens + self.pl * self.tg) / self.t if self.t > 0 else 0.0


MARKDOWN_HEAD = (
    f"|{'PP':>6} | {'TG':>6} | {'B':>4} | {'N_KV':>6} | {'T_PP s':>8} | {'S_PP t/s':>8} "
    f"| {'T_TG s':>8} | {'S_TG t/s':>8} | {'T s':>8} | {'S t/s':>8} |\n"
    f"|{'-' * 6}-|-{'-' * 6}-|-{'-' * 4}-|-{'-' * 6}-|" + f"-{'-' * 8}-|" * 6
)


def markdown(row: BatchedRow) -> str:
    """The row in the original's table format."""
    return (
        f"|{row.pp:6d} | {row.tg:6d} | {row.pl:4d} | {row.n_kv:6d} | {row.t_pp:8.3f} "
        f"| {row.speed_pp:8.2f} | {row.t_tg:8.3f} | {row.speed_tg:8.2f} | {row.t:8.3f} "
        f"| {row.speed:8.2f} |"
    )


def json_line(row: BatchedRow) -> str:
    """The original's keys, and what it leaves out: KV types and memory."""
    options = row.options
    return json.dumps(
        {
            "n_kv_max": row.n_kv_max,
            "n_batch": options.batch_size,
            "n_ubatch": options.batch_size,
            "flash_attn": 1,
            "is_pp_shared": int(row.shared_prompt),
            "n_gpu_layers": 0,
            "n_threads": row.threads,
            "n_threads_batch": row.threads,
            "pp": row.pp,
            "tg": row.tg,
            "pl": row.pl,
            "n_kv": row.n_kv,
            "t_pp": row.t_pp,
            "speed_pp": row.speed_pp,
            "t_tg": row.t_tg,
            "speed_tg": row.speed_tg,
            "t": row.t,
            "speed": row.speed,
            "cache_type_k": options.cache_type_k,
            "cache_type_v": options.cache_type_v,
            "precision": options.precision,
            "weight_bytes": row.weight_bytes,
            "kv_bytes": row.kv_bytes,
            "peak_rss_bytes": peak_rss_bytes(),
            "computed_tokens": row.computed_tokens,
        }
    )


def peak_rss_bytes() -> int:
    """Highest resident size of this process so far, in bytes.

    Where the system tells it for the program alone: ``ru_maxrss`` knows its parent's, too, which
    shares its memory with a child until that becomes another program.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines = (line.split() for line in status.splitlines())
    return next(int(line[1]) for line in lines if line[:1] == ["VmHWM:"]) * 1024


class BatchedBench:
    """Owns model and cache for all rows of one run."""

    def __init__(self, options: BatchedOptions) -> None:
        self._options = options
        gguf = _core.GgufFile(str(options.model))
        self._backend = _core.Backend(threads=options.threads)
        self._model = _core.Model(gguf, self._backend, precision=options.precision)
        self._vocab = int(self._model.config["vocab"])
        largest = max(options.cells(*row) for row in options.rows())
        self._capacity = options.ctx_size or largest + WARM_UP_TOKENS
        self._computed = 0
        self._request = PoolRequest(
            parallel=max(options.npl),
            batch_size=max(options.batch_size, *options.npl),
            swa_full=options.swa_full,
            resume_bytes=options.resume_bytes,
            recurrent=self._model.recurrent_table,
        )
        self._check_memory(largest)
        self._cache = self._new_cache(self._capacity)

    def _check_memory(self, largest: int) -> None:
        """Raises InvalidArgument for rows that the machine cannot hold."""
        options, cells = self._options, min(self._capacity, largest)
        types = options.cache_type_k, options.cache_type_v
        plan = memory_plan(self._model.layer_table, self._request, *types, cells)
        needed, free = plan["bytes_reserved"], free_bytes()
        if needed > free:
            raise _core.InvalidArgument(
                f"[BatchedBench] the largest row takes {needed} bytes of KV cells and {free} are "
                "free; ask for less with -npp, -ntg or -npl, share the prompt with -pps, or use "
                "-ctk q8_0 -ctv q8_0"
            )

    def run(self, progress: Callable[[int], None] = lambda tokens: None) -> Iterator[BatchedRow]:
        """Measures row after row; rows that need more than `ctx_size` cells are left out,
        as in the original. `progress` gets the number of tokens just computed."""
        for pp, tg, pl in self._options.rows():
            n_kv = self._options.cells(pp, tg, pl)
            if n_kv <= self._capacity:
                yield self._measure(pp, tg, pl, progress)

    def _measure(self, pp: int, tg: int, pl: int, progress: Callable[[int], None]) -> BatchedRow:
        options, cache = self._options, self._cache
        rng = random.Random(options.seed)
        warm = cache.create()
        self._prefill([warm], [self._random_tokens(rng, WARM_UP_TOKENS)], lambda n: None)
        self._forget([warm])
        self._computed = 0

        count = 1 if options.shared_prompt else pl
        prompts = [self._random_tokens(rng, pp) for _ in range(count)]
        sequences = [cache.create() for _ in range(count)]
        begin = time.perf_counter()
        self._prefill(sequences, prompts, progress)
        t_pp = time.perf_counter() - begin

        sequences += [cache.fork(sequences[0]) for _ in range(pl - count)]
        begin = time.perf_counter()
        for _ in range(tg):
            self._forward([(s, [rng.randrange(self._vocab)]) for s in sequences], pl)
            progress(pl)
        t_tg = time.perf_counter() - begin
        self._forget(sequences)
        return BatchedRow(
            pp=pp, tg=tg, pl=pl, n_kv=options.cells(pp, tg, pl), t_pp=t_pp, t_tg=t_tg,
            shared_prompt=options.shared_prompt, options=options, threads=self._backend.threads,
            n_kv_max=self._capacity, weight_bytes=self._model.weight_bytes,
            kv_bytes=cache.stats()["bytes_committed"], computed_tokens=self._computed,
        )  # fmt: skip

    def _new_cache(self, cells: int) -> _core.Cache:
        return _core.Cache(
            layers=pool_layers(self._model.layer_table, self._request),
            ropes=self._model.ropes,
            recurrent=self._model.recurrent_table,
            backend=self._backend,
            cells=cells,
            max_sequences=self._request.parallel,
            step_tokens=self._request.batch_size,
            resume_bytes=self._options.resume_bytes,
            resume_spacing=self._options.resume_spacing,
            type_k=self._options.cache_type_k,
            type_v=self._options.cache_type_v,
        )

    def _forget(self, sequences: list[int]) -> None:
        """Frees their cells, so that the next row finds none of their tokens."""
        for sequence in sequences:
            self._cache.erase(sequence)
        self._cache.reset_prefixes()

    def _random_tokens(self, rng: random.Random, count: int) -> list[int]:
        return [rng.randrange(self._vocab) for _ in range(count)]

    def _prefill(
        self, sequences: list[int], prompts: list[list[int]], progress: Callable[[int], None]
    ) -> None:
        """Computes the prompts one after the other, `batch_size` tokens a pass."""
        size = self._options.batch_size
        for sequence, prompt in zip(sequences, prompts, strict=True):
            for start in range(0, len(prompt), size):
                chunk = prompt[start : start + size]
                last = start + size >= len(prompt)
                self._forward([(sequence, chunk)], 1 if last else 0)
                progress(len(chunk))

    def _forward(self, parts: list[tuple[int, list[int]]], logits: int) -> None:
        """One step; logits for the last `logits` rows."""
        plan = self._cache.plan(parts)
        if plan is None:
            raise _core.OutOfCells(
                f"[BatchedBench.run] {sum(len(t) for _, t in parts)} more tokens do not fit into "
                f"{self._capacity} cells; raise --ctx-size"
            )
        tokens = [token for _, part in parts for token in part]
        rows = range(len(tokens) - logits, len(tokens))
        step = self._cache.commit(plan)
        try:
            self._model.forward(step, tokens, list(rows))
            step.finish()
        finally:
            step.rollback()  # no effect after finish()
        self._computed += len(tokens)
