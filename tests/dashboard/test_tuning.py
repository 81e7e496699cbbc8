"""Live change of watermarks and limits: checks, versions, audit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pykv.dashboard.audit import Actor, AuditLog
from pykv.dashboard.errors import InvalidValue
from pykv.dashboard.tuning import FIELDS, Conflict, Tuning, check
from tests.dashboard.conftest import Admin, ManualClock, make_admin
from tests.dashboard.fake_client import FakeClient

URL = "/api/v1/tuning"


def current(admin: Admin) -> dict[str, Any]:
    return {f["name"]: f["current"] for f in admin.get(URL)["fields"]}


def test_every_field_says_what_it_is(admin: Admin) -> None:
    response = admin.browser().get(URL, headers=admin.basic)
    assert response.headers["ETag"] == '"1"'
    fields = {f["name"]: f for f in response.json["fields"]}
    snapshot = admin.engine.data
    assert set(fields) == set(snapshot["watermarks"]) | set(snapshot["limits"])
    for field in fields.values():
        assert field["minimum"] <= field["default"] <= field["maximum"]
        assert field["unit"] and field["description"].endswith(".")


def test_a_change_reaches_the_engine_and_the_audit(admin: Admin) -> None:
    body = {"generation": 1, "values": {"low": 0.08, "high": 0.2, "parallel": 32}, "reason": "why"}
    response = admin.put(URL, body)
    assert response.status_code == 200 and response.json["applied"] is True
    assert response.json["generation"] == 2 and response.headers["ETag"] == '"2"'
    assert admin.engine.data["watermarks"] == {"low": 0.08, "high": 0.2}
    assert admin.engine.data["limits"]["parallel"] == 32
    assert admin.engine.data["limits"]["batch_size"] == 256
    row = admin.get("/api/v1/audit")["rows"][0]
    assert row["before"] == {"low": 0.05, "high": 0.1, "parallel": 16}
    assert row["after"] == body["values"]
    assert (row["who"], row["role"], row["reason"], row["result"]) == (
        "admin",
        "admin",
        "why",
        "ok",
    )
    assert (row["time"], row["generation"]) == ("2027-01-15T08:00:00.000Z", 2)
    on_disk = (admin.store.folder / "audit.jsonl").read_text().splitlines()
    assert json.loads(on_disk[-1]) == row


def test_the_version_seen_must_be_named(admin: Admin) -> None:
    assert admin.put(URL, {"values": {"parallel": 8}}).status_code == 428
    assert admin.put(URL, {"values": {"parallel": 8}}, **{"If-Match": '"1"'}).status_code == 200
    assert admin.put(URL, {"values": {"parallel": 9}}, **{"If-Match": '"1"'}).status_code == 412
    assert admin.put(URL, {"values": {"parallel": 9}}, **{"If-Match": "*"}).status_code == 428


def test_a_stale_change_is_refused_and_shown_the_other_one(admin: Admin) -> None:
    admin.put(URL, {"generation": 1, "values": {"parallel": 8}, "reason": "first"})
    response = admin.put(URL, {"generation": 1, "values": {"parallel": 64}})
    assert response.status_code == 412
    error = response.json["error"]
    assert error["current"]["generation"] == 2
    (change,) = error["changes"]
    assert (change["before"], change["after"]) == ({"parallel": 16}, {"parallel": 8})
    assert change["reason"] == "first"
    assert admin.engine.data["limits"]["parallel"] == 8
    again = admin.put(URL, {"generation": 2, "values": {"parallel": 64}})
    assert again.status_code == 200


@pytest.mark.parametrize(
    "values,field,part",
    [
        ({"low": -0.01}, "low", "from 0.0 to 1.0"),
        ({"low": 1.5}, "low", "1.5"),
        ({"low": "0.1"}, "low", "'0.1'"),
        ({"low": True}, "low", "True"),
        ({"low": None}, "low", "None"),
        ({"low": [0.1]}, "low", "[0.1]"),
        ({"low": 0.2}, "low", "at most high = 0.1"),
        ({"high": 0.01}, "high", "at least low = 0.05"),
        ({"parallel": 0}, "parallel", "from 1 to 4096"),
        ({"parallel": 4097}, "parallel", "4097"),
        ({"parallel": 1.5}, "parallel", "an integer"),
        ({"parallel": 10**19}, "parallel", "from 1 to 4096"),
        ({"parallel": 300}, "parallel", "at most batch_size = 256"),
        ({"batch_size": 8}, "batch_size", "at least parallel = 16"),
        ({"prefill_chunk": 0}, "prefill_chunk", "from 1"),
        ({"queue_length": -1}, "queue_length", "from 1"),
        ({"speed": 1}, "speed", "known: low, high"),
    ],
)
def test_bad_values_name_field_value_and_limit(
    admin: Admin, values: dict[str, Any], field: str, part: str
) -> None:
    before = json.dumps([admin.engine.data["watermarks"], admin.engine.data["limits"]])
    response = admin.put(URL, {"generation": 1, "values": {"prefill_chunk": 32} | values})
    assert response.status_code == 400
    assert response.json["error"]["field"] == field
    assert part in response.json["error"]["message"]
    assert before == json.dumps([admin.engine.data["watermarks"], admin.engine.data["limits"]])
    assert admin.get("/api/v1/audit")["rows"][0]["result"] == "invalid"
    assert admin.get(URL)["generation"] == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, -(10**400)])
@pytest.mark.parametrize("field", ["low", "parallel"])
def test_numbers_that_no_float_holds_are_out_of_range(field: str, value: float) -> None:
    before = {f.name: f.default for f in FIELDS}
    with pytest.raises(InvalidValue, match="out of range"):
        check({field: value}, before)


def test_ends_of_every_range_are_allowed(admin: Admin) -> None:
    for end in ("minimum", "maximum"):
        view = admin.get(URL)
        values = {f["name"]: f[end] for f in view["fields"]}
        response = admin.put(URL, {"generation": view["generation"], "values": values})
        assert response.status_code == 200, response.text
        assert current(admin) == values


def test_whole_floats_are_integers(admin: Admin) -> None:
    assert admin.put(URL, {"generation": 1, "values": {"parallel": 8.0}}).status_code == 200
    assert isinstance(admin.engine.data["limits"]["parallel"], int)


@pytest.mark.parametrize(
    "body",
    [
        [], "x", {}, {"generation": 1}, {"generation": 1, "values": {}},
        {"generation": 1, "values": [1]}, {"generation": 1, "values": {"low": 0.1}, "reason": 5},
        {"generation": "1", "values": {"low": 0.1}}, {"generation": True, "values": {"low": 0.1}},
        {"generation": 1, "values": {"low": 0.1}, "force": True},
    ],
)  # fmt: skip
def test_bad_bodies(admin: Admin, body: Any) -> None:
    assert admin.put(URL, body).status_code == 400


def test_broken_json_wrong_type_and_large_bodies(admin: Admin) -> None:
    def put(data: str, kind: str) -> int:
        headers = admin.basic | {"Content-Type": kind}
        return int(admin.browser().put(URL, data=data, headers=headers).status_code)

    good = '{"generation": 1, "values": {"parallel": 8}}'
    assert put(good[:-1], "application/json") == 400
    assert put(good, "text/plain") == 400
    assert put(good + " " * 20_000, "application/json") in {400, 413}
    assert put("[" * 10_000, "application/json") == 400
    assert put(good.replace("{", '{"generation": 1, ', 1), "application/json") == 400
    assert put(good.replace("8", '8, "parallel": 9'), "application/json") == 400
    for number in ("NaN", "Infinity", "-1e400", "9" * 4000):
        for body in (
            f'{{"generation": 1, "values": {{"parallel": {number}}}}}',
            f'{{"generation": {number}, "values": {{"parallel": 8}}}}',
        ):
            assert put(body, "application/json") == 400
    assert admin.engine.data["limits"]["parallel"] == 16


def test_what_the_engine_refuses_changes_nothing(admin: Admin) -> None:
    admin.engine.refuse = "[Engine.set_limits] parallel = 8: too few"
    response = admin.put(URL, {"generation": 1, "values": {"low": 0.01, "parallel": 8}})
    assert response.status_code == 400 and "too few" in response.json["error"]["message"]
    assert current(admin)["low"] == 0.05
    assert admin.get(URL)["generation"] == 1
    assert admin.get("/api/v1/audit")["rows"][0]["result"] == "failed"


def test_nothing_to_change_is_no_new_generation(admin: Admin) -> None:
    response = admin.put(URL, {"generation": 1, "values": {"parallel": 16}})
    assert response.status_code == 200 and response.json["generation"] == 1
    assert admin.get("/api/v1/audit")["rows"] == []


@pytest.mark.parametrize("lag,applied,result", [(5, True, "ok"), (1000, False, "pending")])
def test_waits_for_the_engine_but_not_for_ever(
    tmp_path: Path, lag: int, applied: bool, result: str
) -> None:
    admin = make_admin(tmp_path, FakeClient(lag=lag))
    begin = admin.clock.monotonic()
    view = admin.put(URL, {"generation": 1, "values": {"parallel": 8}}).json
    assert admin.clock.monotonic() - begin < 2.1
    assert (view["applied"], view["generation"]) == (applied, 2)
    assert admin.get("/api/v1/audit")["rows"][0]["result"] == result
    for _ in range(1000):
        admin.engine.snapshot()
    assert current(admin)["parallel"] == 8
    assert admin.get(URL)["generation"] == 2  # the late arrival is not another change


def test_a_change_from_elsewhere_is_a_new_generation(admin: Admin) -> None:
    assert admin.get(URL)["generation"] == 1
    admin.engine.data["limits"]["parallel"] = 4
    assert admin.put(URL, {"generation": 1, "values": {"parallel": 8}}).status_code == 412
    row = admin.get("/api/v1/audit")["rows"][1]
    assert (row["who"], row["after"]) == ("engine", {"parallel": 4})
    assert admin.get(URL)["generation"] == 2


def test_generations_and_rows_go_on_after_a_restart(admin: Admin) -> None:
    admin.put(URL, {"generation": 1, "values": {"parallel": 8}})
    again = make_admin(admin.store.folder, FakeClient())
    again.store.first_password = admin.password
    assert again.get(URL)["generation"] == 2
    assert again.put(URL, {"generation": 2, "values": {"parallel": 4}}).status_code == 200
    numbers = [row["number"] for row in again.get("/api/v1/audit")["rows"]]
    assert numbers == [2, 1]


def test_a_change_that_cannot_be_written_down_is_undone(tmp_path: Path) -> None:
    engine, clock = FakeClient(), ManualClock()
    log = AuditLog(tmp_path / "missing" / "audit.jsonl", clock)
    with pytest.raises(Exception, match=r"\[AuditLog.append\] cannot write .*not kept"):
        Tuning(engine, log, clock).apply({"parallel": 8}, seen=1, actor=Actor("a", "admin", ""))
    assert engine.snapshot()["limits"]["parallel"] == 16


def test_audit_file_with_a_line_cut_short(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "audit.jsonl"
    log = AuditLog(path, clock)
    for _ in range(3):
        log.append(Actor("a", "admin", ""), "tune", "ok", generation=7)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(path.read_bytes()[:-20] + b"\n\xff\xff\n[]\n")
    log = AuditLog(path, clock)
    assert [row.number for row in log.rows()] == [2, 1]
    assert log.append(Actor("a", "admin", ""), "tune", "ok").number == 3
    assert log.last_generation() == 7


def test_a_login_before_any_change_does_not_set_the_generation_back(admin: Admin) -> None:
    admin.log_in(admin.browser())
    assert admin.get("/api/v1/audit")["rows"][0]["generation"] == 1
    assert admin.get(URL)["generation"] == 1


@pytest.mark.parametrize(
    "limit,status",
    [("1", 200), ("1000", 200), ("0", 400), ("1001", 400), ("x", 400), ("-1", 400), ("", 400)],
)
def test_audit_limit(admin: Admin, limit: str, status: int) -> None:
    path = "/api/v1/audit"
    response = admin.browser().get(path, query_string={"limit": limit}, headers=admin.basic)
    assert response.status_code == status


def test_conflict_is_an_error_of_ours(admin: Admin) -> None:
    with pytest.raises(Conflict, match=r"generation 9, but the current one is 1"):
        admin.context.tuning.apply({"low": 0.01}, seen=9, actor=Actor("a", "admin", ""))
    assert {f.group for f in FIELDS} == {"watermarks", "limits"}
