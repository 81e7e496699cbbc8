"""Pools of windows, recurrent states and resume points of real engines: in the overview, in the
metrics, and on the page."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pykv.dashboard.app import AppOptions, create_app
from pykv.dashboard.client import InProcessClient
from pykv.dashboard.secrets_store import SecretsStore
from pykv.runtime import Runtime, RuntimeOptions
from tests.dashboard.conftest import CHEAP, Admin, Browser, ManualClock
from tests.dashboard.test_metrics import samples, scrape, value
from tests.reference.peer_cases import write_case

STATES = ("computing", "active", "pinned", "resume", "idle", "free")
ROOT = Path(__file__).resolve().parents[2]
Served = Callable[[str], Admin]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """An admin service beside an engine that has answered a conversation of two turns."""

    def open_admin(name: str) -> Admin:
        path = write_case(tmp_path / f"{name}.gguf", name)
        runtime = Runtime.open(RuntimeOptions(str(path), ctx_size=1024, threads=1))
        for prompt in (list(range(3, 203)), [*range(3, 203), *range(5, 105)]):
            runtime.engine.submit(prompt, 4, temperature=0.0)
            while runtime.engine.step_once():
                runtime.engine.drain()
        clock, store = ManualClock(), SecretsStore.open(tmp_path / "state", cost=CHEAP)
        client: Any = InProcessClient(runtime)
        app = create_app(client, store, AppOptions(clock=clock))
        app.test_client_class = Browser
        return Admin(app, client, store, clock)

    return open_admin


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


PAGE = """
const texts = {};
const node = () => ({
  text: "", style: {}, children: [], setAttribute() {}, addEventListener() {},
  append(...parts) { this.children.push(...parts); },
  replaceChildren(...parts) { this.children = parts; },
  set textContent(value) { this.children = [value]; },
  get all() { return this.children.map((c) => (c.all ?? String(c))).join(" "); },
});
globalThis.document = {
  createElement: node, createTextNode: (text) => text,
  getElementById: (id) => (texts[id] ??= node()),
};
const { render } = await import(process.argv[1]);
render(JSON.parse(process.argv[2]), { rate: () => 0 });
console.log(JSON.stringify(Object.fromEntries(
  Object.entries(texts).map(([id, element]) => [id, element.all]))));
"""


def page(document: dict[str, Any]) -> dict[str, str]:
    """Texts of the overview page's elements for a document."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = ROOT / "dashboard" / "static" / "js" / "render.js"
    command = [node, "--input-type=module", "-e", PAGE, str(script), json.dumps(document)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    texts: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return texts


@pytest.mark.parametrize("name", ["gemma3", "granitehybrid"])
def test_the_page_shows_pools_and_resume_points(served: Served, name: str) -> None:
    document = served(name).get("/api/v1/overview")
    texts = page(document)
    memory, points = texts["cells-bytes"], document["resume_points"]
    if name == "gemma3":
        resume = document["pools"][1]["cells_resume"]
        assert "Window of 50: " in memory and f"{resume} of them by resume points only" in memory
    else:
        states = document["states"]
        assert f"{states['slots_used']} of {states['slots']} slots" in memory
    assert f"resume points {points['count']} " in " ".join(texts["evictions-table"].split())
    assert "memory of resume points" in texts["evictions-table"]
