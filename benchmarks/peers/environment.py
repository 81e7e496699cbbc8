"""Virtual environments of the peers, one each, so that nothing of theirs reaches ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {"llama-cpp": "llama-cpp-python==0.3.36", "openvino": "openvino-genai==2026.4.1.0"}


def peer_python(peer: str) -> Path:
    """Python of the peer's environment under build/peers/, made on first use. llama.cpp is
    compiled for this machine, which takes minutes."""
    folder = ROOT / "build" / "peers" / peer
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        print(f"installing {PACKAGES[peer]} (may compile, takes minutes)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", PACKAGES[peer]], check=True)
        (folder / ".installed").touch()
    return python
