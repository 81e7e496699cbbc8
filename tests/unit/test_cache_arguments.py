"""Arguments out of range or of another type are refused and change nothing (C34)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

import pykv


def make(cells: int = 256, layers: int = 1, **options: object) -> pykv.Cache:
    layer = pykv.Layer(1, 32, 32, rope=pykv.Rope(32))
    config = pykv.CacheConfig([layer] * layers, cells, **options)  # type: ignore[arg-type]
    return pykv.Cache(config, threads=1)


def append(cache: pykv.Cache, seq: int, tokens: list[int]) -> None:
    plan = cache.plan([(seq, tokens)])
    assert plan is not None
    with cache.step(plan) as step:
        step.write(0, np.ones((step.rows, 1, 32)), np.ones((step.rows, 1, 32)))


LAYER = pykv.Layer(1, 32, 32)
TEXTS = {"[Cache] isa", "[CacheConfig] type_k", "[CacheConfig] type_v", "[CacheConfig] edge_hash"}


def make_layer(**fields: Any) -> pykv.Cache:
    return pykv.Cache(pykv.CacheConfig([replace(LAYER, **fields)], 64), threads=1)


BAD_INTS = [-1, -(2**31), 2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30)]
NOT_INTS = [True, False, 1.0, None, "1", [1]]


@pytest.mark.parametrize("value", BAD_INTS + NOT_INTS)
@pytest.mark.parametrize(
    "call",
    [
        lambda c, s, x: c.create(x),
        lambda c, s, x: c.open([1, 2], x),
        lambda c, s, x: c.open([1, 2], 0, x),
        lambda c, s, x: c.open([1, x]),
        lambda c, s, x: c.match([x, 1]),
        lambda c, s, x: c.match([1], x),
        lambda c, s, x: c.fork(x),
        lambda c, s, x: c.remove(x, (0, 5)),
        lambda c, s, x: c.remove(x, None),
        lambda c, s, x: c.remove(s, (x, 5)),
        lambda c, s, x: c.remove(s, (0, x)),
        lambda c, s, x: c.copy(x, None, s),
        lambda c, s, x: c.copy(s, None, x),
        lambda c, s, x: c.copy(s, (x, 5), s),
        lambda c, s, x: c.copy(s, (0, x), s),
        lambda c, s, x: c.shift(x, None, 0),
        lambda c, s, x: c.shift(s, (x, 5), 0),
        lambda c, s, x: c.shift(s, (0, x), 0),
        lambda c, s, x: c.shift(s, (0, 5), x),
        lambda c, s, x: c.keep(x),
        lambda c, s, x: c.keep(s, x),
        lambda c, s, x: c.clear(x),
        lambda c, s, x: c.erase(x),
        lambda c, s, x: c.bounds(x),
        lambda c, s, x: c.exact_upto(x),
        lambda c, s, x: c.runs(x),
        lambda c, s, x: c.shared_cells(x),
        lambda c, s, x: c.read_rows(s, x, (0, 5)),
        lambda c, s, x: c.read_rows(s, 0, (0, x)),
        lambda c, s, x: c.plan([(x, 1)]),
        lambda c, s, x: c.plan([(s, [1, x])]),
        lambda c, s, x: c.plan([(s, x)]),
        lambda c, s, x: c.evict(x),
        lambda c, s, x: c.reclaim(x),
        lambda c, s, x: c.compact(x),
        lambda c, s, x: make(cells=x),
        lambda c, s, x: make(pool_bytes=x),
        lambda c, s, x: pykv.Cache(pykv.CacheConfig([pykv.Layer(x, 32, 32)], 64)),
    ],
)  # fmt: skip
def test_bad_integers_are_refused_and_change_nothing(call: object, value: object) -> None:
    cache = make()
    seq = cache.create()
    append(cache, seq, [1, 2, 3, 4, 5])
    before = cache.stats()
    allowed = value is None or value == [1] or (isinstance(value, int) and value > 0)
    try:
        call(cache, seq, value)  # type: ignore[operator]
    except (pykv.InvalidArgument, pykv.Unsupported, pykv.OutOfMemory, TypeError) as error:
        assert "incompatible function arguments" not in str(error)
        assert isinstance(error, TypeError) == (
            isinstance(value, bool) or not isinstance(value, int)
        ) or isinstance(error, pykv.Unsupported)
        assert cache.stats() == before
    else:
        # None means "no limit", [1] is a list of ids, and large numbers may be a valid
        # namespace, count or budget.
        assert allowed and not isinstance(value, bool)
    assert cache.bounds(seq) == (0, 5)
    cache.check_integrity()


@pytest.mark.parametrize("value", ["no", None, 1.5, b"x", [1], {"a": 1}, object()])
@pytest.mark.parametrize(
    ("name", "make_with"),
    [
        ("[Cache] threads", lambda x: pykv.Cache(pykv.CacheConfig([LAYER], 64), threads=x)),
        ("[Cache] isa", lambda x: pykv.Cache(pykv.CacheConfig([LAYER], 64), isa=x)),
        ("[CacheConfig] type_k", lambda x: make(type_k=x)),
        ("[CacheConfig] type_v", lambda x: make(type_v=x)),
        ("[CacheConfig] hadamard", lambda x: make(hadamard=x)),
        ("[CacheConfig] watermarks", lambda x: make(watermarks=x)),
        ("[CacheConfig] watermarks", lambda x: make(watermarks=([x], 0.5))),
        ("[CacheConfig] edge_hash", lambda x: make(edge_hash=x)),
        ("[Cache] watermarks", lambda x: setattr(make(), "watermarks", x)),
        ("[Cache] watermarks", lambda x: setattr(make(), "watermarks", (0.1, [x]))),
        ("[Layer] sinks", lambda x: make_layer(sinks=x)),
        ("[Layer] v_view_of_k", lambda x: make_layer(v_view_of_k=x)),
        ("[Rope] base", lambda x: make_layer(rope=pykv.Rope(32, base=[x]))),  # type: ignore[list-item]
        ("[Rope] frequencies", lambda x: make_layer(rope=pykv.Rope(32, frequencies=(x, [x])))),
    ],
)  # fmt: skip
def test_a_wrong_type_is_told_in_one_line(
    name: str, make_with: Callable[[Any], object], value: Any
) -> None:
    if isinstance(value, str) and name in TEXTS:
        with pytest.raises(pykv.InvalidArgument):
            make_with(value)
        return
    with pytest.raises(TypeError) as raised:
        make_with(value)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{name}") and "must be a" in line


SPANS = [(3, 2), (5, 6), (-1, 5), (0, 2**31), (0, 2**63 - 1), (2**40, 2**41)]


@pytest.mark.parametrize("span", SPANS)
def test_spans_out_of_range(span: tuple[int, int]) -> None:
    cache = make()
    seq = cache.create()
    append(cache, seq, [1, 2, 3, 4, 5])
    with pytest.raises(pykv.InvalidArgument):
        cache.remove(seq, span)
    with pytest.raises(pykv.InvalidArgument):
        cache.read_rows(seq, 0, span)
    assert cache.bounds(seq) == (0, 5)


def test_spans_that_are_no_pairs() -> None:
    cache = make()
    seq, other = cache.create(), cache.create()
    append(cache, seq, [1, 2, 3, 4, 5])
    for no_span in (5, (1,), (1, 2, 3), "ab", True, {1, 2}, (None, 5)):
        with pytest.raises(TypeError):
            cache.remove(seq, no_span)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            cache.copy(seq, no_span, other)  # type: ignore[arg-type]
    cache.remove(seq, [3, 5])  # type: ignore[arg-type]
    assert cache.bounds(seq) == (0, 3) and cache.exact_upto(seq) == 3


def test_token_ids_from_arrays() -> None:
    cache = make()
    seq = cache.create()
    append(cache, seq, [1, 2, 3])
    for dtype in (np.int32, np.int64, np.uint8, np.uint64, np.int16):
        assert cache.match(np.array([1, 2, 3, 4], dtype=dtype)) == 3
    assert cache.match(np.array([9, 1, 9, 2, 9, 3])[1::2]) == 3
    assert cache.match(()) == 0
    not_ids = (np.array([1.0]), np.array([True]), np.array(["1"]), "abc", b"abc", 5, None, {1, 2})
    for wrong in not_ids:
        with pytest.raises(TypeError, match="tokens"):
            cache.match(wrong)  # type: ignore[arg-type]
    for wrong in (np.array([[1]]), np.array([2**64 - 1], dtype=np.uint64), np.array([-1])):
        with pytest.raises(pykv.InvalidArgument, match="tokens"):
            cache.match(wrong)
    for request in ([(seq,)], [(seq, 1, 2)], [seq], [[seq, None]]):
        with pytest.raises(TypeError, match="request 0"):
            cache.plan(request)  # type: ignore[arg-type]


def test_configurations_that_cannot_be() -> None:
    for wrong in ({"type_k": "q4_2"}, {"type_v": "int8"}, {"edge_hash": ""}, {"pool_bytes": 1}):
        with pytest.raises(pykv.InvalidArgument):
            make(**wrong)  # type: ignore[arg-type]
    for marks in ((0.2, 0.1), (-0.1, 0.5), (0.1, 1.5), (float("nan"), 0.5)):
        with pytest.raises(pykv.InvalidArgument):
            make(watermarks=marks)
    with pytest.raises(pykv.InvalidArgument):
        pykv.Cache(pykv.CacheConfig([], 64))
    with pytest.raises(pykv.Unsupported, match="k_dim"):
        pykv.Cache(pykv.CacheConfig([pykv.Layer(1, 584, 64)], 64))
    with pytest.raises(pykv.InvalidArgument, match="q8_0"):
        pykv.Cache(pykv.CacheConfig([pykv.Layer(1, 40, 64)], 64, type_k="q8_0"))
    with pytest.raises(pykv.InvalidArgument, match="134217728"):
        make(cells=2**27 + 1)
    with pytest.raises(pykv.OutOfMemory, match="fewer cells"):
        pykv.Cache(pykv.CacheConfig([pykv.Layer(1024, 256, 256)] * 4096, 2**20))


class Fresh(list[int]):
    """An item that nobody keeps: says when it is looked at, and when it is gone."""

    def __init__(self, items: list[int], log: list[str]) -> None:
        super().__init__(items)
        self.log = log

    def __index__(self) -> int:
        self.log.append("read")
        return self[0]

    def __len__(self) -> int:
        self.log.append("read")
        return super().__len__()

    def __del__(self) -> None:
        self.log.append("gone")


class MadeOnDemand:
    """A sequence, as range is one, whose items live no longer than they are used."""

    def __init__(self, items: list[list[int]]) -> None:
        self.items, self.log = items, list[str]()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Fresh:
        return Fresh(self.items[index], self.log)


def test_items_stay_alive_while_they_are_read() -> None:
    core = make().core
    ids = MadeOnDemand([[1000], [2000], [3000]])
    seq = core.open(ids)[0]
    requests = MadeOnDemand([[seq, 5], [core.create(), 7]])
    plan = core.plan(requests)
    assert plan is not None
    assert plan.tokens == 12
    for made in (ids, requests):
        assert [event for event, _ in groupby(made.log)] == ["read", "gone"] * len(made.items)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", ">i4"])
def test_arrays_plan_what_lists_plan(dtype: str) -> None:
    from_lists, from_arrays = make(), make()
    for cache in (from_lists, from_arrays):
        assert [cache.create() for _ in range(3)] == [1, 2, 3]
    lists = from_lists.plan([(1, [5]), (3, [6, 7]), (2, [8, 9, 10])])
    sequences, counts, tokens = ([1, 3, 2], [1, 2, 3], [5, 6, 7, 8, 9, 10])
    wide = np.array(tokens, dtype=dtype).repeat(2)  # read with a stride
    arrays = from_arrays.plan(np.array(sequences, dtype), np.array(counts, dtype), wide[::2])
    for cache, plan in ((from_lists, lists), (from_arrays, arrays)):
        with cache.step(plan) as step:
            step.write(0, np.ones((6, 1, 32)), np.ones((6, 1, 32)))
        assert cache.match([8, 9, 10, 11]) == 3 and cache.match([6, 7]) == 2
    assert [from_lists.runs(seq) for seq in (1, 2, 3)] == [from_arrays.runs(s) for s in (1, 2, 3)]
    counted = from_arrays.plan(np.array([1, 2], dtype), [2, 2])
    assert counted is not None and counted.tokens == 4


@pytest.mark.parametrize(
    ("sequences", "counts", "tokens", "kind", "text"),
    [
        ([1], [1, 1], None, ValueError, "1 sequences, 2 counts"),
        ([1], [2], [3], ValueError, "sum of 2 and 1 tokens"),
        ([1], [0], None, ValueError, r"counts\[0\] is 0"),
        ([1], [2**31], None, ValueError, "counts"),
        ([-1], [1], None, ValueError, "sequences"),
        ([7], [1], None, ValueError, "sequence 7 is not open"),
        ([1, 1], [1, 1], None, ValueError, "named twice"),
        ([1], [1], [-5], ValueError, r"tokens\[0\] is -5"),
        ([1.0], [1], None, TypeError, "sequences"),
        ([[1]], [[1]], None, (TypeError, ValueError), "sequences"),
        ([], [], None, ValueError, "no requests"),
        ([1], None, [1], TypeError, "counts"),
    ],
)
@pytest.mark.parametrize("as_array", [False, True])
def test_arrays_are_checked(
    sequences: Any, counts: Any, tokens: Any, kind: Any, text: str, as_array: bool
) -> None:
    cache = make()
    cache.create()
    if as_array:
        sequences = np.array(sequences) if sequences else np.zeros(0, np.int32)
        counts = counts if counts is None else np.array(counts, dtype=np.int64)
    generation = cache.stats()["generation"]
    with pytest.raises(kind, match=text):
        cache.plan(sequences, counts, tokens)
    assert cache.stats()["generation"] == generation
