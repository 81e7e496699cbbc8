"""JSON API, /api/v1. The web page is one of its clients. Described in docs/admin.md."""

from __future__ import annotations

import json
import math
from typing import Any

from flask import Blueprint, Response, jsonify, request

from .context import context
from .errors import InvalidValue
from .guard import actor, refuse
from .overview import overview
from .tuning import Conflict

blueprint = Blueprint("api", __name__, url_prefix="/api/v1")

_AUDIT_DEFAULT, _AUDIT_MAX = 50, 1000
_INTEGER_DIGITS = 20


@blueprint.get("/overview")
def read_overview() -> Response:
    ctx = context()
    document = overview(ctx.client.snapshot(), ctx.history, ctx.clock)
    document["build"] = ctx.client.build_info()
    document["config"] = ctx.client.config_info()
    document["generation"] = ctx.tuning.generation
    return jsonify(document)


@blueprint.get("/history")
def read_history() -> Response:
    return jsonify(context().history.table())


@blueprint.get("/audit")
def read_audit() -> Response:
    limit = request.args.get("limit", str(_AUDIT_DEFAULT))
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= _AUDIT_MAX:
        raise InvalidValue(
            f"[Audit.read] limit = {limit[:40]!r} is out of range; give 1 to {_AUDIT_MAX}",
            field="limit",
            value=limit[:40],
            limit=f"1 to {_AUDIT_MAX}",
        )
    return jsonify({"rows": [row.to_dict() for row in context().audit.rows(int(limit))]})


@blueprint.get("/tuning")
def read_tuning() -> Response:
    return _with_etag(context().tuning.read())


@blueprint.put("/tuning")
def change_tuning() -> Response:
    try:
        body = _json_body()
    except (ValueError, RecursionError) as error:  # thousands of nested brackets
        message = f"send a JSON object as application/json: {str(error)[:200]}"
        return refuse(400, "invalid_body", message)
    unknown = set(body) - {"generation", "values", "reason"}
    if unknown:
        return refuse(
            400, "invalid_body", f"unknown {sorted(unknown)}; known: generation, values, reason"
        )
    values, reason = body.get("values"), body.get("reason", "")
    if not isinstance(values, dict) or not values or not isinstance(reason, str):
        return refuse(
            400, "invalid_body", "values must be an object of fields to change, reason a string"
        )
    seen = _generation_seen(body)
    if seen is None:
        return refuse(
            428,
            "generation_required",
            "name the version the change is based on: field generation or header If-Match, "
            "as GET /api/v1/tuning gave it",
        )
    view = context().tuning.apply(values, seen=seen, actor=actor(), reason=reason)
    return _with_etag(view)


def _json_body() -> dict[str, Any]:
    """Raises ValueError or RecursionError for anything but a JSON object."""
    if request.mimetype != "application/json":
        raise ValueError(f"Content-Type is {request.mimetype!r}")
    body = json.loads(
        request.get_data(),
        parse_constant=_number,
        parse_int=_integer,
        parse_float=_number,
        object_pairs_hook=_distinct,
    )
    if not isinstance(body, dict):
        raise ValueError("this is JSON, but no object")
    return body


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; which of two equal keys counts differs between parsers."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _number(text: str) -> float:
    """What is not finite could not be written as JSON again, in the answer or the audit."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _integer(text: str) -> int:
    if len(text) > _INTEGER_DIGITS:
        raise ValueError("an integer is too long")
    return int(text)


def _generation_seen(body: dict[str, Any]) -> int | None:
    if "generation" in body:
        value = body["generation"]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise InvalidValue(
            f"[Tuning.apply] generation = {value!r} is not an integer",
            field="generation",
            value=value,
            limit="an integer",
        )
    tags = list(request.if_match)
    return int(tags[0]) if len(tags) == 1 and tags[0].isascii() and tags[0].isdigit() else None


def _with_etag(view: dict[str, Any]) -> Response:
    response = jsonify(view)
    response.set_etag(str(view["generation"]))
    return response


@blueprint.app_errorhandler(InvalidValue)
def invalid_value(error: InvalidValue) -> Response:
    return refuse(
        400,
        "invalid_value",
        str(error),
        field=error.field,
        value=error.value,
        limit=error.limit,
    )


@blueprint.app_errorhandler(Conflict)
def conflict(error: Conflict) -> Response:
    view = context().tuning.read()
    changes = [row.to_dict() for row in error.changes]
    return refuse(412, "conflict", str(error), current=view, changes=changes)
