"""What benchmarks ask of a backend. Only that it answers: how fast is not a test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.kernels.arrays import normal, stored_matrix


@pytest.mark.parametrize("limit", ["f32_operations", "int8_operations", "read_bytes"])
def test_limits_are_positive(backend: Any, limit: str) -> None:
    assert 1e6 < backend.measure_limit(limit, 0.0) < 1e18


def test_wrong_limits_are_refused(backend: Any) -> None:
    with pytest.raises(_core.InvalidArgument, match="f32_operations, int8_operations"):
        backend.measure_limit("flops")
    for seconds in (-1.0, 61.0, float("nan")):
        with pytest.raises(_core.InvalidArgument, match="0 to 60"):
            backend.measure_limit("f32_operations", seconds)


def test_every_round_is_timed(backend: Any, rng: np.random.Generator) -> None:
    weights = [
        backend.create_weight("q4_1", 16, 32, stored_matrix(rng, "q4_1", 16, 32)[0])
        for _ in range(3)
    ]
    times = backend.time_linear(weights, 16, normal(rng, 2, 32), 5)
    assert len(times) == 5 and all(t > 0 for t in times)
    with pytest.raises(_core.InvalidArgument, match="out has width 15, needed is 16"):
        backend.time_linear(weights, 15, normal(rng, 2, 32), 1)


def test_every_round_of_attention_is_timed(backend: Any) -> None:
    layer = _core.LayerSpec(kv_heads=1, k_dim=16)
    cache = _core.Cache(layers=[layer] * 2, backend=backend, cells=64)
    plan = cache.plan([(cache.create(), 3)])
    assert plan is not None
    step = cache.commit(plan)
    kv, q = np.zeros((3, 16), np.float32), np.zeros((3, 32), np.float32)
    for i in range(2):
        step.write(i, kv, kv)
    times = step.time_attend([0, 1], q, 2, 0.25, repeats=4)
    assert len(times) == 4 and all(t > 0 for t in times)
    with pytest.raises(_core.InvalidArgument, match="name at least one"):
        step.time_attend([], q, 2, 0.25)
    with pytest.raises(_core.InvalidArgument, match="q is 32 wide, the layer needs 48"):
        step.time_attend([0], q, 3, 0.25)
    with pytest.raises(_core.InvalidArgument, match="layer is 2, the cache has 2 layers"):
        step.time_attend([2], q, 2, 0.25)
    step.finish()
