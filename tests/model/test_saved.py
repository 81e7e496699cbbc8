"""C22: what leaves a cache with windows or states comes back, in another cache, and is reused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pykv
from tests.model.machine import Machine, random_tokens
from tests.reference.peer_cases import write_case

# Heads of the hybrids are too small for blocks of 32.
FEW_BITS = {"lfm2": "bf16", "granitehybrid": "bf16"}
KINDS = ("gemma2", "gemma3", "gpt-oss", "mamba2", "lfm2", "granitehybrid")
PROMPT, STEP = 130, 40  # more than two windows


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("saved")
    return lambda name: write_case(folder / f"{name}.gguf", name)


class Engine:
    """A machine with pools for windows, and the public face of its cache."""

    def __init__(self, path: Path, kind: str, cells: int) -> None:
        self.machine = Machine(path, cells=cells, step_tokens=STEP)
        core = self.machine.make_cache(kind, kind, window_pools=True)
        self.machine.cache = core
        self.cache = pykv.Cache.from_core(core)

    def answer(self, sequence: int, tokens: list[int]) -> np.ndarray:
        """Logits of all tokens, in steps that end where points are due."""
        parts = []
        while tokens:
            count = self.cache.next_point(sequence) - self.cache.bounds(sequence).end
            head, tokens = tokens[: min(count, STEP)], tokens[min(count, STEP) :]
            parts.append(self.machine.extend(sequence, head))
        return np.concatenate(parts)

    def request(self, prompt: list[int]) -> tuple[int, np.ndarray]:
        """What is reused of a prompt, and the logits of its last token."""
        opened = self.cache.open(prompt)
        logits = self.answer(opened.sequence, prompt[opened.reused :])[-1]
        self.cache.erase(opened.sequence)
        return opened.reused, logits


@pytest.mark.parametrize("few_bits", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_a_restored_prompt_is_reused(
    path: Callable[[str], Path], name: str, few_bits: bool
) -> None:
    kind = FEW_BITS.get(name, "q8_0") if few_bits else "f32"
    source = Engine(path(name), kind, 1024)
    prompt = random_tokens(PROMPT, source.machine.vocab, seed=3)
    assert source.request(prompt)[0] == 0
    again = source.cache.open(prompt)
    assert again.reused == PROMPT - 1
    saved = source.cache.save(again.sequence)

    target = Engine(path(name), kind, 512)
    target.request(random_tokens(70, target.machine.vocab, seed=4))  # so that cells differ
    restored = target.cache.restore(saved, prompt[:-1])
    assert restored.reusable == PROMPT - 1
    target.cache.erase(restored.sequence)
    target.cache.check_integrity()
    reused, logits = target.request(prompt)
    assert reused == PROMPT - 1
    expected = source.answer(again.sequence, prompt[-1:])[-1]
    np.testing.assert_array_equal(logits, expected)
    cold = Engine(path(name), kind, 512)
    np.testing.assert_array_equal(cold.request(prompt)[1], expected)


@pytest.mark.parametrize("name", KINDS)
def test_a_restored_conversation_goes_on(path: Callable[[str], Path], name: str) -> None:
    source, target = Engine(path(name), "f16", 1024), Engine(path(name), "f16", 1024)
    tokens = random_tokens(PROMPT, source.machine.vocab, seed=5)
    sequence = source.cache.create()
    source.answer(sequence, tokens[:100])
    saved = source.cache.save(sequence)
    restored = target.cache.restore(saved, tokens[:100]).sequence
    np.testing.assert_array_equal(
        target.answer(restored, tokens[100:]), source.answer(sequence, tokens[100:])
    )
    assert target.request(tokens[:120])[0] > 0
    target.cache.check_integrity()
