"""Virtual environments of the peers, one each, so that nothing of theirs reaches ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {"llama-cpp": "llama-cpp-python==0.3.36"}


def peer_python(peer: str) -> Path:
    """Python of the peer's environment under build/peers/, made on first use (llama.cpp is
    compiled for this machine, which takes minutes). PYKV_PEER_PYTHON names another one."""
    if given := os.environ.get("PYKV_PEER_PYTHON"):
        return Path(given)
    folder = ROOT / "build" / "peers" / peer
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        print(f"installing {PACKAGES[peer]} (compiles, takes minutes)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", PACKAGES[peer]], check=True)
        (folder / ".installed").touch()
    return python
