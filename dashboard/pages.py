"""The web page, login, health and the Prometheus endpoint."""

from __future__ import annotations

import re
from pathlib import Path

from flask import (
    Blueprint,
    Response,
    current_app,
    jsonify,
    make_response,
    redirect,
    render_template,
    request,
    url_for,
)
from werkzeug.wrappers import Response as BaseResponse

from .audit import Actor
from .context import context
from .guard import (
    ADMIN,
    ANONYMOUS,
    actor,
    check_password,
    end_session,
    form_token,
    principal,
    start_session,
)

blueprint = Blueprint("pages", __name__)

CHART_FILES = ("uPlot.esm.js", "uPlot.min.css")  # fetched by the build, if it could


@blueprint.get("/")
def overview() -> str:
    vendor = Path(current_app.static_folder or "") / "vendor"
    return render_template(
        "overview.html",
        csrf=form_token(),
        charts=all((vendor / name).is_file() for name in CHART_FILES),
        build=context().client.build_info(),
        config=context().client.config_info(),
    )


@blueprint.route("/login", methods=["GET", "POST"])
def login() -> BaseResponse | str:
    target = _local(request.values.get("next", ""))
    if principal().role == ADMIN:
        return redirect(target, 303)
    if request.method == "GET":
        return _login_page(target)
    ctx = context()
    wait = check_password(request.form.get("user", ""), request.form.get("password", ""))
    address = request.remote_addr or ""
    if wait is None:
        start_session()
        ctx.audit.append(Actor(ctx.store.user, ADMIN, address), "login", "ok")
        return redirect(target, 303)
    stranger = Actor("anonymous", ANONYMOUS, address)
    ctx.audit.append(stranger, "login", "limited" if wait else "refused")
    if wait:
        seconds = int(wait) + 1
        page = _login_page(target, f"Too many failed logins. Wait {seconds} seconds.", 429)
        page.headers["Retry-After"] = str(seconds)
        return page
    return _login_page(target, "Wrong user or password.", 401)


@blueprint.post("/logout")
def logout() -> BaseResponse:
    context().audit.append(actor(), "logout", "ok")
    if principal().via == "session":
        end_session()
    return redirect(url_for("pages.login"), 303)


@blueprint.get("/health")
def health() -> Response:
    return jsonify({"status": "ok"})


@blueprint.get("/metrics")
def metrics() -> Response:
    body, content_type = context().exporter.render(request.headers.get("Accept", ""))
    return Response(body, content_type=content_type)


def _login_page(target: str, error: str = "", status: int = 200) -> Response:
    page = render_template("login.html", csrf=form_token(), next=target, error=error)
    return make_response(page, status)


def _local(target: str) -> str:
    """`target` if it is a path of this service, else the overview: no open redirect."""
    local = re.fullmatch(r"/(?!/)[A-Za-z0-9._~/?&=%-]*", target) is not None
    return target if local else url_for("pages.overview")
