"""The overview document, its recent figures and its history."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykv.dashboard.history import INTERVAL, SPAN, History
from pykv.dashboard.overview import quantile
from tests.dashboard.conftest import Admin, ManualClock
from tests.dashboard.fake_client import FakeClient, tenant

URL = "/api/v1/overview"


def test_figures(admin: Admin) -> None:
    document = admin.get(URL)
    assert document["cells"]["capacity"] == 65_536
    assert list(document["cells"]["states"]) == [
        "computing", "active", "pinned", "resume", "idle", "free",
    ]  # fmt: skip
    assert sum(document["cells"]["states"].values()) == 65_536
    prefix = document["prefix"]
    assert prefix["query_tokens"] == prefix["hit_tokens"] + sum(prefix["miss_tokens"].values())
    assert prefix["hit_ratio"] == pytest.approx(0.8244, abs=1e-4)
    assert document["evicted_cells"] == {"watermark": 120_448, "demand": 3_072, "request": 0}
    assert [t["tenant"] for t in document["tenants"]] == ["acme", "globex", "default"]
    assert document["sessions_total"] == 7 == len(document["sessions"])
    assert document["queue_length"] == 1
    assert document["config"]["model"] == "smollm2-135m"
    assert document["time"] == "2027-01-15T08:00:00.000Z"


def test_recent_covers_the_last_minute(admin: Admin) -> None:
    history = admin.context.history
    for hit, miss in ((0, 10), (10, 0)):  # a bad minute, then a good one
        for _ in range(30):
            history.sample()
            admin.clock.wait(2)
            admin.engine.advance(1, hit=hit, miss=miss)
    recent = admin.get(URL)["prefix"]["recent"]
    assert recent == {"seconds": 60.0, "query_tokens": 300, "hit_tokens": 300, "hit_ratio": 1.0}


def test_recent_after_the_start_says_how_short_it_is(admin: Admin) -> None:
    assert admin.get(URL)["prefix"]["recent"]["hit_ratio"] is None
    admin.context.history.sample()
    admin.clock.wait(3)
    admin.engine.advance(2, hit=3, miss=1)
    recent = admin.get(URL)["prefix"]["recent"]
    assert (recent["seconds"], recent["hit_ratio"]) == (3.0, 0.75)


def test_an_idle_engine_has_no_ratio_instead_of_zero(admin: Admin) -> None:
    admin.engine.data["tenants"] = {"default": tenant(0, 0, 0)}
    for name in ("time_to_first_token", "inter_token"):
        admin.engine.data[name]["counts"] = [0] * 14
    document = admin.get(URL)
    assert document["prefix"]["hit_ratio"] is None
    assert document["tenants"][0]["hit_ratio"] is None
    assert document["latency"]["inter_token"]["mean_seconds"] is None
    assert document["latency"]["inter_token"]["p95_seconds"] is None


def test_recent_latency_forgets_old_observations(admin: Admin) -> None:
    admin.context.history.sample()
    admin.clock.wait(10)
    admin.engine.data["inter_token"]["counts"][0] += 100  # all within 1 ms
    latency = admin.get(URL)["latency"]["inter_token"]
    assert latency["p50_seconds"] > 0.01
    assert latency["recent"]["count"] == 100
    assert latency["recent"]["p95_seconds"] <= 0.001


def test_history_has_counters_and_a_bound() -> None:
    engine, clock = FakeClient(), ManualClock()
    history = History(engine, clock)
    for _ in range(int(SPAN / INTERVAL) + 50):
        history.sample()
        clock.wait(INTERVAL)
        engine.advance()
    table = history.table()
    assert len(table["rows"]) == SPAN / INTERVAL
    times, steps = table["fields"].index("time"), table["fields"].index("steps")
    assert table["rows"][-1][times] - table["rows"][0][times] == SPAN - INTERVAL
    counts = [row[steps] for row in table["rows"]]
    assert counts == list(range(counts[0], counts[0] + len(counts)))
    assert all(len(row) == len(table["fields"]) for row in table["rows"])


@pytest.mark.parametrize(
    "q,counts,expected",
    [
        (0.5, [0, 0, 0], None),
        (0.5, [10, 0, 0], 0.5),
        (0.5, [0, 10, 0], 1.5),
        (1.0, [5, 5, 0], 2.0),
        (0.95, [1, 0, 99], 2.0),  # above all bounds: the highest bound
        (0.25, [4, 4, 0], 0.5),
    ],
)
def test_quantile(q: float, counts: list[int], expected: float | None) -> None:
    assert quantile(q, [1.0, 2.0], counts) == expected


def test_page_says_whether_charts_were_built(
    admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Charts were not built"
    monkeypatch.setattr(admin.app, "static_folder", str(tmp_path))
    get = admin.browser().get
    assert text in get("/", headers=admin.basic).text
    (tmp_path / "vendor").mkdir()
    for name in ("uPlot.esm.js", "uPlot.min.css"):
        (tmp_path / "vendor" / name).write_text("")
    page = get("/", headers=admin.basic).text
    assert text not in page and "vendor/uPlot.min.css" in page
