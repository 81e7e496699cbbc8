"""The KV cache itself, for engine builders: NumPy in, NumPy out.

One pool of cells serves all sequences. A prefix is computed once and stored once,
whoever shares it. Each forward pass is a *step*: plan it, write K and V of the new
tokens layer by layer, attend, and leave the block to publish.

    >>> import numpy as np
    >>> from pykv import Cache, CacheConfig, Layer
    >>> cache = Cache(CacheConfig(layers=[Layer(kv_heads=2, k_dim=32, v_dim=32)], cells=256))
    >>> seq, reused, *_ = cache.open([1, 2, 3])
    >>> rng = np.random.default_rng(0)
    >>> k, v = rng.normal(size=(2, 3, 2, 32))
    >>> with cache.step(cache.plan([(seq, [1, 2, 3])])) as step:
    ...     step.write(0, k, v)
    ...     out = step.attend(0, rng.normal(size=(3, 4, 32)))
    >>> out.shape
    (3, 4, 32)
    >>> cache.open([1, 2, 3, 4]).reused
    3
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

from pykv import _core, saved
from pykv.arguments import boolean, integer, shares, text
from pykv.cache_types import CacheConfig, Layer, Opened, Run, Span
from pykv.layers import core_layers, core_states, public_layers
from pykv.saved import Restored, Saved
from pykv.step import Step

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    TokenIds = Sequence[int] | npt.NDArray[np.integer[Any]]

Plan = _core.Plan


class Cache:
    """One KV pool for all sequences.

    Sequences are plain ints, numbered from 1 and never reused. Namespaces are ints too: tokens
    match only inside one namespace. All methods may be called from any thread; one step
    at a time. Errors: ``InvalidArgument`` (a ``ValueError``) for values out of range,
    ``TypeError`` for what is no int, ``Busy`` when a step is in the way; a call that raises
    changes nothing.

    ``threads=0`` uses all cores of this process; ``isa`` is ``"auto"``, ``"scalar"``, ``"neon"``,
    ``"avx2"``, ``"avx512"`` or ``"avx512_bf16"``. Raises ``Unsupported`` for
    layers that no kernel of this build supports.
    """

    def __init__(self, config: CacheConfig, threads: int = 0, isa: str = "auto") -> None:
        layers, ropes = core_layers(config.layers, config.windows)
        core = _core.Cache(
            layers=layers,
            ropes=ropes,
            backend=_core.Backend(
                threads=integer("[Cache] threads", threads), isa=text("[Cache] isa", isa)
            ),
            cells=config.cells,
            type_k=text("[CacheConfig] type_k", config.type_k),
            type_v=text("[CacheConfig] type_v", config.type_v),
            hadamard=boolean("[CacheConfig] hadamard", config.hadamard),
            pool_bytes=config.pool_bytes,
            watermarks=shares("[CacheConfig] watermarks", config.watermarks),
            compact_bytes=config.compact_bytes,
            edge_hash=text("[CacheConfig] edge_hash", config.edge_hash),
            max_sequences=config.max_sequences,
            step_tokens=config.step_tokens,
            window_cells=config.window_cells,
            resume_bytes=config.resume_bytes,
            resume_spacing=config.resume_spacing,
            recurrent=core_states(config.layers),
        )
        self._bind(core)

    @classmethod
    def from_core(cls, core: _core.Cache) -> Cache:
        """The same interface for a cache that exists already, e.g. that of a running engine."""
        cache = cls.__new__(cls)
        cache._bind(core)
        return cache

    def _bind(self, core: _core.Cache) -> None:
        self.core = core
        """The C++ cache; refused in a forked child, whose threads and locks are not there."""
        self._pid = os.getpid()
        self._layers = public_layers(core)
        _live.add(self)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in order."""
        return self._layers

    # --- sequences ---------------------------------------------------------------

    def create(self, namespace: int = 0) -> int:
        """A new empty sequence."""
        return self.core.create(namespace)

    def open(self, tokens: TokenIds, namespace: int = 0, max_reuse: int | None = None) -> Opened:
        """A sequence that starts from the longest cached prefix of ``tokens``.

        At most all but the last token are reused (its logits are what the caller needs), or
        ``max_reuse``. Append the rest, ``tokens[opened.reused:]``, in steps.
        """
        return Opened(*self.core.open(tokens, namespace, max_reuse))

    def match(self, tokens: TokenIds, namespace: int = 0) -> int:
        """Length of the longest cached prefix of ``tokens`` that a sequence can continue from.

        Changes nothing.
        """
        return self.core.match(tokens, namespace)

    def stored(self, tokens: TokenIds, namespace: int = 0) -> int:
        """Length of the longest prefix of ``tokens`` that is stored.

        Where layers keep their window only it may be longer than :meth:`match`.
        """
        return self.core.stored(tokens, namespace)

    def fork(self, sequence: int) -> int:
        """A copy that shares all cells; its cost does not depend on the length."""
        return self.core.fork(sequence)

    def clear(self, sequence: int) -> None:
        """Removes all tokens; the sequence stays."""
        self.core.clear(sequence)

    def erase(self, sequence: int) -> None:
        """Ends the sequence. Tokens appended with ids stay matchable until they are evicted."""
        self.core.erase(sequence)

    def keep(self, *sequences: int) -> None:
        """Ends every sequence but these, which must be open."""
        self.core.keep(sequences)

    def erase_all(self) -> None:
        """Ends every sequence."""
        self.core.erase_all()

    def sequences(self) -> list[int]:
        """Open sequences, ascending."""
        return self.core.sequences()

    def bounds(self, sequence: int) -> Span:
        """[first position, last one + 1) of the sequence, (0, 0) if it is empty.

        After edits there may be gaps in between; :meth:`runs` tells them.
        """
        return Span(*self.core.bounds(sequence))

    def exact_upto(self, sequence: int) -> int:
        """Tokens below this position have KV as a cold run gives; only they can be matched."""
        return self.core.exact_upto(sequence)

    def runs(self, sequence: int, pool: int = 0) -> list[Run]:
        """Where the sequence lives: in pool 0 all of it, in that of a window what is left of it."""
        return [Run(*run) for run in self.core.runs(sequence, pool)]

    def shared_cells(self, sequence: int) -> int:
        """Cells of the sequence that other sequences hold too."""
        return self.core.shared_cells(sequence)

    def read_rows(
        self, sequence: int, layer: int, span: tuple[int, int] | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """K ``[n, kv_heads, k_dim]`` and V ``[n, kv_heads, v_dim]`` as attention sees them.

        float32, of the ``n`` tokens that the sequence has in the span (``None`` for all), in
        order. K of moved tokens is turned to where they stand. A layer in a window's pool has the
        last tokens only, from the first one that the next token sees.
        """
        return self.core.read_rows(sequence, layer, span)

    def export_rows(
        self, sequence: int, layer: int, span: tuple[int, int] | None = None
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """The rows that :meth:`read_rows` decodes, as bytes: K ``[n, row bytes]``, V likewise.

        A row is that of all KV heads, in the byte layout of GGUF and of llama.cpp's own cache.
        Where :meth:`transforms` says so, a head's elements are stored transformed (as llama.cpp
        transforms them), and the rows are too. K of tokens that :meth:`shift` moved is turned to
        their present positions and encoded again; all other rows are the stored bytes. A layer
        with ``v_view_of_k`` has V rows of 0 bytes, one with ``kv_from_layer`` raises
        ``InvalidArgument``.
        """
        return self.core.export_rows(sequence, layer, span)

    def save(self, sequence: int) -> Saved:
        """All that the sequence needs to go on elsewhere: rows as :meth:`export_rows`, states.

        Of a layer in a window's pool what the next token sees. Raises ``InvalidArgument`` for a
        sequence without tokens, with gaps or with several tokens at one position.
        """
        return saved.save(self, sequence)

    def restore(self, what: Saved, tokens: TokenIds | None = None, namespace: int = 0) -> Restored:
        """A new sequence with what :meth:`save` gave, of a cache with the same layers and types.

        The number of cells may differ. With ``tokens``, the ids of what was saved, others can
        continue from there as long as the sequence lives, and afterwards if windows and states have
        a budget for one more resume point; so ``restored.reusable`` is their number. Raises
        ``InvalidArgument`` for another model or other types, ``OutOfCells`` where some pool has
        too few cells.
        """
        return saved.restore(self, what, tokens, namespace)

    def transforms(self, layer: int) -> tuple[int, int]:
        """How many elements of a head of K and of V are transformed together; 0 means none."""
        return self.core.transforms(layer)

    # --- edits -------------------------------------------------------------------
    #
    # Spans are half-open pairs of positions within the sequence's end, or None for all of it;
    # positions that it does not have are passed over. Cells stay shared: other sequences and
    # the tree keep what they have. The exact lineage ends at the first position that changed.
    # Unsupported: the next token would see cells that a window's pool has lost.

    def remove(self, sequence: int, span: tuple[int, int] | None) -> None:
        """Removes positions ``[begin, end)``, or all with ``None``; the others stay where they are.

        What follows a removed token was computed with it, so the exact lineage ends at
        ``begin``; new tokens continue at ``bounds(sequence).end``.
        """
        self.core.remove(sequence, span)

    def rewind(self, sequence: int, position: int) -> int:
        """Takes tokens off the end until ``position`` or fewer are left, and says how many.

        The sequence then continues exactly as if it had never had more. Without window pools, and
        while the windows have the cells, that is ``position`` itself, else the deepest resume point
        before it: the tokens from there on are to be computed again. Raises ``InvalidArgument``
        for a position behind the end.
        """
        return self.core.rewind(sequence, position)

    def next_point(self, sequence: int) -> int:
        """Where the next step of the sequence should end at the latest.

        The state of recurrent layers is known at the end of a step only, so a resume point that is
        due further back would be left out. 2**31 - 1 if none is, or no layer is recurrent.
        """
        return self.core.next_point(sequence)

    def mark_resume(self, sequence: int) -> bool:
        """Keeps what windows need at the end of the sequence, so that others can continue there.

        Resume points are made by themselves where prompts and sequences end. ``False``: there is
        one already, it exceeds ``CacheConfig.resume_bytes``, or no layer forgets anything.
        Raises ``InvalidArgument`` if the tokens at the end are not exact.
        """
        return self.core.mark_resume(sequence)

    def copy(self, sequence: int, span: tuple[int, int] | None, to: int) -> None:
        """Gives ``to`` the tokens of a span, at the same positions and in the same cells.

        ``to`` may have none of these positions (``InvalidArgument``). A prefix copied into an
        empty sequence of the same namespace is as exact as it was; other copies are not.
        """
        self.core.copy(sequence, span, to)

    def shift(self, sequence: int, span: tuple[int, int] | None, delta: int) -> None:
        """Moves the tokens of a span by ``delta`` positions, e.g. into a gap.

        They may not collide with or pass other tokens, nor leave ``[0, 2**31 - 1)``
        (``InvalidArgument``). No cell is taken and no K written: rotary embedding is relative,
        so attention turns the queries. Only with more than four different rotations in one
        sequence K is written anew, in copies where cells are shared, if there are enough cells.
        Needs ``Layer.rope`` of every layer (``Unsupported``).
        """
        self.core.shift(sequence, span, delta)

    def divide(self, sequence: int, span: tuple[int, int] | None, divisor: int) -> None:
        """Moves the tokens of a span to position ``// divisor``, e.g. for self-extend.

        Several tokens then share a position; none may come before a token in front of the span
        (``InvalidArgument``). K is written anew, in copies where cells are shared
        (``OutOfCells`` if they do not fit). Needs ``Layer.rope`` of every layer
        (``Unsupported``).
        """
        self.core.divide(sequence, span, divisor)

    # --- steps -------------------------------------------------------------------

    @overload
    def plan(self, requests: Iterable[tuple[int, int | TokenIds]]) -> Plan | None: ...

    @overload
    def plan(
        self, requests: TokenIds, counts: TokenIds, tokens: TokenIds | None = None
    ) -> Plan | None: ...

    def plan(
        self, requests: Any, counts: TokenIds | None = None, tokens: TokenIds | None = None
    ) -> Plan | None:
        """Finds room for ``[(sequence, token ids or count), ...]``; ``None`` if it does not fit.

        Changes nothing and holds nothing: the plan is valid until the cache changes. With ids
        the tokens become matchable when the step ends; with a count the sequence's exact
        lineage ends. A sequence may appear once.

        With ``counts``, ``requests`` are the sequences alone: integers ``[n]``, as counts, and the
        ids of all of them one after the other in ``tokens`` ``[sum(counts)]`` (or ``None``: no
        ids). int32 and int64 arrays are read without a Python object per element.
        """
        if counts is not None or tokens is not None:
            return self.core.plan(requests, counts, tokens)
        return self.core.plan(list(requests))

    def step(self, plan: Plan | None) -> Step:
        """The step of ``plan``, for a ``with`` statement.

        Entering takes the cells (``StalePlan``, ``OutOfMemory``, ``Busy``). Leaving publishes;
        leaving by an exception rolls everything back.
        """
        if plan is None:
            raise _core.OutOfCells(
                "[Cache.step] the plan is None: its tokens do not fit; evict() idle cells, erase() "
                "sequences or make a larger cache"
            )
        return Step(self.core, self._layers, plan)

    # --- space -------------------------------------------------------------------

    def evict(self, cells: int) -> int:
        """Evicts idle cells, tails first, until ``cells`` more are free. Returns how many are."""
        return self.core.evict(cells, "request")

    def make_room(self, tokens: int) -> int:
        """Frees what a step of ``tokens`` tokens lacks in each pool; returns the freed cells.

        Resume points go first, then idle cells.
        """
        return self.core.make_room(tokens)

    def reclaim(self, wanted: int = 0) -> int:
        """One tick: evicts by the watermarks, gives memory back. Returns the freed cells.

        Where blocks in use have many holes it also compacts, up to ``CacheConfig.compact_bytes``.
        """
        return self.core.reclaim(wanted)

    def compact(self, budget_bytes: int) -> int:
        """Moves cells to other cells, at most ``budget_bytes`` of K and V; returns how many.

        Short runs that follow each other go together, nearly empty blocks are emptied into the
        holes of others, so that attention reads long stretches and whole blocks become free for
        :meth:`reclaim` to give back. Tokens, sharing and bits stay as they are; plans become
        stale. Call it again until it returns 0. Raises ``Busy`` while a step is open.
        """
        return self.core.compact(budget_bytes)

    @property
    def watermarks(self) -> tuple[float, float]:
        """(low, high): shares of free cells at which :meth:`reclaim` starts and stops; settable."""
        return self.core.watermarks()

    @watermarks.setter
    def watermarks(self, marks: tuple[float, float]) -> None:
        self.core.set_watermarks(*shares("[Cache] watermarks", marks))

    def reset_prefixes(self) -> None:
        """Forgets every prefix that no sequence holds."""
        self.core.reset_prefixes()

    # --- looking in --------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counters as of now. ``cells_computing … cells_free`` add up to ``cells_capacity``.

        Cells are those of pool 0, one for each token; bytes those of all pools. ``pools`` is a list
        of the same for each pool, with its ``window`` (``None`` for pool 0).
        """
        return self.core.stats()

    def prefix_nodes(self) -> list[dict[str, Any]]:
        """Nodes of the prefix tree."""
        return self.core.prefix_nodes()

    def check_integrity(self) -> None:
        """Checks every invariant; raises ``IntegrityError``. Takes time with the pool's size."""
        self.core.check_integrity()

    def __repr__(self) -> str:
        if os.getpid() != self._pid:
            return f"<pykv.Cache of process {self._pid}>"
        s = self.core.stats()
        return (
            f"<pykv.Cache {len(self._layers)} layers, {s['sequences']} sequences, cells: "
            f"{s['cells_active']} active, {s['cells_idle']} idle, {s['cells_free']} free "
            f"of {s['cells_capacity']}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "[Cache] a cache is memory and threads of this process and cannot be pickled or "
            "copied; make one in each process"
        )


_live: weakref.WeakSet[Cache] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for cache in list(_live):
        _core.abandon(cache.core)


os.register_at_fork(after_in_child=_abandon_in_child)
