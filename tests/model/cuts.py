"""Batch invariance: how the work is cut into steps, batches and threads changes no bit."""

from __future__ import annotations

import numpy as np

from tests.model.machine import Machine, random_tokens


def assert_some_rows_have_the_bits_of_all(machine: Machine, tokens: list[int]) -> None:
    """Logits that nobody asks for are not computed; K, V and states of their rows are."""
    alone = machine.cold([*tokens, 1])
    last = len(tokens) - 1
    for rows in ([], [last], [0, 1, 2, last // 2, last - 1]):
        seq = machine.cache.create()
        step = machine.begin(seq, tokens)
        some = machine.model.forward(step, tokens, rows)
        step.finish()
        assert np.array_equal(some, alone[rows]), rows
        assert np.array_equal(machine.extend(seq, [1]), alone[last + 1 :]), rows
        machine.cache.erase(seq)
        machine.cache.reset_prefixes()


def assert_cuts_change_nothing(machine: Machine) -> None:
    tokens = random_tokens(270, machine.vocab, seed=3)
    assert_some_rows_have_the_bits_of_all(machine, tokens)
    alone = machine.cold(tokens)
    for chunk in (1, 7, 64):
        assert np.array_equal(machine.cold(tokens, chunk), alone), chunk
    machine.backend.set_threads(1)
    assert np.array_equal(machine.cold(tokens), alone)
    machine.backend.set_threads(2)
    first, second = machine.cache.create(), machine.cache.create()
    other = random_tokens(30, machine.vocab, seed=4)
    a, b = machine.step([(first, tokens[:100]), (second, other[:29])])
    c, d = machine.step([(second, other[29:]), (first, tokens[100:])])
    child = machine.cache.fork(second)
    assert np.array_equal(np.concatenate([a, d]), alone)
    assert np.array_equal(np.concatenate([b, c]), machine.cold(other))
    expected = machine.cold(other + tokens[:5])[30:]
    assert np.array_equal(machine.extend(child, tokens[:5]), expected)
    # The fork has not changed what it was made of.
    assert np.array_equal(machine.extend(second, tokens[:5]), expected)
    machine.cache.check_integrity()
