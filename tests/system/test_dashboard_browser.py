"""A real browser logs in, sees the figures and the live chart, changes a watermark.
Needs chromium and chromedriver (Debian: chromium, chromium-driver) and a build with charts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from pykv.dashboard import AdminServer, start_admin
from tests.dashboard.fake_client import FakeClient

VENDOR = Path(__file__).resolve().parents[2] / "dashboard" / "static" / "vendor"
WAIT_SECONDS = 60


def binary(*names: str) -> str:
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return found
    raise AssertionError(f"{names[0]} is missing: install chromium and chromium-driver")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = binary("chromium", "chromium-browser", "google-chrome")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_argument("--window-size=1400,1800")
    options.add_argument("--force-prefers-reduced-motion")  # no smooth scrolling under a click
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    # Nothing but this machine: a page that needed the internet would fail here.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(binary("chromedriver"), log_output=os.devnull)
    running = webdriver.Chrome(options=options, service=service)
    try:
        yield running
    finally:
        running.quit()


class Page:
    """The overview page as a person uses it."""

    def __init__(self, driver: webdriver.Chrome, server: AdminServer, engine: FakeClient) -> None:
        self.driver = driver
        self.server = server
        self.engine = engine

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        wait = WebDriverWait(self.driver, WAIT_SECONDS, poll_frequency=0.1)
        return wait.until(lambda _: condition(), what)

    def log_in(self) -> None:
        self.driver.delete_all_cookies()
        self.driver.get(self.server.url)
        assert self.server.password is not None
        self.find("#password").send_keys(self.server.password, Keys.ENTER)
        self.wait(lambda: "Live" in self.text("#live"), "the page is live")

    def errors(self) -> list[str]:
        entries = self.driver.get_log("browser")
        return [e["message"] for e in entries if e["level"] in {"SEVERE", "ERROR"}]


@pytest.fixture
def page(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Page]:
    engine = FakeClient()
    with start_admin(engine, port=0, state_dir=tmp_path / "state") as server:
        page = Page(driver, server, engine)
        page.log_in()
        yield page
        page.engine.advance(0)
        driver.get("about:blank")


def test_the_build_has_charts() -> None:
    assert (VENDOR / "uPlot.esm.js").is_file(), "build once with npm and network"


def test_wrong_password_is_said(driver: webdriver.Chrome, tmp_path: Path) -> None:
    with start_admin(FakeClient(), port=0, state_dir=tmp_path / "state") as server:
        page = Page(driver, server, FakeClient())
        driver.get(server.url)
        page.find("#password").send_keys("wrong", Keys.ENTER)
        page.wait(lambda: "Wrong user or password" in driver.page_source, "the error")
        assert page.find("[role=alert]").is_displayed()
        page.driver.get_log("browser")  # the 401 is expected: not the next test's


def test_figures_are_the_engine_s(page: Page) -> None:
    kpis = page.text("#kpis")
    assert "82.4 %" in kpis and "51,214 of 65,536 cells" in kpis
    cells = page.text("#cells-table")
    for text in ("active", "9,812", "idle", "41,338", "free", "14,322", "65,536", "100.0 %"):
        assert text in cells
    assert "120,448" in page.text("#evictions-table")
    assert "93,610" not in page.text("#prefix-table") and "434,272" in page.text("#prefix-table")
    sessions = page.text("#sessions-table")
    assert "2301" in sessions and "prefilling" in sessions and "globex" in sessions
    assert page.errors() == []


def test_figures_and_chart_move(page: Page) -> None:
    page.wait(lambda: page.find("#chart canvas").is_displayed(), "a drawn chart")
    before = page.text("#kpis")
    image = "return document.querySelector('#chart canvas').toDataURL()"
    drawn = page.driver.execute_script(image)

    def moved() -> bool:
        page.engine.advance(25)
        now = page.driver.execute_script(image)
        return page.text("#kpis") != before and now != drawn

    page.wait(moved, "new figures and a new drawing")
    assert page.errors() == []


def test_pause_stops_the_page_and_resume_goes_on(page: Page) -> None:
    page.find("#pause").click()
    page.wait(lambda: "Paused" in page.text("#live"), "paused")
    taken = page.engine.data["cache"]["cells_free"]
    page.engine.data["cache"]["cells_free"] = 0
    page.engine.data["cache"]["cells_idle"] += taken
    assert "14,322" in page.text("#cells-table")
    page.find("#pause").click()
    page.wait(lambda: "14,322" not in page.text("#cells-table"), "new figures after resume")


def test_chart_as_table(page: Page) -> None:
    toggle = page.find("#chart-table-toggle")
    toggle.click()
    assert toggle.get_attribute("aria-pressed") == "true"
    page.wait(lambda: "Generated (tokens/s)" in page.text("#chart-table"), "the table")
    assert not page.find("#chart").is_displayed()
    page.find("#chart-view option[value=cells]").click()
    page.wait(lambda: "idle (cells)" in page.text("#chart-table"), "another view")
    toggle.click()
    assert page.find("#chart").is_displayed()


def set_field(page: Page, name: str, value: str) -> None:
    field = page.find(f"#tuning-{name}")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(value)


def test_changes_a_watermark(page: Page) -> None:
    assert not page.find("#tuning-apply").is_enabled()
    set_field(page, "high", "0.25")
    page.find("#tuning-reason").send_keys("bursts at noon", Keys.ENTER)
    page.wait(lambda: "Applied. Generation 2." in page.text("#tuning-message"), "applied")
    assert page.engine.data["watermarks"] == {"low": 0.05, "high": 0.25}
    page.wait(lambda: "bursts at noon" in page.text("#changes-table"), "the audit row")
    assert "high = 0.25" in page.text("#changes-table")
    assert page.errors() == []


def test_a_bad_value_is_shown_at_its_field(page: Page) -> None:
    set_field(page, "low", "0.9")
    page.find("#tuning-apply").click()
    page.wait(lambda: "at most high = 0.1" in page.text("#tuning-message"), "the limit")
    assert page.find("#tuning-low").get_attribute("aria-invalid") == "true"
    set_field(page, "low", "much")
    page.find("#tuning-apply").click()
    page.wait(lambda: "is not a number" in page.text("#tuning-message"), "not a number")
    assert page.engine.data["watermarks"]["low"] == 0.05


def test_another_change_first_is_shown_and_edits_are_kept(page: Page) -> None:
    page.find("#pause").click()  # so that the page does not follow the other change
    set_field(page, "parallel", "8")
    other = page.driver.execute_async_script(
        """
        const done = arguments[0], main = document.getElementById("main").dataset;
        fetch(main.api + "tuning", {method: "PUT",
          headers: {"Content-Type": "application/json", "X-CSRF-Token": main.csrf},
          body: JSON.stringify({generation: 1, values: {queue_length: 50}})
        }).then((r) => done(r.status));
        """
    )
    assert other == 200
    page.find("#tuning-apply").click()
    page.wait(lambda: "another change came first" in page.text("#tuning-message"), "conflict")
    assert "queue_length 1024 → 50" in page.text("#tuning-message")
    assert page.find("#tuning-parallel").get_attribute("value") == "8"
    page.find("#tuning-apply").click()
    page.wait(lambda: "Applied. Generation 3." in page.text("#tuning-message"), "applied")
    assert page.engine.data["limits"]["parallel"] == 8
    assert page.engine.data["limits"]["queue_length"] == 50


def test_hostile_names_stay_text(page: Page) -> None:
    hostile = '<img src=x onerror="document.title=1">'
    page.engine.data["tenants"][hostile] = page.engine.data["tenants"].pop("globex")
    page.wait(lambda: hostile in page.text("#tenants-table"), "the name as text")
    assert page.driver.title == "Overview · pykv"
    assert not page.driver.find_elements(By.CSS_SELECTOR, "#tenants-table img")


def test_keyboard_only(page: Page) -> None:
    page.driver.switch_to.active_element.send_keys(Keys.TAB)
    assert page.driver.switch_to.active_element.text == "Skip to content"
    reached = set()
    for _ in range(40):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(page.driver.switch_to.active_element.get_attribute("id"))
    wanted = {"pause", "chart-view", "chart-table-toggle", "tuning-low", "tuning-reason"}
    assert wanted <= reached


def test_every_input_has_a_label_and_ids_are_unique(page: Page) -> None:
    page.wait(lambda: page.find("#tuning-low"), "the form")
    problems = page.driver.execute_script(
        """
        const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
        const twice = ids.filter((id, i) => ids.indexOf(id) !== i);
        const bare = [...document.querySelectorAll("input:not([type=hidden]), select, button")]
          .filter((e) => !(e.labels?.length || e.textContent.trim() || e.ariaLabel))
          .map((e) => e.id || e.outerHTML);
        return [...twice, ...bare];
        """
    )
    assert problems == []


def test_log_out(page: Page) -> None:
    page.find("header form button").click()
    page.wait(lambda: page.driver.current_url.endswith("/login"), "the login page")
    page.driver.get(page.server.url)
    assert "/login" in page.driver.current_url


def test_without_the_chart_library_the_page_shows_tables(page: Page, tmp_path: Path) -> None:
    """As a build without npm: the library's file cannot be loaded."""
    command = {"urls": ["*/vendor/*"]}
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.setBlockedURLs", command)
    try:
        page.driver.refresh()
        page.wait(lambda: "Prompt (tokens/s)" in page.text("#chart-table"), "the table")
        assert not page.find("#chart").is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
        page.driver.get_log("browser")


def test_phone_width_does_not_scroll_sideways(page: Page) -> None:
    size = json.loads('{"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": true}')
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.driver.refresh()
        page.wait(lambda: "Live" in page.text("#live"), "the page is live")
        width = page.driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= 390
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
