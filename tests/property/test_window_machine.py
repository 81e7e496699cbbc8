"""A cache with a window pool against a plain model.

Every sequence has what its next token sees, with its own values, and whatever it continues from
gives what a cold run gives.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pykv
from tests.property.sequence_model import DIM, Model, k_rows, v_rows

FULL, WINDOWED = 0, 1
STATES = ("computing", "active", "pinned", "resume", "idle", "free")
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


class WindowMachine(RuleBasedStateMachine):
    window = ("standard", 12)
    window_cells = 0
    resume_bytes: int | None = 2000  # about two points

    def __init__(self) -> None:
        super().__init__()
        rope = pykv.Rope(DIM)
        self.cache = pykv.Cache(
            pykv.CacheConfig(
                layers=[
                    pykv.Layer(1, DIM, DIM, rope=rope),
                    pykv.Layer(1, DIM, DIM, rope=rope, window=self.window),
                ],
                cells=192,
                type_k="f32",
                type_v="f32",
                max_sequences=6,
                step_tokens=30,
                window_cells=self.window_cells,
                resume_bytes=self.resume_bytes,
                resume_spacing=10,
            ),
            threads=1,
        )
        self.model: dict[int, Model] = {}

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.model)))

    def first_visible(self, position: int) -> int:
        kind, size = self.window
        return max(0, position - size + 1) if kind == "standard" else position // size * size

    # --- rules

    @rule(tokens=TOKENS)
    def open(self, tokens: list[int]) -> None:
        """Also continues what others have, whose values are those of a cold run."""
        longest = max((m.exact_ids for m in self.model.values()), key=len, default=[])
        tokens = [*longest, *tokens]
        matched, stored = self.cache.match(tokens), self.cache.stored(tokens)
        opened = self.cache.open(tokens)
        assert opened.reused <= min(stored, len(tokens) - 1) and matched <= stored
        assert opened.reused + opened.no_resume_point == min(stored, len(tokens) - 1)
        assert opened.reused == matched or matched == len(tokens)
        self.model[opened.sequence] = Model(0)
        self.model[opened.sequence].append(list(tokens[: opened.reused]))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        self.model[self.cache.fork(seq)] = self.model[seq].copy()

    @precondition(lambda self: self.model)
    @rule(data=st.data(), tokens=TOKENS, ids=st.booleans(), undo=st.sampled_from([0, 0, 0, 1]))
    def append(self, data: st.DataObject, tokens: list[int], ids: bool, undo: int) -> None:
        seq = self.pick(data)
        plan = self.cache.plan([(seq, tokens if ids else len(tokens))])
        if plan is None:
            assert any(pool["cells_free"] < len(tokens) for pool in self.cache.stats()["pools"])
            self.cache.make_room(len(tokens))
            return
        grown = self.model[seq].copy()
        grown.append(list(tokens) if ids else [None] * len(tokens))
        new = grown.tokens[len(self.model[seq].tokens) :]
        with self.cache.step(plan) as step:
            for layer in (FULL, WINDOWED):
                step.write(layer, k_rows(new, layer), v_rows(new, layer))
            self.check_attention(step, grown, len(new))
            if undo:
                step.rollback()
        if not undo:
            self.model[seq] = grown

    def check_attention(self, step: pykv.Step, grown: Model, count: int) -> None:
        q = np.random.default_rng(count).normal(size=(count, 2, DIM)) / 64
        out = step.attend(WINDOWED, q, scale=0.25)
        for row in {0, count - 1}:
            tokens = grown.tokens[: len(grown.tokens) - (count - 1 - row)]
            first = self.first_visible(tokens[-1].position)
            seen = [token for token in tokens if token.position >= first]
            scores = 0.25 * q[row] @ k_rows(seen, WINDOWED)[:, 0].T
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            values = v_rows(seen, WINDOWED)[:, 0].astype(np.float64)
            expected = weights / weights.sum(axis=1, keepdims=True) @ values
            np.testing.assert_allclose(out[row], expected, rtol=5e-4)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Possible, or refused without a trace; then a rewind is possible."""
        seq = self.pick(data)
        model = self.model[seq]
        begin = data.draw(st.integers(0, model.end))
        span = begin, data.draw(st.sampled_from([model.end, min(begin + 5, model.end)]))
        try:
            self.cache.remove(seq, span)
        except pykv.Unsupported as error:
            assert "rewind() goes back to position" in str(error)
            assert span[1] == model.end and span[0] > 0
        else:
            model.remove(span)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        model = self.model[seq]
        wanted = data.draw(st.integers(0, model.end))
        reached = self.cache.rewind(seq, wanted)
        assert reached <= wanted
        model.remove((reached, model.end))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def mark_resume(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        model = self.model[seq]
        expected = (
            contextlib.nullcontext()
            if model.exact == model.end
            else pytest.raises(pykv.InvalidArgument)
        )
        with expected:
            self.cache.mark_resume(seq)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        self.cache.erase(seq)
        del self.model[seq]

    @rule(cells=st.integers(0, 80))
    def evict(self, cells: int) -> None:
        self.cache.evict(cells)

    @rule(wanted=st.integers(0, 40))
    def reclaim(self, wanted: int) -> None:
        self.cache.reclaim(wanted)

    @rule(cells=st.integers(0, 200))
    def compact(self, cells: int) -> None:
        self.cache.compact(cells * self.cache.stats()["bytes_per_cell"])

    @rule()
    def reset_prefixes(self) -> None:
        self.cache.reset_prefixes()
        assert self.cache.stats()["resume_points"] == 0

    # --- what always holds

    @invariant()
    def sequences_have_what_their_next_token_sees(self) -> None:
        self.cache.check_integrity()
        stats = self.cache.stats()
        assert stats["resume_bytes"] <= stats["resume_bytes_budget"]
        for pool in stats["pools"]:
            assert sum(pool[f"cells_{state}"] for state in STATES) == pool["cells_capacity"]
        for seq, model in self.model.items():
            assert self.cache.bounds(seq) == model.bounds
            assert self.cache.exact_upto(seq) == model.exact
            for layer in (FULL, WINDOWED):
                k, v = self.cache.read_rows(seq, layer)
                kept = model.tokens[len(model.tokens) - len(v) :]
                assert np.array_equal(v, v_rows(kept, layer))
                assert np.array_equal(k, k_rows(kept, layer).astype(np.float32))
                if layer == FULL:
                    assert len(v) == len(model.tokens)
                else:
                    first = self.first_visible(model.end)
                    assert len(v) >= len(model.within((first, model.end)))


class ChunkedMachine(WindowMachine):
    window = ("chunked", 16)


class WithoutPointsMachine(WindowMachine):
    resume_bytes = 0


class ShortMachine(WindowMachine):
    """The window pool has room for few sequences."""

    window_cells = 64


TestWindow = WindowMachine.TestCase
TestChunked = ChunkedMachine.TestCase
TestWithoutPoints = WithoutPointsMachine.TestCase
TestShort = ShortMachine.TestCase
