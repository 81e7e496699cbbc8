"""Admin services beside real engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pykv.dashboard.app import AppOptions, create_app
from pykv.dashboard.client import InProcessClient
from pykv.dashboard.secrets_store import SecretsStore
from pykv.runtime import Runtime, RuntimeOptions
from tests.dashboard.conftest import CHEAP, Admin, Browser, ManualClock
from tests.reference.peer_cases import write_case


def admin_beside(folder: Path, name: str) -> Admin:
    """One whose engine runs a model of tests/reference/peer_cases.py and has answered a
    conversation of two turns."""
    path = write_case(folder / f"{name}.gguf", name)
    runtime = Runtime.open(RuntimeOptions(str(path), ctx_size=1024, threads=1))
    for prompt in (list(range(3, 203)), [*range(3, 203), *range(5, 105)]):
        runtime.engine.submit(prompt, 4, temperature=0.0)
        while runtime.engine.step_once():
            runtime.engine.drain()
    clock, store = ManualClock(), SecretsStore.open(folder / "state", cost=CHEAP)
    client: Any = InProcessClient(runtime)
    app = create_app(client, store, AppOptions(clock=clock))
    app.test_client_class = Browser
    return Admin(app, client, store, clock)
