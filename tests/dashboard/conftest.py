from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from pykv.dashboard.app import AppOptions, create_app
from pykv.dashboard.context import KEY, AdminContext
from pykv.dashboard.passwords import ScryptCost
from pykv.dashboard.secrets_store import SecretsStore
from tests.dashboard.fake_client import FakeClient

CHEAP = ScryptCost(n=2, r=1, p=1)


class ManualClock:
    """Time stands still unless a test moves it; waiting moves it."""

    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def wall(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


class Browser(FlaskClient):
    """Reads answers to their end, so that no file of a static route stays open."""

    def open(self, *args: Any, **kwargs: Any) -> Any:
        return super().open(*args, **{"buffered": True} | kwargs)


@dataclass
class Admin:
    """An admin service over a fake engine, and browsers and scripts that use it."""

    app: Flask
    engine: FakeClient
    store: SecretsStore
    clock: ManualClock

    @property
    def context(self) -> AdminContext:
        context: AdminContext = self.app.extensions[KEY]
        return context

    @property
    def password(self) -> str:
        assert self.store.first_password is not None
        return self.store.first_password

    @property
    def basic(self) -> dict[str, str]:
        pair = b64encode(f"admin:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    @property
    def token(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.store.metrics_token_file.read_text()}"}

    def browser(self) -> FlaskClient:
        return self.app.test_client()

    def log_in(self, browser: FlaskClient, password: str | None = None) -> Any:
        data = {
            "user": "admin",
            "password": self.password if password is None else password,
            "csrf": form_token(browser.get("/login").text),
        }
        return browser.post("/login", data=data)

    def get(self, path: str) -> Any:
        response = self.browser().get(path, headers=self.basic)
        assert response.status_code == 200, response.text
        return response.json

    def put(self, path: str, body: Any, **headers: str) -> Any:
        return self.browser().put(path, json=body, headers=self.basic | headers)


def form_token(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None, page
    return found.group(1)


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    return make_admin(tmp_path / "state", FakeClient())


def make_admin(folder: Path, engine: FakeClient, **options: Any) -> Admin:
    clock = ManualClock()
    store = SecretsStore.open(folder, cost=CHEAP)
    app = create_app(engine, store, AppOptions(clock=clock, **options))
    app.test_client_class = Browser
    return Admin(app, engine, store, clock)
