"""llama-server's POST /completion, on scripted engine events."""

from __future__ import annotations

from typing import Any

import pytest

from pykv.server import create_app
from tests.server.fakes import (
    CONTEXT,
    END,
    VOCAB,
    Client,
    Script,
    ScriptedEngine,
    events_of,
    fake_runtime,
)  # fmt: skip


def complete(client: Client, prompt: Any = "hi", **fields: Any) -> Any:
    reply = client.post("/completion", {"prompt": prompt} | fields)
    assert reply.status_code == 200, reply.text
    return events_of(reply.text) if fields.get("stream") else reply.json()


def test_reply(client: Client, engine: ScriptedEngine) -> None:
    reply = complete(client, temperature=0, seed=5, stop=["x"])
    assert reply["content"] == "hello"
    assert (reply["stop"], reply["stop_type"], reply["stopping_word"]) == (True, "eos", "")
    assert (reply["index"], reply["id_slot"], reply["model"]) == (0, -1, "tiny")
    assert (reply["tokens_evaluated"], reply["tokens_predicted"]) == (2, 6)
    assert (reply["tokens_cached"], reply["truncated"], reply["has_new_line"]) == (0, False, False)
    assert (reply["prompt"], reply["tokens"]) == ("hi", [])
    assert "completion_probabilities" not in reply
    settings = reply["generation_settings"]
    assert (settings["temperature"], settings["seed"], settings["stop"]) == (0, 5, ["x"])
    assert (settings["n_predict"], settings["n_ctx"]) == (-1, CONTEXT)
    assert engine.requests[0].max_tokens == CONTEXT - 2
    assert list(engine.requests[0].stop_tokens) == [END]
    assert complete(client)["tokens_cached"] == 1


def test_timings(client: Client) -> None:
    complete(client)
    assert complete(client)["timings"] == {
        "cache_n": 1,
        "prompt_n": 1,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 500.0,
        "prompt_per_second": 2.0,
        "predicted_n": 6,
        "predicted_ms": 250.0,
        "predicted_per_token_ms": 250.0 / 6,
        "predicted_per_second": 24.0,
    }


def test_stream(client: Client, engine: ScriptedEngine) -> None:
    engine.script = Script("grüß\n".encode())
    *parts, last = complete(client, stream=True)
    assert [part["content"] for part in parts] == ["g", "r", "", "ü", "", "ß", "\n"]
    assert [part["tokens"] for part in parts] == [[byte] for byte in "grüß\n".encode()]
    assert [part["stop"] for part in parts] == [False] * 7
    assert [part["tokens_predicted"] for part in parts] == list(range(1, 8))
    assert (last["content"], last["tokens"], last["stop"]) == ("", [], True)
    assert (last["stop_type"], last["has_new_line"]) == ("eos", True)
    assert last["tokens_predicted"] == 8


def test_a_stop_word(client: Client) -> None:
    reply = complete(client, stop=["zz", "ll"])
    assert reply["content"] == "he"
    assert (reply["stop_type"], reply["stopping_word"]) == ("word", "ll")
    *parts, last = complete(client, stop=["ll"], stream=True)
    assert "".join(part["content"] for part in parts) == "he"
    assert (last["stop_type"], last["stopping_word"]) == ("word", "ll")


@pytest.mark.parametrize("names", [{"n_predict": 3}, {"max_tokens": 3}])
def test_limit(client: Client, engine: ScriptedEngine, names: dict[str, int]) -> None:
    reply = complete(client, **names)
    assert (reply["content"], reply["stop_type"], reply["truncated"]) == ("hel", "limit", False)
    assert engine.requests[0].max_tokens == 3


def test_the_end_of_the_context_truncates(client: Client, engine: ScriptedEngine) -> None:
    engine.script = Script(b"x" * CONTEXT)
    reply = complete(client, n_predict=-1)
    assert (reply["stop_type"], reply["truncated"]) == ("limit", True)
    assert reply["tokens_evaluated"] + reply["tokens_predicted"] == CONTEXT


@pytest.mark.parametrize("end", ["stop", "length"])
def test_zero_tokens_compute_the_prompt(client: Client, engine: ScriptedEngine, end: str) -> None:
    engine.script = Script(b"", end=end, tokens=[END] if end == "stop" else [65])
    reply = complete(client, n_predict=0, return_tokens=True)
    assert (reply["content"], reply["tokens"], reply["tokens_predicted"]) == ("", [], 0)
    assert (reply["stop_type"], reply["generation_settings"]["n_predict"]) == ("limit", 0)
    assert engine.requests[0].max_tokens == 1


def test_tokens_and_probabilities(client: Client) -> None:
    reply = complete(client, n_predict=2, n_probs=2, return_tokens=True)
    assert reply["tokens"] == [104, 101]
    first = reply["completion_probabilities"][0]
    assert (first["id"], first["token"], first["bytes"]) == (104, "h", [104])
    assert first["logprob"] == -0.25
    assert [(top["id"], top["logprob"]) for top in first["top_logprobs"]] == [
        (104, -0.25), (32, -2.5),
    ]  # fmt: skip
    part, *_ = complete(client, n_probs=1, stream=True)
    assert [each["id"] for each in part["completion_probabilities"]] == part["tokens"] == [104]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [b"ab"]),
        ([97, 98], [b"ab"]),
        ([97, "bc", 100], [b"abcd"]),
        (["ab", 99, "", "d"], [b"abcd"]),
        (["ab", "cd"], [b"ab", b"cd"]),
        (["ab", [99], ["d", 101], {"prompt_string": "f"}], [b"ab", b"c", b"de", b"f"]),
        ({"prompt_string": "ab", "multimodal_data": []}, [b"ab"]),
    ],
)
def test_prompts(
    client: Client, engine: ScriptedEngine, prompt: Any, expected: list[bytes]
) -> None:
    reply = complete(client, prompt)
    assert [bytes(request.prompt) for request in engine.requests] == expected
    replies = reply if len(expected) > 1 else [reply]
    assert [each["prompt"] for each in replies] == [each.decode() for each in expected]
    assert [each["index"] for each in replies] == list(range(len(expected)))


def test_several_answers_to_one_prompt(client: Client, engine: ScriptedEngine) -> None:
    replies = complete(client, n_cmpl=3)
    assert [each["index"] for each in replies] == [0, 1, 2]
    assert {each["tokens_evaluated"] for each in replies} == {2}
    assert engine.requests[0].choices == 3
    assert len([each for each in complete(client, n=2, stream=True) if each["stop"]]) == 2


def test_a_seed_of_minus_one_is_drawn(client: Client, engine: ScriptedEngine) -> None:
    assert complete(client, seed=-1)["generation_settings"]["seed"] == -1
    complete(client, seed=-1)
    first, second = engine.requests
    assert first.seed != second.seed


def test_response_fields(client: Client) -> None:
    wanted = ["content", "generation_settings/top_k", "timings/prompt_n", "none", "content/x"]
    chosen = {"content": "hello", "top_k": 7, "prompt_n": 2}
    assert complete(client, top_k=7, response_fields=wanted) == chosen
    *parts, last = complete(
        client, "again", stream=True, response_fields=["stop", "stop_type"], cache_prompt=False
    )
    assert last == {"stop": True, "stop_type": "eos"}
    assert "content" in parts[0]


def test_what_llama_cpps_clients_send_as_defaults(client: Client) -> None:
    order = [
        "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
    ]  # fmt: skip
    complete(
        client, id_slot=3, samplers=order, dynatemp_range=0, dynatemp_exponent=1.0, dry_base=1.75,
        dry_multiplier=0, mirostat=0, mirostat_tau=5.0, grammar="", t_max_predict_ms=0, n_keep=0,
        logit_bias=[[5, False]], post_sampling_probs=False, cache_prompt=True,
    )  # fmt: skip


def test_a_biased_token_is_shown_as_it_was_sent(client: Client) -> None:
    settings = complete(client, logit_bias=[[5, False], [6, 1.5]])["generation_settings"]
    assert settings["logit_bias"] == [[5, False], [6, 1.5]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("n_predict", value) for value in (-2, 1.5, "5", True, 2**31)],
        *[("n_probs", value) for value in (-1, 21, True, "1")],
        *[("n_cmpl", value) for value in (0, 129, True)],
        *[("seed", value) for value in (-2, 2**64, "1")],
        *[("return_tokens", value) for value in (1, "true")],
        *[("response_fields", value) for value in ("content", [1], [["a"]], ["a"] * 999)],
        *[("prompt", value) for value in (5, [], [True], [None], [1.0], [1, None], ["a", None])],
        *[("prompt", value) for value in ([-1], [VOCAB], ["a", [VOCAB]], [[]], "\udfff", "")],
        *[("prompt", value) for value in ({}, {"prompt_string": 5}, {"prompt": "a"}, ["a"] * 65)],
        ("prompt", {"prompt_string": "a", "multimodal_data": ["AAAA"]}),
        ("stop", [""]),
        ("mirostat", 2),
        ("samplers", ["top_k"]),
        ("post_sampling_probs", True),
        ("t_max_predict_ms", 100),
        ("stream_options", {"include_usage": True}),
        ("echo", True),
    ],
)
def test_refusals(client: Client, engine: ScriptedEngine, field: str, value: Any) -> None:
    reply = client.post("/completion", {"prompt": "a", field: value})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"].split("[")[0].split(".")[0] == field
    assert engine.requests == []


def test_two_limits_that_differ(client: Client) -> None:
    reply = client.post("/completion", {"prompt": "a", "n_predict": 1, "max_tokens": 2})
    assert reply.status_code == 400
    assert "n_predict (1) and max_tokens (2) differ" in reply.json()["error"]["message"]


@pytest.mark.parametrize("prompt", ["x" * CONTEXT, [65] * CONTEXT, ["x"] + [65] * CONTEXT])
def test_a_prompt_that_does_not_fit(client: Client, prompt: Any) -> None:
    error = client.post("/completion", {"prompt": prompt}).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_an_error_in_a_stream(client: Client, engine: ScriptedEngine) -> None:
    engine.script = Script(b"he", end="failed")
    *parts, last = complete(client, stream=True)
    assert [part["content"] for part in parts] == ["h", "e"]
    assert last["error"]["code"] == "engine_failed"


def test_the_model_is_checked(engine: ScriptedEngine) -> None:
    client = Client(create_app(fake_runtime(), engine=engine))
    assert client.post("/completion", {"prompt": "a", "model": "other"}).status_code == 404
    assert client.post("/completions", {"prompt": "a"}).json()["content"] == "hello"
