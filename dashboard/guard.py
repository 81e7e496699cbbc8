"""Checks before and after every request. Default deny: a route that ACCESS does not name
is for the admin only.

    Host allow-list -> who is it -> may they -> is it their own page that asks
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from flask import Response, g, jsonify, redirect, request, session, url_for
from werkzeug.wrappers import Response as BaseResponse

from .audit import Actor
from .context import context

ADMIN, METRICS, ANONYMOUS = "admin", "metrics", "anonymous"
EVERYONE = frozenset({ADMIN, METRICS, ANONYMOUS})

# Endpoint -> roles. All others: admin only.
ACCESS: dict[str, frozenset[str]] = {
    "static": EVERYONE,
    "pages.health": EVERYONE,
    "pages.login": EVERYONE,
    "pages.metrics": frozenset({ADMIN, METRICS}),
}

SESSION_SECONDS = 12 * 3600
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not no-referrer: browsers would then send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
}


@dataclass(frozen=True)
class Principal:
    """Who sends the request, and how they proved it."""

    role: str
    name: str = ""
    via: str = "none"  # none, session, basic, token


def principal() -> Principal:
    """The sender of the current request."""
    return cast(Principal, g.principal)


def actor() -> Actor:
    """The sender as it goes into the audit log."""
    who = principal()
    return Actor(who.name or "anonymous", who.role, request.remote_addr or "")


def before_request() -> BaseResponse | None:
    """Installed as the app's only `before_request` function."""
    if not _host_allowed(request.host):
        return refuse(
            421,
            "host_not_allowed",
            f"Host {request.host!r} is not a name of this service; open it by its address, "
            "or start it with that name among the allowed hosts",
        )
    found = _identify()
    if not isinstance(found, Principal):
        return found
    g.principal = found
    allowed = ACCESS.get(request.endpoint or "", frozenset({ADMIN}))
    if found.role not in allowed:
        return _deny(found)
    if request.method not in SAFE_METHODS and not _own_page(found):
        return refuse(
            403,
            "cross_site",
            "the request does not come from a page of this service; reload the page and "
            "try again (scripts: use Basic authorization and no Origin header)",
        )
    return None


def after_request(response: Response) -> Response:
    """Installed as the app's `after_request` function."""
    for name, value in HEADERS.items():
        response.headers[name] = value
    if request.endpoint == "static":
        response.headers["Cache-Control"] = "no-cache"  # revalidated, so an upgrade shows
    else:
        response.headers["Cache-Control"] = "no-store"
    return response


def refuse(status: int, code: str, message: str, **more: object) -> Response:
    """A JSON error: `{"error": {"code", "message", …}}`."""
    response = jsonify({"error": {"code": code, "message": message, **more}})
    response.status_code = status
    return response


def start_session() -> None:
    """Logs the browser of the current request in. The old session's values are dropped."""
    session.clear()
    session["id"] = secrets.token_urlsafe(24)
    session["since"] = context().clock.wall()
    session["csrf"] = secrets.token_urlsafe(24)


def end_session() -> None:
    """Ends the session for good; a copy of its cookie is worth nothing afterwards."""
    ctx = context()
    now = ctx.clock.wall()
    ctx.store.revoke(session["id"], now + SESSION_SECONDS, now)
    session.clear()


def form_token() -> str:
    """The token that forms and state-changing requests of the session must carry."""
    if "csrf" not in session:
        session["csrf"] = secrets.token_urlsafe(24)
    return str(session["csrf"])


def check_password(user: str, password: str) -> float | None:
    """None if right; else the seconds to wait before the next try (0: none)."""
    ctx = context()
    address = request.remote_addr or ""
    wait = ctx.guesses.begin(address)
    if wait > 0:
        return wait
    right_user = hmac.compare_digest(user.encode(), ctx.store.user.encode())
    if ctx.store.password.verify(password) and right_user:
        ctx.guesses.succeeded(address)
        return None
    return 0.0


def too_many(wait: float) -> Response:
    seconds = int(wait) + 1
    response = refuse(429, "too_many_attempts", f"too many failed logins; wait {seconds} seconds")
    response.headers["Retry-After"] = str(seconds)
    return response


def _identify() -> Principal | BaseResponse:
    """Wrong credentials are an error, never silently anonymous."""
    ctx = context()
    credentials = request.authorization
    if credentials is None:
        if "Authorization" in request.headers:
            return _challenge("the Authorization header is not Basic or Bearer")
        return _from_session()
    if credentials.type == "bearer":
        if ctx.store.is_metrics_token(credentials.token or ""):
            return Principal(METRICS, "metrics", "token")
        return _challenge("the token is not valid")
    if credentials.type != "basic":
        return _challenge("the Authorization header is not Basic or Bearer")
    wait = check_password(credentials.username or "", credentials.password or "")
    if wait is None:
        return Principal(ADMIN, ctx.store.user, "basic")
    address = Actor("anonymous", ANONYMOUS, request.remote_addr or "")
    ctx.audit.append(address, "login", "limited" if wait else "refused")
    return too_many(wait) if wait else _challenge("wrong user or password")


def _from_session() -> Principal:
    ctx = context()
    identity, since = session.get("id"), session.get("since")
    if isinstance(identity, str) and isinstance(since, float):
        fresh = 0 <= ctx.clock.wall() - since < SESSION_SECONDS
        if fresh and not ctx.store.is_revoked(identity):
            return Principal(ADMIN, ctx.store.user, "session")
    return Principal(ANONYMOUS)


def _deny(who: Principal) -> BaseResponse:
    if who.role != ANONYMOUS:
        return refuse(403, "forbidden", f"the {who.role} token may read /metrics only")
    wants_page = request.method == "GET" and request.accept_mimetypes.accept_html
    if wants_page and not request.path.startswith(("/api/", "/metrics")):
        target = request.full_path if request.query_string else request.path
        return redirect(url_for("pages.login", next=target), 303)
    return _challenge("log in first")


def _challenge(message: str) -> Response:
    response = refuse(401, "unauthorized", message)
    # A browser would open its own password window over the page.
    if "Sec-Fetch-Site" not in request.headers:
        response.headers["WWW-Authenticate"] = 'Basic realm="pykv admin"'
    return response


def _own_page(who: Principal) -> bool:
    """Sec-Fetch-Site and Origin where sent; a form token where a cookie is the proof."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("Origin")
    if origin not in {None, f"http://{request.host}", f"https://{request.host}"}:
        return False
    if who.via in {"basic", "token"}:
        return True
    sent = request.headers.get("X-CSRF-Token") or request.form.get("csrf", "")
    expected = session.get("csrf", "")
    return bool(expected) and hmac.compare_digest(sent.encode(), str(expected).encode())


def _host_allowed(host: str) -> bool:
    """Against DNS rebinding: a foreign name that resolves to us is not ours."""
    ctx = context()
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
        if name in ctx.hosts:
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return ctx.any_address
