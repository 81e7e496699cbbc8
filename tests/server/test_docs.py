"""docs/api.md says what the tables in the code say."""

from __future__ import annotations

import re
from dataclasses import fields as dataclass_fields
from pathlib import Path

import pytest

from pykv.server import create_app, fields
from pykv.server.info import UNSUPPORTED
from pykv.server.limits import LIMITS
from tests.server.fakes import ScriptedEngine, fake_runtime

DOCS = (Path(__file__).resolve().parents[2] / "docs/api.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def rows(text: str) -> dict[str, str]:
    """First column's names -> second column. A cell may name several fields."""
    found = {}
    for first, second in re.findall(r"^\| (`.*?) \| (.*?) \|", text, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", first):
            assert name not in found, name
            found[name] = second
    return found


TABLES = {
    "Fields of all": fields.COMMON,
    "Fields of chat only": {k: v for k, v in fields.CHAT.items() if k not in fields.COMMON},
    "Fields of completions only": {
        k: v for k, v in fields.COMPLETIONS.items() if k not in fields.COMMON
    },
    "Fields of /completion only": {
        k: v for k, v in fields.LLAMA.items() if fields.COMMON.get(k) != v
    },
    "Fields of a prompt object": fields.PROMPT,
    "Fields of a message": fields.MESSAGE,
    "Fields of stream_options": fields.STREAM_OPTIONS,
}


@pytest.mark.parametrize("title", TABLES)
def test_fields(title: str) -> None:
    documented = rows(section(title))
    expected = TABLES[title]
    assert set(documented) == set(expected)
    for name, treatment in expected.items():
        word = documented[name].split(":")[0].strip()
        assert word == (treatment if isinstance(treatment, str) else "off only"), name


def test_limits() -> None:
    assert rows(section("Limits")) == {
        field.name: str(getattr(LIMITS, field.name)).removesuffix(".0")
        for field in dataclass_fields(LIMITS)
    }


def test_endpoints() -> None:
    app = create_app(fake_runtime(), engine=ScriptedEngine())
    served = {route.path for route in app.routes} - set(UNSUPPORTED)  # type: ignore[attr-defined]
    documented = {
        path.split("?")[0] for path in re.findall(r"`(?:GET|POST) (/[^`]*)`", section("Endpoints"))
    }
    assert documented == {path.replace(":path", "") for path in served}


def test_error_codes() -> None:
    source = Path(__file__).resolve().parents[2] / "pykv/server"
    text = "".join(path.read_text() for path in source.glob("*.py"))
    names = (
        "invalid_[a-z]+", "missing_[a-z_]+", "unknown_[a-z]+", "not_found", "bad_request",
        "method_[a-z_]+",
    )  # fmt: skip
    used = set(re.findall(r'code="([a-z_]+)"', text))
    used |= set(re.findall(rf'"({"|".join(names)})"', text))
    assert set(rows(section("Error codes"))) == used - {"invalid_request_error"}
