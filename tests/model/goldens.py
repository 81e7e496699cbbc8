"""A model against llama.cpp's answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.model.machine import Machine
from tests.reference.decoder_forward import log_softmax


def teacher_forced(machine: Machine, entry: dict[str, Any]) -> npt.NDArray[np.float64]:
    """Log probabilities before each golden token, [golden tokens, vocab]."""
    prompt, greedy = entry["prompt_tokens"], entry["greedy_tokens"]
    seq = machine.cache.create()
    if len(prompt) > 1:
        step = machine.begin(seq, prompt[:-1])
        machine.model.forward(step, prompt[:-1], [])
        step.finish()
    logits = machine.extend(seq, [prompt[-1], *greedy[:-1]])
    machine.cache.erase(seq)
    machine.cache.reset_prefixes()
    return log_softmax(logits)


def compare_answers(
    machine: Machine, entries: list[dict[str, Any]], clear_gap: float
) -> tuple[int, list[float]]:
    """Asserts that the best token is the golden one wherever it leads by `clear_gap` nats. Returns
    how often it did, and the distances of the three best tokens' log probabilities."""
    differences: list[float] = []
    clear = 0
    for entry in (e for e in entries if "top10" in e):
        ours = teacher_forced(machine, entry)
        for step, top in enumerate(entry["top10"]):
            if top[0][1] - top[1][1] >= clear_gap:
                clear += 1
                assert ours[step].argmax() == entry["greedy_tokens"][step], (entry["id"], step)
            differences += [abs(ours[step, token] - value) for token, value in top[:3]]
    return clear, differences
