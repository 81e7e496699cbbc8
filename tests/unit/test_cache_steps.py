"""Steps: attention, shapes and types of arrays, rollback, what does not fit."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import pykv
import pykv.cache

ROOT = Path(__file__).resolve().parents[2]
HEADS, KV_HEADS, K_DIM, V_DIM = 4, 2, 32, 64


def make(cells: int = 256, layers: int = 2, **options: object) -> pykv.Cache:
    config = pykv.CacheConfig([pykv.Layer(KV_HEADS, K_DIM, V_DIM)] * layers, cells, **options)  # type: ignore[arg-type]
    return pykv.Cache(config, threads=1)


def arrays(rows: int, seed: int = 0) -> tuple[npt.NDArray[np.float64], ...]:
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(rows, HEADS, K_DIM)),
        rng.normal(size=(rows, KV_HEADS, K_DIM)),
        rng.normal(size=(rows, KV_HEADS, V_DIM)),
    )


def plan_of(cache: pykv.Cache, *requests: tuple[int, int | list[int]]) -> pykv.Plan:
    plan = cache.plan(requests)
    assert plan is not None
    return plan


def append(cache: pykv.Cache, seq: int, tokens: int | list[int], seed: int = 0) -> None:
    with cache.step(plan_of(cache, (seq, tokens))) as step:
        _, k, v = arrays(step.rows, seed)
        for layer in range(len(cache.layers)):
            step.write(layer, k, v)


def attention(
    q: npt.NDArray[np.float64], k: npt.NDArray[np.float64], v: npt.NDArray[np.float64], scale: float
) -> npt.NDArray[np.float64]:
    """Causal, rows at the end; the definition."""
    out = np.empty((len(q), q.shape[1], v.shape[2]))
    for row in range(len(q)):
        seen = len(k) - len(q) + row + 1
        for head in range(q.shape[1]):
            kv = head // (q.shape[1] // k.shape[1])
            weights = np.exp(scale * k[:seen, kv] @ q[row, head])
            out[row, head] = weights / weights.sum() @ v[:seen, kv]
    return out


def test_attention_of_two_ragged_sequences_is_the_definition() -> None:
    cache = make(type_k="f32", type_v="f32")
    a, b = cache.create(), cache.create()
    _, k_old, v_old = arrays(70, seed=1)
    with cache.step(plan_of(cache, (a, 70))) as step:
        for layer in (0, 1):
            step.write(layer, k_old, v_old)
    q, k, v = arrays(5)
    with cache.step(plan_of(cache, (a, 3), (b, 2))) as step:
        assert step.positions.tolist() == [70, 71, 72, 0, 1]
        assert step.positions.dtype == np.int32
        assert step.slices == [slice(0, 3), slice(3, 5)]
        for layer in (0, 1):
            step.write(layer, k, v)
        out = step.attend(1, q)
        half = step.attend(1, q, scale=0.5)
    assert out.shape == (5, HEADS, V_DIM) and out.dtype == np.float32
    k_a, v_a = np.concatenate([k_old, k[:3]]), np.concatenate([v_old, v[:3]])
    for got, scale in ((out, 1 / np.sqrt(K_DIM)), (half, 0.5)):
        np.testing.assert_allclose(got[:3], attention(q[:3], k_a, v_a, scale), atol=1e-5)
        np.testing.assert_allclose(got[3:], attention(q[3:], k[3:], v[3:], scale), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0"])
def test_float_types_and_strides_come_back_within_the_stored_type(dtype: str, kv_type: str) -> None:
    cache = make(type_k=kv_type, type_v=kv_type)
    seq = cache.create()
    _, k, v = arrays(6)
    strided_k = np.asfortranarray(np.repeat(k, 2, axis=0).astype(dtype))[::2]
    reversed_v = v.astype(dtype)[::-1].copy()[::-1]
    with cache.step(plan_of(cache, (seq, 6))) as step:
        for layer in (0, 1):
            step.write(layer, strided_k, reversed_v)
    k_back, v_back = cache.read_rows(seq, 1, (0, 6))
    tolerance = {"f32": 1e-7, "f16": 2e-3, "q8_0": 2e-2}[kv_type]
    tolerance += 2e-3 if dtype == "float16" else 0
    np.testing.assert_allclose(k_back, k, atol=tolerance)
    np.testing.assert_allclose(v_back, v, atol=tolerance)


def test_bfloat16_by_its_name() -> None:
    cache = make(type_k="f32", type_v="f32")
    seq = cache.create()
    _, k, v = arrays(3)
    with cache.step(plan_of(cache, (seq, 3))) as step:
        for layer in (0, 1):
            step.write(layer, k.astype(ml_dtypes.bfloat16), v.astype(ml_dtypes.bfloat16))
    back, _ = cache.read_rows(seq, 0, (0, 3))
    assert np.array_equal(back, k.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_wrong_arrays_are_refused_with_both_shapes() -> None:
    cache = make()
    seq = cache.create()
    q, k, v = arrays(4)
    with pytest.raises(KeyboardInterrupt), cache.step(plan_of(cache, (seq, 4))) as step:
        with pytest.raises(pykv.InvalidArgument, match=r"k .* \[3, 2, 32\], must be \[4, 2, 32\]"):
            step.write(0, k[:3], v)
        with pytest.raises(pykv.InvalidArgument, match=r"v .* \[4, 2, 32\], must be \[4, 2, 64\]"):
            step.write(0, k, k)
        with pytest.raises(pykv.InvalidArgument, match=r"\[0, 2, 32\]"):
            step.write(0, k[:0], v[:0])
        with pytest.raises(TypeError, match="int64"):
            step.write(0, k.astype(np.int64), v)
        with pytest.raises(TypeError, match="bool"):
            step.write(0, k > 0, v)
        with pytest.raises(pykv.InvalidArgument, match="not written"):
            step.attend(0, q)
        step.write(0, k, v)
        for wrong in (q[:, :3], q[:, :, :8], q[0], q[:, :0]):
            with pytest.raises(pykv.InvalidArgument, match=r"\[Step.attend\] q has shape"):
                step.attend(0, wrong)
        for layer in (2, -1, 2**63):
            with pytest.raises(pykv.InvalidArgument, match="layer"):
                step.attend(layer, q)
        for layer in (True, 0.0, None):
            with pytest.raises(TypeError, match="layer"):
                step.write(layer, k, v)  # type: ignore[arg-type]
        raise KeyboardInterrupt
    assert cache.bounds(seq) == (0, 0)
    cache.check_integrity()


def test_leaving_without_every_layer_rolls_back() -> None:
    cache = make()
    seq = cache.create()
    _, k, v = arrays(4)
    plan = plan_of(cache, (seq, 4))
    with pytest.raises(pykv.InvalidArgument, match="layer 1 was not"), cache.step(plan) as step:
        step.write(0, k, v)
    assert cache.bounds(seq) == (0, 0)
    assert cache.stats()["cells_free"] == 256
    append(cache, seq, 4)


def test_rollback_inside_the_block() -> None:
    cache = make()
    seq = cache.create()
    with cache.step(plan_of(cache, (seq, 4))) as step:
        step.rollback()
    assert cache.bounds(seq) == pykv.Span(0, 0)
    with pytest.raises(pykv.InvalidArgument, match="once"), step:
        pass


def test_a_step_that_is_not_entered_changes_nothing() -> None:
    cache = make()
    seq = cache.create()
    step = cache.step(plan_of(cache, (seq, 4)))
    with pytest.raises(pykv.InvalidArgument, match="not open"):
        step.write(0, *arrays(4)[1:])
    assert cache.stats()["cells_free"] == 256


def test_stale_plans_and_second_steps() -> None:
    cache = make()
    a, b = cache.create(), cache.create()
    stale = plan_of(cache, (a, 4))
    cache.fork(a)
    with pytest.raises(pykv.StalePlan), cache.step(stale):
        pass
    with cache.step(plan_of(cache, (a, 4))) as step:
        step.rollback()
        with cache.step(plan_of(cache, (b, 4))) as second:
            with pytest.raises(pykv.Busy), cache.step(plan_of(cache, (a, 4))):
                pass
            with pytest.raises(pykv.Busy):
                cache.erase(b)
            second.rollback()
    cache.check_integrity()


def test_what_does_not_fit_changes_nothing() -> None:
    cache = make(cells=128)
    seq = cache.create()
    append(cache, seq, list(range(100)))
    before = cache.stats()
    assert cache.plan([(seq, 29)]) is None
    assert cache.plan([(seq, 2**31 - 200)]) is None
    after = cache.stats()
    assert after.pop("alloc_failures") == before.pop("alloc_failures") + 2
    assert after == before
    with pytest.raises(MemoryError, match="do not fit"):
        cache.step(cache.plan([(seq, 29)]))
    append(cache, seq, 28)


OUT_OF_MEMORY = """
import resource
import numpy as np
import pykv

cache = pykv.Cache(pykv.CacheConfig([pykv.Layer(8, 256, 256)], 2**16), threads=1)
seq = cache.create()
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + 2**26, resource.RLIM_INFINITY))
before = cache.stats()
plan = cache.plan([(seq, 2**16)])  # half a gigabyte, of which 64 MiB are left
try:
    cache.step(plan).__enter__()
except pykv.OutOfMemory as error:
    assert "free cells or use a smaller pool" in str(error), error
else:
    raise SystemExit("committed")
assert cache.stats() == before
cache.check_integrity()
with cache.step(cache.plan([(seq, [1, 2, 3])])) as step:
    step.write(0, np.ones((3, 8, 256)), np.ones((3, 8, 256)))
assert cache.bounds(seq) == (0, 3)
"""


def test_a_commit_without_memory_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_threads_may_share_a_step() -> None:
    cache = make(layers=16, type_k="f32", type_v="f32")
    seq = cache.create()
    q, k, v = arrays(40)
    with cache.step(plan_of(cache, (seq, 40))) as step, ThreadPoolExecutor(4) as threads:

        def work(layer: int) -> npt.NDArray[np.float32]:
            step.write(layer, k + layer, v + layer)
            assert cache.stats()["cells_computing"] == 40
            return step.attend(layer, q)

        for layer, out in enumerate(threads.map(work, range(16))):
            expected = attention(q, k + layer, v + layer, 1 / np.sqrt(K_DIM))
            np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
