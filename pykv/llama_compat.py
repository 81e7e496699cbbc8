"""llama.cpp's memory calls over a :class:`pykv.Cache`.

The names and rules are those of ``llama_memory_seq_*``: the caller chooses sequence ids, ranges
are half-open ``[p0, p1)``, and a negative ``p0``, ``p1`` or (in :meth:`LlamaMemory.seq_rm`)
``seq_id`` stands for the start, the end and any sequence. ``docs/llama_compat.md`` lists where
this differs from llama.cpp: above all, a position belongs to a sequence and not to a cell, and
nothing aborts. Code that does not come from there is better off with :class:`pykv.Cache`.

    >>> import numpy as np
    >>> from pykv import Cache, CacheConfig, Layer, Rope
    >>> cache = Cache(CacheConfig([Layer(kv_heads=1, k_dim=32, v_dim=32, rope=Rope(32))], cells=64))
    >>> memory = LlamaMemory(cache)
    >>> with cache.step(memory.find_slot([(0, 10)])) as step:
    ...     step.write(0, np.ones((10, 1, 32)), np.ones((10, 1, 32)))
    >>> memory.seq_cp(0, 7, -1, -1)
    >>> memory.seq_rm(7, 2, 6)
    True
    >>> memory.seq_add(7, 6, -1, -4)
    >>> memory.seq_pos_max(0), memory.seq_pos_max(7)
    (9, 5)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pykv import _core
from pykv.cache_types import Span

if TYPE_CHECKING:
    from pykv.cache import Cache, Plan, TokenIds

_LIMIT = 2**31 - 1


class LlamaMemory:
    """The calls of ``llama_memory_t`` for sequences that the caller numbers, from 0 on.

    A sequence that was never written, or that lost all its tokens, is empty: every id is valid
    and costs nothing until tokens come. Other sequences of the cache are left alone. Raises
    ``InvalidArgument`` for ids and positions out of range, ``TypeError`` for what is no int; a
    call that raises changes nothing.
    """

    def __init__(self, cache: Cache, namespace: int = 0) -> None:
        self._cache = cache
        self._namespace = namespace
        self._sequences: dict[int, int] = {}

    @property
    def cache(self) -> Cache:
        """The cache that holds the sequences."""
        return self._cache

    def sequence(self, seq_id: int) -> int:
        """The cache's own number of ``seq_id``, which is created if it has no tokens.

        It changes with edits: ask for it each time.
        """
        key = _id(seq_id, "sequence")
        if key not in self._sequences:
            self._sequences[key] = self._cache.create(self._namespace)
        return self._sequences[key]

    def find_slot(self, batch: Iterable[tuple[int, int | TokenIds]]) -> Plan | None:
        """Room for ``[(seq_id, token ids or count), ...]``; ``None`` if it does not fit.

        The tokens continue at ``seq_pos_max + 1``. Write them in ``cache.step(plan)``.
        """
        return self._cache.plan([(self.sequence(seq_id), tokens) for seq_id, tokens in batch])

    def clear(self, data: bool = True) -> None:
        """Empties every sequence. ``data`` is llama.cpp's: freed cells never show old values."""
        self._keep_only(None)

    def seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        """Removes the tokens in ``[p0, p1)``, of every sequence if ``seq_id`` is negative.

        Always true, as for attention in llama.cpp. Raises ``Unsupported`` where recurrent layers or
        windows have lost what comes before; removing everything is always possible.
        """
        key = _int(seq_id, "seq_rm", "seq_id")
        begin, end = _range(p0, p1, "seq_rm")
        keys = list(self._sequences) if key < 0 else {key} & self._sequences.keys()
        with ExitStack() as stack:
            for edited in [stack.enter_context(self._edit(key)) for key in keys]:
                self._cache.remove(edited, self._within(edited, begin, end))
        return True

    def seq_cp(self, seq_id_src: int, seq_id_dst: int, p0: int, p1: int) -> None:
        """``dst`` gets the tokens of ``src`` in ``[p0, p1)``, in the same cells.

        Tokens that ``dst`` has at the same positions give way.
        """
        source, target = _id(seq_id_src, "seq_cp"), _id(seq_id_dst, "seq_cp")
        begin, end = _range(p0, p1, "seq_cp")
        if source == target or source not in self._sequences:
            return
        origin = self._sequences[source]
        with self._edit(target) as edited:
            for run in self._cache.runs(origin):
                low, high = max(run.first, begin), min(run.first + run.length, end)
                if low < high:
                    self._cache.remove(edited, self._within(edited, low, high))
            self._cache.copy(origin, self._within(origin, begin, end), edited)

    def seq_keep(self, seq_id: int) -> None:
        """Empties every sequence but this one."""
        self._keep_only(_id(seq_id, "seq_keep"))

    def seq_add(self, seq_id: int, p0: int, p1: int, shift: int) -> None:
        """Adds ``shift`` to the positions in ``[p0, p1)``.

        Tokens that would come below 0 are removed, as in llama.cpp. The others may not collide
        with or pass tokens outside the range (``InvalidArgument``).
        """
        key = _id(seq_id, "seq_add")
        begin, end = _range(p0, p1, "seq_add")
        delta = _int(shift, "seq_add", "shift")
        if key not in self._sequences or delta == 0:
            return
        with self._edit(key) as edited:
            if delta < 0:
                self._cache.remove(edited, self._within(edited, begin, min(end, -delta)))
            self._cache.shift(edited, self._within(edited, begin, end), delta)

    def seq_div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """Divides the positions in ``[p0, p1)`` by ``d``, at least 1, rounding down.

        The results may not pass tokens outside the range (``InvalidArgument``).
        """
        key = _id(seq_id, "seq_div")
        begin, end = _range(p0, p1, "seq_div")
        divisor = _int(d, "seq_div", "d")
        if divisor < 1:
            raise _core.InvalidArgument(f"[LlamaMemory.seq_div] d is {d}, must be at least 1")
        if key in self._sequences:
            sequence = self._sequences[key]
            self._cache.divide(sequence, self._within(sequence, begin, end), divisor)

    def seq_pos_min(self, seq_id: int) -> int:
        """The lowest position of the sequence, -1 if it is empty."""
        bounds = self._bounds(_id(seq_id, "seq_pos_min"))
        return bounds.begin if bounds.end > 0 else -1

    def seq_pos_max(self, seq_id: int) -> int:
        """The highest position of the sequence, -1 if it is empty."""
        return self._bounds(_id(seq_id, "seq_pos_max")).end - 1

    # --- helpers -----------------------------------------------------------------

    def _bounds(self, key: int) -> Span:
        return self._cache.bounds(self._sequences[key]) if key in self._sequences else Span(0, 0)

    def _within(self, sequence: int, begin: int, end: int) -> Span:
        """The range, cut at the sequence's end, where the cache's spans end."""
        last = self._cache.bounds(sequence).end
        return Span(min(begin, last), max(min(begin, last), min(end, last)))

    @contextmanager
    def _edit(self, key: int) -> Iterator[int]:
        """A fork to edit, which becomes the sequence unless the edit fails."""
        old = self._sequences.get(key)
        edited = self._cache.create(self._namespace) if old is None else self._cache.fork(old)
        try:
            yield edited
        except BaseException:
            self._cache.erase(edited)
            raise
        self._replace(key, edited)

    def _replace(self, key: int, edited: int) -> None:
        if key in self._sequences:
            self._cache.erase(self._sequences.pop(key))
        if self._cache.bounds(edited).end > 0:
            self._sequences[key] = edited
        else:
            self._cache.erase(edited)

    def _keep_only(self, key: int | None) -> None:
        own = set(self._sequences.values())
        kept = None if key is None else self._sequences.get(key)
        self._cache.keep(*(s for s in self._cache.sequences() if s not in own or s == kept))
        self._sequences = {} if key is None or kept is None else {key: kept}


def _int(value: int, method: str, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"[LlamaMemory.{method}] {name} must be an int, not {type(value).__name__}")
    number = value.__index__()
    if not -_LIMIT <= number <= _LIMIT:
        raise _core.InvalidArgument(
            f"[LlamaMemory.{method}] {name} is {number}, must be {-_LIMIT} to {_LIMIT}"
        )
    return number


def _id(seq_id: int, method: str) -> int:
    number = _int(seq_id, method, "seq_id")
    if number < 0:
        raise _core.InvalidArgument(
            f"[LlamaMemory.{method}] seq_id is {number}; only seq_rm takes a negative one"
        )
    return number


def _range(p0: int, p1: int, method: str) -> tuple[int, int]:
    """[p0, p1) with open ends filled in; empty if it is reversed."""
    begin, end = _int(p0, method, "p0"), _int(p1, method, "p1")
    return max(begin, 0), _LIMIT if end < 0 else end
