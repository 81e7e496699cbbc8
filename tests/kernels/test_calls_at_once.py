"""A backend is safe to share: calls from several threads wait for each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pykv import _core

ROWS, WIDTH, OUTPUTS = 64, 64, 512


def _weight(backend: _core.Backend, seed: int) -> int:
    values = np.random.default_rng(seed).normal(size=OUTPUTS * WIDTH).astype(np.float32)
    return backend.create_weight("f32", OUTPUTS, WIDTH, values.view(np.uint8))


def test_threads_that_call_at_once_get_their_own_results() -> None:
    backend = _core.Backend(threads=2)
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    weights = [_weight(backend, seed) for seed in range(4)]
    alone = [backend.linear(weight, OUTPUTS, x) for weight in weights]

    def calls(index: int) -> bool:
        same = True
        rope = _core.RopeParams(dims=WIDTH, base=100.0 + index)
        for turn in range(200):
            if index == 0:
                backend.set_threads(1 + turn % 3)
            got = backend.linear(weights[index], OUTPUTS, x)
            same &= bool(np.array_equal(got, alone[index]))
            backend.rope(x, np.arange(ROWS), heads=1, rope=rope)
        return same

    with ThreadPoolExecutor(len(weights)) as threads:
        assert all(threads.map(calls, range(len(weights))))
