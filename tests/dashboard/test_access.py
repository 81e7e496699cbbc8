"""Who may call what: every route times every kind of sender, and the ways round it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pykv.dashboard.guard import ACCESS, SESSION_SECONDS
from pykv.dashboard.secrets_store import SecretsStore
from tests.dashboard.conftest import CHEAP, Admin, form_token, make_admin
from tests.dashboard.fake_client import FakeClient

# Method and path of each endpoint, and what the admin gets. A new route fails the test
# until it stands here.
ROUTES: dict[tuple[str, str], tuple[str, int]] = {
    ("static", "GET"): ("/static/pykv.css", 200),
    ("pages.health", "GET"): ("/health", 200),
    ("pages.login", "GET"): ("/login", 303),
    ("pages.login", "POST"): ("/login", 303),
    ("pages.logout", "POST"): ("/logout", 303),
    ("pages.overview", "GET"): ("/", 200),
    ("pages.metrics", "GET"): ("/metrics", 200),
    ("api.read_overview", "GET"): ("/api/v1/overview", 200),
    ("api.read_history", "GET"): ("/api/v1/history", 200),
    ("api.read_audit", "GET"): ("/api/v1/audit", 200),
    ("api.read_tuning", "GET"): ("/api/v1/tuning", 200),
    ("api.change_tuning", "PUT"): ("/api/v1/tuning", 400),  # allowed in, body missing
}
PUBLIC = {"static", "pages.health", "pages.login"}


def routes(admin: Admin) -> set[tuple[str, str]]:
    found = set()
    for rule in admin.app.url_map.iter_rules():
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            found.add((rule.endpoint, method))
    return found


def test_the_table_has_every_route(admin: Admin) -> None:
    assert routes(admin) == set(ROUTES)
    assert {e for e, roles in ACCESS.items() if "anonymous" in roles} == PUBLIC


@pytest.mark.parametrize("endpoint,method", sorted(ROUTES))
@pytest.mark.parametrize("who", ["anonymous", "metrics", "admin"])
def test_every_route_for_every_sender(admin: Admin, endpoint: str, method: str, who: str) -> None:
    path, for_admin = ROUTES[(endpoint, method)]
    headers = {"anonymous": {}, "metrics": admin.token, "admin": admin.basic}[who]
    status = admin.browser().open(path, method=method, headers=headers).status_code
    if who == "admin":
        assert status == for_admin
    elif endpoint in PUBLIC:
        if method == "POST":  # a login without a form token, or with an unneeded one
            assert status in {401, 403}
        else:
            assert status == 200
    elif who == "metrics":
        assert status == (200 if endpoint == "pages.metrics" else 403)
    else:
        assert status == 401


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/nothing", "/api/v1/nothing", "/metrics"])
def test_unknown_routes_and_methods_tell_strangers_nothing(
    admin: Admin, path: str, method: str
) -> None:
    assert admin.browser().open(path, method=method).status_code == 401


@pytest.mark.parametrize("path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd"])
def test_static_serves_nothing_from_elsewhere(admin: Admin, path: str) -> None:
    assert admin.browser().get(f"/static/{path}").status_code in {401, 404}


def test_a_browser_is_led_to_the_login_and_back(admin: Admin) -> None:
    browser = admin.browser()
    response = browser.get("/?a=1", headers={"Accept": "text/html"})
    assert (response.status_code, response.location) == (303, "/login?next=/?a%3D1")
    page = browser.get(response.location).text
    data = {"user": "admin", "password": admin.password, "csrf": form_token(page), "next": "/?a=1"}
    assert browser.post("/login", data=data).location == "/?a=1"
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/\n/x"]
)
def test_login_never_leads_elsewhere(admin: Admin, target: str) -> None:
    browser = admin.browser()
    token = form_token(browser.get("/login", query_string={"next": target}).text)
    data = {"user": "admin", "password": admin.password, "csrf": token, "next": target}
    assert browser.post("/login", data=data).location == "/"


def status_with(admin: Admin, cookie: str) -> int:
    """What a browser that has only this Set-Cookie line gets."""
    name, value = cookie.split(";")[0].split("=", 1)
    browser = admin.browser()
    browser.set_cookie(name, value)
    return int(browser.get("/api/v1/tuning").status_code)


def test_the_cookie_is_strict_and_logout_ends_copies_of_it(admin: Admin) -> None:
    browser = admin.browser()
    cookie = admin.log_in(browser).headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert status_with(admin, cookie) == 200
    token = form_token(browser.get("/").text)
    assert browser.post("/logout", data={"csrf": token}).status_code == 303
    assert browser.get("/api/v1/tuning").status_code == 401
    assert status_with(admin, cookie) == 401
    assert status_with(make_admin(admin.store.folder, FakeClient()), cookie) == 401


def test_a_session_survives_a_restart_but_not_its_age(admin: Admin) -> None:
    cookie = admin.log_in(admin.browser()).headers["Set-Cookie"]
    restarted = make_admin(admin.store.folder, FakeClient())
    assert status_with(restarted, cookie) == 200
    restarted.clock.wait(SESSION_SECONDS)
    assert status_with(restarted, cookie) == 401


def test_a_forged_cookie_is_worth_nothing(admin: Admin, tmp_path: Path) -> None:
    other = make_admin(tmp_path / "other", FakeClient())
    cookie = other.log_in(other.browser()).headers["Set-Cookie"]
    own_name = admin.app.config["SESSION_COOKIE_NAME"]
    forged = f"{own_name}={cookie.split('=', 1)[1]}"
    assert status_with(other, cookie) == 200
    assert status_with(admin, forged) == 401


@pytest.mark.parametrize(
    "header",
    ["Bearer ", "Bearer wrong", "Basic !!!", "Basic YWRtaW46d3Jvbmc=", "Digest a=b", "nonsense"],
)
def test_wrong_credentials_are_an_error_even_on_public_routes(admin: Admin, header: str) -> None:
    response = admin.browser().get("/health", headers={"Authorization": header})
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Basic")


def test_a_browser_gets_no_password_window(admin: Admin) -> None:
    response = admin.browser().get("/api/v1/tuning", headers={"Sec-Fetch-Site": "same-origin"})
    assert response.status_code == 401 and "WWW-Authenticate" not in response.headers


def test_guesses_are_limited_and_then_even_the_right_one_is_refused(admin: Admin) -> None:
    browser = admin.browser()
    for _ in range(10):
        assert admin.log_in(browser, "wrong").status_code == 401
    limited = admin.log_in(browser)
    assert limited.status_code == 429 and int(limited.headers["Retry-After"]) <= 61
    assert browser.get("/api/v1/tuning", headers=admin.basic).status_code == 429
    admin.clock.wait(60)
    assert admin.log_in(browser).status_code == 303
    results = [row["result"] for row in admin.get("/api/v1/audit")["rows"]]
    assert results.count("refused") == 10 and results.count("limited") == 2


def test_right_logins_do_not_count_as_guesses(admin: Admin) -> None:
    for _ in range(30):
        assert admin.get("/api/v1/tuning")["generation"] == 1


def test_wrong_user_name(admin: Admin) -> None:
    browser = admin.browser()
    token = form_token(browser.get("/login").text)
    data = {"user": "root", "password": admin.password, "csrf": token}
    assert browser.post("/login", data=data).status_code == 401


# --- cross-site requests, rebinding, framing ----------------------------------------


def change(admin: Admin) -> dict[str, Any]:
    return {"generation": 1, "values": {"parallel": 8}}


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9"},
    ],
)
@pytest.mark.parametrize("proof", ["session", "basic"])
def test_cross_site_changes_are_refused(admin: Admin, headers: dict[str, str], proof: str) -> None:
    browser = admin.browser()
    if proof == "session":
        admin.log_in(browser)
        headers = headers | {"X-CSRF-Token": form_token(browser.get("/").text)}
    else:
        headers = headers | admin.basic
    assert browser.put("/api/v1/tuning", json=change(admin), headers=headers).status_code == 403
    assert admin.engine.data["limits"]["parallel"] == 16


@pytest.mark.parametrize("token", [None, "", "wrong"])
def test_a_session_needs_its_form_token(admin: Admin, token: str | None) -> None:
    browser = admin.browser()
    admin.log_in(browser)
    headers = {} if token is None else {"X-CSRF-Token": token}
    assert browser.put("/api/v1/tuning", json=change(admin), headers=headers).status_code == 403
    assert browser.post("/logout", data={"csrf": token or ""}).status_code == 403
    own = {"X-CSRF-Token": form_token(browser.get("/").text)}
    assert browser.put("/api/v1/tuning", json=change(admin), headers=own).status_code == 200


def test_login_itself_needs_a_form_token(admin: Admin) -> None:
    data = {"user": "admin", "password": admin.password}
    assert admin.browser().post("/login", data=data).status_code == 403


@pytest.mark.parametrize(
    "host,allowed",
    [
        ("localhost:8081", True),
        ("127.0.0.1", True),
        ("[::1]:8081", True),
        ("LOCALHOST", True),
        ("evil.example", False),
        ("evil.example:8081", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.", False),
        ("192.0.2.7", False),
        ("[::", False),
        ("", False),
    ],
)
def test_foreign_host_names_are_refused(admin: Admin, host: str, allowed: bool) -> None:
    response = admin.browser().get("/health", headers={"Host": host})
    assert response.status_code == (200 if allowed else 421)


def test_beyond_loopback_any_literal_address_but_no_foreign_name(tmp_path: Path) -> None:
    admin = make_admin(tmp_path, FakeClient(), any_address=True, hosts=frozenset({"pykv.lan"}))
    get = admin.browser().get
    assert get("/health", headers={"Host": "192.0.2.7:8081"}).status_code == 200
    assert get("/health", headers={"Host": "pykv.lan"}).status_code == 200
    assert get("/health", headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize("path", ["/", "/login", "/static/js/main.js", "/api/v1/overview", "/x"])
def test_headers_on_every_answer(admin: Admin, path: str) -> None:
    headers = admin.browser().get(path, headers=admin.basic).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    static = path.startswith("/static")
    assert headers["Cache-Control"] == ("no-cache" if static else "no-store")


def test_pages_have_no_inline_code_and_no_foreign_address(admin: Admin) -> None:
    browser = admin.browser()
    pages = [browser.get("/login").text]
    admin.log_in(browser)
    pages.append(browser.get("/").text)
    for page in pages:
        assert " style=" not in page and "<style" not in page and " on" + "click" not in page
        assert page.count("<script") == page.count('<script type="module" src="/static/')
        assert "//" not in page.replace("<!doctype html>", "")


def test_the_password_is_stored_as_a_hash(tmp_path: Path) -> None:
    store = SecretsStore.open(tmp_path / "s", cost=CHEAP)
    assert store.first_password is not None and len(store.first_password) >= 16
    for file in (tmp_path / "s").iterdir():
        assert store.first_password not in file.read_text()
