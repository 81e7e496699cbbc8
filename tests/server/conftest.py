from __future__ import annotations

from typing import Any

import pytest

from pykv import _core
from pykv.server import create_app
from pykv.tokenizer import Tokenizer
from tests.reference.gguf_files import write_tiny_model
from tests.server.fakes import Client, ScriptedEngine, fake_runtime


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def client(engine: ScriptedEngine) -> Client:
    return Client(create_app(fake_runtime(), engine=engine))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _core.GgufFile(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def tokenizer(gguf: Any) -> Tokenizer:
    return Tokenizer.from_gguf(gguf)
