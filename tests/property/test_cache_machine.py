"""The cache against a plain dict: whatever is done to it, every sequence reads its own values.

The value of a token is a hash of its namespace and its whole prefix, so a cell that is shared
wrongly, overwritten or read after it was freed shows up as another value. Pools are a few
blocks large, so cells are reused all the time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pykv

DIM = 8
LAYERS = 2
STATES = ("computing", "active", "pinned", "resume", "idle", "free")


def chain(previous: bytes, token: object) -> bytes:
    return hashlib.blake2b(previous + repr(token).encode(), digest_size=DIM).digest()


def rows_of(values: list[bytes], layer: int) -> np.ndarray:
    """float32 [n, 1, DIM]; every layer has values of its own."""
    flat = np.frombuffer(b"".join(values), dtype=np.uint8).astype(np.float32)
    return (flat + 256 * layer).reshape(len(values), 1, DIM)


@dataclass
class Model:
    """What a sequence should be: per token its id (None: appended without) and its value."""

    namespace: int
    tokens: list[int | None] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    exact: int = 0

    def next_value(self, token: object) -> bytes:
        return chain(self.values[-1] if self.values else b"ns%d" % self.namespace, token)

    def append(self, tokens: list[int | None]) -> None:
        if self.exact == len(self.tokens) and None not in tokens:
            self.exact += len(tokens)
        for token in tokens:
            # No id: some other text, hence a value that no prefix of ids has.
            self.values.append(self.next_value(token if token is not None else "no id"))
            self.tokens.append(token)

    def truncate(self, length: int) -> None:
        del self.tokens[length:], self.values[length:]
        self.exact = min(self.exact, length)

    def copy(self) -> Model:
        return Model(self.namespace, list(self.tokens), list(self.values), self.exact)


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
                layers=[pykv.Layer(1, DIM, DIM)] * LAYERS,
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
        exact = tuple(t for t in model.tokens[: model.exact] if t is not None)
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
        seq, reused, _ = self.cache.open(tokens, namespace, limit)
        assert reused == min(matched, len(tokens) - 1, len(tokens) if limit is None else limit)
        self.model[seq] = Model(namespace)
        self.model[seq].append(list(tokens[:reused]))
        assert self.cache.match(tokens, namespace) == matched  # a hit consumes nothing

    @precondition(lambda self: self.model)
    @rule(data=st.data(), extra=TOKENS)
    def match(self, data: st.DataObject, extra: list[int]) -> None:
        """Matches exactly what was published and not evicted; never across namespaces."""
        model = self.model[self.pick(data)]
        tokens = [t for t in model.tokens[: model.exact] if t is not None] + extra
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
        values = [v for s in seqs for v in grown[s].values[len(self.model[s].values) :]]
        try:
            with self.cache.step(plan) as step:
                for layer in range(LAYERS):
                    rows = rows_of(values, layer)
                    step.write(layer, rows, rows + 1)
                self.check_states(computing=len(values))
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
            keys = rows_of(grown[seq].values, layer).astype(np.float64)[:, 0]
            for row in (rows.start, rows.stop - 1):
                seen = keys[: step.positions[row] + 1]
                scores = 0.25 * q[row] @ seen.T
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                expected = weights / weights.sum(axis=1, keepdims=True) @ (seen + 1)
                np.testing.assert_allclose(out[row], expected, rtol=1e-4)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_tail(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        length = len(self.model[seq].tokens)
        begin = data.draw(st.integers(0, length))
        self.cache.remove(seq, (begin, length))
        self.model[seq].truncate(begin)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        self.cache.clear(seq)
        self.model[seq].truncate(0)

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
            assert self.cache.bounds(seq) == (0, len(model.tokens))
            assert self.cache.exact_upto(seq) == model.exact
            for layer in range(LAYERS):
                k, v = self.cache.read_rows(seq, layer, (0, len(model.tokens)))
                rows = rows_of(model.values, layer)
                assert np.array_equal(k, rows) and np.array_equal(v, rows + 1)


class ConstantHashMachine(CacheMachine):
    edge_hash = "constant"


class BudgetMachine(CacheMachine):
    """The bytes afford fewer cells than are asked for."""

    pool_bytes = 2 * 8192


SETTINGS = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

TestCache = CacheMachine.TestCase
TestCache.settings = SETTINGS
TestConstantHash = ConstantHashMachine.TestCase
TestConstantHash.settings = SETTINGS
TestBudget = BudgetMachine.TestCase
TestBudget.settings = SETTINGS
