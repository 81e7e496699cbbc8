"""Arithmetic of benchmarks/control_plane.py; nothing here is timed."""

from __future__ import annotations

from benchmarks import control_plane


def test_a_row_is_held_against_the_target_of_its_operation() -> None:
    assert control_plane.record("star, C++: fork", 5.0, "us")["ok"]
    missed = control_plane.record("comb, Python: match 4096", 51.0, "us")
    assert missed["target"] == 50.0 and not missed["ok"]


def test_a_row_without_target_is_for_information() -> None:
    assert control_plane.record("tree, C++: finish 16 x 1", 1e9, "us")["ok"]
    assert control_plane.record("windows, C++: plan + commit 16 x 1", 1e9, "us")["ok"]
    assert not control_plane.record("windows, C++: fork", 1e9, "us")["ok"]
    assert control_plane.record("llama.cpp, 8,000 cells: seq_cp", 600.0, "us")["target"] is None
