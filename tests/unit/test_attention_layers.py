"""Layers with windows, sinks, ropes, views and borrowed KV through the cache's own interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pykv
from tests.reference import kernels as reference

KV_HEADS, HEADS, K_DIM, V_DIM = 2, 4, 32, 16
Array = npt.NDArray[np.float32]


def layer(**options: Any) -> pykv.Layer:
    return pykv.Layer(**({"kv_heads": KV_HEADS, "k_dim": K_DIM, "v_dim": V_DIM} | options))


def make(*layers: pykv.Layer, cells: int = 1024) -> pykv.Cache:
    return pykv.Cache(pykv.CacheConfig(layers, cells, "f32", "f32"), threads=2)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def begin(cache: pykv.Cache, rows: int) -> Any:
    plan = cache.plan([(cache.create(), rows)])
    assert plan is not None
    return cache.step(plan)


def expected(q: Array, k: Array, v: Array, **options: Any) -> Any:
    rows = len(q)
    tokens = reference.Tokens(k.reshape(rows, -1), v.reshape(rows, -1), range(rows))
    params = reference.Attention(q.shape[1], k.shape[1], K_DIM**-0.5, **options)
    return reference.attention(q.reshape(rows, -1), range(rows), tokens, params).reshape(
        rows, q.shape[1], -1
    )


@pytest.mark.parametrize("window", [("standard", 1), ("standard", 70), ("chunked", 33), None])
def test_a_layer_s_window_is_applied(window: tuple[str, int] | None) -> None:
    q, k, v = normal(200, HEADS, K_DIM), normal(200, KV_HEADS, K_DIM), normal(200, KV_HEADS, V_DIM)
    with begin(make(layer(window=window)), 200) as step:
        step.write(0, k, v)
        out = step.attend(0, q)
    options = {} if window is None else {"window": window}
    np.testing.assert_allclose(out, expected(q, k, v, **options), atol=1e-5)


@pytest.mark.parametrize("window", [("standard", 70), None])
@pytest.mark.parametrize("only", [[199], [0, 1, 2, 99, 100, 101, 199, 200, 219], [200], []])
def test_only_some_rows_have_the_bits_that_all_have(
    only: list[int], window: tuple[str, int] | None
) -> None:
    """Rows 0 to 99 and 200 to 219 are of one sequence each, 100 to 199 follow 50 of another."""
    cache = make(layer(window=window))
    first, second, third = (cache.create() for _ in range(3))
    q, k, v = normal(220, HEADS, K_DIM), normal(220, KV_HEADS, K_DIM), normal(220, KV_HEADS, V_DIM)
    plan = cache.plan([(second, 50)])
    assert plan is not None
    with cache.step(plan) as step:
        step.write(0, k[:50], v[:50])
    plan = cache.plan([(first, 100), (second, 100), (third, 20)])
    assert plan is not None
    with cache.step(plan) as step:
        step.write(0, k, v)
        all_rows = step.attend(0, q)
        some = step.attend(0, q[only], only=only)
    assert some.shape == (len(only), HEADS, V_DIM)
    assert np.array_equal(some, all_rows[only])
    assert some.dtype == np.float32


def test_sinks_softcap_and_slopes_reach_the_kernels() -> None:
    q, k, v = normal(50, HEADS, K_DIM), normal(50, KV_HEADS, K_DIM), normal(50, KV_HEADS, V_DIM)
    sinks, slopes = np.array([1.0, -2.0, 30.0, 0.0]), np.float32([0.5, 0.25, 0.125, 0.0625])
    with begin(make(layer(sinks=True)), 50) as step:
        step.write(0, k, v)
        out = step.attend(0, q, softcap=2, sinks=sinks, alibi_slopes=slopes)
    wanted = expected(q, k, v, softcap=2.0, sinks=sinks.tolist(), slopes=slopes.tolist())
    np.testing.assert_allclose(out, wanted, atol=1e-5)


def test_sinks_are_given_exactly_where_the_layer_has_them() -> None:
    q, k, v = normal(3, HEADS, K_DIM), normal(3, KV_HEADS, K_DIM), normal(3, KV_HEADS, V_DIM)
    with begin(make(layer(sinks=True), layer()), 3) as step:
        for index in (0, 1):
            step.write(index, k, v)
        with pytest.raises(pykv.InvalidArgument, match="layer 0 has sinks; give one for each head"):
            step.attend(0, q)
        with pytest.raises(pykv.InvalidArgument, match="layer 1 has no sinks; give none"):
            step.attend(1, q, sinks=np.zeros(HEADS))


def test_v_as_a_view_of_k_and_layers_of_other_sizes() -> None:
    cache = make(layer(), layer(kv_heads=1, k_dim=96, v_dim=64, v_view_of_k=True))
    bytes_stored = (K_DIM + V_DIM) * KV_HEADS * 4 + 96 * 4
    assert cache.stats()["bytes_per_cell"] == bytes_stored
    q, k = normal(40, 3, 96), normal(40, 1, 96)
    with begin(cache, 40) as step:
        step.write(0, normal(40, KV_HEADS, K_DIM), normal(40, KV_HEADS, V_DIM))
        with pytest.raises(pykv.InvalidArgument, match="layer 1 has V as a view of K; give no v"):
            step.write(1, k, k[:, :, :64])
        with pytest.raises(pykv.InvalidArgument, match="layer 0 stores V; give v"):
            step.write(0, normal(40, KV_HEADS, K_DIM))
        step.write(1, k)
        out = step.attend(1, q, scale=K_DIM**-0.5)
    np.testing.assert_allclose(out, expected(q, k, k[:, :, :64]), atol=1e-5)
    k_back, v_back = cache.read_rows(cache.sequences()[0], 1, (0, 40))
    assert np.array_equal(k_back, k) and np.array_equal(v_back, k[:, :, :64])


def test_a_layer_that_borrows_kv_stores_none_and_attends_to_the_other_s() -> None:
    cache = make(layer(), layer(kv_from_layer=0, window=("standard", 5)))
    assert cache.stats()["bytes_per_cell"] == (K_DIM + V_DIM) * KV_HEADS * 4
    q, k, v = normal(40, HEADS, K_DIM), normal(40, KV_HEADS, K_DIM), normal(40, KV_HEADS, V_DIM)
    with begin(cache, 40) as step:
        with pytest.raises(pykv.InvalidArgument, match="layer 0 was not written"):
            step.attend(1, q)
        with pytest.raises(pykv.InvalidArgument, match="layer 1 takes its K and V from layer 0"):
            step.write(1, k, v)
        step.write(0, k, v)
        out = step.attend(1, q)
    np.testing.assert_allclose(out, expected(q, k, v, window=("standard", 5)), atol=1e-5)
    seq = cache.sequences()[0]
    for own, borrowed in zip(
        cache.read_rows(seq, 0, (0, 40)), cache.read_rows(seq, 1, (0, 40)), strict=True
    ):
        assert np.array_equal(own, borrowed)


ROPE = pykv.Rope(32)
REFUSED = [
    (pykv.InvalidArgument, "must be an earlier layer", [layer(kv_from_layer=0)]),
    (
        pykv.InvalidArgument,
        "name layer 0, from which",
        [layer(), layer(kv_from_layer=0), layer(kv_from_layer=1)],
    ),
    (pykv.InvalidArgument, "the same pool", [layer(), layer(kv_from_layer=0, v_dim=32)]),
    (pykv.InvalidArgument, "the same pool", [layer(), layer(kv_from_layer=0, kv_heads=1)]),
    (pykv.InvalidArgument, "of a view exceeds", [layer(v_dim=64, v_view_of_k=True)]),
    (pykv.Unsupported, "a symmetric window", [layer(window=("symmetric", 9))]),
    (pykv.InvalidArgument, "sliding", [layer(window=("sliding", 9))]),
    (pykv.InvalidArgument, "window=None", [layer(window=("none", 9))]),
    (pykv.InvalidArgument, "window size is 0", [layer(window=("standard", 0))]),
    (pykv.InvalidArgument, "window size is -1", [layer(window=("standard", -1))]),
    (pykv.InvalidArgument, "window size is", [layer(window=("standard", 2**32))]),
    (TypeError, "window size", [layer(window=("standard", 9.0))]),
    (TypeError, "window must be", [layer(window=9)]),
    (TypeError, "window must be", [layer(window="standard")]),
    (TypeError, "sinks must be a bool", [layer(sinks=1)]),
    (TypeError, "v_view_of_k", [layer(v_view_of_k=None)]),
    (TypeError, "kv_from_layer", [layer(), layer(kv_from_layer=True)]),
    (TypeError, "rope must be a Rope", [layer(rope=10000.0)]),
    (pykv.InvalidArgument, "within the head size 32", [layer(rope=pykv.Rope(34))]),
    (pykv.InvalidArgument, "must be even", [layer(rope=pykv.Rope(3))]),
    (pykv.InvalidArgument, "within the head size", [layer(rope=pykv.Rope(32, offset=2))]),
    (pykv.InvalidArgument, "base 0", [layer(rope=pykv.Rope(32, 0.0))]),
    (pykv.InvalidArgument, "base is nan", [layer(rope=pykv.Rope(32, float("nan")))]),
    (pykv.InvalidArgument, "frequencies", [layer(rope=pykv.Rope(32, frequencies=[1.0]))]),
    (
        pykv.InvalidArgument,
        r"frequencies\[0\] is inf",
        [layer(rope=pykv.Rope(2, frequencies=[1e400]))],
    ),
    (pykv.InvalidArgument, "dims is -2", [layer(rope=pykv.Rope(-2))]),
    (TypeError, "dims", [layer(rope=pykv.Rope(2.0))]),  # type: ignore[arg-type]
    (TypeError, "interleaved", [layer(rope=pykv.Rope(2, interleaved=0))]),  # type: ignore[arg-type]
    (
        pykv.InvalidArgument,
        "one of the 16 elements of V",
        [layer(v_view_of_k=True, rope=ROPE)],
    ),
    (pykv.Unsupported, "k_dim is 584", [layer(k_dim=584)]),
    (pykv.Unsupported, "v_dim is 520", [layer(v_dim=520)]),
    (pykv.Unsupported, "k_dim is 36", [layer(k_dim=36)]),
]


@pytest.mark.parametrize(("kind", "message", "layers"), REFUSED)
def test_layers_that_cannot_be(
    kind: type[Exception], message: str, layers: list[pykv.Layer]
) -> None:
    with pytest.raises(kind, match=message):
        make(*layers)


def test_layers_that_can_be_are_told_as_they_were_given() -> None:
    ropes = [None, ROPE, pykv.Rope.none(), pykv.Rope(16, 5e5, False, (0.5,) * 8, offset=16), ROPE]
    layers = [layer(rope=rope) for rope in ropes]
    layers.append(layer(v_view_of_k=True, rope=pykv.Rope(16, offset=16)))
    layers.append(layer(window=("standard", 2**32 - 1), sinks=True))
    layers.append(layer(window=("chunked", np.int64(7)), kv_from_layer=0))
    assert make(*layers).layers == tuple(layers)


def step_arguments() -> list[tuple[type[Exception], str, dict[str, Any]]]:
    nan, inf = float("nan"), float("inf")
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (pykv.InvalidArgument, f"{name} .* must be finite", {name: value})
        for name, value in [("scale", nan), ("scale", -inf), ("scale", 1e300), ("softcap", nan)]
    ]
    cases += [(pykv.InvalidArgument, "softcap", {"softcap": value}) for value in (-1.0, inf)]
    cases += [(TypeError, "scale must be a float", {"scale": x}) for x in ("1", True, [1.0], 1j)]
    cases += [(TypeError, "softcap must be a float", {"softcap": x}) for x in (None, True, {})]
    cases += [
        (pykv.InvalidArgument, "out of range or out of order", {"only": rows})
        for rows in ([0, 1, 3], [0, 2, 1], [0, 0, 1], [0, 1, 2**31 - 1])
    ]
    cases.append((pykv.InvalidArgument, "only", {"only": [-1, 0, 1]}))
    cases.append((pykv.InvalidArgument, "only", {"only": [0, 1, 2**40]}))
    huge = np.array([0, 1, 2**63], np.uint64)
    cases.append((pykv.InvalidArgument, r"only\[2\] is 9223372036854775808", {"only": huge}))
    cases.append((pykv.InvalidArgument, "q has shape", {"only": [0, 1]}))
    cases += [
        (TypeError, "only is an array", {"only": x}) for x in ("abc", 1, [0.0, 1.0, 2.0], [[0]])
    ]
    for name in ("sinks", "alibi_slopes"):
        for shape in ((3,), (5,), (0,), (4, 1), (1, 4), ()):
            cases.append((pykv.InvalidArgument, f"{name} has shape", {name: np.zeros(shape)}))
        for wrong in (np.zeros(4, int), np.zeros(4, bool), ["a"] * 4, "abcd", 3, [None] * 4):
            cases.append((TypeError, f"{name} is an array of", {name: wrong}))
        for value in (nan, inf, 1e300):
            cases.append((pykv.InvalidArgument, "must be finite", {name: [0.0, value, 0.0, 0.0]}))
    return cases


@pytest.mark.parametrize(("kind", "message", "arguments"), step_arguments())
def test_hostile_arguments_of_attend(
    kind: type[Exception], message: str, arguments: dict[str, Any]
) -> None:
    q, k, v = normal(3, HEADS, K_DIM), normal(3, KV_HEADS, K_DIM), normal(3, KV_HEADS, V_DIM)
    cache = make(layer(sinks="sinks" in arguments))
    with begin(cache, 3) as step:
        step.write(0, k, v)
        with pytest.raises(kind, match=message), np.errstate(all="ignore"):
            step.attend(0, q, **arguments)
    cache.check_integrity()
