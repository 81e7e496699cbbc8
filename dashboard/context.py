"""What every request handler of the admin service works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from flask import current_app

from .audit import AuditLog
from .client import EngineClient
from .clock import Clock
from .history import History
from .metrics import Exporter
from .passwords import GuessLimit
from .secrets_store import SecretsStore
from .tuning import Tuning

KEY = "pykv_admin"


@dataclass(frozen=True)
class AdminContext:
    """One per app, shared by all threads."""

    client: EngineClient
    store: SecretsStore
    audit: AuditLog
    tuning: Tuning
    history: History
    exporter: Exporter
    guesses: GuessLimit
    clock: Clock
    hosts: frozenset[str] = field(default_factory=frozenset)  # names allowed in Host
    any_address: bool = False  # bound beyond loopback: any literal IP address is allowed too


def context() -> AdminContext:
    """The context of the app that handles the current request."""
    return cast(AdminContext, current_app.extensions[KEY])
