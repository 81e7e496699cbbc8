"""The Flask application of the admin service."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from flask import Flask
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from . import api, guard, pages
from .audit import AuditLog
from .client import EngineClient
from .clock import Clock, SystemClock
from .context import KEY, AdminContext
from .errors import AdminError
from .history import History
from .metrics import Exporter, PykvCollector
from .passwords import GuessLimit
from .secrets_store import SecretsStore
from .tuning import Tuning

MAX_BODY_BYTES = 16 * 1024
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class AppOptions:
    """Which names the service answers to, and its clock."""

    hosts: frozenset[str] = LOOPBACK_NAMES
    any_address: bool = False
    clock: Clock = field(default_factory=SystemClock)


def create_app(
    client: EngineClient, store: SecretsStore, options: AppOptions | None = None
) -> Flask:
    """One app for one engine. The history's sampler thread is not started."""
    options = options or AppOptions()
    app = Flask(__name__)
    cookie = "pykv_admin_" + hashlib.sha256(store.cookie_secret.encode()).hexdigest()[:8]
    app.config.update(
        SECRET_KEY=store.cookie_secret,
        SESSION_COOKIE_NAME=cookie,  # cookies know no ports: one name per state folder
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        MAX_CONTENT_LENGTH=MAX_BODY_BYTES,
        TRAP_HTTP_EXCEPTIONS=False,
    )
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.extensions[KEY] = _make_context(client, store, options)
    app.before_request(guard.before_request)
    app.after_request(guard.after_request)
    app.register_blueprint(pages.blueprint)
    app.register_blueprint(api.blueprint)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(AdminError, _admin_error)
    return app


def _make_context(client: EngineClient, store: SecretsStore, options: AppOptions) -> AdminContext:
    audit = AuditLog(store.folder / "audit.jsonl", options.clock)
    tuning = Tuning(client, audit, options.clock)
    collector = PykvCollector(client, actions=audit.counts, generation=lambda: tuning.generation)
    return AdminContext(
        client=client,
        store=store,
        audit=audit,
        tuning=tuning,
        history=History(client, options.clock),
        exporter=Exporter(collector),
        guesses=GuessLimit(options.clock),
        clock=options.clock,
        hosts=options.hosts,
        any_address=options.any_address,
    )


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    code = error.name.lower().replace(" ", "_")
    return guard.refuse(status, code, error.description or error.name)


def _admin_error(error: AdminError) -> Response:
    return guard.refuse(500, "admin_error", str(error))
