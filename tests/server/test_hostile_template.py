"""A model's chat template that attacks or never ends (C36): refused, and the server lives on."""

from __future__ import annotations

from typing import Any

import pytest

from pykv.server import create_app
from pykv.tokenizer import ChatTemplate
from tests.server.fakes import Client, ScriptedEngine, fake_runtime

LOOP = "{% for a in range(1000000) %}{% for b in range(1000000) %}{% endfor %}{% endfor %}"
BOMB = "{% set x = namespace(s='x') %}{% for i in range(64) %}{% set x.s = x.s ~ x.s %}{% endfor %}"
ESCAPE = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("source", [LOOP, BOMB, ESCAPE], ids=["loop", "bomb", "escape"])
def test_the_server_lives_on(engine: ScriptedEngine, source: str) -> None:
    runtime: Any = fake_runtime()
    runtime.template = ChatTemplate(source)
    client = Client(create_app(runtime, engine=engine))
    for path in ("/v1/chat/completions", "/apply-template"):
        reply = client.post(path, {"messages": MESSAGES})
        assert reply.status_code == 400, source
        assert "template" in reply.json()["error"]["message"]
    assert engine.requests == []
    assert client.get("/health").status_code == 200
    assert client.post("/v1/completions", {"prompt": "hi", "max_tokens": 2}).status_code == 200
