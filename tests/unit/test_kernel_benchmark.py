"""Arithmetic of benchmarks/kernels.py; nothing here is timed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import kernels
from benchmarks.kernels import Limits


def test_a_row_knows_its_share_and_target() -> None:
    assert kernels.record("a", 6.0, "bytes/s", 10.0, 0.6)["ok"]
    missed = kernels.record("b", 5.9, "bytes/s", 10.0, 0.6)
    assert missed["ratio"] == pytest.approx(0.59) and not missed["ok"]
    assert kernels.record("c", 0.1, "bytes/s", 10.0, None)["ok"]


def test_a_row_is_measured_again_while_limits_move(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Limits(10, 10, 10), Limits(10, 10, 8), Limits(10, 10, 8.5)])
    monkeypatch.setattr(kernels.Limits, "measure", lambda backend: next(answers))
    runs: list[int] = []

    def run() -> list[float]:
        runs.append(1)
        return [float(len(runs))]

    backend: Any = None
    measured = kernels.measure(backend, run)
    assert len(runs) == 2 and measured.time == 2.0
    assert measured.limits.int8 == pytest.approx(8.25)
    assert measured.drift == pytest.approx(0.5 / 8.5)
