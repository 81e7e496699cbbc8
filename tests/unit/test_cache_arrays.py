"""Arrays as NumPy users have them: any memory order, views, files; what comes back owns itself."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pykv

ROWS, KV_HEADS, DIM = 6, 2, 32
Array = npt.NDArray[Any]


def make() -> pykv.Cache:
    layer = pykv.Layer(KV_HEADS, DIM, DIM)
    return pykv.Cache(pykv.CacheConfig([layer], 128, type_k="f32", type_v="f32"), threads=1)


def values(seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(ROWS, KV_HEADS, DIM)).astype(np.float32)


def attended(cache: pykv.Cache, k: npt.ArrayLike, v: npt.ArrayLike, q: npt.ArrayLike) -> Array:
    plan = cache.plan([(cache.create(), ROWS)])
    with cache.step(plan) as step:
        step.write(0, k, v)
        return step.attend(0, q)


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


def spread(array: Array) -> Array:
    wide = np.zeros((ROWS * 2, KV_HEADS * 3, DIM + 5), array.dtype)
    wide[::2, 1::3, 3 : DIM + 3] = array
    return wide[::2, 1::3, 3 : DIM + 3]


ORDERS: dict[str, Callable[[Array], npt.ArrayLike]] = {
    "fortran": np.asfortranarray,
    "every second of a larger one": spread,
    "backwards": lambda a: a[::-1].copy()[::-1],
    "heads first": lambda a: a.transpose(1, 0, 2).copy().transpose(1, 0, 2),
    "read-only": read_only,
    "big-endian": lambda a: a.astype(">f4"),
    "float64": lambda a: a.astype(np.float64),
    "unaligned": lambda a: (
        np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(a.shape)
    ),
    "nested lists": lambda a: a.astype(np.float64).tolist(),
    "a subclass": lambda a: a.view(np.recarray),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_the_memory_order_does_not_matter(order: Callable[[Array], npt.ArrayLike]) -> None:
    cache = make()
    k, v, q = values(0), values(1), values(2)
    expected = attended(cache, k, v, q)
    assert np.array_equal(attended(cache, order(k), order(v), order(q)), expected)


def test_arrays_from_a_file(tmp_path: Path) -> None:
    cache = make()
    k, v, q = values(0), values(1), values(2)
    np.save(tmp_path / "k.npy", k)
    mapped = np.load(tmp_path / "k.npy", mmap_mode="r")
    assert np.array_equal(attended(cache, mapped, v, q), attended(cache, k, v, q))


def test_one_row_for_all_by_broadcasting() -> None:
    cache = make()
    k, v, q = values(0), np.broadcast_to(values(1)[:1], (ROWS, KV_HEADS, DIM)), values(2)
    out = attended(cache, k, v, q)
    np.testing.assert_allclose(out, v, rtol=1e-5, atol=1e-6)  # weights add up to 1


def test_what_is_given_is_copied_and_what_comes_back_is_owned() -> None:
    cache = make()
    k, v = values(0), values(1)
    seq = cache.create()
    with cache.step(cache.plan([(seq, ROWS)])) as step:
        step.write(0, k, v)
        positions = step.positions
        k_copy, k[:] = k.copy(), np.nan
        out = step.attend(0, values(2))
    back, _ = cache.read_rows(seq, 0)
    del cache, step
    gc.collect()
    assert np.array_equal(back, k_copy)
    assert np.isfinite(out).all()
    assert positions.tolist() == list(range(ROWS))
    back[:] = 0  # an array of its own


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((ROWS, KV_HEADS, DIM), np.complex64),
        np.zeros((ROWS, KV_HEADS, DIM), object),
        np.zeros((ROWS, KV_HEADS, DIM), "S4"),
        [["a"]],
        None,
        "k",
    ],
    ids=["complex", "object", "bytes", "list of text", "None", "text"],
)
def test_what_is_no_array_of_floats_is_refused(wrong: Any) -> None:
    cache = make()
    seq = cache.create()
    with (
        pytest.raises(TypeError, match=r"\[Step.write\] k"),
        cache.step(cache.plan([(seq, ROWS)])) as step,
    ):
        step.write(0, wrong, values(1))
    assert cache.bounds(seq) == (0, 0)


def test_a_sequence_without_tokens_gives_empty_arrays() -> None:
    cache = make()
    k, v = cache.read_rows(cache.create(), 0)
    assert k.shape == v.shape == (0, KV_HEADS, DIM)
    assert cache.match(np.zeros(0, np.int32)) == 0
    opened = cache.open(np.zeros(0, np.int64))
    assert opened.reused == 0
    with pytest.raises(pykv.InvalidArgument):
        cache.plan([(opened.sequence, np.zeros(0, np.int32))])


def test_several_caches_in_several_threads() -> None:
    k, v, q = values(0), values(1), values(2)
    expected = attended(make(), k, v, q)

    def work(_: int) -> bool:
        cache = make()
        same = all(np.array_equal(attended(cache, k, v, q), expected) for _ in range(5))
        cache.check_integrity()
        return same

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
