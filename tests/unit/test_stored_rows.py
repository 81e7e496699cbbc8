"""Cache.export_rows and Step.import_rows: what is stored, byte for byte, from cache to cache."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

import pykv
from pykv import _core
from tests.reference import kernels as reference
from tests.reference import kv_storage

KV_HEADS, DIM, TOKENS = 2, 64, 150
ROPE = pykv.Rope(dims=DIM, base=10000.0)
Array = npt.NDArray[Any]


def make(kind: str, cells: int = 512, hadamard: bool = True, **layer: Any) -> pykv.Cache:
    layers = [pykv.Layer(KV_HEADS, DIM, DIM, rope=ROPE, **layer)] * 2
    return pykv.Cache(pykv.CacheConfig(layers, cells, kind, kind, hadamard))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def keys_values(rng: np.random.Generator, rows: int = TOKENS) -> tuple[Array, Array]:
    k, v = rng.normal(size=(2, rows, KV_HEADS, DIM)).astype(np.float32)
    return k, v


def fill(cache: pykv.Cache, k: Array, v: Array, ids: range | None = None) -> int:
    seq = cache.create()
    with cache.step(cache.plan([(seq, ids or len(k))])) as step:
        step.write(0, k, v)
        step.write(1, v, k)
    return seq


def carry(rows: list[tuple[Array, Array]], cache: pykv.Cache, ids: range | None = None) -> int:
    """A sequence of another cache from exported rows of both layers."""
    seq = cache.create()
    with cache.step(cache.plan([(seq, ids or len(rows[0][0]))])) as step:
        for layer, (k, v) in enumerate(rows):
            step.import_rows(layer, k, v)
    return seq


def attend(cache: pykv.Cache, seq: int, rng_seed: int) -> list[Array]:
    """Attention of one more token in both layers; the token is taken back."""
    rng = np.random.default_rng(rng_seed)
    k, v = keys_values(rng, 1)
    q = rng.normal(size=(1, 4, DIM)).astype(np.float32)
    with cache.step(cache.plan([(seq, 1)])) as step:
        out = []
        for layer in range(2):
            step.write(layer, k, v)
            out.append(step.attend(layer, q))
        step.rollback()
    return out


@pytest.mark.parametrize("kind", _core.kv_types())
def test_a_sequence_moves_to_another_cache_bit_for_bit(rng: np.random.Generator, kind: str) -> None:
    source, target = make(kind), make(kind, cells=1024)
    seq = fill(source, *keys_values(rng))
    fill(target, *keys_values(rng, 70))  # so that cells differ
    rows = [source.export_rows(seq, layer) for layer in range(2)]
    moved = carry(rows, target)
    for layer in range(2):
        for actual, expected in zip(
            target.read_rows(moved, layer), source.read_rows(seq, layer), strict=True
        ):
            np.testing.assert_array_equal(actual, expected)
    for actual, expected in zip(attend(target, moved, 3), attend(source, seq, 3), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_rows_are_those_of_gguf_and_say_whether_they_are_transformed(
    rng: np.random.Generator,
) -> None:
    k, v = keys_values(rng)
    plain = make("q4_0", hadamard=False)
    rows, _ = plain.export_rows(fill(plain, k, v), 0)
    assert plain.transforms(0) == (0, 0)
    expected = gguf.quants.quantize(k.reshape(TOKENS, -1), gguf.GGMLQuantizationType.Q4_0)
    np.testing.assert_array_equal(rows, expected)
    transformed = make("q4_0")
    rows, _ = transformed.export_rows(fill(transformed, k, v), 0)
    assert transformed.transforms(0) == (64, 64)
    np.testing.assert_array_equal(rows, kv_storage.encoded("q4_0", k, 64).reshape(TOKENS, -1))


def test_spans_choose_tokens(rng: np.random.Generator) -> None:
    cache = make("q8_0")
    seq = fill(cache, *keys_values(rng))
    k, v = cache.export_rows(seq, 1)
    part_k, part_v = cache.export_rows(seq, 1, (10, 90))
    np.testing.assert_array_equal(part_k, k[10:90])
    np.testing.assert_array_equal(part_v, v[10:90])
    assert cache.export_rows(seq, 1, (5, 5))[0].shape == (0, KV_HEADS * DIM // 32 * 34)


# Rounding twice: units of the largest |k| of a head (about 4), at the stored precision.
TURNED = {"f32": 1e-6, "f16": 1e-3, "bf16": 1e-2, "q8_0": 1e-2, "q5_1": 0.1, "q4_0": 0.3}


@pytest.mark.parametrize("kind", TURNED)
@pytest.mark.parametrize("hadamard", [True, False])
def test_k_of_moved_tokens_is_exported_for_where_they_stand(
    rng: np.random.Generator, kind: str, hadamard: bool
) -> None:
    """As if the sequence had been computed at its present positions."""
    k, v = keys_values(rng)
    cache = make(kind, hadamard=hadamard)
    seq = fill(cache, k, v)
    before = cache.export_rows(seq, 0)
    cache.remove(seq, (20, 50))
    cache.shift(seq, (50, TOKENS), -30)
    rows = [cache.export_rows(seq, layer) for layer in range(2)]
    np.testing.assert_array_equal(rows[0][0][:20], before[0][:20])
    np.testing.assert_array_equal(rows[0][1], np.delete(before[1], np.s_[20:50], axis=0))
    fresh = make(kind, hadamard=hadamard)
    moved, _ = fresh.read_rows(carry(rows, fresh), 0)
    flat = np.delete(k, np.s_[20:50], axis=0).reshape(120, -1)
    turns = [0] * 20 + [-30] * 100
    expected = reference.rope(flat, turns, KV_HEADS, DIM, 10000.0, True).reshape(moved.shape)
    error = np.abs(moved - expected)
    assert error.max() <= TURNED[kind] * 4
    for actual, given in zip(attend(fresh, 1, 5), attend(cache, seq, 5), strict=True):
        np.testing.assert_allclose(actual, given, atol=TURNED[kind])


def test_imported_tokens_with_ids_can_be_matched(rng: np.random.Generator) -> None:
    source, target = make("q8_0"), make("q8_0")
    seq = fill(source, *keys_values(rng), ids=range(TOKENS))
    carry([source.export_rows(seq, layer) for layer in range(2)], target, range(TOKENS))
    assert target.open(range(TOKENS)).reused == TOKENS - 1


def test_importing_counts_as_writing_and_refusing_does_not(rng: np.random.Generator) -> None:
    cache = make("q8_0")
    seq = fill(cache, *keys_values(rng, 3))
    (k, v), before = cache.export_rows(seq, 0), cache.stats()
    other = cache.create()
    with (
        pytest.raises(pykv.InvalidArgument, match="layer 1 was not written"),
        cache.step(cache.plan([(other, 3)])) as step,
    ):
        step.import_rows(0, k, v)
        for wrong in ((k[:2], v), (k, v[:, :-1]), (k.reshape(-1)[1:], v)):
            with pytest.raises(pykv.InvalidArgument, match="3 rows of layer 1 have"):
                step.import_rows(1, *wrong)
        for bad in ((k.astype(np.int8), v), (k, v.tolist()), (k, None)):
            with pytest.raises(TypeError, match="uint8"):
                step.import_rows(1, *bad)  # type: ignore[arg-type]
        with pytest.raises(pykv.InvalidArgument, match="layer is 2"):
            step.import_rows(2, k, v)
    assert cache.stats()["cells_free"] == before["cells_free"]
    with cache.step(cache.plan([(other, 3)])) as step:
        step.import_rows(0, k, v)
        step.import_rows(1, k, v)
    np.testing.assert_array_equal(cache.export_rows(other, 1)[0], k)


def test_layers_that_store_nothing_are_refused() -> None:
    layers = [pykv.Layer(1, DIM, DIM), pykv.Layer(1, DIM, DIM, kv_from_layer=0)]
    cache = pykv.Cache(pykv.CacheConfig(layers, 64))
    seq = cache.create()
    with pytest.raises(pykv.InvalidArgument, match="export layer 0"):
        cache.export_rows(seq, 1)
    with cache.step(cache.plan([(seq, 1)])) as step:
        with pytest.raises(pykv.InvalidArgument, match="layer 0"):
            step.import_rows(1, np.zeros((1, 128), np.uint8), np.zeros((1, 128), np.uint8))
        step.rollback()


def test_arguments_of_export_are_checked() -> None:
    cache = make("f16")
    seq = cache.create()
    for wrong, error in (((99, 0), pykv.InvalidArgument), ((seq, 2), pykv.InvalidArgument),
                         ((seq, -1), pykv.InvalidArgument), ((seq, 1.0), TypeError)):  # fmt: skip
        with pytest.raises(error):
            cache.export_rows(*wrong)  # type: ignore[arg-type]
    for span in ((1, 0), (-1, 0), (0, 5)):
        with pytest.raises(pykv.InvalidArgument, match=r"\[Cache.export_rows\] (span|begin)"):
            cache.export_rows(seq, 0, span)
    with pytest.raises(pykv.InvalidArgument, match="layer"):
        cache.transforms(2)
