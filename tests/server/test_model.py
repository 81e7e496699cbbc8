"""The whole way, from HTTP to the C++ engine and back, on a tiny random model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from pykv.engine import GenerateRequest, generate_blocking
from pykv.runtime import Runtime, RuntimeOptions
from pykv.server import create_app
from tests.reference.gguf_files import TinyModel, write_tiny_model
from tests.server.fakes import events_of, served, wait_until

PROMPT = "The cat sat on the mat and in the end it was a fine thing to be on."
LONG = 32768


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def open_runtime(path: Path, **options: Any) -> Runtime:
    chosen = {"ctx_size": 2048, "threads": 1} | options
    return Runtime.open(RuntimeOptions(model=str(path), **chosen))


@pytest.fixture
def runtime(model_file: Path) -> Iterator[Runtime]:
    with open_runtime(model_file) as runtime:
        yield runtime


@pytest.fixture
def http(runtime: Runtime) -> Iterator[httpx.Client]:
    with served(create_app(runtime)) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
def long(tmp_path: Path) -> Iterator[tuple[httpx.Client, Runtime]]:
    """A model that goes on for thousands of tokens, for requests that must still run later on."""
    path = write_tiny_model(tmp_path / "long.gguf", TinyModel(context=LONG, seed=2))
    with (
        open_runtime(path, ctx_size=LONG) as runtime,
        served(create_app(runtime)) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client, runtime


def complete(http: httpx.Client, prompt: Any = PROMPT, **fields: Any) -> Any:
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0} | fields
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def text_of(reply: Any) -> str:
    return str(reply["choices"][0]["text"])


def cached(reply: Any) -> int:
    return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def engine_answer(path: Path, request: GenerateRequest) -> list[Any]:
    """What a fresh engine answers, without a server."""
    with open_runtime(path) as runtime:
        runtime.engine.start()
        return [e for e in generate_blocking(runtime.engine, request) if e.kind == "token"]


def test_the_answer_is_the_engines(http: httpx.Client, model_file: Path, runtime: Runtime) -> None:
    ids = http.post("/tokenize", json={"content": PROMPT, "add_special": True}).json()["tokens"]
    request = GenerateRequest(
        prompt=ids, max_tokens=24, temperature=0, logprobs=2,
        stop_tokens=sorted(runtime.tokenizer.eog_ids),
    )  # fmt: skip
    expected = engine_answer(model_file, request)
    reply = complete(http, ids, logprobs=2)
    logprobs = reply["choices"][0]["logprobs"]
    shown = [e for e in expected if e.token not in runtime.tokenizer.eog_ids]
    assert logprobs["token_logprobs"] == [e.logprob for e in shown]
    assert [len(top) for top in logprobs["top_logprobs"]] == [2] * len(shown)
    assert text_of(reply) == runtime.tokenizer.decode([e.token for e in shown], skip_special=True)
    assert reply["usage"]["completion_tokens"] == len(expected)
    assert text_of(complete(http, PROMPT)) == text_of(reply)


def test_the_second_identical_request_computes_one_token(http: httpx.Client) -> None:
    first, second = complete(http), complete(http)
    assert cached(first) == 0
    assert cached(second) == second["usage"]["prompt_tokens"] - 1
    assert text_of(first) == text_of(second)


def test_cache_prompt_false_computes_all(http: httpx.Client) -> None:
    first = complete(http)
    second = complete(http, cache_prompt=False)
    assert cached(second) == 0
    assert text_of(first) == text_of(second)


def test_salts_share_nothing(http: httpx.Client) -> None:
    complete(http)
    for salt in ("a", "b"):
        assert cached(complete(http, cache_salt=salt)) == 0
        assert cached(complete(http, cache_salt=salt)) > 0


def test_nothing_crosses_between_two_keys_in_a_small_pool(model_file: Path) -> None:
    """C3: hundreds of requests of two keys at once, in a pool whose cells are reused again."""
    texts = [f"{PROMPT} Chapter {number}." for number in range(6)]

    def logits(http: httpx.Client, prompt: str, **fields: Any) -> tuple[float, ...]:
        reply = complete(http, prompt, max_tokens=6, logprobs=0, temperature=1, seed=7, **fields)
        return tuple(reply["choices"][0]["logprobs"]["token_logprobs"])

    def ask(salt: str, turn: int) -> tuple[str, tuple[float, ...]]:
        prompt = f"The word of {salt} is {salt * 3}. {texts[turn % 6]}"
        return prompt, logits(http, prompt, cache_salt=salt)

    with (
        open_runtime(model_file, ctx_size=128) as runtime,
        served(create_app(runtime)) as url,
        httpx.Client(base_url=url, timeout=60) as http,
        ThreadPoolExecutor(4) as pool,
    ):
        work = [pool.submit(ask, salt, turn) for turn in range(100) for salt in ("lion", "mouse")]
        answers = [each.result() for each in work]
        cache = runtime.engine.snapshot()["cache"]
        assert cache["evicted_cells_demand"] + cache["evicted_cells_watermark"] > 10 * 128
    with (
        open_runtime(model_file) as runtime,
        served(create_app(runtime)) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        alone = {prompt: logits(http, prompt, cache_prompt=False) for prompt in dict(answers)}
    assert len(set(alone.values())) == 12
    assert answers == [(prompt, alone[prompt]) for prompt, _ in answers]


def test_requests_side_by_side_answer_as_alone(http: httpx.Client) -> None:
    prompts = [
        PROMPT + " " + word for word in ("and", "the cat", "of", "in it", "", "a", "to", "on")
    ]
    alone = [text_of(complete(http, prompt, cache_prompt=False)) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda prompt: text_of(complete(http, prompt)), prompts))
    assert together == alone
    several = complete(http, prompts)
    assert [choice["text"] for choice in several["choices"]] == alone


def test_seeds(http: httpx.Client) -> None:
    def drawn(seed: int) -> str:
        return text_of(complete(http, temperature=1.5, top_k=0, top_p=1, min_p=0, seed=seed))

    assert drawn(7) == drawn(7)
    assert len({drawn(seed) for seed in (0, 1, 2**64 - 1)}) == 3


def test_streamed_equals_whole(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Tell me of the cat."}]
    body = {"messages": messages, "max_tokens": 40, "temperature": 0, "seed": 1}
    whole = http.post("/v1/chat/completions", json=body).json()
    reply = http.post("/v1/chat/completions", json=body | {"stream": True})
    *chunks, done = events_of(reply.text)
    assert done == "[DONE]"
    streamed = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert streamed == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_llama_servers_endpoint_answers_alike(http: httpx.Client, runtime: Runtime) -> None:
    reply = complete(http)
    body = {"prompt": PROMPT, "n_predict": 24, "temperature": 0, "return_tokens": True}
    own = http.post("/completion", json=body).json()
    assert own["content"] == text_of(reply)
    assert runtime.tokenizer.decode(own["tokens"], skip_special=True) == own["content"]
    assert own["tokens_evaluated"] == reply["usage"]["prompt_tokens"]
    assert own["tokens_predicted"] == reply["usage"]["completion_tokens"]
    assert own["tokens_cached"] == own["timings"]["cache_n"] == own["tokens_evaluated"] - 1
    assert own["timings"]["prompt_ms"] > 0 and own["timings"]["predicted_per_second"] > 0
    *parts, last = events_of(http.post("/completion", json=body | {"stream": True}).text)
    assert "".join(part["content"] for part in parts) == own["content"]
    assert [token for part in parts for token in part["tokens"]] == own["tokens"]
    assert last["timings"]["predicted_n"] == own["tokens_predicted"]


def test_a_prompt_is_computed_ahead(http: httpx.Client) -> None:
    warm = http.post("/completion", json={"prompt": PROMPT, "n_predict": 0}).json()
    assert (warm["content"], warm["tokens_predicted"], warm["tokens_cached"]) == ("", 0, 0)
    assert cached(complete(http)) == warm["tokens_evaluated"] - 1


def test_a_rendered_chat_is_read_as_the_chat_itself(http: httpx.Client, runtime: Runtime) -> None:
    messages = [{"role": "user", "content": "Tell me of the cat."}]
    text = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    body = {"max_tokens": 20, "temperature": 0}
    chat = http.post("/v1/chat/completions", json=body | {"messages": messages}).json()
    own = http.post("/completion", json=body | {"prompt": text}).json()
    assert own["tokens_evaluated"] == chat["usage"]["prompt_tokens"]
    assert own["tokens_cached"] == own["tokens_evaluated"] - 1
    assert own["content"] == chat["choices"][0]["message"]["content"]
    mixed = runtime.tokenizer.encode(text, parse_special=True)
    pieces = [*mixed[:3], runtime.tokenizer.decode(mixed[3:])]
    reply = http.post("/completion", json=body | {"prompt": pieces}).json()
    assert reply["tokens_evaluated"] == own["tokens_evaluated"]


def test_slots_show_the_requests_that_run(long: tuple[httpx.Client, Runtime]) -> None:
    http, _ = long
    body = {"prompt": PROMPT, "n_predict": LONG, "temperature": 0, "stream": True}
    with http.stream("POST", "/completion", json=body) as reply:
        lines = reply.iter_lines()  # the client hangs up where this is collected
        next(lines)
        slots = http.get("/slots").json()
        busy = [slot for slot in slots if slot["is_processing"]]
        assert len(slots) == 16 and len(busy) == 1
        assert busy[0]["next_token"][0]["n_decoded"] >= 1


def test_a_stop_string_from_the_middle_of_the_answer(http: httpx.Client) -> None:
    text = text_of(complete(http))
    stop = text[len(text) // 2 :][:3]
    reply = complete(http, stop=stop)
    assert text_of(reply) == text[: text.index(stop)]
    assert reply["choices"][0]["finish_reason"] == "stop"


def test_a_follower_shares_with_a_request_that_still_runs(
    long: tuple[httpx.Client, Runtime],
) -> None:
    """C1: the second one computes only its suffix."""
    http, runtime = long
    gone = threading.Event()

    def first() -> None:
        body = {"prompt": PROMPT, "max_tokens": LONG, "temperature": 0, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as reply:
            for _ in reply.iter_lines():
                if gone.is_set():
                    return

    thread = threading.Thread(target=first)
    thread.start()
    wait_until(lambda: runtime.engine.snapshot()["generating"] == 1)
    tokens = runtime.tokenizer.encode(PROMPT)
    reply = complete(http, PROMPT + " and so on", max_tokens=2)
    assert cached(reply) >= len(tokens) - 1
    assert runtime.engine.snapshot()["generating"] == 1
    gone.set()
    thread.join(30)


def test_a_client_that_goes_frees_its_cells(long: tuple[httpx.Client, Runtime]) -> None:
    """C33."""
    http, runtime = long
    body = {"prompt": PROMPT, "max_tokens": LONG, "temperature": 0, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as reply:
        next(reply.iter_lines())

    def idle() -> bool:
        snapshot = runtime.engine.snapshot()
        return bool(snapshot["generating"] == 0 and snapshot["cache"]["cells_active"] == 0)

    wait_until(idle)
    assert runtime.engine.snapshot()["requests"]["cancelled"] == 1


def test_the_context_is_the_limit(http: httpx.Client, runtime: Runtime) -> None:
    context = runtime.model.config["context"]
    reply = http.post("/v1/completions", json={"prompt": [5] * context})
    error = reply.json()["error"]
    assert (error["code"], error["n_prompt_tokens"]) == ("context_length_exceeded", context)
    last = complete(http, [5] * (context - 1), max_tokens=100)
    assert last["usage"]["completion_tokens"] == 1
    assert last["choices"][0]["finish_reason"] in ("length", "stop")


def test_a_pool_smaller_than_the_context_is_the_limit(model_file: Path) -> None:
    with open_runtime(model_file, ctx_size=128) as runtime, served(create_app(runtime)) as url:
        http = httpx.Client(base_url=url, timeout=60)
        reply = http.post("/v1/completions", json={"prompt": [5] * 128})
        assert reply.json()["error"]["n_ctx"] == 128
        fits = complete(http, [5] * 100, max_tokens=1000)
        assert fits["usage"]["completion_tokens"] <= 28
        http.close()


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [-1]},
        {"prompt": [2**63 - 1]},
        {"prompt": "a", "max_tokens": -5},
        {"prompt": "a", "max_tokens": 2**63 - 1},
        {"prompt": "a", "seed": -1},
        {"prompt": "a", "logprobs": 2**63 - 1},
        {"prompt": "a", "temperature": -1},
        {"prompt": ""},
    ],
)
def test_bad_values_change_nothing(http: httpx.Client, runtime: Runtime, body: Any) -> None:
    before = runtime.engine.snapshot()
    assert http.post("/v1/completions", json=body).status_code == 400
    after = runtime.engine.snapshot()
    ticks = {"reclaim_ticks": 0}  # go on while nothing happens
    assert after["cache"] | ticks == before["cache"] | ticks
    assert after["requests"] == before["requests"]
    assert complete(http, max_tokens=1)["usage"]["completion_tokens"] == 1
