"""Arithmetic of benchmarks/attention.py on a small machine; what is timed here is not judged."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import attention
from benchmarks.kernels import Limits, Measured
from pykv import _core


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    limits = Limits(1e9, 1e9, 1e9)
    monkeypatch.setattr(attention, "measure", lambda backend, run: Measured(limits, [0.5], 0.0))
    return _core.Backend(threads=1)


def test_decode_counts_the_bytes_of_all_layers(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "DECODE_TOKENS", 128)
    monkeypatch.setattr(attention, "LAYERS", 2)
    row, _ = attention.decode(backend, "f16", "fast", 1)
    assert row["value"] == 2 * 128 * 3 * 64 * 2 * 2 / 0.5
    assert not row["ok"]


@pytest.mark.parametrize(("own", "ok"), [(0.6, True), (0.4, False)])
def test_shared_prefixes_may_not_lose(
    backend: Any, monkeypatch: pytest.MonkeyPatch, own: float, ok: bool
) -> None:
    monkeypatch.setattr(attention.Layers, "time", lambda self, step, repeats: [own])
    row, _ = attention.shared(backend, "q8_0", "fast", (2, 64), 1)
    assert row["value"] == 4 * 2 * 9 * 64 * 65 / 0.5
    assert (row["gain"], row["ok"]) == (own / 0.5, ok)


def test_sessions_share_cells_or_have_their_own(backend: Any) -> None:
    made = attention.Layers(backend, "f16", "fast", 1, 1024)
    first = made.grown(128)
    together = [first, made.cache.fork(first)]
    with made.step(together, 1):
        pass
    used = made.cache.stats()["cells_active"]
    assert used == 128 + 2
    made.grown(128)
    assert made.cache.stats()["cells_active"] == used + 128
