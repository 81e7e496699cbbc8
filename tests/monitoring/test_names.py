"""Docs, alerts and the Prometheus configuration name what the server exposes, and the
docs name all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pykv.dashboard.metric_names import CATALOGUE
from pykv.dashboard.tuning import FIELDS

ROOT = Path(__file__).resolve().parents[2]
METRIC = re.compile(r"\bpykv_[a-z0-9_]+")
SPECS = {spec.name: spec for spec in CATALOGUE}
EXPOSED = set(SPECS) | {
    f"{spec.name}_{part}"
    for spec in CATALOGUE
    if spec.kind == "histogram"
    for part in ("bucket", "count", "sum")
}


def text(path: str) -> str:
    return (ROOT / path).read_text()


def table_rows(document: str) -> list[list[str]]:
    lines = [line for line in document.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_docs_list_every_metric_once_and_no_other() -> None:
    rows = table_rows(text("docs/metrics.md"))
    assert sorted(row[0].strip("` ") for row in rows) == sorted(SPECS)


def test_the_docs_know_type_and_labels() -> None:
    for name, kind, labels, _ in table_rows(text("docs/metrics.md")):
        spec = SPECS[name.strip("` ")]
        assert kind == ("gauge, always 1" if spec.kind == "info" else spec.kind)
        assert tuple(re.findall(r"`(\w+)`", labels)) == spec.labels, name


@pytest.mark.parametrize("name", ["alerts.yml", "alerts_test.yml", "prometheus.yml"])
def test_monitoring_names_only_exposed_metrics(name: str) -> None:
    assert set(METRIC.findall(text(f"monitoring/{name}"))) <= EXPOSED


def test_documents_name_only_exposed_metrics() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        assert set(METRIC.findall(path.read_text())) <= EXPOSED, path


def test_alerts_match_on_labels_that_exist() -> None:
    scrape_labels = {"job", "instance"}
    for name, matchers in re.findall(
        r"(pykv_[a-z0-9_]+)\{([^}]*)\}", text("monitoring/alerts.yml")
    ):
        for label in re.findall(r"(\w+)\s*=", matchers):
            assert label in (*SPECS[name].labels, *scrape_labels), f"{name}{{{matchers}}}"


def alerts() -> dict[str, str]:
    parts = re.split(r"^ +- alert: ", text("monitoring/alerts.yml"), flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0].strip(): part for part in parts}


def test_there_are_alerts() -> None:
    assert len(alerts()) >= 5


@pytest.mark.parametrize("name", sorted(alerts()))
def test_every_alert_is_complete_and_tested(name: str) -> None:
    rule = alerts()[name]
    assert re.search(r"severity: (warning|critical)\n", rule)
    for field in ("expr", "for", "summary", "description"):
        assert re.search(rf"^\s+{field}: \S", rule, re.MULTILINE), field
    assert f"runbook: docs/admin.md#{name.lower()}\n" in rule
    assert f"\n### {name}\n" in text("docs/admin.md")
    cases = text("monitoring/alerts_test.yml")
    quiet = re.findall(rf"eval_time: \w+, alertname: {name}\}}", cases)
    firing = re.findall(rf"alertname: {name}\n\s+exp_alerts:\n\s+- exp_labels", cases)
    assert len(quiet) >= 2 and len(firing) >= 1, "quiet, firing and resolved"


def test_every_runbook_belongs_to_an_alert() -> None:
    section = text("docs/admin.md").split("\n## Alerts\n")[1]
    assert set(re.findall(r"^### (\w+)$", section, re.MULTILINE)) == set(alerts())


def test_the_docs_list_every_live_setting_with_its_default() -> None:
    section = text("docs/admin.md").split("\n### Live settings\n")[1].split("\nA change")[0]
    rows = {row[0].strip("` "): row for row in table_rows(section)}
    assert set(rows) == {field.name for field in FIELDS}
    for field in FIELDS:
        assert float(rows[field.name][2]) == field.default
