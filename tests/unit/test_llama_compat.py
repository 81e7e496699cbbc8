"""llama.cpp's rules for sequences, and where docs/llama_compat.md says that they are others."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import numpy as np
import pytest

import pykv
from pykv import llama_compat
from pykv.llama_compat import LlamaMemory
from tests.model.toy import MIXES, Toy

DIM = 32


def make(cells: int = 512) -> LlamaMemory:
    layer = pykv.Layer(1, DIM, DIM, rope=pykv.Rope(DIM))
    return LlamaMemory(pykv.Cache(pykv.CacheConfig([layer], cells, type_v="f32"), threads=1))


def decode(memory: LlamaMemory, seq_id: int, tokens: list[int]) -> None:
    """V of a token is its id."""
    with memory.cache.step(memory.find_slot([(seq_id, tokens)])) as step:
        v = np.broadcast_to(np.array(tokens, np.float32)[:, None, None], (len(tokens), 1, DIM))
        step.write(0, v, v)


def cells(memory: LlamaMemory, seq_id: int) -> list[tuple[int, int]]:
    """(position, token) of the sequence."""
    cache, seq = memory.cache, memory.sequence(seq_id)
    positions = [p for run in cache.runs(seq) for p in range(run.first, run.first + run.length)]
    return list(
        zip(positions, cache.read_rows(seq, 0)[1][:, 0, 0].astype(int).tolist(), strict=True)
    )


def filled(*lengths: int) -> LlamaMemory:
    """Sequence i holds tokens 100 * i + position."""
    memory = make()
    for seq_id, length in enumerate(lengths):
        decode(memory, seq_id, [100 * seq_id + p for p in range(length)])
    return memory


def numbered(positions: range, first: int) -> list[tuple[int, int]]:
    return [(p, first + i) for i, p in enumerate(positions)]


@pytest.mark.parametrize(
    ("p0", "p1", "left"),
    [
        (3, 6, [0, 1, 2, 6, 7, 8, 9]),
        (-1, 4, [4, 5, 6, 7, 8, 9]),
        (-7, 4, [4, 5, 6, 7, 8, 9]),
        (6, -1, [0, 1, 2, 3, 4, 5]),
        (-1, -1, []),
        (0, 2**31 - 1, []),
        (9, 50, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (10, 50, list(range(10))),
        (5, 5, list(range(10))),
        (6, 3, list(range(10))),
        (2**31 - 1, 2**31 - 1, list(range(10))),
    ],
)
def test_seq_rm_takes_half_open_ranges(p0: int, p1: int, left: list[int]) -> None:
    memory = filled(10, 10)
    assert memory.seq_rm(0, p0, p1) is True
    assert cells(memory, 0) == [(p, p) for p in left]
    assert cells(memory, 1) == numbered(range(10), 100)
    memory.cache.check_integrity()


def test_seq_rm_of_any_sequence() -> None:
    memory = filled(10, 5, 3)
    assert memory.seq_rm(-1, 2, 4)
    assert [len(cells(memory, i)) for i in range(3)] == [8, 3, 2]
    assert memory.seq_rm(-1, -1, -1)
    assert memory.cache.stats()["cells_active"] == 0
    assert memory.seq_rm(-1, -1, -1) and memory.seq_rm(77, -1, -1)


def test_the_end_of_a_sequence() -> None:
    memory = filled(10)
    assert (memory.seq_pos_min(0), memory.seq_pos_max(0)) == (0, 9)
    assert (memory.seq_pos_min(99), memory.seq_pos_max(99)) == (-1, -1)
    memory.seq_rm(0, 0, 4)
    memory.seq_rm(0, 8, -1)
    assert (memory.seq_pos_min(0), memory.seq_pos_max(0)) == (4, 7)
    decode(memory, 0, [55])
    assert memory.seq_pos_max(0) == 8
    memory.seq_rm(0, -1, -1)
    assert (memory.seq_pos_min(0), memory.seq_pos_max(0)) == (-1, -1)
    decode(memory, 0, [1, 2])
    assert cells(memory, 0) == [(0, 1), (1, 2)]


def test_seq_cp_shares_cells() -> None:
    memory = filled(100)
    before = memory.cache.stats()["cells_free"]
    memory.seq_cp(0, 1, -1, -1)
    memory.seq_cp(0, 1000, 20, 30)
    assert memory.cache.stats()["cells_free"] == before
    assert cells(memory, 1) == cells(memory, 0)
    assert cells(memory, 1000) == [(p, p) for p in range(20, 30)]
    memory.seq_cp(0, 0, -1, -1)
    memory.seq_cp(5, 6, -1, -1)  # nothing there
    memory.seq_cp(0, 2, 7, 7)
    assert memory.seq_pos_max(6) == memory.seq_pos_max(2) == -1
    memory.cache.check_integrity()


def test_seq_cp_replaces_what_is_at_the_same_positions() -> None:
    memory = filled(20, 10)
    memory.seq_cp(0, 1, 5, 15)
    assert cells(memory, 1) == numbered(range(5), 100) + [(p, p) for p in range(5, 15)]
    memory.seq_cp(0, 1, -1, -1)
    memory.seq_cp(0, 1, -1, -1)
    assert cells(memory, 1) == cells(memory, 0)
    assert memory.cache.exact_upto(memory.sequence(1)) == 20
    memory.seq_rm(0, 3, 6)
    memory.seq_cp(0, 1, 2, 8)  # what the source lacks stays
    assert cells(memory, 1) == [(p, p) for p in range(20)]


def test_seq_keep_empties_the_others() -> None:
    memory = filled(5, 6, 7)
    native = memory.cache.create()
    memory.seq_keep(1)
    assert [memory.seq_pos_max(i) for i in range(3)] == [-1, 5, -1]
    memory.seq_keep(50)
    assert memory.seq_pos_max(1) == -1
    assert memory.cache.sequences() == [native]


@pytest.mark.parametrize("data", [True, False])
def test_clear_empties_all(data: bool) -> None:
    memory = filled(5, 6)
    memory.clear(data)
    assert memory.cache.sequences() == [] and memory.seq_pos_max(0) == -1


def test_context_shift() -> None:
    memory = filled(60)
    memory.seq_cp(0, 1, -1, -1)
    keep, discard = 4, 28
    memory.seq_rm(0, keep, keep + discard)
    memory.seq_add(0, keep + discard, -1, -discard)
    assert cells(memory, 0) == numbered(range(4), 0) + numbered(range(4, 32), 32)
    assert cells(memory, 1) == numbered(range(60), 0)  # llama.cpp moves these too
    decode(memory, 0, [7])
    assert memory.seq_pos_max(0) == 32
    memory.cache.check_integrity()


def test_seq_add_removes_what_comes_below_zero() -> None:
    memory = filled(10)
    memory.seq_cp(0, 1, -1, -1)
    memory.seq_add(0, -1, -1, -4)
    assert cells(memory, 0) == numbered(range(6), 4)
    assert cells(memory, 1) == numbered(range(10), 0)
    memory.seq_add(0, 0, 6, -6)
    assert memory.seq_pos_max(0) == -1
    memory.seq_add(1, 0, 2, -5)
    assert cells(memory, 1) == numbered(range(2, 10), 2)
    memory.cache.check_integrity()


def test_seq_add_and_seq_div_without_effect() -> None:
    memory = filled(10)
    before = memory.cache.stats(), cells(memory, 0)
    memory.seq_add(0, -1, -1, 0)
    memory.seq_add(0, 5, 5, 3)
    memory.seq_add(0, 6, 5, 3)
    memory.seq_add(0, 10, -1, 3)
    memory.seq_add(9, -1, -1, 3)
    memory.seq_div(0, -1, -1, 1)
    memory.seq_div(0, 5, 5, 2)
    memory.seq_div(9, -1, -1, 2)
    after = memory.cache.stats()
    assert {**after, "generation": 0} == {**before[0], "generation": 0}
    assert cells(memory, 0) == before[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.seq_add(0, 5, 8, 2),
        lambda m: m.seq_add(0, 5, 8, -1),
        lambda m: m.seq_add(0, 3, 8, -5),  # 3 and 4 would go, 5 would meet 0
        lambda m: m.seq_add(0, -1, -1, 2**31 - 1),
        lambda m: m.seq_div(0, 5, 10, 4),
        lambda m: m.seq_div(0, -1, -1, 0),
        lambda m: m.seq_div(0, -1, -1, -2),
    ],
)
def test_what_cannot_be_changes_nothing(call: Callable[[LlamaMemory], object]) -> None:
    memory = filled(10)
    with pytest.raises(pykv.InvalidArgument):
        call(memory)
    assert cells(memory, 0) == numbered(range(10), 0)
    assert memory.cache.sequences() == [memory.sequence(0)]
    memory.cache.check_integrity()


def test_self_extend() -> None:
    """Groups of four share a position, as in llama.cpp's group attention."""
    memory = filled(96)
    group, width = 4, 32
    index, past = 0, 96
    while past >= index + width:
        ib, bd = group * index // width, width // group * (group - 1)
        dd = width // group - ib * bd - width
        memory.seq_add(0, index, past, ib * bd)
        memory.seq_div(0, index + ib * bd, index + ib * bd + width, group)
        memory.seq_add(0, index + ib * bd + width, past + ib * bd, dd)
        past -= bd
        index += width // group
    assert cells(memory, 0) == [(p // 4, p) for p in range(96)]
    decode(memory, 0, [1])
    assert memory.seq_pos_max(0) == 24
    memory.cache.check_integrity()


def test_find_slot_says_what_fits() -> None:
    memory = make(cells=64)
    decode(memory, 3, list(range(40)))
    assert memory.find_slot([(3, 20), (300, 5)]) is None
    plan = memory.find_slot([(3, 20), (300, 4)])
    assert plan is not None and plan.tokens == 24
    memory.seq_rm(-1, -1, -1)
    memory.cache.reset_prefixes()
    assert memory.find_slot([(0, 64)]) is not None


BAD_IDS = [-1, -5, 2**31, 2**63 - 1, -(2**63), 2**64]


@pytest.mark.parametrize("value", BAD_IDS)
@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: m.seq_cp(x, 0, -1, -1),
        lambda m, x: m.seq_cp(0, x, -1, -1),
        lambda m, x: m.seq_keep(x),
        lambda m, x: m.seq_add(x, -1, -1, 1),
        lambda m, x: m.seq_div(x, -1, -1, 2),
        lambda m, x: m.seq_pos_min(x),
        lambda m, x: m.seq_pos_max(x),
        lambda m, x: m.find_slot([(x, 1)]),
        lambda m, x: m.sequence(x),
    ],
)
def test_bad_ids_are_refused(call: Callable[[LlamaMemory, int], object], value: int) -> None:
    memory = filled(10)
    with pytest.raises(pykv.InvalidArgument, match=r"\[LlamaMemory\."):
        call(memory, value)
    assert cells(memory, 0) == numbered(range(10), 0)


@pytest.mark.parametrize("value", [2**31, -(2**31), 2**63 - 1, -(2**63), 2**64])
@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: m.seq_rm(0, x, -1),
        lambda m, x: m.seq_rm(0, 0, x),
        lambda m, x: m.seq_rm(x, 0, 0),
        lambda m, x: m.seq_cp(0, 1, x, -1),
        lambda m, x: m.seq_cp(0, 1, 0, x),
        lambda m, x: m.seq_add(0, x, -1, 1),
        lambda m, x: m.seq_add(0, 0, -1, x),
        lambda m, x: m.seq_div(0, 0, x, 2),
        lambda m, x: m.seq_div(0, 0, -1, x),
    ],
)
def test_huge_numbers_are_refused(call: Callable[[LlamaMemory, int], object], value: int) -> None:
    memory = filled(10)
    with pytest.raises(pykv.InvalidArgument, match=r"\[LlamaMemory\."):
        call(memory, value)
    for wrong in (1.0, None, True, "1"):
        with pytest.raises(TypeError):
            call(memory, wrong)  # type: ignore[arg-type]
    assert cells(memory, 0) == numbered(range(10), 0)


def test_a_sequence_of_an_open_step_is_busy() -> None:
    memory = filled(10, 10)
    with memory.cache.step(memory.find_slot([(1, 1)])) as step:
        for call in (
            lambda: memory.seq_rm(-1, 0, 5),
            lambda: memory.seq_rm(1, 0, 5),
            lambda: memory.seq_cp(0, 1, -1, -1),
            lambda: memory.seq_cp(1, 2, -1, -1),
            lambda: memory.seq_add(1, 5, -1, 9),
            lambda: memory.seq_keep(0),
            lambda: memory.clear(),
        ):
            with pytest.raises(pykv.Busy):
                call()
        step.rollback()
    assert cells(memory, 0) == numbered(range(10), 0)
    assert cells(memory, 1) == numbered(range(10), 100)
    assert len(memory.cache.sequences()) == 2
    memory.cache.check_integrity()


@pytest.mark.parametrize("seq_id", [0, -1])
def test_recurrent_layers_forget_all_or_nothing(seq_id: int) -> None:  # C18, C19
    toy = Toy(MIXES["hybrid and window"])
    memory, tokens = LlamaMemory(toy.cache), list(range(30))
    cold = toy.cold(tokens)
    toy.step([(memory.sequence(0), tokens[:20])])
    memory.seq_cp(0, 1, -1, -1)
    with pytest.raises(pykv.Unsupported, match=r"rewind\(\) goes back to position 0, .* clear\(\)"):
        memory.seq_rm(seq_id, 3, 5)
    assert np.array_equal(toy.step([(memory.sequence(0), tokens[20:])])[0], cold[20:])
    assert memory.seq_rm(seq_id, -1, -1)
    assert memory.seq_pos_max(0) == -1 and memory.seq_pos_max(1) == (19 if seq_id == 0 else -1)
    assert np.array_equal(toy.step([(memory.sequence(0), tokens)])[0], cold)
    toy.cache.check_integrity()


def test_the_docstring_example_runs() -> None:
    assert doctest.testmod(llama_compat).failed == 0
