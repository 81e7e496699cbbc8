"""A runtime without a model: bytes as tokens, answers from a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import uvicorn

from pykv import _core
from pykv.server.connection import connection_class
from pykv.tokenizer import Tokenizer

BOS, END = 256, 257
VOCAB = 258
CONTEXT = 200


class ByteDecoder:
    def __init__(self) -> None:
        self._pending = b""

    def feed(self, token: int) -> str:
        self._pending += bytes([token]) if token < 256 else b""
        try:
            text = self._pending.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                text = self._pending.decode(errors="replace")
            else:
                return ""
        self._pending = b""
        return text

    def flush(self) -> str:
        text, self._pending = self._pending.decode(errors="replace"), b""
        return text


class ByteTokenizer:
    """One token a byte, and two control tokens."""

    bos_id = BOS
    add_bos = False
    eos_id = END
    eog_ids = frozenset({END})
    vocab_size = VOCAB
    max_token_bytes = 5

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        return list(text.encode())

    def encode_segments(self, text: str, *, add_special: bool = True) -> list[Any]:
        return [SimpleNamespace(text=text, ids=self.encode(text), control=False)]

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b"<%d>" % token

    def token_text(self, token: int) -> str:
        return {BOS: "<s>", END: "</s>"}.get(token, "?")

    def decode(self, ids: list[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def stream(self) -> ByteDecoder:
        return ByteDecoder()


class Template:
    source = "{{ messages }}"

    def render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
        if messages[-1]["content"] == "refuse me":
            raise _core.InvalidArgument("[ChatTemplate.render] roles must alternate")
        return "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]"


@dataclass
class Event:
    kind: str
    token: int = 0
    logprob: float = 0.0
    top: list[tuple[int, float]] = field(default_factory=list)
    reason: str = "none"
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prompt_seconds: float = 0.5
    generate_seconds: float = 0.25


@dataclass
class Script:
    """What the engine does with a request."""

    text: bytes = b"hello"
    end: str = "stop"  # after the text: stop, length, failed, hang
    started: bool = True
    tokens: list[int] | None = None


class ScriptedGeneration:
    def __init__(self, engine: ScriptedEngine, request: Any, script: Script) -> None:
        self.request_id = len(engine.requests)
        self.cancelled = asyncio.Event()
        self._engine = engine
        self._request = request
        self._script = script
        self._events = self._run()

    def __aiter__(self) -> Any:
        return self._events

    def cancel(self) -> None:
        self.cancelled.set()

    async def _run(self) -> Any:
        script, request = self._script, self._request
        prompt = len(request.prompt)
        cached = self._engine.cached_tokens(request)
        ids = list(script.text) if script.tokens is None else script.tokens
        generated = 0

        def event(kind: str, **values: Any) -> Event:
            counts = {"prompt_tokens": prompt, "cached_tokens": cached}
            return Event(kind, **counts, generated_tokens=generated, **values)

        if script.started:
            yield event("started")
        for token in ids[: request.max_tokens]:
            generated += 1
            top = [(token, -0.25), (32, -2.5)][: request.logprobs or 0]
            yield event("token", token=token, logprob=-0.25, top=top)
            await asyncio.sleep(0)
            if self.cancelled.is_set():
                yield event("finished", reason="cancelled")
                return
        if script.end == "hang":
            await self.cancelled.wait()
            yield event("finished", reason="cancelled")
        elif script.end == "failed":
            yield event("finished", reason="failed", error="[Engine.step] no cells are left")
        elif script.end == "stop" and len(ids) < request.max_tokens:
            yield event("token", token=END, logprob=-0.5)
            yield event("finished", reason="stop")
        else:
            yield event("finished", reason="length")


class ScriptedEngine:
    """An AsyncEngine that answers by `script` and remembers what it was asked."""

    def __init__(self) -> None:
        self.script = Script()
        self.refuse: Exception | None = None
        self.requests: list[Any] = []
        self.generations: list[ScriptedGeneration] = []
        self.running = False

    async def start(self) -> None:
        self.running = True

    async def stop(self) -> None:
        self.running = False
        for generation in self.generations:
            generation.cancel()

    def generate_choices(self, request: Any) -> list[ScriptedGeneration]:
        if self.refuse is not None:
            raise self.refuse
        self.requests.append(request)
        made = [ScriptedGeneration(self, request, self.script) for _ in range(request.choices)]
        self.generations += made
        return made

    def cached_tokens(self, request: Any) -> int:
        before = [r for r in self.requests[:-1] if r.prompt == request.prompt]
        same = any(r.name_space == request.name_space for r in before)
        return len(request.prompt) - 1 if same and request.use_cache else 0


def fake_runtime() -> Any:
    return SimpleNamespace(
        model_path="/somewhere/tiny-model.gguf",
        model_id="tiny",
        tokenizer=ByteTokenizer(),
        template=Template(),
        model=SimpleNamespace(
            config={"trained_context": 1000, "vocab": VOCAB}, parameters=10, weight_bytes=20
        ),
        engine=SimpleNamespace(
            snapshot=lambda: {
                "limits": {"parallel": 16, "draft_max": 0},
                "cache": cache_stats(),
                "sessions": sessions(),
            }
        ),
        pool_facts=lambda: SimpleNamespace(longest_request=CONTEXT),
        describe=lambda: "KV pool: 200 cells",
        close=lambda: None,
    )


def sessions() -> list[dict[str, Any]]:
    """One request that is being answered, and one that waits."""
    counts = {"prompt_tokens": 20, "computed_tokens": 5, "cached_tokens": 15, "generated_tokens": 3}
    return [
        {"request": 7, "state": "generating", **counts},
        {"request": 8, "state": "waiting", **counts},
    ]


def cache_stats() -> dict[str, Any]:
    """The part of the cache's counters that the server shows: two pools and two points."""

    def pool(window: tuple[str, int] | None, free: int, resume: int) -> dict[str, Any]:
        sizes = {"layers": 1, "bytes_per_cell": 128, "bytes_reserved": 0, "bytes_committed": 0}
        return {"window": window, **sizes, "cells_free": free, "cells_resume": resume}

    return {
        "pools": [pool(None, 90, 0), pool(("standard", 16), 40, 5)],
        "states": {"slots": 9, "slots_used": 4, "slots_resume": 2},
        "resume_points": 2,
        "resume_bytes": 640,
        "resume_bytes_budget": 1000,
    }


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """The text byte by byte, as no tokenizer would give it."""
    ids = [
        i
        for byte in text.encode()
        for i in range(256 + 3)
        if tokenizer.token_bytes(i) == bytes([byte])
    ]
    assert tokenizer.decode(ids) == text and ids != tokenizer.encode(text)
    return ids


class Client:
    """An application in this event loop or thread, spoken to as by HTTP."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **arguments)

        return asyncio.run(once())

    def post(self, path: str, body: Any, **arguments: Any) -> httpx.Response:
        headers = {"content-type": "application/json"}
        content = json.dumps(body)  # writes lone surrogates too
        return self.request("POST", path, content=content, headers=headers, **arguments)

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)


def events_of(text: str) -> list[Any]:
    """The data of each server-sent event; [DONE] as a string."""
    found = []
    for block in text.split("\n\n")[:-1]:
        assert block.startswith("data: ")
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """The application behind a real socket, in a thread. Yields its base URL."""
    http = connection_class(app.state.service.limits)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", http=http)
    server = uvicorn.Server(config)
    started = threading.Event()

    async def main() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        started.set()
        await serving

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert started.wait(30)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Polls; fails if `condition` does not come true."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition did not come true")
