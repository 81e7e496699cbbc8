from __future__ import annotations

import pytest

from pykv.server import create_app
from tests.server.fakes import Client, ScriptedEngine, fake_runtime


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def client(engine: ScriptedEngine) -> Client:
    return Client(create_app(fake_runtime(), engine=engine))
