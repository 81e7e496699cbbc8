"""Everything that serves one model, opened together: file, weights, pool, engine."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pykv import _core, models
from pykv.memory import free_bytes
from pykv.pool_size import (
    PoolRequest,
    bytes_beside,
    bytes_per_cell,
    pool_cells,
    pool_layers,
)
from pykv.tokenizer import ChatTemplate, Tokenizer

if TYPE_CHECKING:
    from types import TracebackType

Progress = Callable[[str, float], None]
"""Told a stage ("file", "weights", "pool") and the fraction of it that is done, 0 to 1."""

MAX_CELLS = 1 << 31  # positions and cells are 32-bit numbers
MAX_POOL_BYTES = 1 << 48
MAX_SPACING = (1 << 31) - 1
MAX_THREADS = 1024
MAX_DRAFT = 32


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How to open a model. Names are those of the command line's flags.

    Attributes:
        model: name of a known model or path of a GGUF file.
        ctx_size: cells of the pool, one token each, shared by all requests. 0: 60 % of the
            memory that is free after the weights, at most 64 times the model's context.
            Fewer than the model's context is allowed and then bounds every request; a model
            with own rotary factors for short texts (longrope) then uses them if it can.
        parallel: sequences decoded per step.
        batch_size: tokens per step.
        cache_type_k: storage of keys, one of `pykv._core.kv_types()`.
        cache_type_v: storage of values.
        precision: one of `pykv._core.precisions()`: "exact" is float32 throughout, "fast" has
            8-bit activations in linear layers where the type of the weights has kernels for it
            and 16-bit integers in attention where the machine multiplies those faster, "fastest"
            bf16 attention on machines that have it.
        threads: of computation, 0: one per usable core.
        pool_bytes: hard budget of the pool's memory, 0: as many as the cells need.
        draft_max: tokens at most that a step guesses and computes ahead for a session.
        swa_full: layers with a window keep all tokens, as the others, instead of what it reaches.
        resume_bytes: of the places from which windows and recurrent states can go on; 0: none.
            None: a tenth of the pool.
        resume_spacing: tokens between those places in a long sequence, 0: none there.
    """

    model: str
    ctx_size: int = 0
    parallel: int = 16
    batch_size: int = 256
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    precision: str = "fast"
    threads: int = 0
    pool_bytes: int = 0
    draft_max: int = 0
    swa_full: bool = False
    resume_bytes: int | None = None
    resume_spacing: int = 512

    def validate(self) -> None:
        """Raises InvalidArgument naming the flag, the value and the limit."""
        _check("--ctx-size", self.ctx_size, 0, MAX_CELLS)
        _check("--parallel", self.parallel, 1, 4096)
        _check("--batch-size", self.batch_size, 1, 8192)
        _check("--draft-max", self.draft_max, 0, MAX_DRAFT)
        _check("--threads", self.threads, 0, MAX_THREADS)
        _check("--pool-bytes", self.pool_bytes, 0, MAX_POOL_BYTES)
        if self.resume_bytes is not None:
            _check("--resume-bytes", self.resume_bytes, 0, MAX_POOL_BYTES)
        _check("--resume-spacing", self.resume_spacing, 0, MAX_SPACING)
        if self.batch_size < self.parallel:
            raise _refusal(
                f"--batch-size {self.batch_size} is less than --parallel {self.parallel}; a step "
                "has one token for each sequence: raise --batch-size or lower --parallel"
            )
        for flag, name, names in (
            ("--cache-type-k", self.cache_type_k, _core.kv_types()),
            ("--cache-type-v", self.cache_type_v, _core.kv_types()),
            ("--precision", self.precision, _core.precisions()),
        ):
            if name not in names:
                raise _refusal(f"{flag} {name!r} is not one of {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The pool as it was opened."""

    cells: int  # one token each
    bytes_per_cell: int
    bytes_reserved: int  # address space; memory is used as cells are
    longest_request: int  # tokens of prompt and answer that fit


class Runtime:
    """Model, pool and engine of one process.

    The objects of ``pykv._core`` are the attributes `gguf`, `backend`, `model`, `cache` and
    `engine`; besides there are `model_path`, `model_id`, `tokenizer`, `template` and
    `options`. The engine is not started. A context manager that closes it.
    """

    def __init__(
        self, options: RuntimeOptions, path: Path, progress: Progress | None = None
    ) -> None:
        tell = progress or (lambda stage, fraction: None)
        self.options = options
        self.model_path = path
        tell("file", 0.0)
        self.gguf = _core.GgufFile(path)
        self.tokenizer = Tokenizer.from_gguf(self.gguf)
        self.template = ChatTemplate.from_gguf(self.gguf, self.tokenizer)
        tell("weights", 0.0)
        self.backend = _core.Backend(threads=options.threads)
        self.model = _core.Model(
            self.gguf,
            self.backend,
            precision=options.precision,
            context=options.ctx_size,
            progress=lambda done, all_bytes: tell("weights", done / max(all_bytes, 1)),
        )
        given_as_path = models.expand_user(options.model) == path
        self.model_id = path.stem if given_as_path else options.model
        tell("pool", 0.0)
        self.cache = self._make_cache()
        self.engine = _core.Engine(
            self.model,
            self.cache,
            parallel=options.parallel,
            batch_size=options.batch_size,
            draft_max=options.draft_max,
        )
        _live.add(self)
        tell("pool", 1.0)

    @classmethod
    def open(cls, options: RuntimeOptions, progress: Progress | None = None) -> Runtime:
        """Loads a model. `progress` is called in this thread; what it raises ends the loading.

        Raises:
            pykv.InvalidArgument: an option is out of range, or the pool is too small.
            pykv.CorruptModel, pykv.UnsupportedModel: the file.
            pykv.OutOfMemory: weights or pool do not fit.
            pykv.Error: the file is missing or cannot be read.
        """
        options.validate()
        return cls(options, models.resolve(options.model), progress)

    def close(self) -> None:
        """Stops the engine; open requests finish as "cancelled". Idempotent."""
        self.engine.stop()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def pool_facts(self) -> PoolFacts:
        """Size of the pool and of the longest request."""
        stats = self.cache.stats()
        cells: int = stats["cells_capacity"]
        usable = cells
        if self.options.pool_bytes:
            usable = min(cells, stats["bytes_budget"] * cells // stats["bytes_reserved"])
        return PoolFacts(
            cells=cells,
            bytes_per_cell=stats["bytes_per_cell"],
            bytes_reserved=stats["bytes_reserved"],
            longest_request=min(usable, self.model.config["context"]),
        )

    def describe(self) -> str:
        """Start-up facts in one line: cells, bytes, tokens."""
        facts = self.pool_facts()
        stats = self.cache.stats()
        beside = "".join(
            f" and {pool['cells_capacity']:,} of {pool['bytes_per_cell']:,} for windows of "
            f"{pool['window'][1]:,}"
            for pool in stats["pools"][1:]
        )
        states = stats["states"]
        if states["slots"]:
            beside += f" and {states['slots']:,} states of {states['bytes_per_slot']:,}"
        return (
            f"KV pool: {facts.cells:,} cells of {facts.bytes_per_cell:,} bytes{beside} "
            f"(K {self.options.cache_type_k}, V {self.options.cache_type_v}), "
            f"{facts.bytes_reserved / 2**20:,.0f} MiB at most, used as needed; "
            f"room for {facts.cells:,} tokens of all requests together, "
            f"{facts.longest_request:,} of one"
        )

    def _make_cache(self) -> _core.Cache:
        """Called when the weights are loaded, so what is free now is free after them."""
        options, layers = self.options, self.model.layer_table
        types = options.cache_type_k, options.cache_type_v
        request = PoolRequest(
            options.ctx_size,
            options.pool_bytes,
            options.parallel,
            options.batch_size,
            options.swa_full,
            options.resume_bytes,
            self.model.recurrent_table,
        )
        cells = pool_cells(
            request,
            bytes_per_cell(layers, request, *types),
            self.model.config["context"],
            free_bytes(),
            bytes_beside(layers, request, *types),
        )
        return _core.Cache(
            layers=pool_layers(layers, request),
            ropes=self.model.ropes,
            backend=self.backend,
            cells=cells,
            max_sequences=options.parallel,
            step_tokens=options.batch_size,
            resume_bytes=options.resume_bytes,
            resume_spacing=options.resume_spacing,
            type_k=options.cache_type_k,
            type_v=options.cache_type_v,
            pool_bytes=options.pool_bytes,
            recurrent=self.model.recurrent_table,
        )


def _refusal(message: str) -> _core.InvalidArgument:
    return _core.InvalidArgument(f"[Runtime.open] {message}")


def _check(flag: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"[Runtime.open] {flag} is {value!r}; it must be an integer")
    if not low <= value <= high:
        raise _refusal(f"{flag} is {value}; it must be {low} to {high}")


_live: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _abandon_in_child() -> None:
    # The engine keeps model, cache and backend; a fork has none of their threads to join.
    for runtime in list(_live):
        _core.abandon(runtime.engine)


os.register_at_fork(after_in_child=_abandon_in_child)
