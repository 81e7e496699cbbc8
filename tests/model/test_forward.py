"""Logits of tiny models against the NumPy forward pass, and what forward() refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pykv import _core
from tests.model.machine import Machine, random_tokens
from tests.reference.decoder_forward import DecoderReference
from tests.reference.gguf_files import TinyModel

TinyPath = Callable[[TinyModel], Path]

SPECS = {
    **{kind: TinyModel(weight_type=kind) for kind in ("F32", "F16", "Q8_0", "Q4_1")},
    "quantized embedding": TinyModel(weight_type="Q4_1", embedding_type="Q8_0"),
    "untied": TinyModel(weight_type="Q8_0", embedding_type="F16", tied=False),
    "a KV head per head": TinyModel(kv_heads=4),
    "one KV head": TinyModel(kv_heads=1, heads=8),
    "heads fill the width": TinyModel(width=128, heads=4, head_dim=32, rope_base=100000.0),
    "wide heads": TinyModel(heads=2, kv_heads=1, head_dim=256),
}


def relative_error(logits: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", SPECS)
def test_logits_equal_the_reference(tiny_path: TinyPath, name: str) -> None:
    path = tiny_path(SPECS[name])
    machine = Machine(path)
    tokens = random_tokens(300, machine.vocab, seed=2)  # crosses a partition of 256 positions
    expected = DecoderReference(path, np.float64).logits(tokens)
    assert relative_error(machine.cold(tokens), expected) <= 1e-4


@pytest.mark.parametrize(("kv_type", "bound"), [("f32", 1e-4), ("f16", 3e-3), ("q8_0", 6e-2)])
def test_stored_precision_bounds_the_error(tiny_path: TinyPath, kv_type: str, bound: float) -> None:
    path = tiny_path(TinyModel())
    machine = Machine(path, type_k=kv_type, type_v=kv_type)
    tokens = random_tokens(300, machine.vocab, seed=3)
    expected = DecoderReference(path, np.float64).logits(tokens)
    assert relative_error(machine.cold(tokens), expected) <= bound


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_every_instruction_set_equals_the_reference(tiny_path: TinyPath, isa: str) -> None:
    path = tiny_path(TinyModel(weight_type="Q4_1"))
    if isa not in _core.Backend.available_isas():
        with pytest.raises(_core.Error, match=isa):
            _core.Backend(isa=isa)
        return
    machine = Machine(path, isa=isa)
    tokens = random_tokens(40, machine.vocab, seed=4)
    expected = DecoderReference(path, np.float64).logits(tokens)
    assert relative_error(machine.cold(tokens), expected) <= 1e-4


def test_the_model_describes_itself(tiny: Machine) -> None:
    config = tiny.model.config
    assert config["architecture"] == "llama"
    assert (config["layers"], config["heads"], config["kv_heads"]) == (2, 4, 2)
    assert (config["head_dim"], config["context"]) == (32, 1024)
    assert len(tiny.model.layer_table) == 2
    tensors = tiny.gguf.tensors()
    assert tiny.model.parameters == sum(int(np.prod(t.shape)) for t in tensors)
    assert tiny.model.weight_bytes >= sum(t.nbytes for t in tensors)


@pytest.mark.parametrize("rows", [[], [199], [0, 7, 64, 199], list(range(100))], ids=len)
def test_only_the_rows_asked_for(tiny: Machine, rows: list[int]) -> None:
    tokens = random_tokens(200, tiny.vocab, seed=5)
    expected = tiny.cold(tokens)
    seq = tiny.cache.create()
    step = tiny.begin(seq, tokens)
    logits = tiny.model.forward(step, tokens, rows)
    step.rollback()
    tiny.cache.erase(seq)
    assert logits.shape == (len(rows), tiny.vocab)
    assert np.array_equal(logits, expected[rows])


BAD_CALLS: dict[str, tuple[list[int], list[int], str]] = {
    "id beyond the vocabulary": ([1, 2, 1000000], [0], "outside the vocabulary"),
    "negative id": ([1, 2, -1], [0], "-1"),
    "huge id": ([1, 2, 1 << 63], [0], "tokens"),
    "too few tokens": ([1, 2], [0], "got 2 tokens, the step has 3 rows"),
    "too many tokens": ([1, 2, 3, 4], [0], "got 4 tokens, the step has 3 rows"),
    "row beyond the step": ([1, 2, 3], [3], "logit row 3"),
    "negative row": ([1, 2, 3], [-1], "logit_rows"),
    "huge row": ([1, 2, 3], [(1 << 63) - 1], "logit_rows"),
    "descending rows": ([1, 2, 3], [1, 0], "logit row 0"),
    "repeated row": ([1, 2, 3], [1, 1], "logit row 1"),
    "more rows than there are": ([1, 2, 3], [0, 1, 2, 3], "4 rows"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_refused_call_leaves_a_step_that_can_go_on_or_back(tiny: Machine, name: str) -> None:
    tokens, rows, message = BAD_CALLS[name]
    expected = tiny.cold([1, 2, 3])
    seq = tiny.cache.create()
    before = tiny.cache.stats()["cells_free"]
    step = tiny.begin(seq, [1, 2, 3])
    with pytest.raises(_core.InvalidArgument, match=message):
        tiny.model.forward(step, tokens, rows)
    step.rollback()
    assert tiny.cache.stats()["cells_free"] == before
    step = tiny.begin(seq, [1, 2, 3])
    with pytest.raises(_core.InvalidArgument, match=message):
        tiny.model.forward(step, tokens, rows)
    assert np.array_equal(tiny.model.forward(step, [1, 2, 3], [0, 1, 2]), expected)
    step.finish()
    tiny.cache.check_integrity()
    tiny.cache.erase(seq)


def test_tokens_that_are_no_integers(tiny: Machine) -> None:
    seq = tiny.cache.create()
    step = tiny.begin(seq, [1])
    for tokens in ([1.0], ["1"], [None], np.array([1.5])):
        with pytest.raises(TypeError):
            tiny.model.forward(step, tokens, [0])
    step.rollback()
    tiny.cache.erase(seq)


def test_a_step_of_another_cache_is_refused(tiny: Machine, tiny_path: TinyPath) -> None:
    stranger = Machine(tiny_path(TinyModel(head_dim=64)))
    step = stranger.begin(stranger.cache.create(), [1])
    with pytest.raises(_core.InvalidArgument, match="another backend"):
        tiny.model.forward(step, [1], [0])
    other = _core.Cache(layers=stranger.model.layer_table, backend=tiny.backend, cells=64)
    plan = other.plan([(other.create(), [1])])
    assert plan is not None
    step = other.commit(plan)
    with pytest.raises(_core.InvalidArgument, match="not made for this model"):
        tiny.model.forward(step, [1], [0])


def test_a_finished_step_is_refused(tiny: Machine) -> None:
    seq = tiny.cache.create()
    step = tiny.begin(seq, [1])
    tiny.model.forward(step, [1], [])
    step.finish()
    with pytest.raises(_core.InvalidArgument, match="finished"):
        tiny.model.forward(step, [1], [])
    tiny.cache.erase(seq)
