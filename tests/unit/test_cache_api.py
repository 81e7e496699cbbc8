"""The Python face of the cache beside steps: one process, names, examples."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pykv
import pykv.cache
from pykv import _core
from pykv.layers import core_layers

ROOT = Path(__file__).resolve().parents[2]
KV_HEADS, DIM = 2, 32


def make() -> pykv.Cache:
    return pykv.Cache(pykv.CacheConfig([pykv.Layer(KV_HEADS, DIM, DIM)] * 2, 256), threads=1)


def plan_of(cache: pykv.Cache, seq: int, tokens: int | list[int]) -> pykv.Plan:
    plan = cache.plan([(seq, tokens)])
    assert plan is not None
    return plan


def append(cache: pykv.Cache, seq: int, tokens: int | list[int]) -> None:
    with cache.step(plan_of(cache, seq, tokens)) as step:
        for layer in (0, 1):
            values = np.ones((step.rows, KV_HEADS, DIM))
            step.write(layer, values, values)


def test_watermarks_change_live() -> None:
    cache = make()
    assert cache.watermarks == (0.05, 0.10)
    cache.watermarks = (0.2, 0.4)
    assert cache.watermarks == (0.2, 0.4)
    with pytest.raises(pykv.InvalidArgument):
        cache.watermarks = (0.5, 0.4)
    assert cache.watermarks == (0.2, 0.4)


def test_a_cache_stays_in_its_process() -> None:
    cache = make()
    for refused in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="be pickled"):
            refused(cache)
    with pytest.raises(TypeError, match="be pickled"):
        pickle.dumps(cache.step(plan_of(cache, cache.create(), 1)))


def _use_in_child(cache: pykv.Cache, queue: multiprocessing.Queue[str]) -> None:
    try:
        cache.create()
    except pykv.Unsupported as error:
        queue.put(f"{error} {cache!r}")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_use_after_fork_is_refused() -> None:
    cache = make()
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=_use_in_child, args=(cache, queue))
    child.start()
    message = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert "this is a fork" in message and "of process" in message
    cache.create()  # the parent goes on


def test_from_core_shows_the_same_cache() -> None:
    cache = make()
    other = pykv.Cache.from_core(cache.core)
    seq = cache.create()
    assert other.sequences() == [seq] and other.layers == cache.layers
    append(other, seq, [1, 2])
    assert cache.bounds(seq) == (0, 2)


def test_every_field_of_a_layer_survives_the_core() -> None:
    rope = pykv.Rope(16, 5e5, False, (0.5, 0.25, 0.125, 1, 2, 3, 4, 5), offset=32)
    layers = (
        pykv.Layer(2, 48, 32, ("standard", 5), rope, sinks=True, v_view_of_k=True),
        pykv.Layer(2, 48, 32, ("chunked", 7), pykv.Rope.none(), v_view_of_k=True, kv_from_layer=0),
        pykv.Layer(1, 64, 40, state=(3, 5)),
        pykv.Layer.recurrent(7, 0),
    )
    default = pykv.Layer(1, 64, 40)
    for field in dataclasses.fields(pykv.Layer):  # a new one must get a value here
        assert any(getattr(layer, field.name) != getattr(default, field.name) for layer in layers)
    cache = pykv.Cache(pykv.CacheConfig(layers=layers, cells=64))
    assert cache.layers == pykv.Cache.from_core(cache.core).layers == layers
    specs, ropes = core_layers(cache.layers)
    assert (specs, ropes) == (cache.core.layers, cache.core.ropes)
    assert {name for name in vars(_core.LayerSpec) if not name.startswith("_")} == {
        *{field.name for field in dataclasses.fields(pykv.Layer)} - {"window", "rope", "state"},
        "window_kind", "window_size", "rope_id",
        "pool",  # only one is supported
    }  # fmt: skip


def test_errors_name_what_the_caller_called() -> None:
    def refused(**given: Any) -> str:
        with pytest.raises((pykv.Error, TypeError)) as error:
            pykv.Cache(pykv.CacheConfig(**{"layers": [pykv.Layer(1, 64, 64)], "cells": 64} | given))
        return str(error.value)

    assert refused(layers=[]) == "[Cache] 0 layers; must be 1 to 4096"
    assert refused(layers=[pykv.Layer(1, 60, 64)]).startswith("[Cache] layer 0: k_dim is 60;")
    assert refused(type_k="q9").startswith('[DType] "q9" is not a K or V type')
    assert refused(watermarks=(0.5, 0.1)).startswith("[Watermarks] low 0.5")
    wide = pykv.Layer(1, 80, 64)
    assert refused(layers=[wide], type_k="q8_0").startswith("[Cache] q8_0 needs a head size that")
    assert refused(layers=wide) == "[CacheConfig] layers must be a sequence of Layer, not Layer"
    assert refused(layers=[wide, {}]) == "[CacheConfig] layers[1] must be a Layer, not dict"


def test_a_step_keeps_its_cache_alive() -> None:
    cache = make()
    step = cache.step(plan_of(cache, cache.create(), 1))
    del cache
    with step:
        step.write(0, np.zeros((1, KV_HEADS, DIM)), np.zeros((1, KV_HEADS, DIM)))
        step.rollback()


def test_a_core_step_says_when_its_cache_is_gone() -> None:
    cache = make()
    step = cache.core.commit(plan_of(cache, cache.create(), 1))
    del cache
    values = np.zeros((1, KV_HEADS * DIM), np.float32)
    with pytest.raises(pykv.InvalidArgument, match="gone"):
        step.write(0, values, values)
    with pytest.raises(pykv.InvalidArgument, match="gone"):
        step.finish()


def test_repr_and_names() -> None:
    cache = make()
    append(cache, cache.create(), [1, 2, 3])
    assert repr(cache) == (
        "<pykv.Cache 2 layers, 1 sequences, cells: 3 active, 0 idle, 253 free of 256>"
    )
    plan = plan_of(cache, 1, 5)
    assert repr(plan) == "Plan(tokens=5, blocks_to_commit=0)"
    assert "5 rows" in repr(cache.step(plan))
    assert set(pykv.__all__) <= set(dir(pykv))
    for name in pykv.__all__:
        assert getattr(pykv, name).__name__
    assert pykv.__version__ == _core.build_info()["version"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pykv.nothing  # type: ignore[attr-defined]


def test_the_docstring_example_runs() -> None:
    assert doctest.testmod(pykv.cache).failed == 0


def test_the_readme_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "two_sessions.py")],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "bob reuses 500 of 501 tokens",
        "stored 504 cells for three sessions of about 500 tokens",
    ]


def test_import_loads_neither_numpy_nor_a_server() -> None:
    code = (
        "import sys, pykv; heavy = ('numpy', 'starlette', 'flask', 'uvicorn', 'tokenizers'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
