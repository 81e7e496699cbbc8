"""The build fetches the chart library with npm, and goes on without it. Needs cmake and npm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "cmake" / "charts.cmake"


def fetch(work: Path, out: Path, npm: str) -> subprocess.CompletedProcess[str]:
    command = ["cmake", f"-DNPM={npm}", f"-DWORK={work}", f"-DOUT={out}", "-P", str(SCRIPT)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_fetches_the_pinned_library(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    assert npm is not None, "npm is missing: install nodejs"
    result = fetch(tmp_path / "work", tmp_path / "out", npm)
    assert result.returncode == 0, result.stderr
    files = {p.name: p.stat().st_size for p in (tmp_path / "out").iterdir()}
    assert set(files) == {"uPlot.esm.js", "uPlot.min.css", "LICENSE", "VERSION"}
    assert files["uPlot.esm.js"] > 50_000 and files["uPlot.min.css"] > 1_000


def test_goes_on_without_npm_or_network(tmp_path: Path) -> None:
    result = fetch(tmp_path / "work", tmp_path / "out", "/bin/false")
    assert result.returncode == 0
    assert "charts were not built" in result.stderr
    assert not (tmp_path / "out").exists()


def test_refuses_another_archive(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    (work / "uplot-1.6.32.tgz").write_bytes(b"something else")
    result = fetch(work, out, "/bin/false")
    assert result.returncode == 0 and "SHA-256" in result.stderr
    assert not out.exists()
    assert not (work / "uplot-1.6.32.tgz").exists()  # the next build fetches again
