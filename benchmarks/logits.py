"""Logits of pykv for given tokens, llama.cpp's golden answers, and distances between
distributions: what the benchmarks of precision share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pykv import _core
from tests.reference.decoder_forward import log_softmax

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = {49152: "smollm2", 262144: "gemma3"}  # by the size of the vocabulary
LONGEST_PROMPT = 700  # of the golden answers that are compared, tokens
Floats = npt.NDArray[np.floating[Any]]


def divergence(exact: Floats, logits: Floats) -> npt.NDArray[np.float64]:
    """KL(exact || ours) of each row, in nats."""
    values = np.empty(len(exact))
    for row, (p_logits, q_logits) in enumerate(zip(exact, logits, strict=True)):
        p, q = log_softmax(p_logits), log_softmax(q_logits)
        values[row] = np.sum(np.exp(p) * (p - q))
    return values


def divergence_of_best(exact: Floats, ids: Sequence[int], others: Floats) -> float:
    """KL(exact || others) of one distribution in nats, from the log probabilities [vocab] of
    the exact one and those of the tokens `ids` of the other; all other tokens count as one."""
    p_log, q_log = exact[list(ids)].astype(np.float64), others.astype(np.float64)
    rest = [max(1.0 - np.exp(log).sum(), 1e-12) for log in (p_log, q_log)]
    return float((np.exp(p_log) * (p_log - q_log)).sum() + rest[0] * np.log(rest[0] / rest[1]))


def golden_answers(model: _core.Model) -> list[dict[str, Any]]:
    """llama.cpp's answers with this model."""
    vocab = model.config["vocab"]
    if vocab not in GOLDEN:
        raise SystemExit(
            f"no golden answers for a vocabulary of {vocab:,} tokens; there are some for "
            + ", ".join(f"{size:,} ({name})" for size, name in GOLDEN.items())
        )
    file = ROOT / f"tests/data/golden_{GOLDEN[vocab]}.json"
    entries: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return entries


def golden_text(model: _core.Model, count: int) -> list[int]:
    """Token ids of the longest golden prompt of this model."""
    longest: list[int] = max((e["prompt_tokens"] for e in golden_answers(model)), key=len)
    return longest[:count]


def compute(
    model: Any,
    backend: Any,
    tokens: Sequence[int],
    types: tuple[str, str],
    transform: bool = True,
    first: int = 0,
) -> Floats:
    """Logits [tokens, vocab] from pykv in one step, of the tokens from `first` on."""
    cache = _core.Cache(
        layers=model.layer_table,
        ropes=model.ropes,
        backend=backend,
        cells=len(tokens),
        type_k=types[0],
        type_v=types[1],
        hadamard=transform,
    )
    plan = cache.plan([(cache.create(), list(tokens))])
    assert plan is not None  # the cache was made for exactly these tokens
    step = cache.commit(plan)
    logits: Floats = model.forward(step, tokens, range(first, len(tokens)))
    step.finish()
    return logits


def divergences_of_answers(path: Path) -> tuple[Floats, Floats]:
    """Divergences (divergence_of_best) of pykv's default path and of llama.cpp from the exact
    pass, before each golden token after a short prompt. The exact pass is pykv's own with
    exact layers and f32 KV, which is within 1e-9 of NumPy's."""
    backend = _core.Backend()
    file = _core.GgufFile(path)
    exact_model, model = (_core.Model(file, backend, precision=p) for p in ("exact", "fast"))
    ours, theirs = [], []
    for entry in golden_answers(model):
        if "top10" not in entry or len(entry["prompt_tokens"]) > LONGEST_PROMPT:
            continue
        tokens = entry["prompt_tokens"] + entry["greedy_tokens"][:-1]
        first = len(entry["prompt_tokens"]) - 1
        exact = log_softmax(compute(exact_model, backend, tokens, ("f32", "f32"), first=first))
        fast = log_softmax(compute(model, backend, tokens, ("f16", "f16"), first=first))
        for step, best in enumerate(entry["top10"]):
            ids = [token for token, _ in best]
            ours.append(divergence_of_best(exact[step], ids, fast[step][ids]))
            theirs.append(divergence_of_best(exact[step], ids, np.array([log for _, log in best])))
    return np.array(ours), np.array(theirs)
