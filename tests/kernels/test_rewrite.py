"""K moved to other positions (C20), cells copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.kernels.arrays import F32, assert_same_bits, normal
from tests.kernels.kv import Features, Pool, Shape, rope_params
from tests.reference import kernels as reference
from tests.reference.block_formats import KV_TYPES, decode, encode

TOKENS = 90
HEADS = 2
DIMS = (64, 80, 96, 128, 256)
DELTAS = (-37, 5, 100_000)
BLOCK = {"f32": 1, "f16": 1, "bf16": 1}  # others: 32

PAIRS = [(kind, dim) for kind in KV_TYPES for dim in DIMS if dim % BLOCK.get(kind, 32) == 0]
# With and without the transform, which only types of blocks have.
CASES = [
    (*pair, hadamard) for pair in PAIRS for hadamard in (True, False)[: 1 + (pair[0] not in BLOCK)]
]


def turned(x: F32, positions: Any, dims: int, interleaved: bool) -> Any:
    return reference.rope(x, list(positions), HEADS, dims, 10000.0, interleaved)


def rounding(kind: str, values: Any) -> float:
    """What storing the values in a type changes them by, at most."""
    flat = values.astype(np.float32)
    return float(np.abs(decode(kind, encode(kind, flat)).reshape(flat.shape) - values).max())


class Moved:
    """K of some tokens, stored for their positions and then moved by `delta`."""

    def __init__(
        self,
        backend: Any,
        rng: np.random.Generator,
        kind: str,
        dim: int,
        delta: int,
        hadamard: bool = True,
    ) -> None:
        self.delta, self.kind = delta, kind
        self.interleaved = dim != 96
        dims = dim if dim != 128 else 64  # partly rotated heads too
        self.rope = (dims, 10000.0, self.interleaved)
        shape = Shape(dim, 32, HEADS, 2, kind, "f32", hadamard=hadamard)
        self.pool = Pool(backend, shape, 8, Features(rope=self.rope))
        self.first = 40
        self.positions = self.first + np.arange(TOKENS)
        raw, self.v = normal(rng, TOKENS, HEADS * dim), normal(rng, TOKENS, HEADS * 32)
        self.before = turned(raw, self.positions, dims, self.interleaved)
        self.after = turned(raw, self.positions + delta, dims, self.interleaved)
        self.pool.write([(self.first, 0, TOKENS)], self.before.astype(np.float32), self.v)

    def rewrite(self, source: Any, target: Any) -> None:
        self.pool.backend.rewrite_k(
            self.pool.handle, source, target, np.full(len(source), self.delta),
            [rope_params(self.rope)],
        )  # fmt: skip


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize(("kind", "dim", "hadamard"), CASES)
def test_rewritten_k_is_rope_of_the_recomputed_one(
    backend: Any, rng: np.random.Generator, kind: str, dim: int, hadamard: bool, delta: int
) -> None:
    moved = Moved(backend, rng, kind, dim, delta, hadamard)
    cells = np.arange(TOKENS)
    moved.rewrite(cells, cells)
    k, v = moved.pool.stored([(0, 0, TOKENS)])
    # Rounded twice, the first error turned; in float32 by cos, sin and the products.
    bound = 1.5 * rounding(kind, moved.before) + 1.2 * rounding(kind, moved.after) + 2e-6
    assert np.abs(k - moved.after).max() <= bound
    assert np.abs(k - moved.before).max() > 3 * bound, "nothing would have turned"
    assert_same_bits(v, moved.v)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize(("kind", "dim", "hadamard"), CASES)
def test_a_turned_query_sees_k_as_if_it_had_been_moved(
    backend: Any, rng: np.random.Generator, kind: str, dim: int, hadamard: bool, delta: int
) -> None:
    moved = Moved(backend, rng, kind, dim, delta, hadamard)
    pool = moved.pool
    at = moved.first + delta
    first = max(at, 0)
    skip = first - at  # tokens moved to before the beginning are gone
    segments = [(first, skip, TOKENS - skip, delta)]
    q = normal(rng, 5, 2 * HEADS * dim)
    own = first + TOKENS - skip - 5
    by_query = pool.attend(q, segments, own)
    assert np.abs(by_query - pool.expected(q, segments, own)).max() < 2e-5
    # And as the recomputed K, as far as the type is exact.
    exact = reference.Tokens(
        moved.after[skip:], moved.v[skip:], range(first, first + TOKENS - skip)
    )
    params = reference.Attention(pool.shape.heads, HEADS, pool.shape.scale)
    tokens = TOKENS - skip
    true = reference.attention(q, range(tokens - 5, tokens), exact, params)
    slack = 2e-5 + 40 * rounding(kind, moved.before)
    assert np.abs(by_query - true).max() < slack
    moved.rewrite(np.arange(TOKENS), np.arange(TOKENS))
    by_rewriting = pool.attend(q, [(first, skip, tokens)], own)
    assert np.abs(by_rewriting - true).max() < 2 * slack


@pytest.mark.parametrize("kind", KV_TYPES)
def test_what_does_not_turn_keeps_its_bytes(
    backend: Any, rng: np.random.Generator, kind: str
) -> None:
    moved = Moved(backend, rng, kind, 64, 0)
    before, _ = moved.pool.stored([(0, 0, TOKENS)])
    moved.rewrite(np.arange(TOKENS), np.arange(TOKENS) + 100)
    after, _ = moved.pool.stored([(0, 100, TOKENS)])
    assert_same_bits(after, before)
    moved.pool.backend.rewrite_k(
        moved.pool.handle, np.arange(TOKENS), np.arange(TOKENS) + 200, np.full(TOKENS, 9),
        [_core.RopeParams()],
    )  # fmt: skip
    assert_same_bits(moved.pool.stored([(0, 200, TOKENS)])[0], before)


def test_rewriting_is_the_same_alone_together_and_on_any_thread(
    backend: Any, rng: np.random.Generator
) -> None:
    moved = Moved(backend, rng, "q8_0", 64, -11)
    cells = np.arange(TOKENS)
    moved.rewrite(cells, cells + 128)
    together, _ = moved.pool.stored([(0, 128, TOKENS)])
    backend.set_threads(3)
    deltas = rng.integers(-50, 50, TOKENS)
    deltas[10] = -11
    moved.pool.backend.rewrite_k(
        moved.pool.handle, cells[::-1], cells + 256, deltas[::-1], [rope_params(moved.rope)]
    )
    mixed, _ = moved.pool.stored([(0, 256, TOKENS)])
    assert_same_bits(mixed[TOKENS - 11], together[10])


def layers() -> list[Any]:
    return [
        _core.LayerSpec(kv_heads=2, k_dim=32, v_dim=64),
        _core.LayerSpec(kv_heads=1, k_dim=96, v_dim=64, v_view_of_k=True),
        _core.LayerSpec(kv_heads=2, k_dim=32, v_dim=64, kv_from_layer=0),
    ]


WIDTHS = [(64, 128), (96, 64), (64, 128)]


def test_every_layer_turns_by_its_own_rope(backend: Any, rng: np.random.Generator) -> None:
    pool = backend.create_pool(layers(), "f32", "f32", 2)
    backend.commit_blocks(pool, [0, 1])
    cells = np.arange(50)
    k = [normal(rng, 50, width) for width, _ in WIDTHS[:2]]
    backend.write_kv(pool, 0, k[0], normal(rng, 50, 128), cells)
    backend.write_kv(pool, 1, k[1], None, cells)
    first, second = _core.RopeParams(dims=32), _core.RopeParams(dims=16, base=500.0, offset=64)
    deltas = rng.integers(-9, 9, 50)
    backend.rewrite_k(pool, cells, cells + 64, deltas, [first, second, None])
    turned = reference.rope(k[0], deltas.tolist(), 2, 32, 10000.0, True)
    np.testing.assert_allclose(
        backend.read_kv(pool, 0, cells + 64, WIDTHS[0])[0], turned, atol=1e-6
    )
    turned = reference.rope(k[1][:, 64:80], deltas.tolist(), 1, 16, 500.0, True)
    after = backend.read_kv(pool, 1, cells + 64, WIDTHS[1])[0]
    np.testing.assert_allclose(after[:, 64:80], turned, atol=1e-6)
    assert_same_bits(np.delete(after, range(64, 80), 1), np.delete(k[1], range(64, 80), 1))
    for ropes in ([first], [first, second, first]):
        before = backend.read_kv(pool, 0, cells, WIDTHS[0])[0]
        with pytest.raises(
            _core.InvalidArgument, match=r"1 ropes; .* 3 layers|layer 2 stores no KV"
        ):
            backend.rewrite_k(pool, cells, cells, deltas + 1, ropes)
        assert_same_bits(backend.read_kv(pool, 0, cells, WIDTHS[0])[0], before)


@pytest.mark.parametrize("kinds", [(k, v) for k, v in zip(KV_TYPES, KV_TYPES[::-1], strict=True)])
def test_copied_cells_hold_the_bytes_of_all_layers(
    backend: Any, rng: np.random.Generator, kinds: tuple[str, str]
) -> None:
    pool = backend.create_pool(layers(), *kinds, 4)
    backend.commit_blocks(pool, np.arange(4))
    everywhere = np.arange(256)
    backend.write_kv(pool, 0, normal(rng, 256, 64), normal(rng, 256, 128), everywhere)
    backend.write_kv(pool, 1, normal(rng, 256, 96), None, everywhere)
    source = np.array([0, 1, 63, 64, 17, 200])
    target = np.array([250, 100, 2, 3, 99, 15])
    before = [backend.read_kv(pool, layer, everywhere, WIDTHS[layer]) for layer in range(3)]
    backend.copy_cells(pool, source, target)
    for layer in range(3):
        after = backend.read_kv(pool, layer, everywhere, WIDTHS[layer])
        for was, now in zip(before[layer], after, strict=True):
            expected = was.copy()
            expected[target] = was[source]
            assert_same_bits(now, expected)
    assert_same_bits(before[2][0], before[0][0])  # the borrowed layer reads the other's


def test_wrong_moves_are_refused(backend: Any, rng: np.random.Generator) -> None:
    pool = backend.create_pool(layers(), "f16", "f16", 2)
    backend.commit_blocks(pool, [0])
    rope = _core.RopeParams(dims=32)

    def rewrite(source: Any, target: Any, deltas: Any, rope: Any = rope, layer: int = 0) -> None:
        ropes = [rope if i == layer else None for i in range(3)]
        backend.rewrite_k(pool, np.array(source), np.array(target), np.array(deltas), ropes)

    rewrite([1, 2], [1, 3], [4, 5])
    for source, target, deltas, message in [
        ([1, 2], [3], [4, 5], "2 cells to read, 1 to write"),
        ([1, 2], [3, 4], [5], "1 deltas for 2 cells"),
        ([1, 2], [3, 3], [4, 5], "cell 3 is named twice"),
        ([1, 2], [2, 3], [4, 5], "cell 2 is read for cell 3 and is written too"),
        ([1, 64], [2, 3], [4, 5], "cell 64"),
        ([1, 2], [3, 128], [4, 5], "cell 128"),
    ]:
        with pytest.raises(_core.InvalidArgument, match=message):
            rewrite(source, target, deltas)
        if "deltas" not in message:
            with pytest.raises(_core.InvalidArgument, match=message):
                backend.copy_cells(pool, np.array(source), np.array(target))
    with pytest.raises(_core.InvalidArgument, match="within the head size 32"):
        rewrite([1], [1], [4], _core.RopeParams(dims=34))
    with pytest.raises(_core.InvalidArgument, match="15 rope frequencies"):
        rewrite([1], [1], [4], _core.RopeParams(dims=32, frequencies=[0.1] * 15))
    with pytest.raises(_core.InvalidArgument, match="element 40 of K, which is one of the 64"):
        rewrite([1], [1], [4], _core.RopeParams(dims=32, offset=40), layer=1)
    rewrite([1], [1], [4], _core.RopeParams(dims=32, offset=64), layer=1)
    with pytest.raises(_core.InvalidArgument, match=r"layer 2 stores no KV; .* of layer 0"):
        rewrite([1], [1], [4], layer=2)
    with pytest.raises(_core.InvalidArgument, match="layer 2 stores no KV"):
        backend.write_kv(pool, 2, normal(rng, 1, 64), normal(rng, 1, 128), [0])
    with pytest.raises(_core.InvalidArgument, match="V as a view of K"):
        backend.write_kv(pool, 1, normal(rng, 1, 96), normal(rng, 1, 64), [0])
