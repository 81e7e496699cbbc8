"""Bit-equal logits: alone, batched, chunked, with other thread counts, forked, reused.

Every test runs on a tiny model with several KV types and on the real one, with exact and
with fast linear layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.model.cuts import assert_some_rows_have_the_bits_of_all
from tests.model.machine import Logits, Machine, random_tokens
from tests.reference.gguf_files import TinyModel

KINDS = ["f32", "f16", "q8_0", "q8_0/f16", "fast", "smollm2", "smollm2_fast"]


@pytest.fixture(scope="module", params=KINDS)
def machine(
    request: pytest.FixtureRequest, tiny_path: Callable[[TinyModel], Path]
) -> Iterator[Machine]:
    if request.param.startswith("smollm2"):
        made = request.getfixturevalue(request.param)
    elif request.param == "fast":
        spec = TinyModel(weight_type="Q4_1", embedding_type="Q8_0")
        made = Machine(tiny_path(spec), type_k="f16", type_v="f16", precision="fast")
    else:
        type_k, _, type_v = request.param.partition("/")
        spec = TinyModel(weight_type="Q4_1", embedding_type="Q8_0")
        made = Machine(tiny_path(spec), type_k=type_k, type_v=type_v or type_k)
    made.cache.reset_prefixes()
    yield made
    made.cache.erase_all()


@pytest.fixture(autouse=True)
def clean(machine: Machine) -> Iterator[None]:
    yield
    machine.cache.erase_all()
    machine.cache.reset_prefixes()


def length(machine: Machine, tiny_length: int) -> int:
    """Fewer tokens on the real model, which is slower by far."""
    return tiny_length if machine.vocab < 1000 else tiny_length // 4


@pytest.fixture(scope="module")
def tokens(machine: Machine) -> list[int]:
    return random_tokens(length(machine, 300), machine.vocab, seed=6)


@pytest.fixture(scope="module")
def alone(machine: Machine, tokens: list[int]) -> Logits:
    return machine.cold(tokens)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunk_size(machine: Machine, tokens: list[int], alone: Logits, chunk: int) -> None:
    assert np.array_equal(machine.cold(tokens, chunk), alone)


def test_logits_of_some_rows(machine: Machine, tokens: list[int]) -> None:
    assert_some_rows_have_the_bits_of_all(machine, tokens)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_count(machine: Machine, tokens: list[int], alone: Logits, threads: int) -> None:
    machine.backend.set_threads(threads)
    try:
        assert np.array_equal(machine.cold(tokens), alone)
    finally:
        machine.backend.set_threads(2)


def test_batch_of_16(machine: Machine) -> None:
    """Sixteen sessions of different lengths, prefilled together, then three tokens each."""
    count = length(machine, 40)
    prompts = [random_tokens(count + i, machine.vocab, seed=100 + i) for i in range(16)]
    expected = [machine.cold(prompt) for prompt in prompts]
    seqs = [machine.cache.create() for _ in prompts]
    pairs = list(zip(seqs, prompts, strict=True))
    steps = [machine.step([(seq, prompt[:-3]) for seq, prompt in pairs])]
    for left in (3, 2, 1):
        steps.append(machine.step([(seq, [prompt[-left]]) for seq, prompt in pairs]))
    for i, want in enumerate(expected):
        assert np.array_equal(np.concatenate([step[i] for step in steps]), want), f"session {i}"


def test_prefill_beside_decoding(machine: Machine, tokens: list[int], alone: Logits) -> None:
    other = random_tokens(len(tokens), machine.vocab, seed=7)
    expected = machine.cold(other)
    a, b = machine.cache.create(), machine.cache.create()
    half = len(tokens) // 2
    a1 = machine.extend(a, tokens[:half])
    b1, a2 = machine.step([(b, other[:half]), (a, tokens[half : half + 1])])
    a3, b2 = machine.step([(a, tokens[half + 1 :]), (b, other[half:])])
    assert np.array_equal(np.concatenate([a1, a2, a3]), alone)
    assert np.array_equal(np.concatenate([b1, b2]), expected)


def test_forked(machine: Machine, tokens: list[int], alone: Logits) -> None:
    cut = len(tokens) * 2 // 3
    other = random_tokens(len(tokens) - cut, machine.vocab, seed=8)
    expected = machine.cold(tokens[:cut] + other)
    parent = machine.cache.create()
    machine.extend(parent, tokens[:cut])
    child = machine.cache.fork(parent)
    theirs, ours = machine.step([(child, other), (parent, tokens[cut:])])
    assert np.array_equal(theirs, expected[cut:])
    assert np.array_equal(ours, alone[cut:])
    machine.cache.check_integrity()


def test_prefix_of_a_finished_session(machine: Machine, tokens: list[int], alone: Logits) -> None:
    first = machine.cache.create()
    machine.extend(first, tokens)
    machine.cache.erase(first)
    again, reused, *_ = machine.cache.open(tokens)
    assert reused == len(tokens) - 1
    assert np.array_equal(machine.extend(again, tokens[reused:]), alone[reused:])


def test_prefix_of_a_living_session(machine: Machine, tokens: list[int]) -> None:
    cut = len(tokens) // 2
    branch = tokens[:cut] + random_tokens(20, machine.vocab, seed=9)
    expected = machine.cold(branch)
    first = machine.cache.create()
    machine.extend(first, tokens)
    second, reused, *_ = machine.cache.open(branch)
    assert cut <= reused < len(branch)
    assert np.array_equal(machine.extend(second, branch[reused:], chunk=5), expected[reused:])


def test_after_the_tail_was_removed(machine: Machine, tokens: list[int], alone: Logits) -> None:
    seq = machine.cache.create()
    cut = len(tokens) // 3
    machine.extend(seq, tokens[:cut] + random_tokens(30, machine.vocab, seed=10))
    machine.cache.remove(seq, (cut, cut + 30))
    assert np.array_equal(machine.extend(seq, tokens[cut:]), alone[cut:])


def test_after_a_middle_was_removed(machine: Machine, tokens: list[int], alone: Logits) -> None:
    """C18: the middle is really gone, nothing that was computed with it can be matched any more."""
    cache = machine.cache
    a, b = len(tokens) // 3, len(tokens) // 2
    more = random_tokens(9, machine.vocab, seed=11)
    seq, other = cache.create(), cache.create()
    machine.extend(seq, tokens)
    cache.copy(seq, (0, a), other)
    cache.copy(seq, (b, len(tokens)), other)  # never had the middle
    free = cache.stats()["cells_free"]
    cache.remove(seq, (a, b))
    cache.reset_prefixes()  # the tree may keep the middle as long as there is room
    assert cache.stats()["cells_free"] == free + b - a
    assert cache.bounds(seq) == (0, len(tokens)) and cache.exact_upto(seq) == a
    assert [(first, first + length) for first, _, length, _ in merged(cache.runs(seq))] == [
        (0, a),
        (b, len(tokens)),
    ]
    removed, spliced = machine.step([(seq, more), (other, more)])
    assert np.array_equal(removed, spliced)
    assert not np.array_equal(removed, machine.cold([*tokens, *more])[len(tokens) :])
    for text in ([*tokens, *more], [*tokens[:a], *tokens[b:], *more]):
        again, reused, *_ = cache.open(text)
        assert reused == a
        assert np.array_equal(machine.extend(again, text[reused:]), machine.cold(text)[reused:])
        cache.erase(again)


def merged(runs: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Runs by positions alone, wherever their cells are."""
    out: list[tuple[int, int, int, int]] = []
    for first, cell, length, rotation in runs:
        if out and out[-1][0] + out[-1][2] == first:
            out[-1] = (*out[-1][:2], out[-1][2] + length, rotation)
        else:
            out.append((first, cell, length, rotation))
    return out


def test_in_scattered_cells(machine: Machine, tokens: list[int], alone: Logits) -> None:
    """Grown beside others that come and go, so that its cells lie apart."""
    seq = machine.cache.create()
    parts = []
    for i in range(0, len(tokens), 11):
        neighbour = machine.cache.create()
        part, _ = machine.step([(seq, tokens[i : i + 11]), (neighbour, tokens[:5])])
        parts.append(part)
        if i % 2:
            machine.cache.erase(neighbour)
    assert len(machine.cache.runs(seq)) > 1
    assert np.array_equal(np.concatenate(parts), alone)
