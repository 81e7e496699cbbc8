"""The cache against a plain model: whatever is done to it, every sequence reads its own values.

Pools are a few blocks large, so cells are reused all the time.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pykv
from tests.property.sequence_model import DIM, Model, k_rows, v_rows

LAYERS = 2
STATES = ("computing", "active", "pinned", "resume", "idle", "free")


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=40)
NAMESPACES = st.integers(0, 1)


class CacheMachine(RuleBasedStateMachine):
    edge_hash = "default"
    cells = 192
    pool_bytes = 0

    def __init__(self) -> None:
        super().__init__()
        self.cache = pykv.Cache(
            pykv.CacheConfig(
                layers=[pykv.Layer(1, DIM, DIM, rope=pykv.Rope(DIM))] * LAYERS,
                cells=self.cells,
                type_k="f32",
                type_v="f32",
                pool_bytes=self.pool_bytes,
                edge_hash=self.edge_hash,
            ),
            threads=1,
        )
        self.model: dict[int, Model] = {}
        self.published: set[tuple[int, tuple[int, ...]]] = set()  # ever
        self.kept: set[tuple[int, tuple[int, ...]]] = set()  # since the last eviction

    # --- helpers

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.model)))

    def publish(self, model: Model) -> None:
        exact = tuple(model.exact_ids)
        for length in range(1, len(exact) + 1):
            self.published.add((model.namespace, exact[:length]))
            self.kept.add((model.namespace, exact[:length]))

    def forget_idle(self) -> None:
        self.kept.clear()
        for model in self.model.values():
            self.publish(model)

    # --- rules

    @rule(namespace=NAMESPACES)
    def create(self, namespace: int) -> None:
        seq = self.cache.create(namespace)
        assert seq not in self.model
        self.model[seq] = Model(namespace)

    @rule(namespace=NAMESPACES, tokens=TOKENS, limit=st.none() | st.integers(0, 50))
    def open(self, namespace: int, tokens: list[int], limit: int | None) -> None:
        matched = self.cache.match(tokens, namespace)
        seq, reused, *_ = self.cache.open(tokens, namespace, limit)
        assert reused == min(matched, len(tokens) - 1, len(tokens) if limit is None else limit)
        self.model[seq] = Model(namespace)
        self.model[seq].append(list(tokens[:reused]))
        assert self.cache.match(tokens, namespace) == matched  # a hit consumes nothing

    @precondition(lambda self: self.model)
    @rule(data=st.data(), extra=TOKENS)
    def match(self, data: st.DataObject, extra: list[int]) -> None:
        """Matches exactly what was published and not evicted; never across namespaces."""
        model = self.model[self.pick(data)]
        tokens = model.exact_ids + extra
        for namespace in (0, 1):
            length = self.cache.match(tokens, namespace)
            longer = (namespace, tuple(tokens[: length + 1]))
            assert length == 0 or (namespace, tuple(tokens[:length])) in self.published
            assert length == len(tokens) or longer not in self.kept
        assert self.cache.match(tokens, model.namespace) >= model.exact

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        before = self.cache.stats()
        copy = self.cache.fork(seq)
        after = self.cache.stats()
        assert all(after[f"cells_{s}"] == before[f"cells_{s}"] for s in STATES)
        self.model[copy] = self.model[seq].copy()

    @precondition(lambda self: self.model)
    @rule(data=st.data(), end=st.sampled_from(["finish", "finish", "finish", "rollback", "raise"]))
    def append(self, data: st.DataObject, end: str) -> None:
        seqs = data.draw(
            st.lists(st.sampled_from(sorted(self.model)), min_size=1, max_size=3, unique=True)
        )
        parts: list[list[int | None]] = []
        requests: list[tuple[int, int | list[int]]] = []
        for seq in seqs:
            tokens = data.draw(TOKENS)
            if data.draw(st.integers(0, 4)) == 0:
                requests.append((seq, len(tokens)))
                parts.append([None] * len(tokens))
            else:
                requests.append((seq, tokens))
                parts.append(list(tokens))
        free = self.cache.stats()["cells_free"]
        plan = self.cache.plan(requests)
        total = sum(len(p) for p in parts)
        assert (plan is not None) == (total <= free)  # fits whenever enough cells are free
        if plan is None:
            return
        grown = {seq: self.model[seq].copy() for seq in seqs}
        for seq, part in zip(seqs, parts, strict=True):
            grown[seq].append(part)
        self.run_step(plan, grown, seqs, end)

    def run_step(self, plan: pykv.Plan, grown: dict[int, Model], seqs: list[int], end: str) -> None:
        new = [t for s in seqs for t in grown[s].tokens[len(self.model[s].tokens) :]]
        try:
            with self.cache.step(plan) as step:
                for layer in range(LAYERS):
                    step.write(layer, k_rows(new, layer), v_rows(new, layer))
                self.check_states(computing=len(new))
                if end == "finish":
                    self.check_attention(step, grown, seqs)
                elif end == "rollback":
                    step.rollback()
                else:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert end == "raise"
        if end == "finish":
            self.model.update(grown)
            for seq in seqs:
                self.publish(self.model[seq])

    def check_attention(self, step: pykv.Step, grown: dict[int, Model], seqs: list[int]) -> None:
        layer = LAYERS - 1
        q = np.random.default_rng(step.rows).normal(size=(step.rows, 2, DIM)) / 64
        out = step.attend(layer, q, scale=0.25)
        for seq, rows in zip(seqs, step.slices, strict=True):
            tokens = grown[seq].tokens
            for row in {rows.start, rows.stop - 1}:
                seen = tokens[: len(tokens) - (rows.stop - 1 - row)]
                scores = 0.25 * q[row] @ k_rows(seen, layer)[:, 0].T
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                values = v_rows(seen, layer)[:, 0].astype(np.float64)
                expected = weights / weights.sum(axis=1, keepdims=True) @ values
                np.testing.assert_allclose(out[row], expected, rtol=5e-4)

    def span(self, data: st.DataObject, model: Model) -> tuple[int, int]:
        begin = data.draw(st.integers(0, model.end))
        return begin, data.draw(st.integers(begin, model.end))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        span = self.span(data, self.model[seq])
        self.cache.remove(seq, span)
        self.model[seq].remove(span)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        source, to = self.pick(data), self.pick(data)
        span = self.span(data, self.model[source])
        free = self.cache.stats()["cells_free"]
        if self.model[to].copy_from(self.model[source].copy(), span):
            self.cache.copy(source, span, to)
        else:
            with pytest.raises(pykv.InvalidArgument):
                self.cache.copy(source, span, to)
        assert self.cache.stats()["cells_free"] == free

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def shift(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        model = self.model[seq]
        span = self.span(data, model)
        if not model.within(span):
            return
        lowest, highest = model.room(span)
        delta = data.draw(st.integers(max(lowest - 2, -300), min(highest + 2, 300)))
        if lowest <= delta <= highest:
            self.cache.shift(seq, span, delta)
            model.shift(span, delta)
        else:
            with pytest.raises(pykv.InvalidArgument):
                self.cache.shift(seq, span, delta)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), divisor=st.integers(1, 4))
    def divide(self, data: st.DataObject, divisor: int) -> None:
        seq = self.pick(data)
        model = self.model[seq]
        span = self.span(data, model)
        free = self.cache.stats()["cells_free"]
        try:
            self.cache.divide(seq, span, divisor)
        except pykv.OutOfCells:
            assert len(model.within(span)) > free
        except pykv.InvalidArgument:
            assert divisor > 1 and not model.can_divide(span, divisor)
        else:
            assert divisor == 1 or model.can_divide(span, divisor)
            model.divide(span, divisor)

    @precondition(lambda self: len(self.model) > 3)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        kept = [self.pick(data), self.pick(data)]
        self.cache.keep(*kept)
        self.model = {seq: model for seq, model in self.model.items() if seq in kept}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        self.cache.clear(seq)
        self.model[seq] = Model(self.model[seq].namespace)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        self.cache.erase(seq)
        del self.model[seq]
        with pytest.raises(pykv.InvalidArgument):
            self.cache.bounds(seq)

    @rule(cells=st.integers(0, 80))
    def evict(self, cells: int) -> None:
        before = self.cache.stats()
        freed = self.cache.evict(cells)
        after = self.cache.stats()
        assert after["cells_free"] == before["cells_free"] + freed
        assert freed == min(cells, before["cells_idle"])
        if freed:
            self.forget_idle()

    @rule(wanted=st.integers(0, 40))
    def reclaim(self, wanted: int) -> None:
        if self.cache.reclaim(wanted):
            self.forget_idle()

    @rule(cells=st.integers(0, 200))
    def compact(self, cells: int) -> None:
        before = self.cache.stats()
        moved = self.cache.compact(cells * before["bytes_per_cell"])
        after = self.cache.stats()
        assert moved <= cells
        assert after["compacted_cells"] == before["compacted_cells"] + moved
        assert all(after[f"cells_{s}"] == before[f"cells_{s}"] for s in STATES)

    @rule()
    def reset_prefixes(self) -> None:
        self.cache.reset_prefixes()
        self.forget_idle()

    @rule()
    def erase_all(self) -> None:
        self.cache.erase_all()
        self.model.clear()

    # --- what always holds

    def check_states(self, computing: int = 0) -> None:
        stats = self.cache.stats()
        assert sum(stats[f"cells_{s}"] for s in STATES) == stats["cells_capacity"]
        assert stats["cells_computing"] == computing
        assert stats["bytes_committed"] <= stats["bytes_budget"]

    @invariant()
    def sequences_read_their_own_values(self) -> None:
        self.cache.check_integrity()
        self.check_states()
        assert self.cache.sequences() == sorted(self.model)
        for seq, model in self.model.items():
            assert self.cache.bounds(seq) == model.bounds
            assert self.cache.exact_upto(seq) == model.exact
            for layer in range(LAYERS):
                k, v = self.cache.read_rows(seq, layer)
                assert np.array_equal(v, v_rows(model.tokens, layer))
                expected = k_rows(model.tokens, layer)
                if model.is_moved:
                    np.testing.assert_allclose(k, expected, atol=2e-3)
                else:
                    assert np.array_equal(k, expected.astype(np.float32))


class ConstantHashMachine(CacheMachine):
    edge_hash = "constant"


class BudgetMachine(CacheMachine):
    """The bytes afford fewer cells than are asked for."""

    pool_bytes = 2 * 8192


TestCache = CacheMachine.TestCase
TestConstantHash = ConstantHashMachine.TestCase
TestBudget = BudgetMachine.TestCase
