"""What sampling parameters mean, in float64 NumPy, step by step.

The chain is llama.cpp's: logit_bias, repeat, frequency and presence penalties, top-n-sigma,
top-k, typical, top-p, min-p, temperature, draw. Presence and frequency penalties count the
answer only, as OpenAI defines them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def penalized(
    logits: Sequence[float],
    tokens: Sequence[int],
    prompt_tokens: int,
    *,
    logit_bias: Mapping[int, float],
    repeat_penalty: float,
    repeat_last_n: int,
    presence_penalty: float,
    frequency_penalty: float,
) -> Floats:
    out = np.array(logits, dtype=np.float64)
    for token, bias in logit_bias.items():
        out[token] += bias
    last = tokens if repeat_last_n < 0 else tokens[len(tokens) - min(repeat_last_n, len(tokens)) :]
    for token in set(last):
        out[token] = out[token] * repeat_penalty if out[token] <= 0 else out[token] / repeat_penalty
    for token, count in Counter(tokens[prompt_tokens:]).items():
        out[token] -= count * frequency_penalty + presence_penalty
    return out


def kept(
    logits: Floats,
    *,
    top_n_sigma: float,
    top_k: int,
    typical_p: float,
    top_p: float,
    min_p: float,
) -> list[int]:
    """Ids that can be drawn, in the order in which the draw goes through them."""
    ids = np.arange(len(logits))[np.isfinite(logits)]
    if top_n_sigma > 0:
        least = logits[ids].max() - top_n_sigma * logits[ids].std()
        ids = ids[logits[ids] >= least]

    def by_likelihood(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return ids[np.lexsort((ids, -logits[ids]))]

    if 0 < top_k < len(logits):
        ids = by_likelihood(ids)[:top_k]
    if typical_p < 1:
        p = softmax(logits[ids])
        surprise = -np.log(p)
        entropy = (p * surprise).sum()
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        reached = np.nonzero(np.cumsum(p[order]) > typical_p)[0]
        ids = by_likelihood(ids[order[: reached[0] + 1 if len(reached) else len(ids)]])
    if top_p < 1:
        ids = by_likelihood(ids)
        reached = np.nonzero(np.cumsum(softmax(logits[ids])) >= top_p)[0]
        ids = ids[: reached[0] + 1 if len(reached) else len(ids)]
    if min_p > 0:
        ids = by_likelihood(ids)
        p = softmax(logits[ids])
        ids = ids[p >= min_p * p.max()]
    return [int(i) for i in ids]


def splitmix64(seed: int, number: int) -> float:
    """Draw `number` of a seed, in [0, 1)."""
    mask = 2**64 - 1
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def sample(logits: Floats, ids: Sequence[int], temperature: float, draw: float) -> int:
    chosen = logits[list(ids)]
    if temperature == 0:
        return ids[int(np.argmax(chosen))]
    p = softmax(chosen / temperature)
    return ids[int(np.searchsorted(np.cumsum(p), draw, side="right"))]
