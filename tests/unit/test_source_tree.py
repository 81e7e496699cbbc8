"""A source tree that was not built says so."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_tree_without_the_compiled_part_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "pykv",
        tmp_path / "pykv",
        ignore=shutil.ignore_patterns("*.so", "__pycache__", "dashboard"),
    )
    for arguments in (["-c", "import pykv"], ["-m", "pykv", "doctor"]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert f"not in {tmp_path / 'pykv'}: in a source tree, run `make build`" in last
