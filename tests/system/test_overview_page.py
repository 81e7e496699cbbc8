"""What the overview page's script makes of the overview of real engines; needs node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.engines import admin_beside

ROOT = Path(__file__).resolve().parents[2]

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
    assert node is not None, "node is missing: install nodejs"
    script = ROOT / "dashboard" / "static" / "js" / "render.js"
    command = [node, "--input-type=module", "-e", PAGE, str(script), json.dumps(document)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    texts: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return texts


@pytest.mark.parametrize("name", ["gemma3", "granitehybrid"])
def test_the_page_shows_pools_and_resume_points(tmp_path: Path, name: str) -> None:
    document = admin_beside(tmp_path, name).get("/api/v1/overview")
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
