"""promtool accepts configuration and alerts, their tests pass, and a real Prometheus
scrapes the admin service. Needs promtool and prometheus (Debian: prometheus)."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pykv.dashboard import AdminServer, start_admin
from pykv.dashboard.metric_names import CATALOGUE
from tests.dashboard.fake_client import FakeClient

MONITORING = Path(__file__).resolve().parents[2] / "monitoring"


def binary(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is missing: install Debian's package prometheus"
    return found


def promtool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binary("promtool"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "monitoring"
    shutil.copytree(MONITORING, copy)
    (copy / "metrics.token").write_text("token")
    return copy


def test_configuration_and_rules_are_valid(folder: Path) -> None:
    for arguments in (["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"]):
        result = promtool(folder, *arguments)
        assert result.returncode == 0, result.stdout + result.stderr


def test_alerts_are_quiet_fire_and_resolve(folder: Path) -> None:
    result = promtool(folder, "test", "rules", "alerts_test.yml")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "old,new",
    [("== 0", "== 7"), ("0.8 *", "0.9 *"), ("> 0.01", "> 0.2"), ("> 5\n", "> 50\n")],
)
def test_the_alert_tests_notice_a_wrong_threshold(folder: Path, old: str, new: str) -> None:
    rules = folder / "alerts.yml"
    text = rules.read_text()
    assert old in text
    rules.write_text(text.replace(old, new))
    assert promtool(folder, "test", "rules", "alerts_test.yml").returncode == 1


@dataclass
class Prometheus:
    port: int
    admin: AdminServer
    engine: FakeClient

    def get(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def query(self, expression: str) -> list[Any]:
        answer = self.get(f"/api/v1/query?query={quote(expression)}")
        assert answer["status"] == "success", f"{expression}: {answer}"
        result: list[Any] = answer["data"]["result"]
        return result


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except (OSError, ValueError):  # not listening, or not ready, yet
            pass
        time.sleep(0.2)
    raise AssertionError(f"not within 90 s: {what}")


@pytest.fixture
def prometheus(tmp_path: Path, folder: Path) -> Iterator[Prometheus]:
    engine = FakeClient()
    with start_admin(engine, port=0, state_dir=tmp_path / "state") as admin:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = (folder / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:8081", f"127.0.0.1:{admin.port}")
        config = re.sub("interval: 15s", "interval: 1s", config)
        config = config.replace("_file: metrics.token", f"_file: {admin.metrics_token_file}")
        (folder / "prometheus.yml").write_text(config)
        command = [
            binary("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            running = Prometheus(port, admin, engine)
            wait_for(lambda: bool(running.query("up")), (tmp_path / "log").read_text())
            yield running
        finally:
            process.terminate()
            process.wait(timeout=60)


def test_a_real_prometheus_scrapes_every_metric(prometheus: Prometheus) -> None:
    def scrapes() -> float:
        found = prometheus.query("count_over_time(up{job='pykv'}[10m])")
        return float(found[0]["value"][1]) if found else 0.0

    for _ in range(3):
        seen = scrapes()
        prometheus.engine.advance(10)
        wait_for(lambda seen=seen: scrapes() > seen, "one more scrape")
    assert prometheus.query("min_over_time(up{job='pykv'}[10m])")[0]["value"][1] == "1"
    for spec in CATALOGUE:
        name = f"{spec.name}_count" if spec.kind == "histogram" else spec.name
        expected = spec.name != "pykv_admin_actions_total"  # nobody has done anything yet
        assert bool(prometheus.query(name)) == expected, name
    total = prometheus.query("sum(pykv_cells)")[0]["value"][1]
    assert int(total) == prometheus.engine.data["cache"]["cells_capacity"]
    reset = prometheus.query("sum(resets(pykv_prefix_hit_tokens_total[10m]))")
    assert reset[0]["value"][1] == "0"
    ratio = "sum(pykv_prefix_hit_tokens_total) / sum(pykv_prefix_query_tokens_total)"
    assert 0.8 < float(prometheus.query(ratio)[0]["value"][1]) < 0.9


def test_every_alert_can_be_evaluated(prometheus: Prometheus) -> None:
    def rules() -> list[Any]:
        groups = prometheus.get("/api/v1/rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    wait_for(lambda: bool(rules()) and all(r["health"] != "unknown" for r in rules()), "rules run")
    for rule in rules():
        assert rule["health"] == "ok", rule
        prometheus.query(rule["query"])
