"""Pools of windows, recurrent states and resume points of real engines: in the overview and in the
metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dashboard.conftest import Admin
from tests.dashboard.engines import admin_beside
from tests.dashboard.test_metrics import samples, scrape, value

STATES = ("computing", "active", "pinned", "resume", "idle", "free")
Served = Callable[[str], Admin]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return lambda name: admin_beside(tmp_path, name)


def test_resume_cells_of_a_window_are_a_state_of_their_own(served: Served) -> None:
    admin = served("gemma3")
    full, window = admin.get("/api/v1/overview")["pools"]
    assert full["window"] is None and full["cells_resume"] == 0 < full["cells_idle"]
    assert window["window"] == ["standard", 50] and window["cells_resume"] > 0
    found = samples(scrape(admin))
    for pool, name in ((full, "full"), (window, "standard_50")):
        cells = {s: value(found, "pykv_cells", pool=name, state=s) for s in STATES}
        assert cells == {s: pool[f"cells_{s}"] for s in STATES}
        assert sum(cells.values()) == pool["cells_capacity"]


@pytest.mark.parametrize("name", ["gemma3", "mamba2", "granitehybrid"])
def test_resume_points_and_states(served: Served, name: str) -> None:
    admin = served(name)
    document = admin.get("/api/v1/overview")
    points, states = document["resume_points"], document["states"]
    assert points["count"] > 0 and points["used"] > 0
    assert 0 < points["bytes"] <= points["bytes_budget"]
    assert (states["slots"] > 0) == (name != "gemma3")
    assert document["prefix"]["hit_tokens"] >= 199
    found = samples(scrape(admin))
    assert value(found, "pykv_resume_points") == points["count"]
    assert value(found, "pykv_resume_bytes", kind="used") == points["bytes"]
    for key in ("slots", "slots_used", "slots_resume"):
        assert value(found, f"pykv_state_{key}") == states[key]
