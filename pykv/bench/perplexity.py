"""Perplexity of a text and distance from the exact pass, for pairs of KV types.

The text is cut into windows that each start anew, and only the second half of each counts,
as in llama.cpp's perplexity tool: of a window of n tokens, the logits of positions n/2 to
n - 2 are asked about the token that follows. Where the model wants a begin token, it takes
the place of each window's first token.

    perplexity = exp(mean of -log p(token))       error: one standard error of that mean
    KL         = sum of p_exact * (log p_exact - log p), nats, per position

Exact is pykv with ``precision="exact"`` and f32 KV, which is the float32 forward pass of the
dequantized weights up to the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pykv import _core
from pykv.pool_size import PoolRequest, pool_layers
from pykv.tokenizer import Tokenizer

MIN_WINDOW = 8
_CHUNK = 256  # tokens of a step whose logits nobody asks for
_LOGITS = 1 << 23  # elements of one step's logits, at most

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PerplexityOptions:
    """What to measure.

    Attributes:
        model: GGUF file.
        types: pairs of KV types (K, V), each measured.
        window: tokens of a window, at least MIN_WINDOW.
        windows: at most so many, 0: all of the text.
        precision: of linear layers; the exact pass has "exact".
        swa_full: layers with a window keep all tokens; the figures are the same.
        threads: 0: one per usable core.
    """

    model: Path
    types: Sequence[tuple[str, str]]
    window: int = 512
    windows: int = 0
    precision: str = "fast"
    swa_full: bool = False
    threads: int = 0


@dataclass(frozen=True)
class TypeResult:
    """One pair of KV types over all counted positions; divergences in nats."""

    type_k: str
    type_v: str
    bytes_per_token: int  # in all layers
    perplexity: float
    perplexity_error: float
    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_max: float
    same_best: float  # share of positions with the exact pass's best token


@dataclass(frozen=True)
class PerplexityResult:
    """`exact` has f32 KV and exact layers; its divergence is 0."""

    windows: int
    positions: int
    exact: TypeResult
    types: list[TypeResult]


def log_softmax(logits: npt.NDArray[np.float32]) -> Floats:
    """Log probabilities of each row, float64."""
    values = logits.astype(np.float64)
    values -= values.max(axis=-1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return values


def divergence(exact: Floats, log_p: Floats) -> Floats:
    """KL(exact || log_p) of each row, in nats, from log probabilities."""
    values: Floats = np.sum(np.exp(exact) * (exact - log_p), axis=-1)
    return values


class _Lane:
    """One model with one cache that goes through the windows."""

    def __init__(
        self,
        model: _core.Model,
        backend: _core.Backend,
        types: tuple[str, str],
        options: PerplexityOptions,
    ) -> None:
        self.types = types
        self._model = model
        self._cache = _core.Cache(
            layers=pool_layers(model.layer_table, PoolRequest(swa_full=options.swa_full)),
            ropes=model.ropes,
            recurrent=model.recurrent_table,
            backend=backend,
            cells=options.window,
            max_sequences=1,
            step_tokens=_CHUNK,
            resume_bytes=0,
            type_k=types[0],
            type_v=types[1],
        )
        self._sequence = self._cache.create()
        self._nll: list[Floats] = []
        self._kl: list[Floats] = []
        self._same: list[npt.NDArray[np.bool_]] = []

    def restart(self) -> None:
        """Forgets the window."""
        self._cache.erase(self._sequence)
        self._cache.reset_prefixes()
        self._sequence = self._cache.create()

    def extend(self, tokens: Sequence[int], *, logits: bool) -> Floats:
        """Log probabilities [tokens, vocab] after each token; of none without `logits`."""
        plan = self._cache.plan([(self._sequence, list(tokens))])
        assert plan is not None  # the cache holds a window
        step = self._cache.commit(plan)
        try:
            rows = self._model.forward(step, tokens, range(len(tokens) if logits else 0))
            step.finish()
        finally:
            step.rollback()  # no effect after finish()
        return log_softmax(rows)

    def count(self, log_p: Floats, exact: Floats, following: Sequence[int]) -> None:
        """Adds positions: what the lane says and what the exact pass does, [n, vocab]."""
        self._nll.append(-log_p[np.arange(len(following)), following])
        self._kl.append(divergence(exact, log_p))
        self._same.append(log_p.argmax(axis=-1) == exact.argmax(axis=-1))

    def result(self) -> TypeResult:
        nll, kl = np.concatenate(self._nll), np.concatenate(self._kl)
        perplexity = float(np.exp(nll.mean()))
        error = float(nll.std(ddof=1)) / len(nll) ** 0.5 if len(nll) > 1 else 0.0
        return TypeResult(
            type_k=self.types[0],
            type_v=self.types[1],
            bytes_per_token=sum(p["bytes_per_cell"] for p in self._cache.stats()["pools"]),
            perplexity=perplexity,
            perplexity_error=perplexity * error,
            kl_mean=float(kl.mean()),
            kl_median=float(np.median(kl)),
            kl_p99=float(np.quantile(kl, 0.99)),
            kl_max=float(kl.max()),
            same_best=float(np.concatenate(self._same).mean()),
        )


class PerplexityBench:
    """Owns models and caches of one run.

    Raises InvalidArgument if the text has fewer tokens than a window or a window is longer
    than the model's context.
    """

    def __init__(self, options: PerplexityOptions, text: str) -> None:
        gguf = _core.GgufFile(options.model)
        self._windows = self._cut(Tokenizer.from_gguf(gguf), text, options)
        backend = _core.Backend(threads=options.threads)
        exact = _core.Model(gguf, backend, precision="exact")
        context = int(exact.config["context"])
        if options.window > context:
            raise _core.InvalidArgument(
                f"[PerplexityBench] windows of {options.window} tokens are longer than the "
                f"model's context of {context}; use --window {context} or less"
            )
        model = exact
        if options.precision != "exact":
            model = _core.Model(gguf, backend, precision=options.precision)
        self._exact = _Lane(exact, backend, ("f32", "f32"), options)
        self._lanes = [_Lane(model, backend, pair, options) for pair in options.types]
        self._rows = max(1, min(_CHUNK, _LOGITS // int(exact.config["vocab"])))

    @property
    def tokens(self) -> int:
        """Tokens that run() computes, the exact pass included."""
        return sum(map(len, self._windows)) * (1 + len(self._lanes))

    def run(self, progress: Callable[[int], None] = lambda tokens: None) -> PerplexityResult:
        """Measures. `progress` gets the number of tokens just computed."""
        for window in self._windows:
            self._measure(window, progress)
        count = len(self._windows)
        return PerplexityResult(
            windows=count,
            positions=count * (len(self._windows[0]) - 1 - len(self._windows[0]) // 2),
            exact=self._exact.result(),
            types=[lane.result() for lane in self._lanes],
        )

    def _measure(self, window: list[int], progress: Callable[[int], None]) -> None:
        """All lanes side by side, so that no more than one step's logits are kept."""
        first, last = len(window) // 2, len(window) - 1
        lanes = [self._exact, *self._lanes]
        for lane in lanes:
            lane.restart()
        for start in range(0, first, _CHUNK):
            part = window[start : min(start + _CHUNK, first)]
            for lane in lanes:
                lane.extend(part, logits=False)
                progress(len(part))
        for start in range(first, last, self._rows):
            end = min(start + self._rows, last)
            following = window[start + 1 : end + 1]
            exact = self._exact.extend(window[start:end], logits=True)
            self._exact.count(exact, exact, following)
            for lane in self._lanes:
                lane.count(lane.extend(window[start:end], logits=True), exact, following)
            progress(len(following) * len(lanes))
        progress(len(lanes))  # the last token is only asked about

    @staticmethod
    def _cut(tokenizer: Tokenizer, text: str, options: PerplexityOptions) -> list[list[int]]:
        tokens, size = tokenizer.encode(text), options.window
        count = len(tokens) // size
        if count == 0:
            raise _core.InvalidArgument(
                f"[PerplexityBench] the text has {len(tokens)} tokens and a window takes {size}; "
                f"give a longer text or a shorter --window (at least {MIN_WINDOW})"
            )
        cut = [
            tokens[i * size : (i + 1) * size] for i in range(min(count, options.windows or count))
        ]
        if tokenizer.add_bos and tokenizer.bos_id is not None:
            cut = [[tokenizer.bos_id, *window[1:]] for window in cut]
        return cut
