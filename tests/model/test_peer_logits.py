"""Logits of architectures with windows and recurrent layers against what llama.cpp computed for the
same files: recorded, so no peer is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model.machine import Machine
from tests.reference.peer_cases import CASES, FACTS, TOKEN_STRIDE, case_tokens, write_case

FOUND: dict[str, Any] = json.loads(FACTS.read_text(encoding="utf-8"))
LIMIT = 2e-4  # of the largest logit; the peer's gelu is a table of half floats


def test_every_case_is_recorded() -> None:
    assert set(FOUND["cases"]) == set(CASES)


@pytest.mark.parametrize("window_pools", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_llama_cpp(name: str, window_pools: bool, tmp_path: Path) -> None:
    machine = Machine(write_case(tmp_path / "model.gguf", name))
    machine.cache = machine.make_cache("f32", "f32", window_pools=window_pools)
    # In steps that are shorter than a window, so that cells leave while the sequence grows.
    rows = machine.cold(case_tokens(), chunk=30)[FOUND["positions"]]
    facts = FOUND["cases"][name]
    error = np.abs(rows[:, ::TOKEN_STRIDE] - np.array(facts["logits"])).max()
    assert error <= LIMIT * facts["largest"]
    assert rows.argmax(axis=1).tolist() == facts["best"]
