"""Cache.save and Cache.restore: what fits, what is refused, what a failure leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pykv

ROPE = pykv.Rope(dims=8)
FULL = pykv.Layer(1, 8, 8, rope=ROPE)
WINDOW = replace(FULL, window=("standard", 16))
CHUNKED = replace(FULL, window=("chunked", 16))
STATE = pykv.Layer.recurrent(2, 3)
MIXES = {
    "full": [FULL, FULL],
    "window": [FULL, WINDOW],
    "chunked": [FULL, CHUNKED],
    "state": [STATE],
    "hybrid": [STATE, FULL],
    "hybrid with windows": [FULL, WINDOW, CHUNKED, STATE],
}


def make(layers: list[pykv.Layer], **options: Any) -> pykv.Cache:
    config: dict[str, Any] = {"cells": 256, "type_k": "f32", "type_v": "f32"} | options
    return pykv.Cache(pykv.CacheConfig(layers, **config), threads=1)


def append(cache: pykv.Cache, sequence: int, tokens: list[int] | int) -> None:
    """Values that tell where each row belongs."""
    with cache.step(cache.plan([(sequence, tokens)])) as step:
        for index, layer in enumerate(cache.layers):
            if layer.kv_heads:
                rows = np.repeat(step.positions + 1000 * index, 8).reshape(-1, 1, 8)
                step.write(index, rows.astype(np.float32), -rows.astype(np.float32))
            if layer.state:
                step.write_states(index, step.read_states(index) + 1 + index)


def content(cache: pykv.Cache, sequence: int) -> list[Any]:
    """All that the next token of the sequence sees."""
    out: list[Any] = []
    end = cache.bounds(sequence).end
    for index, layer in enumerate(cache.layers):
        if layer.kv_heads:
            reach = 15 if layer.window == WINDOW.window else end % 16 if layer.window else end
            out += [rows[len(rows) - reach :] for rows in cache.read_rows(sequence, index)]
        if layer.state:
            out.append(cache.core.export_state(sequence, index))
    return out


@pytest.mark.parametrize("count", [1, 15, 16, 33, 100])
@pytest.mark.parametrize("mix", MIXES)
def test_everything_that_the_next_token_sees_comes_back(mix: str, count: int) -> None:
    source, target = make(MIXES[mix]), make(MIXES[mix], cells=128)
    tokens = list(range(count))
    sequence = source.create()
    for at in range(0, count, 20):
        append(source, sequence, tokens[at : at + 20])
    restored = target.restore(source.save(sequence), tokens)
    assert restored.reusable == count
    target.check_integrity()
    for actual, expected in zip(
        content(target, restored.sequence), content(source, sequence), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
    assert target.open([*tokens, 7]).reused == count
    append(target, restored.sequence, [5])
    target.check_integrity()


@pytest.mark.parametrize("window", [("chunked", 16), ("standard", 1)])
def test_a_window_of_which_the_next_token_sees_nothing(window: tuple[str, int]) -> None:
    """What continues from a resume point there has no cells in that pool, and needs none."""
    layers = [FULL, replace(FULL, window=window)]
    source, target = make(layers), make(layers)
    tokens = list(range(32))
    append(source, source.create(), tokens)
    source.erase_all()
    sequence, reused, *_ = source.open([*tokens, 7])
    assert reused == 32 and len(source.read_rows(sequence, 1)[0]) == 0
    restored = target.restore(source.save(sequence), tokens)
    assert restored.reusable == 32
    target.check_integrity()
    for cache, seq in ((source, sequence), (target, restored.sequence)):
        append(cache, seq, [7])
        cache.check_integrity()
    for layer in (0, 1):
        for theirs, ours in zip(
            source.read_rows(sequence, layer),
            target.read_rows(restored.sequence, layer),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs)


def test_it_comes_back_to_the_cache_it_left() -> None:
    """Exact tokens are stored once, also then."""
    cache = make([FULL, WINDOW])
    sequence = cache.create()
    append(cache, sequence, list(range(50)))
    restored = cache.restore(cache.save(sequence), list(range(50)))
    assert cache.shared_cells(restored.sequence) == 50
    cache.check_integrity()


def test_a_window_that_keeps_all_gives_to_one_that_does_not() -> None:
    full, own = make([FULL, WINDOW], windows="full"), make([FULL, WINDOW])
    for cache in (full, own):
        append(cache, cache.create(), list(range(50)))
    append(own, 1, [50])
    own.plan([(1, 1)])
    append(full, 1, [50])
    restored = own.restore(full.save(1), list(range(51)))
    assert restored.reusable == 51
    for actual, expected in zip(content(own, restored.sequence), content(full, 1), strict=True):
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(pykv.InvalidArgument, match=r"layer 1 15 tokens were saved, .* keeps 51"):
        full.restore(own.save(1))


def test_without_ids_nobody_matches_it() -> None:
    source, target = make([FULL]), make([FULL])
    sequence = source.create()
    append(source, sequence, 20)
    saved = source.save(sequence)
    assert target.restore(saved).reusable == 0
    with pytest.raises(pykv.InvalidArgument, match="give no tokens"):
        target.restore(saved, list(range(20)))


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([FULL], {}, "number of layers: saved was 2, this cache has 1"),
        ([FULL, replace(WINDOW, v_dim=16)], {}, "layer 1: saved was .*v_dim=8.*v_dim=16"),
        ([FULL, WINDOW], {"type_v": "f16"}, "types of K and V: saved was .*'f32'.*'f16'"),
    ],
)
def test_another_model_is_refused_with_both(
    layers: list[pykv.Layer], options: dict[str, Any], message: str
) -> None:
    source, target = make([FULL, WINDOW]), make(layers, **options)
    append(source, source.create(), [1, 2, 3])
    with pytest.raises(pykv.InvalidArgument, match=message):
        target.restore(source.save(1), [1, 2, 3])
    assert target.sequences() == []


def test_what_cannot_be_saved_is_said() -> None:
    cache = make([FULL])
    sequence = cache.create()
    with pytest.raises(pykv.InvalidArgument, match="has 0 tokens up to position 0"):
        cache.save(sequence)
    append(cache, sequence, list(range(10)))
    cache.remove(sequence, (2, 4))
    with pytest.raises(pykv.InvalidArgument, match="has 8 tokens up to position 10"):
        cache.save(sequence)


def test_the_wrong_number_of_tokens_is_refused() -> None:
    cache = make([FULL])
    append(cache, cache.create(), [1, 2, 3])
    with pytest.raises(pykv.InvalidArgument, match="2 tokens were given, 3 were saved"):
        cache.restore(cache.save(1), [1, 2])


def test_a_pool_that_is_full_changes_nothing() -> None:
    source, target = make([FULL, WINDOW]), make([FULL, WINDOW], cells=64)
    append(source, source.create(), list(range(80)))
    with pytest.raises(pykv.OutOfCells):
        target.restore(source.save(1), list(range(80)))
    assert target.sequences() == []
    target.check_integrity()


def test_a_window_pool_needs_room_for_the_window_only() -> None:
    source, target = make([FULL, WINDOW]), make([FULL, WINDOW], window_cells=64)
    for at in range(0, 200, 20):
        append(source, source.sequences()[0] if at else source.create(), list(range(at, at + 20)))
    assert target.restore(source.save(1), list(range(200))).reusable == 200


def test_without_a_budget_of_points_only_the_sequence_is_there() -> None:
    source, target = make([FULL, STATE]), make([FULL, STATE], resume_bytes=0)
    append(source, source.create(), [1, 2, 3])
    restored = target.restore(source.save(1), [1, 2, 3])
    assert restored.reusable == 3  # as long as the sequence lives
    target.erase(restored.sequence)
    assert target.match([1, 2, 3]) == 0


@pytest.mark.parametrize("mix", ["window", "chunked", "hybrid"])
def test_an_import_computes_nothing_and_rolls_back(mix: str) -> None:
    source, target = make(MIXES[mix]), make(MIXES[mix])
    append(source, source.create(), list(range(48)))
    sequence = target.create()
    with target.step(target.core.plan_import(sequence, 48)) as step:
        kv = 1 if mix == "hybrid" else 0
        with pytest.raises(pykv.InvalidArgument, match=r"\[Step.write\] the step imports"):
            step.write(kv, np.zeros((48, 1, 8)), np.zeros((48, 1, 8)))
        with pytest.raises(pykv.InvalidArgument, match=r"\[Step.attend\] the step imports"):
            step.attend(kv, np.zeros((48, 1, 8)))
        step.rollback()
    target.check_integrity()
    assert target.bounds(sequence) == (0, 0)
    append(target, sequence, list(range(48)))
    target.check_integrity()
    with pytest.raises(pykv.InvalidArgument, match="has tokens already"):
        target.core.plan_import(sequence, 48)


def test_only_recurrent_layers_have_a_state_to_export() -> None:
    cache = make([FULL, STATE])
    sequence = cache.create()
    assert np.array_equal(cache.core.export_state(sequence, 1), np.zeros(5, np.float32))
    with pytest.raises(pykv.InvalidArgument, match="layer 0 is not recurrent"):
        cache.core.export_state(sequence, 0)


@pytest.mark.parametrize("what", [None, 5, {}, "saved"])
def test_only_what_save_gave_can_be_restored(what: Any) -> None:
    cache = make([FULL])
    with pytest.raises(TypeError, match=r"\[Cache.restore\] what save\(\) gave is needed"):
        cache.restore(what)
    assert cache.sequences() == []
