"""Sampling against its definition in float64 NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.reference import sampling as reference

VOCAB = 60

OFF: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
}
PENALTIES = (
    "logit_bias", "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty",
)  # fmt: skip
FILTERS = ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p")

CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 2.5},
    {"top_k": 7},
    {"top_k": 10**6},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"typical_p": 0.4},
    {"typical_p": 0.0},
    {"typical_p": 0.4, "temperature": 0.0},
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 0.3, "top_k": 3},
    {"top_n_sigma": 1.5, "top_k": 30, "typical_p": 0.8, "top_p": 0.9, "min_p": 0.1},
    {"repeat_penalty": 1.4},
    {"repeat_penalty": 1.4, "temperature": 0.0},
    {"repeat_penalty": 0.7, "repeat_last_n": 5},
    {"repeat_penalty": 1.4, "repeat_last_n": 0},
    {"repeat_penalty": 1.4, "repeat_last_n": -1},
    {"presence_penalty": 1.5},
    {"presence_penalty": -1.5, "temperature": 0.0},
    {"frequency_penalty": 0.8},
    {"frequency_penalty": -0.8, "temperature": 0.0},
    {"logit_bias": {3: 2.0, 9: -3.5}},
    {"logit_bias": {i: float("-inf") for i in range(0, VOCAB, 2)}},
    {
        "temperature": 0.7, "repeat_penalty": 1.2, "repeat_last_n": 20, "presence_penalty": 0.4,
        "frequency_penalty": 0.3, "logit_bias": {1: 5.0, 2: float("-inf")}, "top_n_sigma": 2.0,
        "top_k": 40, "typical_p": 0.9, "top_p": 0.95, "min_p": 0.02,
    },
]  # fmt: skip


def expected(logits: np.ndarray, tokens: list[int], prompt: int, params: dict[str, Any]) -> int:
    seen = reference.penalized(
        logits.tolist(), tokens, prompt, **{name: params[name] for name in PENALTIES}
    )
    ids = reference.kept(seen, **{name: params[name] for name in FILTERS})
    draw = reference.splitmix64(params["seed"], len(tokens) - prompt)
    return reference.sample(seen, ids, params["temperature"], draw)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_samples_what_the_definition_says(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    found: set[int] = set()
    for seed in range(200):
        logits = (rng.standard_normal(VOCAB) * 2).astype(np.float32)
        tokens = rng.integers(0, VOCAB, rng.integers(1, 90)).tolist()
        prompt = int(rng.integers(0, len(tokens) + 1))
        params = OFF | case | {"seed": seed * 2**56}
        token = _core.Sampler(**params).sample(logits, tokens, prompt)
        assert token == expected(logits, tokens, prompt, params)
        found.add(token)
    assert len(found) > 5


def test_a_token_does_not_depend_on_what_was_sampled_before() -> None:
    rng = np.random.default_rng(2)
    logits = rng.standard_normal(VOCAB).astype(np.float32)
    params = OFF | {"seed": 5, "repeat_penalty": 1.2}
    warm = _core.Sampler(**params)
    for _ in range(10):
        warm.sample(logits, [1, 2, 3], 1)
    for tokens in ([1], [1, 2], [1, 2, 3, 4]):
        fresh = _core.Sampler(**params).sample(logits, tokens, 1)
        assert warm.sample(logits, tokens, 1) == fresh


def test_a_banned_token_never_comes() -> None:
    logits = np.zeros(4, np.float32)
    logits[2] = 50.0
    bias = {"logit_bias": {2: float("-inf")}}
    for temperature in (0.0, 1.0):
        sampler = _core.Sampler(**(OFF | bias | {"temperature": temperature}))
        assert 2 not in {sampler.sample(logits) for _ in range(200)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"typical_p": 1.1}, "typical_p is 1.1.*, allowed is 0 to 1"),
        ({"typical_p": float("nan")}, "typical_p"),
        ({"top_n_sigma": float("inf")}, "top_n_sigma is inf"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0.0.*, allowed is 0.001 to 1000"),
        ({"repeat_last_n": -2}, "repeat_last_n is -2"),
        ({"repeat_last_n": 2**31}, "repeat_last_n is 2147483648"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5.*, allowed is -2 to 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty is -2.5"),
        ({"logit_bias": {3: 101.0}}, "logit_bias of token 3 is 101.0"),
        ({"logit_bias": {3: float("inf")}}, "logit_bias of token 3 is inf"),
        ({"logit_bias": {-3: 1.0}}, "a token of logit_bias is -3"),
    ],
)
def test_values_out_of_range_name_value_and_limit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(_core.InvalidArgument, match=message):
        _core.Sampler(**change)


def test_wrong_kinds_and_ids_are_refused() -> None:
    with pytest.raises(TypeError, match="logit_bias of token 3 must be a float, not str"):
        _core.Sampler(logit_bias={3: "1"})
    with pytest.raises(_core.InvalidArgument, match="token 5; token ids of this model are 0 to 3"):
        _core.Sampler(logit_bias={5: 1.0}).sample(np.zeros(4, np.float32))
    with pytest.raises(_core.InvalidArgument, match="prompt_tokens is 3"):
        _core.Sampler().sample(np.zeros(4, np.float32), [1, 2], 3)
